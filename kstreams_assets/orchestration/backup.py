"""The asset of a backup: one partition is one window, one materialisation one backup run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import dagster as dg

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.report import TOPIC, TopicReport, WindowReport
from kstreams_assets.backup.requests import Attempt, BackupRequest
from kstreams_assets.backup.result import range_of
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.backup.verdicts import checks_of
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.checks import Evaluation
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.ktables.stores import table_stores
from kstreams_assets.orchestration.check_events import window_check_events, window_check_specs
from kstreams_assets.orchestration.failure import repeated_after_outage, told_as_failure
from kstreams_assets.orchestration.keys import (
    NOT_FINISHED,
    PRIORITY_TAG,
    RANGE_END_TAG,
    RANGE_START_TAG,
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
    backup_key,
    backups_sensor,
    completeness_key,
    group,
    ktable_key,
    pool,
    recovery_points_key,
    sanitize_name,
    topic_key,
    window_partitions,
)
from kstreams_assets.orchestration.ktables import declared_fields
from kstreams_assets.orchestration.metadata import metadata
from kstreams_assets.orchestration.translator import AssetKind, translator_of
from kstreams_assets.settings import ApplicationSettings
from spark_resources.resource import SparkSessionResource

_COLUMNS = (
    dg.TableColumn("window", "string", "Time partition, key of the Dagster partition"),
    dg.TableColumn("topic", "string"),
    dg.TableColumn("partition", "int"),
    dg.TableColumn("offset", "bigint"),
    dg.TableColumn("timestamp_ms", "bigint", "Epoch milliseconds, exactly as Kafka stored it"),
    dg.TableColumn("timestamp_type", "int", "0 CreateTime, 1 LogAppendTime"),
    dg.TableColumn(
        "headers",
        "array<struct<key: string, value: binary>>",
        "In order, duplicates and null values kept",
    ),
    dg.TableColumn("key", "binary", "null and empty are told apart"),
    dg.TableColumn("value", "binary", "null is a tombstone"),
)


def record_columns(fields: Mapping[str, Sequence[str]]) -> dg.TableSchema:
    """The columns of a topic's backup.

    `fields` are fields of the values that stores are declared to be computed from, with the columns
    of these stores. They are no columns of the table, but what column lineage leads to.
    """
    return dg.TableSchema(
        [
            *_COLUMNS,
            *(
                dg.TableColumn(
                    f"value.{field}",
                    "in value",
                    f"Declared: {', '.join(columns)} is computed from it; not decoded here",
                )
                for field, columns in sorted(fields.items())
            ),
        ]
    )


_REMEMBERED_RUNS: Final = 200
_LAUNCH_WITHIN: Final = timedelta(minutes=2)
"""A run that was created and not submitted for so long was left behind by a killed daemon."""
_RETRY_WITHIN: Final = timedelta(minutes=10)
_APP_TAG: Final = "kstreams/app"
_WAREHOUSE_TAG: Final = "kstreams/warehouse"
_RETRY_TAG: Final = "kstreams/retry"
_PRIORITY: Final = "1"
"""Of the sensor's runs in Dagster's queue; tables and rules have 0, so they wait for backups."""
PARTLY_DONE_TAG: Final = "kstreams/partly-done"
"""On a failed run that has backed up all topics but some that could not be read."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Something that may still back up windows: no run is to be requested beside it.

    `left_behind` is set where a run was created and never submitted: it is to be requested again.
    """

    reason: str
    left_behind: dg.RunRequest | None = None


@dataclass(frozen=True, slots=True)
class BackupRuns:
    """Runs of one application's backups in a Dagster instance."""

    settings: ApplicationSettings
    instance: dg.DagsterInstance

    def under_way(self, now: datetime) -> UnderWay | None:
        """What has not ended yet, whoever started it; None when nothing is under way."""
        records = self.instance.get_run_records(filters=dg.RunsFilter(statuses=list(NOT_FINISHED)))
        for record in records:
            run = record.dagster_run
            if not self._writes_these_backups(run) or self._yields_to_backups(run):
                continue
            is_old = now - record.create_timestamp > _LAUNCH_WITHIN
            if run.status is dg.DagsterRunStatus.NOT_STARTED and is_old:
                if self._is_own(run):
                    return UnderWay(f"Run {run.run_id} was never submitted.", self._again(run))
                continue
            return UnderWay(
                f"Run {run.run_id} of these backups has not ended ({run.status.value})."
            )
        return self._about_to_be_retried(now) or self._backfill()

    def attempts(self) -> list[Attempt]:
        """Ended runs of the sensor, those that bear on what is requested next."""
        succeeded = [dg.DagsterRunStatus.SUCCESS]
        records = {
            record.storage_id: record
            for record in (
                *self._failed(),
                *self._own(succeeded, {_RETRY_TAG: "true"}),
                *self._own(succeeded, limit=1),
            )
        }
        return [_attempt(record) for record in records.values()]

    def of_key(self, run_key: str) -> Sequence[dg.RunRecord]:
        """The runs that a run key has: none or one, unless Dagster retried it."""
        return self._own([], {RUN_KEY_TAG: run_key})

    def run_request(self, request: BackupRequest, run_key: str) -> dg.RunRequest:
        """One run for a range of windows, with the tags that the questions above look for."""
        return dg.RunRequest(
            run_key=run_key,
            asset_selection=[backup_key(self.settings, t) for t in sorted(request.topics)],
            tags={
                **self._tags,
                **({_RETRY_TAG: "true"} if request.attempt > 1 else {}),
                PRIORITY_TAG: _PRIORITY,
                RANGE_START_TAG: request.windows[0].key,
                RANGE_END_TAG: request.windows[-1].key,
            },
        )

    @property
    def _tags(self) -> dict[str, str]:
        """The same application may be backed up to two warehouses by one Dagster."""
        return {
            _APP_TAG: self.settings.application_id,
            _WAREHOUSE_TAG: str(self.settings.warehouse.root),
        }

    @property
    def _own_tags(self) -> dict[str, str]:
        return {**self._tags, SENSOR_NAME_TAG: backups_sensor(self.settings.application_id)}

    def _own(
        self,
        statuses: Iterable[dg.DagsterRunStatus],
        tags: Mapping[str, str] | None = None,
        *,
        limit: int = _REMEMBERED_RUNS,
    ) -> Sequence[dg.RunRecord]:
        """Runs that the sensor requested, the newest first."""
        return self.instance.get_run_records(
            filters=dg.RunsFilter(statuses=list(statuses), tags={**self._own_tags, **(tags or {})}),
            limit=limit,
        )

    def _failed(self) -> Sequence[dg.RunRecord]:
        return self._own([dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED])

    def _is_own(self, run: dg.DagsterRun) -> bool:
        return RUN_KEY_TAG in run.tags and self._own_tags.items() <= run.tags.items()

    def _writes_these_backups(self, run: dg.DagsterRun) -> bool:
        pools = run.run_op_concurrency.all_pools if run.run_op_concurrency else None
        if pools and pool(self.settings.application_id) in pools:
            return True
        return self._are_these_backups(run.asset_selection or ())

    def _yields_to_backups(self, run: dg.DagsterRun) -> bool:
        """Whether it is a queued run of tables and rules: backups start before it."""
        if run.status not in (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.QUEUED):
            return False
        tables = {ktable_key(self.settings, store.store) for store in table_stores(self.settings)}
        keys = {*(run.asset_selection or ())}
        return bool(keys) and keys <= {*tables, completeness_key(self.settings)}

    def _are_these_backups(self, keys: Iterable[dg.AssetKey]) -> bool:
        topics = self.settings.application.topics
        return not {backup_key(self.settings, topic.name) for topic in topics}.isdisjoint(keys)

    def _again(self, run: dg.DagsterRun) -> dg.RunRequest:
        """Dagster submits the run that it has when it sees the run key again."""
        added_by_dagster = ("dagster/", ".dagster/")
        kept = {RANGE_START_TAG, RANGE_END_TAG, PRIORITY_TAG}
        return dg.RunRequest(
            run_key=run.tags[RUN_KEY_TAG],
            asset_selection=sorted(run.asset_selection or ()),
            tags={
                tag: value
                for tag, value in run.tags.items()
                if tag in kept or not tag.startswith(added_by_dagster)
            },
        )

    def _about_to_be_retried(self, now: datetime) -> UnderWay | None:
        """A run whose process died and that Dagster will run again by itself."""
        for record in self._failed():
            run = record.dagster_run
            is_recent = now - record.update_timestamp < _RETRY_WITHIN
            if run.is_complete_and_waiting_to_retry and is_recent:
                return UnderWay(f"Dagster is about to retry run {run.run_id}.")
        return None

    def _backfill(self) -> UnderWay | None:
        """A backfill that was started by hand and may not have created its run yet."""
        newest = self.instance.get_backfills(limit=1)
        if not newest:
            return None
        # Dagster exports neither the class of a backfill's status nor that of a filter.
        requested = type(newest[0].status)("REQUESTED")
        for backfill in self.instance.get_backfills(status=requested):
            if self._are_these_backups(backfill.asset_selection or ()):
                return UnderWay(f"Backfill {backfill.backfill_id} of these backups goes on.")
        return None


