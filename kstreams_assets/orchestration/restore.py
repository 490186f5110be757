"""The asset of a restore: its run, its checks, the rules after it, and what Dagster shows of it."""

from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import dagster as dg

from kstreams_assets.app.model import AppTopic
from kstreams_assets.completeness.on_restores import SKIPPED, evaluate_restore, require_complete
from kstreams_assets.completeness.result import ON_RESTORES, RuleCheck, rule_checks
from kstreams_assets.errors import ConfigurationError, GroupOffsetsDifferError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.ktables.stores import table_stores
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.restores import PartitionProduced, StoredRestore
from kstreams_assets.orchestration.check_events import window_check_specs
from kstreams_assets.orchestration.completeness import evaluation_metadata, rule_check_result
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import (
    BACKFILL_TAG,
    GROUP_OFFSETS,
    PARTITION_TAG,
    RANGE_START_TAG,
    RESTORED_COMPLETENESS,
    UP_TO_THE_OPEN_WINDOW,
    backup_key,
    collision,
    group,
    group_offsets_key,
    ktable_key,
    recovery_points_key,
    restorable_windows,
    restore_completeness_key,
    restore_job,
    restore_key,
    restore_op,
    restore_pool,
    sanitize_name,
)
from kstreams_assets.orchestration.metadata import Values, metadata, table
from kstreams_assets.orchestration.restore_config import (
    RestoreConfig,
    require_declared,
    require_one_window,
    restore_config,
)
from kstreams_assets.public_form import Form, Value
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore import report
from kstreams_assets.restore.after import listed, steps_after
from kstreams_assets.restore.command_sources import (
    configured_commands,
)
from kstreams_assets.restore.commands import require_programs, run_after
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.group_offsets import commit_group_offsets
from kstreams_assets.restore.job import RestoreJob
from kstreams_assets.restore.plan import PartitionPlan, RestorePlan, TopicPlan
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.result import Phase, Progress, RestoredRecords, RestoreResult
from kstreams_assets.restore.target import local_name_of, open_stored_target, open_target
from kstreams_assets.secret import mask_secrets
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import few
from spark_resources.partition_records import Difference
from spark_resources.resource import SparkSessionResource


def restore_of_run(
    context: dg.AssetExecutionContext, settings: ApplicationSettings
) -> StoredRestore | None:
    """The restore that this run, or the run that it retries, has made."""
    table = Repository.open(settings).restores
    run: dg.DagsterRun | None = context.run
    while run is not None:
        restores = table.of_run(run.run_id)
        if restores:
            return restores[0]
        parent = run.parent_run_id
        run = context.instance.get_run_by_id(parent) if parent else None
    return None


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """A partition that was restored, and where it is."""

    plan: PartitionPlan
    compared: int
    resumed: int | None = None
    target_start: int | None = None
    target_end: int | None = None
    map_runs: int | None = None

    @classmethod
    def of(
        cls, plan: PartitionPlan, produced: PartitionProduced | None, compared: int
    ) -> "RestoredPartition":
        """With what was produced, if anything was."""
        if produced is None:
            return cls(plan, compared)
        start, end = produced.end - produced.records, produced.end
        return cls(plan, compared, produced.resumed, start, end, len(produced.runs))


