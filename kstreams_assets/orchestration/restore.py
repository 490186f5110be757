"""The asset of a restore: its run, its checks, the rules after it, and what Dagster shows of it."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields
from typing import Any, Final, Literal

import dagster as dg
from pydantic import Field, create_model

from kstreams_assets.app.model import AppTopic
from kstreams_assets.completeness.on_restores import SKIPPED, evaluate_restore, require_complete
from kstreams_assets.completeness.result import ON_RESTORES, RuleCheck, rule_checks
from kstreams_assets.errors import GroupOffsetsDifferError
from kstreams_assets.ktables.run import table_stores
from kstreams_assets.orchestration.completeness import evaluation_metadata, rule_check_result
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import (
    GROUP_OFFSETS,
    RESTORED_COMPLETENESS,
    CollidingNamesError,
    backup_key,
    folded,
    group,
    group_offsets_key,
    ktable_key,
    recovery_points_key,
    restore_completeness_key,
    restore_key,
    restore_pool,
)
from kstreams_assets.restore import report
from kstreams_assets.restore.after import age_s, listed, outcome, steps_after
from kstreams_assets.restore.command_sources import (
    configured_commands,
    refuse_commands_of_run,
    with_configured_commands,
)
from kstreams_assets.restore.commands import require_programs, run_after, run_before
from kstreams_assets.restore.group_offsets import commit_group_offsets
from kstreams_assets.restore.plan import RestorePlan, TopicPlan
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.request import RestoreRequest, choices_of, fields_of_request
from kstreams_assets.restore.run import RestoreResult, run_restore
from kstreams_assets.restore.target import local_name_of, open_stored_target, open_target
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.restores import OriginalHeaders, RestoresTable, StoredRestore
from spark_resources.partition_records import Difference
from spark_resources.resource import SparkSessionResource


def restore_of_run(
    context: dg.AssetExecutionContext, settings: ApplicationSettings
) -> StoredRestore:
    """The restore that this run, or the run that it retries, has made."""
    table = RestoresTable(settings.warehouse)
    run: dg.DagsterRun | None = context.run
    while run is not None:
        restores = table.of_run(settings.application_id, run.run_id)
        if restores:
            return restores[0]
        parent = run.parent_run_id
        run = context.instance.get_run_by_id(parent) if parent else None
    raise dg.Failure(
        description=f"No restore of {settings.application_id} belongs to this run. Materialise all"
        " assets of its restore together, with the same configuration as before: what is restored"
        " already is found and not written again.",
        allow_retries=False,
    )


_OF_YAML: Final = (
    "Refused here: Dagster takes commands and their timeout from restore in the YAML of the"
    " application (before_command, after_command, command_timeout_seconds)."
)


def _config_of_request() -> type[dg.Config]:
    """The fields of a request as a run's config spells them: choices by their values."""
    found: dict[str, Any] = {}
    for name, field, spelling in fields_of_request():
        kind, default = field.annotation, field.default
        if choices := choices_of(field, spelling):
            kind = Literal[tuple(filter(None, (spelling.unset, *choices)))]  # pyright: ignore[reportInvalidTypeForm]
            default = spelling.unset or default.value
        elif kind is OriginalHeaders:
            headers: Any = {header.name: (bool, False) for header in fields(OriginalHeaders)}
            kind = create_model("HeadersConfig", __base__=dg.Config, **headers)
            default = kind()
        elif kind == Mapping[str, str]:
            kind, default = dict[str, str], {}
        elif kind == tuple[str, ...]:
            kind, default = list[str], []
        elif spelling.name:
            kind = str | None
        description = _OF_YAML if spelling.of_operator else field.description
        found[spelling.name or name] = (kind, Field(default=default, description=description))
    return create_model("RequestConfig", __base__=dg.Config, **found)


class RestoreConfig(_config_of_request()):
    """One restore; as it stands it is a dry run of the newest recovery point that is enough."""

    dry_run: bool = Field(
        default=True,
        description="Only plan: shows what would be restored and all that stands against it;"
        " writes nothing.",
    )

    def request(self, settings: ApplicationSettings) -> RestoreRequest:
        """The request; raises ConfigurationError where settings contradict each other."""
        values = self.model_dump()
        asked = {
            name: None if value == spelling.unset and spelling.unset else value
            for name, _, spelling in fields_of_request()
            for value in [values[spelling.name or name]]
        }
        refuse_commands_of_run(asked)
        for name, _, spelling in fields_of_request():
            if spelling.of_operator:
                asked[name] = None
        return RestoreRequest.asked(
            with_configured_commands(asked, settings), verify=settings.restore.verify
        )