def _attempt(record: dg.RunRecord) -> Attempt:
    tags = record.dagster_run.tags
    ended_s = record.end_time or record.update_timestamp.timestamp()
    return Attempt(
        first=tags.get(RANGE_START_TAG, ""),
        last=tags.get(RANGE_END_TAG, ""),
        ended_at_ms=round(ended_s * 1000),
        succeeded=record.dagster_run.status is dg.DagsterRunStatus.SUCCESS,
        again=_RETRY_TAG in tags,
        partly_done=PARTLY_DONE_TAG in tags,
    )


def build_backup_assets(settings: ApplicationSettings) -> dg.AssetsDefinition:
    """The backups of an application's topics, partitioned by window.

    Needs the resource `spark` (`SparkSessionResource`).

    Raises:
        ConfigurationError: Declared lineage of a store names no topic of the application.
    """
    calendar = WindowCalendar(settings.windows)
    partitions = window_partitions(settings.windows)
    by_key = {backup_key(settings, t.name): t for t in settings.topics}
    fields = declared_fields(table_stores(settings), settings)
    retries = translator_of(settings).get_retry_policy(AssetKind.BACKUP)

    @dg.multi_asset(
        name=f"backup_{sanitize_name(settings.application_id)}",
        specs=[_spec(k, t, settings, fields.get(t.name, {})) for k, t in by_key.items()],
        check_specs=window_check_specs({k: topic_checks(t) for k, t in by_key.items()}, partitions),
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
        pool=pool(settings.application_id),
    )
    def backup(
        context: dg.AssetExecutionContext, spark: SparkSessionResource
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult | dg.AssetCheckEvaluation]:
        topics = tuple(by_key[key] for key in sorted(context.selected_asset_keys))
        with repeated_after_outage(context, retries):
            job = BackupJob(settings, spark, context.run.run_id, topics)
            result = job.run(calendar.windows(context.partition_keys))
            context.log.info(
                f"{len(result.windows)} windows, {result.records} records, {result.took_s:.1f} s;"
                f" Spark {'was started' if spark.is_started else 'was not needed'}."
            )
            reports = [WindowReport.of(one, settings.application) for one in result.windows]
            yield from _events(context, settings, reports)
        if unread := result.unread:
            # The run fails, so that the windows are tried again after a pause, but not for an
            # outage: what could be read is backed up, and the other windows need not wait.
            context.instance.add_run_tags(context.run.run_id, {PARTLY_DONE_TAG: "true"})
            with told_as_failure():
                topics = ", ".join(sorted({one.topic for one in unread}))
                raise KStreamsAssetsError(
                    f"Not backed up: {topics} in {range_of([one.window for one in unread])};"
                    f" everything else of the run is done. {unread[0].reason.rstrip('.')}.",
                    remedy="Run these windows again for these topics once the cause is removed (an"
                    " open transaction has ended, the log can be read); the sensor of the backups"
                    " does so by itself.",
                )

    return backup