_PARTITION: Final = Form(
    RestoredPartition,
    *report.PARTITION.part("plan"),
    Value("resumed", text="Records that an earlier attempt had written"),
    Value("target_start", text="Target offset of the first restored record"),
    Value("target_end", text="Exclusive end on the target"),
    Value("map_runs", text="Runs of the offset map"),
    Value("compared", text="Records read back and compared"),
)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset that was committed; `former` is what was there before the restore."""

    committed: GroupOffset
    former: str


_OFFSET: Final = Form(
    CommittedOffset,
    Value("topic", of="committed.topic", text="Topic on the target"),
    "partition=committed.partition",
    Value("offset", of="committed.offset", text="Committed offset on the target"),
    Value("former", text="What was committed there before the restore"),
)


def planned(plan: RestorePlan, topic: str) -> Values:
    """Of a source topic, what would be restored; empty when it is left out."""
    found = next((one for one in plan.topics if one.source == topic), None)
    return {} if found is None else metadata(report.TOPIC, found)


def restored(done: RestoreResult, topic: TopicPlan) -> Values:
    """Of a topic, what was restored and where it is."""
    records = done.records
    produced = {p.target: p for p in records.produced} if records else {}
    compared = {p.target: p.compared for p in records.verified} if records else {}
    partitions = [
        RestoredPartition.of(p, produced.get(p.target), compared.get(p.target, 0))
        for p in topic.partitions
    ]
    return {
        **metadata(report.TOPIC, topic),
        **_of_restore(done),
        "partitions": table(_PARTITION, partitions),
    }


def left_out(done: RestoreResult) -> Values:
    """Of a topic that the restore leaves alone."""
    why = f"Not part of this restore (mode {done.plan.request.mode.value}); nothing was written."
    return {
        "records": dg.MetadataValue.int(0),
        "note": dg.MetadataValue.text(why),
        **_of_restore(done),
    }


def committed(settings: ApplicationSettings, restore: StoredRestore) -> Values:
    """Of the group offsets, what was committed and what to do now."""
    former = {o.id: str(o.offset) for o in restore.former_offsets or ()}
    offsets = restore.committed or ()
    next_steps = steps_after(settings, restore, local=local_name_of(settings, restore))
    return {
        "next": dg.MetadataValue.md(next_steps),
        **_of(restore),
        "group": dg.MetadataValue.text(restore.group),
        "committed_partitions": dg.MetadataValue.int(len(offsets)),
        "offsets": table(_OFFSET, [CommittedOffset(o, former.get(o.id, "")) for o in offsets]),
    }


def _of_restore(done: RestoreResult) -> Values:
    took_s = {} if done.records is None else done.records.took_s
    return {
        **metadata(report.RESULT, done),
        **{f"{phase}_s": dg.MetadataValue.float(round(s, 3)) for phase, s in took_s.items()},
    }


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
    result: RestoredRecords,
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


def offsets_differ(
    key: dg.AssetKey, error: GroupOffsetsDifferError, partition: str | None
) -> dg.AssetCheckEvaluation:
    """The red check of group offsets that are not as committed."""
    return dg.AssetCheckEvaluation(
        asset_key=key,
        partition=partition,
        check_name=OFFSETS_MATCH,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=str(error),
        metadata={},
    )


_RuleEvent = dg.MaterializeResult | dg.AssetCheckResult | dg.AssetObservation
_ALONE: Final = "Materializing it alone only shows the plan of the restore, as an observation."


def build_restore_completeness_asset(
    settings: ApplicationSettings,
    topics: Sequence[dg.AssetKey],
    windows: dg.TimeWindowPartitionsDefinition,
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
    key = restore_completeness_key(settings)

    @dg.multi_asset(
        name=key.to_python_identifier(),
        specs=[
            dg.AssetSpec(
                key,
                deps=list(topics),
                description=_description(application_id, checks),
                group_name=group(application_id, "restore"),
                kinds={"sql", "report", "spark"},
                owners=list(settings.owners),
                tags={**settings.tags, "kstreams/app": application_id},
            )
        ],
        check_specs=[
            *window_check_specs(
                {key: {check.name: check.claim for check in checks if check.blocking}},
                windows,
                blocking=True,
            ),
            *window_check_specs(
                {key: {check.name: check.claim for check in checks if not check.blocking}}, windows
            ),
        ],
        partitions_def=windows,
        can_subset=True,  # lets a dry run yield nothing
        pool=restore_pool(application_id),
    )
    def completeness(
        context: dg.AssetExecutionContext, spark: SparkSessionResource
    ) -> Iterator[_RuleEvent]:
        with told_as_failure():
            restore = restore_of_run(context, settings)
            if restore is None:
                yield from _plan_without_topics(context, settings, key)
                return
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


def _of(restore: StoredRestore) -> Values:
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
        f" the restore goes on all the same.\n\n{_ALONE}\n\n"
        f"**Checks**\n\n{listed}"
    )


_JOB: Final = RestoreJob(evaluate_restore, require_complete)
_Event = dg.MaterializeResult | dg.AssetCheckResult | dg.AssetCheckEvaluation | dg.AssetObservation


def build_restore_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The restored topics of an application, and its group offsets, partitioned by window.

    A partition restores the last restorable point of its window; by default it is a dry run. The
    completeness rules of restores come between topics and group offsets, if there are any.

    Needs the resource `spark` (`SparkSessionResource`).

    Raises:
        ConfigurationError: A topic has the name that the group offsets or the completeness rules
            have here.
        ConfigurationError: Dagster would take two of the rules for one.
    """
    topics = [restore_key(settings, t.name) for t in restorable_topics(settings)]
    windows = restorable_windows(settings.windows)
    restored = _topics_asset(settings, windows)  # refuses colliding names
    completeness = build_restore_completeness_asset(settings, topics, windows)
    upstream = [*topics, *(asset.key for asset in completeness)]
    return [restored, *completeness, _group_offsets_asset(settings, upstream, windows)]