_Values = dict[str, dg.MetadataValue]

_PLANNED: Final = dg.TableSchema(
    [
        dg.TableColumn("partition", "int"),
        dg.TableColumn("start", "int", "First source offset, -1 when nothing is restored"),
        dg.TableColumn("end", "int", "Exclusive end in source offsets"),
        dg.TableColumn("records", "int"),
        dg.TableColumn("bytes", "int", "Uncompressed keys, values and headers, about"),
        dg.TableColumn("saved_records", "int", "Of them, saved with recovery points"),
        dg.TableColumn("committed", "string", "Source offset the group had committed"),
    ]
)

_RESTORED: Final = dg.TableSchema(
    [
        *_PLANNED.columns,
        dg.TableColumn("resumed", "int", "Records that an earlier attempt had written"),
        dg.TableColumn("target_start", "int", "Target offset of the first restored record"),
        dg.TableColumn("target_end", "int", "Exclusive end on the target"),
        dg.TableColumn("map_runs", "int", "Runs of the offset map"),
        dg.TableColumn("compared", "int", "Records read back and compared"),
    ]
)

_OFFSETS: Final = dg.TableSchema(
    [
        dg.TableColumn("topic", "string", "Topic on the target"),
        dg.TableColumn("partition", "int"),
        dg.TableColumn("offset", "int", "Committed offset on the target"),
        dg.TableColumn("former", "string", "What was committed there before the restore"),
    ]
)


def planned(plan: RestorePlan, topic: str) -> _Values:
    """Of a source topic, what would be restored; empty when it is left out."""
    for found in plan.topics:
        if found.source == topic:
            rows = [dg.TableRecord(row) for row in _planned_rows(found)]
            return {
                **_numbers(found),
                "partitions": dg.MetadataValue.table(rows, schema=_PLANNED),
            }
    return {}


def restored(plan: RestorePlan, topic: TopicPlan, result: RestoreResult) -> _Values:
    """Of a topic, what was restored and where it is."""
    produced = {p.target: p for p in result.produced}
    compared = {p.target: p.compared for p in result.verified}
    rows: list[dg.TableRecord] = []
    for row, partition in zip(_planned_rows(topic), topic.partitions, strict=True):
        done = produced.get(partition.target)
        there = {"compared": compared.get(partition.target, 0)}
        if done is not None:
            there |= {
                "resumed": done.resumed,
                "target_start": done.end - done.records,
                "target_end": done.end,
                "map_runs": len(done.runs),
            }
        rows.append(dg.TableRecord({**row, **there}))
    return {
        **_numbers(topic),
        **_of_restore(plan, result),
        "partitions": dg.MetadataValue.table(rows, schema=_RESTORED),
    }


def left_out(plan: RestorePlan, result: RestoreResult) -> _Values:
    """Of a topic that the restore leaves alone."""
    why = f"Not part of this restore (mode {plan.request.mode.value}); nothing was written."
    return {
        "records": dg.MetadataValue.int(0),
        "note": dg.MetadataValue.text(why),
        **_of_restore(plan, result),
    }


def committed(settings: ApplicationSettings, restore: StoredRestore) -> _Values:
    """Of the group offsets, what was committed and what to do now."""
    former = {(o.topic, o.partition): o.offset for o in restore.former_offsets or ()}
    offsets = restore.committed or ()
    rows = [
        dg.TableRecord(
            {
                "topic": o.topic,
                "partition": o.partition,
                "offset": o.offset,
                "former": str(former.get((o.topic, o.partition), "")),
            }
        )
        for o in offsets
    ]
    return {
        "next": dg.MetadataValue.md(
            steps_after(settings, restore, local=local_name_of(settings, restore))
        ),
        "restore": dg.MetadataValue.text(restore.restore_id),
        "group": dg.MetadataValue.text(restore.group),
        "target": dg.MetadataValue.text(restore.target_bootstrap_servers),
        "committed_partitions": dg.MetadataValue.int(len(offsets)),
        "offsets": dg.MetadataValue.table(rows, schema=_OFFSETS),
    }


