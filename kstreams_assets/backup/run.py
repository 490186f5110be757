"""Backs up windows of one application: write files, look, account, one commit, then the ledger."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kstreams_assets.app.model import AppTopic, StreamsApplication
from kstreams_assets.backup.accounting import Accountant
from kstreams_assets.backup.facts import facts_of
from kstreams_assets.backup.plan import commit_groups, read_ranges
from kstreams_assets.backup.planner import Planner, RunPlan, TopicPlan
from kstreams_assets.backup.result import (
    BackupReadError,
    PoorerBackupError,
    TopicBackup,
    TopicRecreatedWhileReadingError,
    WindowBackup,
    range_of,
)
from kstreams_assets.errors import KafkaError
from kstreams_assets.kafka.clients import java_system_properties, spark_options
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.settings import ApplicationSettings, BackupSettings, RecoveryPointSettings
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.committer import NewFile, commit, sweep, uncommitted
from kstreams_assets.warehouse.layout import (
    LockHandle,
    Warehouse,
    WarehouseLockedError,
    warehouse_lock,
)
from kstreams_assets.warehouse.ledger import (
    Ledger,
    TopicFactsTable,
)
from kstreams_assets.warehouse.point import PartitionCut, RecoveryPoint, in_force
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.records import (
    SpanId,
    contents_of,
    ensure_records,
    open_records,
)
from kstreams_assets.warehouse.schemas import try_to_save_schemas
from kstreams_assets.warehouse.spans import SpanContent, SpanPlan, SpanResult, Window
from kstreams_assets.warehouse.table import make_warehouse, refuse_newer_tables
from spark_resources.work import ReadRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunPoints:
    """Takes points with what the backups hold: only the rest of the changelogs is to be saved."""

    application: StreamsApplication
    cluster: KafkaCluster
    warehouse: Warehouse
    settings: RecoveryPointSettings

    def ensure_closing(self, newest_closed: Window, topics: Sequence[str]) -> None:
        """Take the point that bounds the newest closed window, should it have none.

        A window of which a topic is backed up already keeps its edges.
        """
        application_id = self.application.application_id
        if Ledger(self.warehouse, application_id).done(topics).get(newest_closed):
            return
        instants = in_force(RecoveryPointTable(self.warehouse).instants(application_id))
        inside = range(newest_closed.start_ms, newest_closed.end_ms)
        if not any(instant.effective_at_ms in inside for instant in instants):
            self._take(closes_window_end_ms=newest_closed.end_ms)

    def take_last(self) -> RecoveryPoint | None:
        """Take the point that a run ends with, sealed if it can be.

        None when the cluster or another recorder stands in the way: the backups that the run made
        do not depend on it, and the next point seals what this one would have.
        """
        try:
            return self._take()
        except (KafkaError, WarehouseLockedError) as error:
            _log.warning(
                "The backups are done, but no recovery point could be taken after them: %s", error
            )
            return None

    def _take(self, *, closes_window_end_ms: int | None = None) -> RecoveryPoint:
        ledger = Ledger(self.warehouse, self.application.application_id)
        recorder = Recorder(self.application, self.cluster, self.warehouse, self.settings)
        return recorder.take(
            closes_window_end_ms=closes_window_end_ms,
            held=ledger.held_positions(self.application),
            seal_bytes=self.settings.closing_seal_bytes,
        )


def with_unproven(
    warehouse: Warehouse, application_id: str, backups: Iterable[TopicBackup]
) -> list[TopicBackup]:
    """Note with each topic the points of its window that its holes leave unproven."""
    backups = list(backups)
    thinned = {b.window for b in backups if any(s.first_hole is not None for s in b.spans)}
    if not thinned:
        return backups
    table = RecoveryPointTable(warehouse)
    within = [range(window.start_ms, window.end_ms) for window in thinned]
    ids = [
        instant.id
        for instant in table.instants(application_id)
        if any(instant.effective_at_ms in window for window in within)
    ]
    points = table.load(application_id, ids)
    return [replace(b, unproven_points=unproven_points(b, points)) for b in backups]


_BYTES_PER_RECORD = 1024
"""What a record is taken for when commits are bounded: its size is known only when it is read."""

_ATTEMPTS = 3
_LEAST_FREE_BYTES = 64 * 1024**2
"""Below it a run cannot be expected to finish: even an empty one writes a few files."""


class Spark(Protocol):
    """A lazily started Spark session (`spark_resources.session.LazySession`)."""

    @property
    def spark_session(self) -> "SparkSession":
        """The session; starts the JVM on first use."""
        ...

    def check(self) -> None:
        """Raise JarsMissingError or JavaNotFoundError if it could not be started."""
        ...

    def jvm_pid(self) -> int | None:
        """Process id of the JVM, None when it is on another machine."""
        ...


@dataclass(frozen=True, slots=True)
class BackupRun:
    """One run over windows of one application; knows no Dagster."""

    application: StreamsApplication
    topics: tuple[AppTopic, ...]
    cluster: KafkaCluster
    warehouse: Warehouse
    spark: Spark
    run_id: str
    begins_ms: int
    """Start of the first window of the schedule (epoch milliseconds)."""
    settings: BackupSettings = field(default_factory=BackupSettings)
    recovery_points: RecoveryPointSettings = field(default_factory=RecoveryPointSettings)

    def execute(
        self, windows: Sequence[Window], *, newest_closed: Window | None
    ) -> list[WindowBackup]:
        """Back up these windows, in order of time.

        Windows that the ledger holds keep their spans and are read again; where Kafka no longer
        holds all of their records, the earlier backup stays. A recovery point is taken first when
        the newest closed window is among them and has none, and one after all windows are done: the
        backups then hold most of the changelogs, so that it costs little to seal. If the latter
        cannot be taken, that is logged and the run has not failed.

        Raises:
            KStreamsAssetsError: Its subclasses say what stood in the way; groups of windows that
                were done before it stay done.
        """
        name = self.application.application_id
        with warehouse_lock(
            self.warehouse.lock_file(name),
            purpose=f"backup run {self.run_id}",
            wait_s=self.settings.lock_wait_s,
        ) as lock:
            # A newer layout is refused before anything is touched.
            records = open_records(self._records)
            refuse_newer_tables(self.warehouse)
            sweep(self._records, records)
            self._check_what_is_needed()
            if newest_closed in windows and newest_closed is not None:
                self._points.ensure_closing(newest_closed, [topic.name for topic in self.topics])
            plan = self._planner().plan(sorted(windows))
            done: list[WindowBackup] = []
            for group in self._groups(plan):
                done += self._back_up_settled(group, plan, lock)
        self._points.take_last()
        return done

    def _check_what_is_needed(self) -> None:
        """Refuse what cannot succeed before a recovery point is taken for it."""
        self.spark.check()
        self.warehouse.require_space(_LEAST_FREE_BYTES)
        self._planner().check_access()

    @property
    def _records(self) -> Path:
        return self.warehouse.records(self.application.application_id)

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.warehouse, self.application.application_id)

    @property
    def _points(self) -> RunPoints:
        return RunPoints(self.application, self.cluster, self.warehouse, self.recovery_points)

    def _planner(self) -> Planner:
        return Planner(
            application=self.application,
            topics=self.topics,
            cluster=self.cluster,
            points=RecoveryPointTable(self.warehouse),
            ledger=self._ledger,
            stable_wait_s=self.settings.stable_wait_s,
            begins_ms=self.begins_ms,
        )

    def _groups(self, plan: RunPlan) -> list[tuple[Window, ...]]:
        offsets: dict[Window, int] = {one.window: 0 for one in plan.unread}
        for topic in plan.topics:
            offsets[topic.window] = offsets.get(topic.window, 0) + topic.to_read
        sizes = {window: count * _BYTES_PER_RECORD for window, count in offsets.items()}
        limit = self.settings.commit_bytes
        groups = commit_groups(list(offsets), sizes, limit_bytes=limit)
        most = self.settings.windows_per_commit
        return [group[i : i + most] for group in groups for i in range(0, len(group), most)]

    def _back_up_settled(
        self, windows: Sequence[Window], plan: RunPlan, lock: LockHandle
    ) -> list[WindowBackup]:
        """Plan the group anew when the log moved under the read (retention, recreated topics)."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._back_up_group(windows, plan, lock)
            except PoorerBackupError as error:
                # What Kafka lost between the look at the log and the read is lost for good: the
                # next look finds that out, and keeps the earlier backup.
                _log.warning("%s Looking again.", error.problem)
            except (BackupReadError, TopicRecreatedWhileReadingError) as error:
                anew = self._planner().plan(windows)
                if _spans(anew, windows) == _spans(plan, windows):
                    raise
                _log.warning("%s The log has moved meanwhile: planning anew.", error.problem)
                plan = anew
        return self._back_up_group(windows, plan, lock)

    def _back_up_group(
        self, windows: Sequence[Window], plan: RunPlan, lock: LockHandle
    ) -> list[WindowBackup]:
        began = time.monotonic()
        plans = [topic for topic in plan.topics if topic.window in set(windows)]
        settings = self.settings
        with Accountant(
            self.cluster.connection, settings.scan_stall_s, settings.scan_connections
        ) as accountant:
            looked_at = [topic for topic in plans if topic.lacks_only_the_look]
            earlier = accountant.examined_again(looked_at)
            kept = {
                topic.id
                for topic in plans
                if topic.id not in earlier and not accountant.can_be_read_again(topic)
            }
            fresh = [t for t in plans if t.id not in kept and t.id not in earlier]
            with self._written(fresh, windows, lock) as files:
                contents = contents_of(self._records, files)
                self._refuse_recreated(plan, windows, fresh, files)
                self._refuse_poorer(fresh, contents, windows)
                results = accountant.results(fresh, contents) | earlier
        # Outside the block: what a commit may refer to is never deleted.
        version = self._commit(files, fresh, windows)
        took_s = time.monotonic() - began
        facts = facts_of(plan.descriptions)
        facts_table = TopicFactsTable(self.warehouse, self.application.application_id)
        previous = facts_table.before(min(window.start_ms for window in windows))
        backups = [
            TopicBackup(
                window=topic.window,
                topic=topic.topic.name,
                role="+".join(sorted(topic.topic.roles)),
                spans=_kept(topic) if topic.id in kept else results[topic.id],
                facts=facts.get(topic.topic.name),
                previous_facts=previous.get(topic.topic.name),
                opened=topic.opened,
                closed=topic.closed,
                recovery_point_id=topic.recovery_point_id,
                delta_version=topic.earlier[0].delta_version if topic.id in earlier else version,
                duration_s=took_s,
                below_first=topic.below_first,
            )
            for topic in plans
        ]
        recorded = [b for b, t in zip(backups, plans, strict=True) if t.id not in kept]
        facts_table.record([b for b in recorded if (b.window.key, b.topic) not in earlier])
        self._ledger.record(recorded, run_id=self.run_id)
        backups = with_unproven(self.warehouse, self.application.application_id, backups)
        return [self._window_backup(window, backups, plan) for window in windows]

    @contextmanager
    def _written(
        self, plans: Sequence[TopicPlan], windows: Sequence[Window], lock: LockHandle
    ) -> Iterator[list[NewFile]]:
        """Files of what is to be read; they are deleted if the block fails."""
        spans = [span for topic in plans for span in topic.spans]
        reads = read_ranges(spans)
        if not reads:
            yield []
            return
        ensure_records(self._records)
        with uncommitted(self._records) as folder:
            yield self._write(folder, spans, reads, windows, lock)

    def _write(
        self,
        folder: Path,
        spans: Sequence[SpanPlan],
        reads: Sequence[Sequence[ReadRange]],
        windows: Sequence[Window],
        lock: LockHandle,
    ) -> list[NewFile]:
        offsets = sum(span.to_read for span in spans)
        topics = {span.partition.topic for span in spans}
        _log.info(
            "Reading %d offsets of %d topics for %s.", offsets, len(topics), range_of(windows)
        )
        from spark_resources.failures import SparkJobError
        from spark_resources.spans import write_span_files

        lock.note_writer(self.spark.jvm_pid())
        try:
            return write_span_files(
                self.spark.spark_session,
                folder,
                kafka_options=spark_options(self.cluster.connection),
                system_properties=java_system_properties(self.cluster.connection),
                reads=reads,
                spans=spans,
                group_id_prefix=f"kstreams-assets-{self.application.application_id}",
                compression=self.settings.compression,
                compression_level=self.settings.compression_level,
            )
        except SparkJobError as error:
            reason = self.cluster.connection.scrub(str(error))
            raise BackupReadError(windows=windows, reason=reason) from None

    def _commit(
        self, files: Sequence[NewFile], plans: Sequence[TopicPlan], windows: Sequence[Window]
    ) -> int | None:
        """Replace what the table holds of these topics and windows; None when there is nothing."""
        table = open_records(self._records)
        if table is None:
            return None
        return commit(
            self._records,
            table,
            files,
            replaces=[{"window": t.window.key, "topic": t.topic.name} for t in plans],
            provenance={
                "run_id": self.run_id,
                "application_id": self.application.application_id,
                "windows": sorted({w.key for w in windows}),
            },
        )

    def _refuse_recreated(
        self,
        plan: RunPlan,
        windows: Sequence[Window],
        plans: Sequence[TopicPlan],
        files: Sequence[NewFile],
    ) -> None:
        """Refuse what may mix two topics of one name, or two incarnations of a log."""
        if not files and not any(topic.earlier for topic in plans):
            return
        now = self.cluster.describe_topics(
            sorted(set(plan.descriptions) & set(self.cluster.topics()))
        )
        changed = {
            name
            for name, topic in plan.descriptions.items()
            if name not in now or now[name].topic_id != topic.topic_id
        }
        logs = self._planner().incarnations(now)
        changed |= {
            span.partition.topic
            for span in _spans(plan, windows)
            if span.to_read and logs.get(span.partition, span.topic_id) != span.topic_id
        }
        if changed:
            raise TopicRecreatedWhileReadingError(topics=changed)

    def _refuse_poorer(
        self,
        plans: Sequence[TopicPlan],
        contents: Mapping[SpanId, SpanContent],
        windows: Sequence[Window],
    ) -> None:
        """Keep the earlier backup should Kafka have lost records while they were re-read."""
        poorer = {
            topic.topic.name
            for topic in plans
            for entry in topic.earlier
            if entry.result.content.records
            > contents.get(_span_id(entry.result.plan), SpanContent()).records
        }
        if poorer:
            raise PoorerBackupError(windows=windows, topics=poorer)

    def _window_backup(
        self, window: Window, backups: Sequence[TopicBackup], plan: RunPlan
    ) -> WindowBackup:
        topics = tuple(backup for backup in backups if backup.window == window)
        backup = WindowBackup(
            window=window,
            topics=topics,
            recovery_point_id=topics[0].recovery_point_id if topics else None,
            partition_counts=plan.partition_counts[window],
            has_own_point=window in plan.with_own_point,
            unread=tuple(one for one in plan.unread if one.window == window),
        )
        for one in backup.unread:
            _log.warning("Window %s, topic %s: %s", window.key, one.topic, one.reason)
        _log.info("Window %s: %d records of %d topics.", window.key, backup.records, len(topics))
        return backup


