"""Restores as Dagster assets: topics in one step, group offsets in the next, a check between."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

import dagster as dg

from kstreams_assets.app.model import AppTopic, TopicRole
from kstreams_assets.completeness.checks import ON_RESTORES, rule_checks
from kstreams_assets.errors import GroupOffsetsDifferError
from kstreams_assets.failure import told_as_failure
from kstreams_assets.ktables.from_settings import table_stores
from kstreams_assets.naming import (
    COMPLETENESS,
    GROUP_OFFSETS,
    CollidingNamesError,
    backup_key,
    folded,
    group,
    group_offsets_key,
    ktable_key,
    recovery_points_key,
    restore_key,
    restore_pool,
)
from kstreams_assets.restore import metadata, report
from kstreams_assets.restore.checks import (
    GROUP_OFFSETS_CHECKS,
    OFFSETS_MATCH,
    RESTORE_CHECKS,
    offsets_differ,
    verdict,
)
from kstreams_assets.restore.completeness_asset import build_restore_completeness_asset
from kstreams_assets.restore.config import RestoreConfig
from kstreams_assets.restore.from_settings import (
    commit_group_offsets,
    plan_restore,
    run_restore,
)
from kstreams_assets.restore.of_run import restore_of_run
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.run import RestoreResult
from kstreams_assets.restore.targets import open_stored_target, open_target
from kstreams_assets.settings import ApplicationSettings
from spark_resources.session import SparkSessionResource

_Event = dg.MaterializeResult | dg.AssetCheckResult | dg.AssetCheckEvaluation | dg.AssetObservation


def build_restore_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The restored topics of an application, and its group offsets; a dry run by default.

    Between them stand the completeness rules that hold on restores, if there are any.

    Needs the resource `spark` (`SparkSessionResource`).

    Raises:
        CollidingNamesError: A topic has the name that the group offsets or the completeness rules
            have here.
        ConfigurationError: Dagster would take two of the rules for one.
    """
    topics = [restore_key(settings.application_id, t.name) for t in restorable_topics(settings)]
    restored = _topics_asset(settings)  # refuses colliding names
    completeness = build_restore_completeness_asset(settings, topics)
    return [
        restored,
        *completeness,
        _group_offsets_asset(settings, [*topics, *(asset.key for asset in completeness)]),
    ]


def restorable_topics(settings: ApplicationSettings) -> tuple[AppTopic, ...]:
    """Topics that a restore can write: those backed up, and those whose records points save."""
    backed_up = {topic.name for topic in settings.topics}
    return tuple(
        topic
        for topic in settings.application.topics
        if topic.name in backed_up or TopicRole.REPARTITION in topic.roles
    )


def _topics_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    by_key = {restore_key(settings.application_id, t.name): t for t in restorable_topics(settings)}
    for topic in by_key.values():
        for taken in taken_names(settings):
            if folded(topic.name) == taken:
                raise CollidingNamesError(first=topic.name, second=taken)

    @dg.multi_asset(
        name=f"restore_{folded(settings.application_id)}",
        specs=[_topic_spec(key, topic, settings) for key, topic in by_key.items()],
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text, blocking=True)
            for key in by_key
            for name, text in RESTORE_CHECKS.items()
        ],
        can_subset=True,  # also lets a dry run yield nothing, so that group offsets are skipped
        pool=restore_pool(settings.application_id),
    )
    def restore(
        context: dg.AssetExecutionContext, config: RestoreConfig, spark: SparkSessionResource
    ) -> Iterator[_Event]:
        selected = {by_key[key].name for key in context.selected_asset_keys}
        left_out = {topic.name for topic in by_key.values()} - selected
        with told_as_failure():
            request = _request(settings, config, left_out)
            with open_target(settings, config.target, request) as target:
                plan = plan_restore(settings, request, target)
                text = report.markdown(plan)
                context.log.info(text)
                yield from _observations(settings, plan, selected, text)
                plan.require_allowed()  # also in a dry run
                if config.dry_run:
                    return
                result = run_restore(
                    settings,
                    plan,
                    target,
                    spark=spark,
                    run_id=context.run.run_id,
                    log=context.log.info,
                )
            yield from _events(settings, plan, result, selected)

    return restore


def _request(
    settings: ApplicationSettings, config: RestoreConfig, left_out: Set[str]
) -> RestoreRequest:
    """What is asked for, without the topics that were not selected."""
    request = config.request(settings)
    exclude = tuple(dict.fromkeys([*request.exclude, *sorted(left_out)]))
    return replace(request, exclude=exclude)