def _of_restore(plan: RestorePlan, result: RestoreResult) -> _Values:
    values: _Values = {
        "restore": dg.MetadataValue.text(plan.restore_id),
        "target": dg.MetadataValue.text(plan.target_bootstrap_servers),
        "report": dg.MetadataValue.md(outcome(plan, result)),
    }
    age = age_s(plan)
    if plan.point is not None and age is not None:
        values["recovery_point"] = dg.MetadataValue.text(
            f"{plan.point.id}, {iso_time(plan.point.taken_at_ms)}"
        )
        values["recovery_point_age_s"] = dg.MetadataValue.float(age)
        values["gives"] = dg.MetadataValue.text(plan.gives.value)
    for phase, seconds in result.took_s.items():
        values[f"{phase}_s"] = dg.MetadataValue.float(round(seconds, 3))
    return values


def _numbers(topic: TopicPlan) -> _Values:
    values: _Values = {
        "records": dg.MetadataValue.int(topic.records),
        "bytes": dg.MetadataValue.int(topic.bytes),
        "target_topic": dg.MetadataValue.text(topic.target),
    }
    if topic.snapshot is not None:
        values["changelog_source"] = dg.MetadataValue.text(
            f"KTable snapshot of store {topic.snapshot.store}, window {topic.snapshot.window}"
        )
        values["raw_log_records"] = dg.MetadataValue.int(topic.snapshot.raw_records)
        values["raw_log_bytes"] = dg.MetadataValue.int(topic.snapshot.raw_bytes)
    return values


def _planned_rows(topic: TopicPlan) -> list[dict[str, int | str]]:
    return [
        {
            "partition": p.source.partition,
            "start": p.ranges[0].start if p.ranges else -1,
            "end": p.ranges[-1].end if p.ranges else -1,
            "records": p.records,
            "bytes": p.bytes,
            "saved_records": p.saved_records,
            "committed": "" if p.committed is None else str(p.committed.offset),
        }
        for p in topic.partitions
    ]


MATCHES_BACKUP: Final = "restored_matches_backup"
OFFSETS_MATCH: Final = "offsets_match"

RESTORE_CHECKS: Final[Mapping[str, str]] = {
    MATCHES_BACKUP: "What was read back from the target is what the backup holds: the same keys,"
    " values, headers and timestamps in the same order, nothing more, and the last stable offset is"
    " the high watermark. Red: the message names topic, partition and offset; no group offsets are"
    " committed. Delete the topics of the restore on the target and restore again; see who else"
    " writes there.",
}
GROUP_OFFSETS_CHECKS: Final[Mapping[str, str]] = {
    OFFSETS_MATCH: "The group's committed offsets, read back from the target, are the mapped ones"
    " of the recovery point with metadata unchanged, and lie inside the log. Red: do not start the"
    " application; restore again.",
}


def verdict(
    key: dg.AssetKey,
    topic: TopicPlan | None,
    result: RestoreResult,
    elsewhere: Sequence[Difference],
) -> dg.AssetCheckResult:
    """The check of one topic, None for one that the restore leaves out.

    `elsewhere` are differences of topics that have no asset in the run.
    """
    name = None if topic is None else topic.target
    found = [d for d in result.problems if d.target.topic == name]
    found += elsewhere
    compared = sum(p.compared for p in result.verified if p.target.topic == name)
    # A failed restore of which no difference is known must not pass either.
    passed = not found and (result.passed or bool(result.problems))
    if found:
        text = listed(found)
    elif not passed:
        text = result.restore.problem
    else:
        text = "Not part of this restore." if topic is None else f"{compared:,} records compared."
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=MATCHES_BACKUP,
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=text,
        metadata={"compared_records": compared, "differences": len(found)},
    )


def offsets_differ(key: dg.AssetKey, error: GroupOffsetsDifferError) -> dg.AssetCheckEvaluation:
    """The red check of group offsets that are not as committed."""
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=OFFSETS_MATCH,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=str(error),
        metadata={},
    )


_RuleEvent = dg.MaterializeResult | dg.AssetCheckResult