def build_restore_job(
    settings: ApplicationSettings, assets: Sequence[dg.AssetsDefinition]
) -> dg.Definitions:
    """The job that restores a window onto a declared target."""
    application_id, default = settings.application_id, settings.default_target
    shown = restore_config(settings)(dry_run=False).model_dump(exclude={"options"})
    job = dg.define_asset_job(
        restore_job(application_id),
        selection=[key for asset in assets for key in asset.keys],
        config={"ops": {restore_op(application_id): {"config": shown}}},
        description=(
            f"Restores `{application_id}` as of a window onto a target that the YAML declares"
            f"{f' (default: `{default}`)' if default else ''}: topics, verification, completeness"
            " rules, group offsets. To start it, click Materialize all and select one partition:"
            " the window."
        ),
        tags={"kstreams/app": application_id},
    )
    return dg.Definitions(jobs=[job])


def restorable_topics(settings: ApplicationSettings) -> tuple[AppTopic, ...]:
    """Topics that a restore can write: those backed up, and those whose records points save."""
    backed_up = {topic.name for topic in settings.topics}
    return tuple(
        topic
        for topic in settings.application.topics
        if topic.name in backed_up or topic.roles.is_repartition
    )


def _topics_asset(
    settings: ApplicationSettings, windows: dg.TimeWindowPartitionsDefinition
) -> dg.AssetsDefinition:
    by_key = {restore_key(settings, t.name): t for t in restorable_topics(settings)}
    for topic in by_key.values():
        for taken in taken_names(settings):
            if sanitize_name(topic.name) == taken:
                raise collision(topic.name, taken)

    @dg.multi_asset(
        name=restore_op(settings.application_id),
        specs=[_topic_spec(key, topic, settings) for key, topic in by_key.items()],
        check_specs=window_check_specs(
            dict.fromkeys(by_key, RESTORE_CHECKS), windows, blocking=True
        ),
        partitions_def=windows,
        can_subset=True,  # also lets a dry run yield nothing, so that group offsets are skipped
        pool=restore_pool(settings.application_id),
    )
    def restore(
        context: dg.AssetExecutionContext,
        config: restore_config(settings),  # pyright: ignore[reportInvalidTypeForm]
        spark: SparkSessionResource,
    ) -> Iterator[_Event]:
        shown = {key: by_key[key].name for key in context.selected_asset_keys}
        selected = set(shown.values())
        with told_as_failure():
            request = whole = config.request(settings, _window(context))
            if not config.dry_run:  # a dry run shows the plan of all topics, whatever is selected
                _require_writable(context, settings, config, whole)
                left_out = sorted({topic.name for topic in by_key.values()} - selected)
                exclude = tuple(dict.fromkeys([*whole.exclude, *left_out]))
                request = whole.model_copy(update={"exclude": exclude})
            with open_target(settings, request) as target:
                plan = yield from _plan(context, settings, request, target, shown)
                if plan.blockers and request != whole:
                    _require_together(settings, plan, _JOB.plan(settings, whole, target), selected)
                plan.require_allowed()  # also in a dry run
                if config.dry_run:
                    return
                require_programs(request)
                ctx = RunContext(settings, target, spark, context.run.run_id)
                done = _JOB.run(ctx, plan, partial(_log_progress, context.log), until=Phase.VERIFY)
                done.plan.require_allowed()
            yield from _events(settings, done, selected)

    return restore


def _log_progress(log: dg.DagsterLogManager, progress: Progress) -> None:
    if progress.line:
        log.info(progress.line)