def topic_checks(topic: AppTopic) -> Mapping[str, str]:
    """The checks of a topic's backups, name -> claim, in the order in which they are evaluated."""
    return checks_of(is_changelog=topic.roles.is_changelog)


def _spec(
    key: dg.AssetKey,
    topic: AppTopic,
    settings: ApplicationSettings,
    fields: Mapping[str, Sequence[str]],
) -> dg.AssetSpec:
    application_id = settings.application_id
    table = settings.warehouse.records(application_id)
    checks = "\n".join(f"- `{name}`: {text}" for name, text in topic_checks(topic).items())
    return dg.AssetSpec(
        key=key,
        deps=[topic_key(settings, topic.name), recovery_points_key(settings)],
        description=(
            f"Records of topic `{topic.name}` ({', '.join(sorted(topic.roles))}), window by window,"
            f" committed ones only, byte for byte.\n\n"
            f"Delta table `{table}`, `WHERE topic = '{topic.name}'`.\n\n**Checks**\n\n{checks}"
        ),
        group_name=group(application_id, "backups"),
        skippable=True,  # nothing is backed up with a window in which no point was taken
        kinds={"deltalake", "backup", *(["spark"] if settings.spark.from_offsets == 0 else [])},
        owners=list(settings.owners),
        tags={
            **settings.tags,
            "kstreams/app": application_id,
            **{f"kstreams/role-{role}": "" for role in sorted(topic.roles)},
        },
        metadata={
            "topic": topic.name,
            "dagster/uri": str(table),
            "dagster/table_name": f"records/{application_id}",
            "dagster/column_schema": record_columns(fields),
        },
    )