def build_restore_completeness_asset(
    settings: ApplicationSettings, topics: Sequence[dg.AssetKey]
) -> list[dg.AssetsDefinition]:
    """The rules that hold on restores, below the restored `topics`; none without such rules.

    Needs the resource `spark` (`SparkSessionResource`).

    Raises:
        ConfigurationError: Dagster would take two of the rules for one.
    """
    checks = rule_checks(settings, ON_RESTORES)
    if not checks:
        return []
    application_id = settings.application_id
    key = restore_completeness_key(application_id)

    @dg.asset(
        key=key,
        deps=list(topics),
        description=_description(application_id, checks),
        group_name=group(application_id, "restore"),
        kinds={"sql", "report"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        check_specs=[
            dg.AssetCheckSpec(c.name, asset=key, description=c.claim, blocking=c.blocking)
            for c in checks
        ],
        pool=restore_pool(application_id),
    )
    def completeness(
        context: dg.AssetExecutionContext, spark: SparkSessionResource
    ) -> Iterator[_RuleEvent]:
        with told_as_failure():
            restore = restore_of_run(context, settings)
            if restore.skips_completeness:
                yield from _skipped(key, checks, restore)
                return
            with open_stored_target(settings, restore) as target:
                results = evaluate_restore(
                    settings, restore, target, spark=spark, log=context.log.info
                )
        yield dg.MaterializeResult(
            asset_key=key, metadata={**_of(restore), **evaluation_metadata(results)}
        )
        by_rule = {result.rule: result for result in results}
        for check in checks:
            yield rule_check_result(key, check.name, by_rule[check.rule])

    return [completeness]


def _skipped(
    key: dg.AssetKey, checks: Sequence[RuleCheck], restore: StoredRestore
) -> Iterator[_RuleEvent]:
    """Never passed: nothing was looked at."""
    note = dg.MetadataValue.text(SKIPPED)
    yield dg.MaterializeResult(asset_key=key, metadata={**_of(restore), "note": note})
    for check in checks:
        yield dg.AssetCheckResult(
            asset_key=key,
            check_name=check.name,
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            description=SKIPPED,
        )


def _of(restore: StoredRestore) -> dict[str, dg.MetadataValue]:
    return {
        "restore": dg.MetadataValue.text(restore.restore_id),
        "target": dg.MetadataValue.text(restore.target_bootstrap_servers),
    }


def _description(application_id: str, checks: Sequence[RuleCheck]) -> str:
    listed = "\n".join(
        f"- `{check.name}`{'' if check.blocking else ' (does not block)'}: {check.claim}"
        for check in checks
    )
    return (
        f"What `{application_id}` must keep true, evaluated on the restored cluster once every"
        " topic was verified and before the group offsets are committed. A blocking rule that is"
        " violated, or that could not be evaluated, keeps them away; `skip_completeness: true` of"
        " the restore goes on all the same.\n\n"
        f"**Checks**\n\n{listed}"
    )


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
        if topic.name in backed_up or topic.roles.is_repartition
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
            with open_target(settings, request) as target:
                plan = plan_restore(settings, request, target)
                text = report.markdown(plan)
                context.log.info(text)
                yield from _observations(settings, plan, selected, text)
                plan.require_allowed()  # also in a dry run
                if config.dry_run:
                    return
                require_programs(request)
                plan = run_before(settings, plan, target, report=context.log.info)
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
    return request.model_copy(update={"exclude": exclude})


def _observations(
    settings: ApplicationSettings, plan: RestorePlan, selected: set[str], text: str
) -> Iterator[dg.AssetObservation]:
    """The plan on every topic; no materialisation, since nothing is restored yet."""
    for topic in sorted(selected):
        yield dg.AssetObservation(
            asset_key=restore_key(settings.application_id, topic),
            metadata={"plan": dg.MetadataValue.md(text), **planned(plan, topic)},
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
        values = left_out(plan, result) if topic is None else restored(plan, topic, result)
        yield dg.MaterializeResult(asset_key=key, metadata=values)
        yield verdict(key, topic, result, elsewhere)


def taken_names(settings: ApplicationSettings) -> tuple[str, ...]:
    """What stands among the topics of a restore and is none."""
    has_rules = bool(rule_checks(settings, ON_RESTORES))
    return (GROUP_OFFSETS, RESTORED_COMPLETENESS) if has_rules else (GROUP_OFFSETS,)


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
        kinds={"kafka", "restore"},
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
                    done = commit_group_offsets(settings, restore, target, gate=require_complete)
                except GroupOffsetsDifferError as error:
                    yield offsets_differ(key, error)
                    raise
        yield dg.MaterializeResult(asset_key=key, metadata=committed(settings, done))
        yield dg.AssetCheckResult(
            asset_key=key,
            check_name=OFFSETS_MATCH,
            passed=True,
            description=f"{len(done.committed or ())} committed offsets are as mapped.",
        )
        with told_as_failure():
            commands = configured_commands(
                settings, target=done.target_bootstrap_servers, group=done.group
            )
            run_after(done, commands, report=context.log.info)

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
        kinds={"kafka", "restore"},
        owners=list(settings.owners),
        tags={
            **settings.tags,
            "kstreams/app": application_id,
            **{f"kstreams/role-{role}": "" for role in sorted(topic.roles)},
        },
        metadata={"topic": topic.name},
    )