def _window(context: dg.AssetExecutionContext) -> str | None:
    return context.partition_key if context.has_partition_key else None


def _require_writable(
    context: dg.AssetExecutionContext,
    settings: ApplicationSettings,
    config: RestoreConfig,
    request: RestoreRequest,
) -> None:
    """Refuse a run that may not write; raises ConfigurationError."""
    job = restore_job(settings.application_id)
    if not context.run.tags.keys() & {PARTITION_TAG, RANGE_START_TAG}:
        raise ConfigurationError(
            "This run has no partition, and restores are partitioned by window.",
            remedy=f"Choose a window, or launch job {job}.",
        )
    if context.run.job_name == job:
        require_declared(settings, config.target, job)
    require_one_window(settings, request, config.target, _windows_at_once(context))


def _require_together(
    settings: ApplicationSettings, plan: RestorePlan, whole: RestorePlan, selected: Set[str]
) -> None:
    """Refuse a selection with blockers that the `whole` restore does not have.

    Raises:
        ConfigurationError: In one line; the plan has the details.
    """
    blockers = [f"{b.subject}: {b.found}" for b in plan.blockers if b not in whole.blockers]
    if blockers:
        raise ConfigurationError(
            f"{few(sorted(selected))} cannot be restored alone: {few(blockers, by='; ')}",
            remedy=f"Launch job {restore_job(settings.application_id)}, which restores all topics.",
        )


def _windows_at_once(context: dg.AssetExecutionContext) -> int:
    """How many windows this run, and the others of its backfill, restore."""
    if context.has_partition_key_range:
        return len(context.partition_keys)
    backfill_id = context.run.tags.get(BACKFILL_TAG)
    backfill = None if backfill_id is None else context.instance.get_backfill(backfill_id)
    if backfill is None:
        return 1
    if backfill.asset_backfill_data is None:  # of a job
        return len(backfill.partition_names or ())
    subsets = backfill.asset_backfill_data.target_subset.partitions_subsets_by_asset_key
    return max((len(s) for k, s in subsets.items() if k in context.selected_asset_keys), default=1)


def _plan(
    context: dg.AssetExecutionContext,
    settings: ApplicationSettings,
    request: RestoreRequest,
    target: KafkaConnection,
    topics: Mapping[dg.AssetKey, str],
) -> Generator[dg.AssetObservation, None, RestorePlan]:
    """Plan a restore, and show the plan on these assets, with the part of each one's topic.

    There is no materialisation, since nothing is restored yet.
    """
    plan = _JOB.plan(settings, request, target)
    text = mask_secrets(report.markdown(plan))  # it shows commands
    context.log.info(text)
    for key, topic in sorted(topics.items()):
        yield dg.AssetObservation(
            key,
            partition=request.window,
            metadata={"plan": dg.MetadataValue.md(text), **planned(plan, topic)},
        )
    return plan


def _plan_without_topics(
    context: dg.AssetExecutionContext, settings: ApplicationSettings, key: dg.AssetKey
) -> Iterator[dg.AssetObservation]:
    """Show the plan on an asset below the topics, in a run that has restored none.

    Only the topics have a configuration. It is given here too if the run belongs to a job that
    contains them.

    Raises:
        ConfigurationError: The configuration has `dry_run: false`.
    """
    ops = cast("Mapping[str, Any]", context.run.run_config.get("ops") or {})
    of_restore = ops.get(restore_op(settings.application_id)) or {}
    config = restore_config(settings)(**of_restore.get("config") or {})
    if not config.dry_run:
        raise ConfigurationError(
            f"{key.path[-1]} cannot be restored alone: this run has restored no topics of"
            f" {settings.application_id}.",
            remedy=f"Launch job {restore_job(settings.application_id)} with all of its assets."
            " Records that are restored already are not written again.",
        )
    request = config.request(settings, _window(context))
    with open_target(settings, request) as target:
        plan = yield from _plan(context, settings, request, target, {key: ""})
        plan.require_allowed()