def _observations(
    settings: ApplicationSettings, plan: RestorePlan, selected: set[str], text: str
) -> Iterator[dg.AssetObservation]:
    """The plan on every topic; no materialisation, since nothing is restored yet."""
    for topic in sorted(selected):
        yield dg.AssetObservation(
            asset_key=restore_key(settings.application_id, topic),
            metadata={"plan": dg.MetadataValue.md(text), **metadata.planned(plan, topic)},
        )


def _events(
    settings: ApplicationSettings,
    plan: RestorePlan,
    result: RestoreResult,
    selected: set[str],
) -> Iterator[_Event]:
    """One materialisation and one verdict for each selected topic.

    A topic that the restore leaves out gets them too, saying so: without them Dagster would skip
    the group offsets.
    """
    planned = {topic.source: topic for topic in plan.topics}
    shown = {topic.target for topic in plan.topics if topic.source in selected}
    # What has no asset of its own here must not pass unseen: it is told, and blocks, everywhere.
    elsewhere = [found for found in result.problems if found.target.topic not in shown]
    for name in sorted(selected):
        key = restore_key(settings.application_id, name)
        topic = planned.get(name)
        values = (
            metadata.left_out(plan, result)
            if topic is None
            else metadata.restored(plan, topic, result)
        )
        yield dg.MaterializeResult(asset_key=key, metadata=values)
        yield verdict(key, topic, result, elsewhere)


def taken_names(settings: ApplicationSettings) -> tuple[str, ...]:
    """What stands among the topics of a restore and is none."""
    has_rules = bool(rule_checks(settings, ON_RESTORES))
    return (GROUP_OFFSETS, COMPLETENESS) if has_rules else (GROUP_OFFSETS,)


def _group_offsets_asset(
    settings: ApplicationSettings, upstream: Sequence[dg.AssetKey]
) -> dg.AssetsDefinition:
    application_id = settings.application_id
    key = group_offsets_key(application_id)

    @dg.asset(
        key=key,
        deps=upstream,
        description=(
            f"Committed offsets of group `{application_id}` (or the name it was restored under) on"
            " the target cluster, mapped to the restored records. Committed only after every topic"
            " of the same run was verified and no blocking completeness rule is violated there;"
            " then the application can be started."
        ),
        group_name=group(application_id, "restore"),
        kinds={"kafka"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text)
            for name, text in GROUP_OFFSETS_CHECKS.items()
        ],
        pool=restore_pool(application_id),
    )
    def group_offsets(context: dg.AssetExecutionContext) -> Iterator[_Event]:
        with told_as_failure():
            restore = restore_of_run(context, settings)
            with open_stored_target(settings, restore) as target:
                try:
                    done = commit_group_offsets(settings, restore, target)
                except GroupOffsetsDifferError as error:
                    yield offsets_differ(key, error)
                    raise
        yield dg.MaterializeResult(asset_key=key, metadata=metadata.committed(settings, done))
        yield dg.AssetCheckResult(
            asset_key=key,
            check_name=OFFSETS_MATCH,
            passed=True,
            description=f"{len(done.committed or ())} committed offsets are as mapped.",
        )

    return group_offsets


def _topic_spec(key: dg.AssetKey, topic: AppTopic, settings: ApplicationSettings) -> dg.AssetSpec:
    application_id = settings.application_id
    backed_up = topic in settings.topics
    sources = [backup_key(application_id, topic.name)] if backed_up else []
    # A changelog may be written from the snapshots of its stores.
    sources += [
        ktable_key(application_id, store.store)
        for store in table_stores(settings)
        if store.topic == topic.name and store.is_changelog_only
    ]
    checks = "\n".join(f"- `{name}`: {text}" for name, text in RESTORE_CHECKS.items())
    return dg.AssetSpec(
        key=key,
        deps=[*sources, recovery_points_key(application_id)],
        description=(
            f"Topic `{topic.name}` ({', '.join(sorted(topic.roles))}) on the target cluster, as of"
            " a recovery point, byte for byte.\n\nMaterialised as it is, it only shows the plan."
            " Open the launchpad to choose `as_of`, `target` and `dry_run: false`; select all"
            f" assets of this group together, `{GROUP_OFFSETS}` too.\n\n**Checks**\n\n{checks}"
        ),
        group_name=group(application_id, "restore"),
        kinds={"kafka"},
        owners=list(settings.owners),
        tags={
            **settings.tags,
            "kstreams/app": application_id,
            **{f"kstreams/role-{role}": "" for role in sorted(topic.roles)},
        },
        metadata={"topic": topic.name},
    )