def _events(
    context: dg.AssetExecutionContext,
    settings: ApplicationSettings,
    windows: Sequence[WindowReport],
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult | dg.AssetCheckEvaluation]:
    verdicts: dict[tuple[str, str], list[Evaluation]] = {}
    for verdict in (check for window in windows for check in window.checks):
        verdicts.setdefault((verdict.subject, verdict.check), []).append(verdict)
    unread = {one.topic for report in windows for one in report.window.unread}
    by_topic: dict[str, list[TopicReport]] = {topic: [] for topic in sorted(unread)}
    for report in (topic for window in windows for topic in window.topics):
        by_topic.setdefault(report.backup.topic, []).append(report)
    for topic, reports in by_topic.items():
        key = backup_key(settings, topic)
        # One result would stand for all windows of the run.
        whole = topic not in unread and all(one.window.holds(one.backup) for one in reports)
        for report in reports:
            if whole:
                context.add_asset_metadata(metadata(TOPIC, report), key, report.backup.window.key)
            else:
                context.log_event(backup_event(key, report))
        if whole:
            yield dg.MaterializeResult(asset_key=key)
        for check in topic_checks(settings.application.topic(topic)):
            if of_check := verdicts.get((topic, check)):
                yield from window_check_events(context, key, check, of_check)


def backup_event(
    key: dg.AssetKey,
    report: TopicReport,
    more: Mapping[str, dg.MetadataValue] | None = None,
) -> dg.AssetMaterialization | dg.AssetObservation:
    """The event of one topic in one window.

    An observation where nothing was backed up, so that the partition does not turn green.
    """
    is_held = report.window.holds(report.backup)
    event = dg.AssetMaterialization if is_held else dg.AssetObservation
    values = {**metadata(TOPIC, report), **(more or {})}
    return event(key, partition=report.backup.window.key, metadata=values)