def _events(
    settings: ApplicationSettings, done: RestoreResult, selected: set[str]
) -> Iterator[_Event]:
    """One materialisation and one verdict for each selected topic.

    A topic that the restore leaves out gets them too, saying so: without them Dagster would skip
    the group offsets.
    """
    plan, result = done.plan, done.records
    assert result is not None  # noqa: S101 (or the plan has blockers)
    planned = {topic.source: topic for topic in plan.topics}
    shown = {topic.target for topic in plan.topics if topic.source in selected}
    # What has no asset of its own here must not pass unseen: it is told, and blocks, everywhere.
    elsewhere = [found for found in result.problems if found.target.topic not in shown]
    for name in sorted(selected):
        key = restore_key(settings, name)
        topic = planned.get(name)
        values = left_out(done) if topic is None else restored(done, topic)
        yield dg.MaterializeResult(asset_key=key, metadata=values)
        yield verdict(key, topic, result, elsewhere)


def taken_names(settings: ApplicationSettings) -> tuple[str, ...]:
    """What stands among the topics of a restore and is none."""
    has_rules = bool(rule_checks(settings, ON_RESTORES))
    return (GROUP_OFFSETS, RESTORED_COMPLETENESS) if has_rules else (GROUP_OFFSETS,)


def _group_offsets_asset(
    settings: ApplicationSettings,
    upstream: Sequence[dg.AssetKey],
    windows: dg.TimeWindowPartitionsDefinition,
) -> dg.AssetsDefinition:
    application_id = settings.application_id
    key = group_offsets_key(settings)

    @dg.multi_asset(
        name=key.to_python_identifier(),
        specs=[
            dg.AssetSpec(
                key,
                deps=upstream,
                description=(
                    f"Committed offsets of group `{application_id}` (or the name it was restored"
                    " under) on the target cluster, mapped to the restored records. Committed only"
                    " after every topic of the same run was verified and no blocking completeness"
                    " rule is violated there; then the application can be started.\n\n"
                    f"{_ALONE}"
                ),
                group_name=group(application_id, "restore"),
                kinds={"kafka", "restore"},
                owners=list(settings.owners),
                tags={**settings.tags, "kstreams/app": application_id},
            )
        ],
        check_specs=window_check_specs({key: GROUP_OFFSETS_CHECKS}, windows),
        partitions_def=windows,
        can_subset=True,  # lets a dry run yield nothing
        pool=restore_pool(application_id),
    )
    def group_offsets(context: dg.AssetExecutionContext) -> Iterator[_Event]:
        with told_as_failure():
            restore = restore_of_run(context, settings)
            if restore is None:
                yield from _plan_without_topics(context, settings, key)
                return
            with open_stored_target(settings, restore) as target:
                try:
                    done = commit_group_offsets(settings, restore, target, gate=require_complete)
                except GroupOffsetsDifferError as error:
                    yield offsets_differ(key, error, _window(context))
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
                settings, target=done.target_bootstrap_servers, group=done.group, mode=done.mode
            )
            run_after(done, commands, report=context.log.info)

    return group_offsets


def _topic_spec(key: dg.AssetKey, topic: AppTopic, settings: ApplicationSettings) -> dg.AssetSpec:
    application_id = settings.application_id
    backed_up = topic in settings.topics
    sources = [backup_key(settings, topic.name)] if backed_up else []
    # A changelog may be written from the snapshots of its stores.
    sources += [
        ktable_key(settings, store.store)
        for store in table_stores(settings)
        if store.topic == topic.name and store.is_changelog_only
    ]
    checks = "\n".join(f"- `{name}`: {text}" for name, text in RESTORE_CHECKS.items())
    points = recovery_points_key(settings)
    return dg.AssetSpec(
        key=key,
        deps=[*(dg.AssetDep(k, partition_mapping=UP_TO_THE_OPEN_WINDOW) for k in sources), points],
        description=(
            f"Topic `{topic.name}` ({', '.join(sorted(topic.roles))}) on the target cluster, as of"
            " the last restorable recovery point of a window, byte for byte.\n\nMaterializing it"
            " only shows the plan of all topics, as an observation."
            f" Job `{restore_job(application_id)}` restores.\n\n**Checks**\n\n{checks}"
        ),
        group_name=group(application_id, "restore"),
        kinds={"kafka", "restore", "spark"},
        owners=list(settings.owners),
        tags={
            **settings.tags,
            "kstreams/app": application_id,
            **{f"kstreams/role-{role}": "" for role in sorted(topic.roles)},
        },
        metadata={"topic": topic.name},
    )