def _kept(topic: TopicPlan) -> tuple[SpanResult, ...]:
    return tuple(replace(entry.result, kept=True) for entry in topic.earlier)


def _span_id(span: SpanPlan) -> SpanId:
    return SpanId(span.window.key, span.partition)


def _spans(plan: RunPlan, windows: Sequence[Window]) -> list[SpanPlan]:
    return [span for topic in plan.topics if topic.window in windows for span in topic.spans]


def back_up(
    settings: ApplicationSettings,
    windows: Sequence[Window],
    *,
    topics: tuple[AppTopic, ...],
    newest_closed: Window | None,
    spark: Spark,
    run_id: str,
) -> list[WindowBackup]:
    """Back up windows of an application as it is configured; see `BackupRun.execute`.

    Schemas of its registry are stored at the end; if that fails, it is logged as a warning.
    """
    make_warehouse(settings.warehouse.root)
    first = WindowCalendar(settings.windows).first_closed()
    with KafkaCluster(settings.connection) as cluster:
        run = BackupRun(
            application=settings.application,
            topics=topics,
            cluster=cluster,
            warehouse=settings.warehouse,
            spark=spark,
            run_id=run_id,
            begins_ms=first.start_ms if first else 0,
            settings=settings.backup,
            recovery_points=settings.recovery_points,
        )
        backups = run.execute(windows, newest_closed=newest_closed)
    try_to_save_schemas(settings)
    return backups


def unproven_points(backup: TopicBackup, points: Iterable[RecoveryPoint]) -> tuple[str, ...]:
    """Ids of the points in the window of a backup that stand above a hole of one of its spans.

    The spans were read after the points were cut, so what the log no longer held may have been
    removed because of a record at or above the point. Sealed points are safe from it, but for
    source topics that serve as changelogs: those are not sealed.
    """
    thinned = {span.partition: span for span in backup.spans if span.first_hole is not None}
    inside = range(backup.window.start_ms, backup.window.end_ms)
    return tuple(
        point.id
        for point in points
        if point.effective_at_ms in inside
        and any(
            _is_above(cut, span)
            for partition, span in thinned.items()
            if (cut := point.cut(partition)) is not None
            and (not point.sealed or cut.roles.is_source)
        )
    )


def _is_above(cut: PartitionCut, span: SpanResult) -> bool:
    return (
        cut.topic_id == span.plan.topic_id
        and span.first_hole is not None
        and span.first_hole < cut.end
        and cut.log_start < span.plan.end
    )
