"""Backs up windows of one application: write files, look, account, one commit, then the ledger."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from kstreams_assets.app.model import AppTopic, StreamsApplication
from kstreams_assets.backup.accounting import Accountant, Look, nothing_seen
from kstreams_assets.backup.amounts import (
    Amounts,
    Estimate,
    Pace,
    Progress,
    TopicAmount,
    amounts,
    expected_pace,
    in_words,
    note_pace,
)
from kstreams_assets.backup.fold import (
    Pieces,
    damaged_entries,
    drop_superseded,
    fold_tasks,
    lost_increment,
    pieces_of,
)
from kstreams_assets.backup.parts import first_part, is_large
from kstreams_assets.backup.planner import Planner, RunPlan, TopicPlan, read_ranges
from kstreams_assets.backup.replacement import files_that_stay, poorer_partitions
from kstreams_assets.backup.result import (
    BackupReadError,
    TopicBackup,
    TopicRecreatedWhileReadingError,
    UnreadTopic,
    WindowBackup,
    range_of,
)
from kstreams_assets.backup.windows import WindowEdges
from kstreams_assets.errors import (
    KafkaError,
    KStreamsAssetsError,
    OffsetOutOfRangeError,
    SparkLostError,
    StoredDataError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import CarriedConnection
from kstreams_assets.kafka.throttle import Throttle, throttle
from kstreams_assets.kafka.topics import TopicDescription, may_be_compacted
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import LockHandle, WarehouseLockedError, warehouse_lock
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.lineage import require_lineage
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.settings import ApplicationSettings, BackupSettings, RecoveryPointSettings
from kstreams_assets.store import StorePath
from kstreams_assets.texts import bytes_text, duration
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.committer import NewFile, commit, uncommitted
from kstreams_assets.warehouse.ledger import (
    INCREMENT,
    Ledger,
    LedgerEntry,
    TopicFactsTable,
    increment_key,
)
from kstreams_assets.warehouse.lineage import continued_restores
from kstreams_assets.warehouse.point import RecoveryPoint
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.records import (
    SpanId,
    contents_of,
    ensure_records,
    open_records,
    span_of,
    tidy_records,
)
from kstreams_assets.warehouse.restores import RestoresTable, StoredRestore
from kstreams_assets.warehouse.schemas import try_to_save_schemas
from kstreams_assets.warehouse.spans import SpanContent, SpanPlan, SpanResult, TopicFacts, Window
from kstreams_assets.warehouse.table import STORAGE_FAILURES, make_warehouse, storage_failures
from spark_resources.work import ReadRange, Spark

if TYPE_CHECKING:
    from spark_resources.span_tasks import SpanTask, Written


_log = logging.getLogger(__name__)


_ATTEMPTS = 3
_FOLDS = 2
"""Partitions that are put together at a time: each takes memory of some row groups."""
_MOST = 5
"""So many reasons are given."""
_LEAST_FREE_BYTES = 64 * 1024**2
"""Below it a run cannot be expected to finish: even an empty one writes a few files."""


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
    check: Callable[[], None] = lambda: None
    """Called now and then while this process reads or writes files; may raise."""
    progress: Callable[[Progress], None] = lambda _: None
    """Called before and after each commit of a run that takes long."""
    new_lineage: bool = False
    """Accept a cluster to which neither the backups nor a restore of them lead."""

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
        with self._locked() as lock:
            if newest_closed in windows and newest_closed is not None:
                self.ensure_closing_point(newest_closed)
            followed = [
                window
                for window in sorted(windows)
                if self._ledger.increments_of(window) and self._missing(window)
            ]
            for window in followed:
                self._complete(window, lock)
            others = sorted({*windows} - {*followed})
            large, done = self._large_and_others(others, lock)
        failures: list[StoredDataError] = []
        for window in sorted([*followed, *large]):
            try:
                done += self._fold(window)
                done += self._close_rest(window)
            except StoredDataError as error:  # One window does not keep the others open.
                _log.warning("Window %s cannot be closed: %s", window.key, error)
                failures.append(error)
        self._drop_superseded()
        self.take_last_point()
        if failures:
            raise failures[0]
        return sorted(done, key=lambda backup: backup.window)

    def estimate(self, windows: Sequence[Window], *, newest_closed: Window | None) -> Estimate:
        """What `execute` would read now; writes nothing, and takes no recovery point.

        Raises:
            KafkaError: Its subclasses say why the cluster could not be asked.
        """
        planner = replace(self._planner(), stable_wait_s=0.0)
        topics: list[TopicPlan] = []
        whole: list[Window] = []
        for window in sorted(windows):
            if not self._ledger.increments_of(window) or not self._missing(window):
                whole.append(window)
            else:
                missing = self._of(self._missing(window))
                for rest, of_rest in self._next_increments(window, window.end_ms, missing):
                    topics += replace(planner, topics=of_rest).plan([rest]).topics
        if (
            newest_closed in whole
            and newest_closed is not None
            and self._lacks_point(newest_closed)
        ):
            topics += self._until_now(newest_closed, planner, whole)
        elif whole:
            topics += planner.plan(whole).topics
        sizes = amounts(self.cluster, self._ledger, topics)
        return Estimate(
            tuple(window.key for window in sorted(windows)),
            tuple(
                TopicAmount(
                    topic.name,
                    sum(one.to_read for one in topics if one.topic.name == topic.name),
                    round(sizes.of(one for one in topics if one.topic.name == topic.name)),
                )
                for topic in self.topics
            ),
            self._expected_pace(),
        )

    def _until_now(
        self, newest_closed: Window, planner: Planner, windows: Sequence[Window]
    ) -> list[TopicPlan]:
        """Windows as if a point were taken now, which the newest closed one lacks."""
        here = {topic.name for topic in self.topics} & set(self.cluster.topics())
        seen = RecoveryPointTable(self.warehouse).newest(self.application.application_id)
        plans = list(planner.plan(windows).topics) if seen else []
        planned: dict[TopicPartitionId, int] = {}
        for span in (span for topic in plans for span in topic.spans):
            planned[span.partition] = max(span.end, planned.get(span.partition, 0))
        described = self.cluster.describe_topics(sorted(here))
        for topic in self.topics:
            if topic.name not in here or topic.roles.in_flight_only:
                continue  # of records in flight there are few
            ids = [TopicPartitionId(topic.name, n) for n in range(described[topic.name].partitions)]
            starts = self.cluster.log_start_offsets(ids)
            ends = self.cluster.last_stable_offsets(ids)
            spans = [
                SpanPlan(newest_closed, id_, "", start, max(start, ends[id_]), start, True)
                for id_ in ids
                for start in [max(starts[id_], planned.get(id_, 0))]
            ]
            plans.append(TopicPlan(newest_closed, topic, tuple(spans)))
        return plans

    def increment(self, window: Window, *, newest_closed: Window | None) -> WindowBackup | None:
        """Back up what came since the increment before, up to the newest point, as another one.

        A window whose increments begin has the point that ends the one before: taken later, that
        would end in the middle of them.

        Args:
            window: The window that is open.
            newest_closed: The one before it, None if it is the first.

        Returns:
            What the increment holds; its window is the increment's. None when no point was taken
            since the last one.

        Raises:
            KStreamsAssetsError: As `execute`.
        """
        with self._locked() as lock:
            if newest_closed is not None and not self._ledger.increments_so_far(window)[0]:
                self.ensure_closing_point(newest_closed)
            bounds = RecoveryPointTable(self.warehouse).bounds(self.application.application_id)
            newest = bounds.last_inside(window.start_ms, window.end_ms)
            if newest is None:
                return None
            done = [
                replace(self, topics=topics)._back_up_part(part, lock)  # noqa: SLF001
                for part, topics in self._next_increments(
                    window, newest.effective_at_ms + 1, self.topics
                )
            ]
        if not done:
            return None
        return replace(
            done[0],
            topics=tuple(topic for one in done for topic in one.topics),
            unread=tuple(topic for one in done for topic in one.unread),
        )

    def _next_increments(
        self, window: Window, end_ms: int, topics: Iterable[AppTopic]
    ) -> list[tuple[Window, tuple[AppTopic, ...]]]:
        """The increments up to an instant, each with the topics that are backed up equally far.

        A topic that could not be read for a while continues where its own last increment ends: what
        others hold by then is in none of its increments. Those that are furthest come first.
        """
        ended, number = self._ledger.increments_so_far(window)
        by_start: dict[int, list[AppTopic]] = {}
        for topic in topics:
            by_start.setdefault(ended.get(topic.name, window.start_ms), []).append(topic)
        return [
            (
                Window(start_ms, end_ms, increment_key(window, number + nth)),
                tuple(by_start[start_ms]),
            )
            for nth, start_ms in enumerate(sorted(by_start, reverse=True))
            if start_ms < end_ms
        ]

    def _complete(self, window: Window, lock: LockHandle) -> tuple[UnreadTopic, ...]:
        """Back up what is missing of a window as increments, of bounded size each.

        Returns:
            The topics that cannot be read to the window's end yet.
        """
        unread: dict[str, UnreadTopic] = {}
        while parts := self._next_increments(
            window, window.end_ms, self._of(self._missing(window) - unread.keys())
        ):
            part, topics = parts[0]
            done = replace(self, topics=topics)._back_up_part(part, lock)  # noqa: SLF001
            unread |= {one.topic: replace(one, window=window) for one in done.unread}
        return tuple(unread.values())

    def _close_rest(self, window: Window) -> list[WindowBackup]:
        """Close a window for the topics that could not be read before the others were closed.

        A topic is read again from the window's start only if offsets are missing between its
        increments.
        """
        if not self._missing(window):
            return []
        with self._fold_lock():
            with self._locked() as lock:
                unread = self._complete(window, lock)
            done = self._merge_sound(window)
        if unread:
            edges = self._planner().edges([window])
            done += window_backups(self.warehouse, self.application, [window], (), edges, unread)
        rest = self._missing(window) - {one.topic for one in unread}
        if rest:
            with self._locked() as lock:
                of_rest = replace(self, topics=self._of(rest))
                done += of_rest._back_up([window], lock)  # noqa: SLF001
        return done

    def _of(self, names: Set[str]) -> tuple[AppTopic, ...]:
        """The topics of the run with these names."""
        return tuple(topic for topic in self.topics if topic.name in names)

    def _back_up_part(self, rest: Window, lock: LockHandle) -> WindowBackup:
        """Back up the rest of a window, or as much of it as one commit takes."""
        plan = self._planner().plan([rest])
        sizes = amounts(self.cluster, self._ledger, plan.topics)
        size_of_all = sizes.of(plan.topics)
        is_long = size_of_all > self.settings.part_bytes
        pace = self._expected_pace() if is_long else None

        def part(whole: RunPlan) -> RunPlan:
            return first_part(whole, rest, sizes, self.settings, pace) or whole

        first = part(plan)
        window = first.topics[0].window if first.ends_early else rest
        if is_long:
            self.progress(Progress(0, size_of_all, pace))
        began = time.monotonic()
        (done,) = self._back_up_settled(
            [window], first, lock, lambda: part(self._planner().plan([rest]))
        )
        size, took_s = sizes.of(first.topics), time.monotonic() - began
        note_pace(self.warehouse, self.application.application_id, size, took_s)
        left = size_of_all - size
        if is_long:
            self.progress(Progress(size, left, self._expected_pace()))
        if first.ends_early:
            pace = Pace(size / took_s, "")
            _log.info(
                "Window %s: %s backed up in %s (%s/s); about %s are left, %s at this pace.",
                rest.key.partition(INCREMENT)[0],
                bytes_text(round(size)),
                duration(round(1000 * took_s)),
                bytes_text(round(pace.bytes_per_s)),
                bytes_text(round(left)),
                duration(round(1000 * pace.takes_s(left))),
            )
        return done

    def _large_and_others(
        self, windows: Sequence[Window], lock: LockHandle
    ) -> tuple[list[Window], list[WindowBackup]]:
        """Back up windows; those that became increments, and what the others hold.

        Increments are made of windows of which more is to be read than one commit takes, and of
        which nothing is stored yet.
        """
        if not windows:
            return [], []
        plan = self._planner().plan(windows)
        sizes = amounts(self.cluster, self._ledger, plan.topics)
        self._announce(plan, sizes)
        by_window: dict[Window, list[TopicPlan]] = {}
        for topic in plan.topics:
            by_window.setdefault(topic.window, []).append(topic)
        large = [
            window
            for window, topics in sorted(by_window.items())
            if is_large(sizes.of(topics), self.settings)
            and not any(topic.earlier for topic in topics)
        ]
        if not large:
            return [], self._back_up_planned(plan, sizes, lock)
        for window in large:
            self._complete(window, lock)
        return large, self._back_up([one for one in windows if one not in large], lock)

    def _announce(self, plan: RunPlan, sizes: Amounts) -> None:
        """Say how much there is to do, before it begins."""
        pace = self._expected_pace()
        offsets = sum(topic.to_read for topic in plan.topics)
        if offsets > self.settings.few_offsets:
            _log.info("To be read: %s.", in_words(sizes.of(plan.topics), offsets, pace))
            self.progress(Progress(0, sizes.of(plan.topics), pace))

    def _expected_pace(self) -> Pace | None:
        return expected_pace(self.settings, self.warehouse, self.application.application_id)

    @contextmanager
    def _locked(self) -> Iterator[LockHandle]:
        """Hold the application's lock, with the warehouse in order and a cluster that answers."""
        purpose = f"backup run {self.run_id}"
        with self._ledger.locked(purpose, self.settings.lock_wait_s) as lock:
            self._check_what_is_needed()
            yield lock

    def _back_up(self, windows: Sequence[Window], lock: LockHandle) -> list[WindowBackup]:
        if not windows:
            return []
        plan = self._planner().plan(windows)
        sizes = amounts(self.cluster, self._ledger, plan.topics)
        return self._back_up_planned(plan, sizes, lock)

    def _back_up_planned(
        self, plan: RunPlan, sizes: Amounts, lock: LockHandle
    ) -> list[WindowBackup]:
        done: list[WindowBackup] = []
        left = sizes.of(plan.topics)
        for group in self._groups(plan, sizes):
            began = time.monotonic()
            done += self._back_up_settled(
                group, plan, lock, lambda group=group: self._planner().plan(group)
            )
            size = sizes.of(topic for topic in plan.topics if topic.window in group)
            name = self.application.application_id
            note_pace(self.warehouse, name, size, time.monotonic() - began)
            left -= size
            self.progress(Progress(size, left, self._expected_pace()))
        return done

    def _fold(self, window: Window) -> list[WindowBackup]:
        """Put the increments of a closed window together; topics that it has already are left out.

        Files are written without the lock, so that others can go on meanwhile.
        """
        with self._fold_lock():
            return self._merge_sound(window)

    def _merge_sound(self, window: Window) -> list[WindowBackup]:
        """As `_merge_increments`; increments with damaged files are read from Kafka again.

        Where Kafka has lost some of their records, the increments of that partition stay as they
        are: points restore from those that are sound, and the others are reported as damaged.
        """
        try:
            return self._merge_increments(window)
        except (StoredDataError, *STORAGE_FAILURES):
            damaged = self._damaged_increments(window)
            if not damaged:
                with storage_failures(self._records):
                    raise
        self.read_again(damaged)
        left = self._damaged_increments(window)
        for entry, problem in left.items():
            _log.warning("%s", lost_increment(entry, problem))
        return self._merge_increments(window, {e.result.partition for e in left})

    def _damaged_increments(self, window: Window) -> dict[LedgerEntry, str]:
        entries = self._ledger.increments_of(window, self._missing(window))
        return damaged_entries(self._records, entries)

    def read_again(self, increments: Iterable[LedgerEntry]) -> None:
        """Back up increments again, each up to where it ends, as far as Kafka has their records.

        Raises:
            KStreamsAssetsError: The cluster cannot be asked.
        """
        topics: dict[Window, set[str]] = {}
        for entry in increments:
            plan = entry.result.plan
            topics.setdefault(plan.window, set()).add(plan.partition.topic)
        for window, names in sorted(topics.items()):
            run = replace(self, topics=self._of(names))
            with self._locked() as lock:
                try:
                    run._back_up([window], lock)  # noqa: SLF001
                except (BackupReadError, TopicNotFoundError) as error:
                    _log.warning("%s", error)  # It stays damaged, which is reported.

    def _merge_increments(
        self, window: Window, without: Set[TopicPartitionId] = frozenset()
    ) -> list[WindowBackup]:
        """As `_fold`, for a caller that has its lock; increments of some partitions stay."""
        from spark_resources.data_files import NewFolder
        from spark_resources.span_tasks import run_here

        began = time.monotonic()
        with ExitStack() as stack:
            found = self._pieces(window)
            if not found:
                return []
            pieces = {
                topic: [one for one in of_topic if one.partition not in without]
                for topic, of_topic in found.items()
            }
            every = [one for of_topic in pieces.values() for one in of_topic]
            with uncommitted(self._records) as folder:
                new = NewFolder(folder, *self._compression)
                tasks = fold_tasks(self._records, every, new)
                done = run_here(tasks, self.check, at_a_time=self.settings.tasks or _FOLDS)
                files = _files(folder, done)
                contents = contents_of(self._records, files)
                results = {one.id: one.result(contents.get(one.id, SpanContent())) for one in every}
                lock = stack.enter_context(self._locked())
                if self._pieces(window) != found:
                    raise BackupReadError(
                        windows=[window], reason="another run has backed it up meanwhile"
                    )
            version = commit(
                self._records,
                ensure_records(self._records),
                files,
                writer=lock,
                replaces=[{"window": window.key, "topic": topic} for topic in pieces],
                provenance=self._provenance([window]),
            )
            planner = self._planner()
            edges = planner.edges([window])
            closing = edges.closing_point(window)
            facts = self._facts(planner.described())
            facts_table = TopicFactsTable(self.warehouse, self.application.application_id)
            previous = facts_table.before(window.start_ms)
            roles = {topic.name: topic.roles for topic in self.topics}
            backups = [
                TopicBackup(
                    window=window,
                    topic=topic,
                    role="+".join(sorted(roles[topic])),
                    spans=tuple(results[one.id] for one in of_topic),
                    facts=facts.get(topic),
                    previous_facts=previous.get(topic),
                    recovery_point_id=closing.id if closing else None,
                    delta_version=version,
                    duration_s=time.monotonic() - began,
                )
                for topic, of_topic in pieces.items()
            ]
            facts_table.record(backups, writer=lock)
            self._ledger.record(backups, run_id=self.run_id, writer=lock)
        return window_backups(self.warehouse, self.application, [window], backups, edges)

    def _missing(self, window: Window) -> set[str]:
        """The topics that the ledger does not have in a window."""
        names = {topic.name for topic in self.topics}
        return names - self._ledger.done(names, windows=[window]).get(window, set())

    def _pieces(self, window: Window) -> dict[str, list[Pieces]]:
        return pieces_of(window, self._ledger.increments_of(window, self._missing(window)))

    def _fold_lock(self) -> AbstractContextManager[LockHandle]:
        """One run at a time puts increments together: it takes away what others would read."""
        return warehouse_lock(
            self.warehouse.lock_file(f"fold/{self.application.application_id}"),
            purpose=f"putting increments together, run {self.run_id}",
            wait_s=self.settings.lock_wait_s,
        )

    def _drop_superseded(self) -> None:
        """Take away the increments that the ledger has as windows by now.

        Also of earlier windows: a run may have been killed before it got to that.
        """
        windows = self._ledger.closed_with_increments()
        if not windows:
            return
        with self._fold_lock(), self._locked() as lock:
            if not drop_superseded(
                self._ledger,
                self._records,
                windows,
                writer=lock,
                provenance=self._provenance(windows),
            ):
                return
            restores = RestoresTable(self.warehouse)
            writing = restores.writing(self.application.application_id)
            tidy_records(self._records, keep_files=bool(writing))

    def _facts(self, described: Mapping[str, TopicDescription]) -> Mapping[str, TopicFacts]:
        """The facts of topics, with the configs that a restore has relaxed as they were."""
        restores = continued_restores(self.warehouse, self.application.application_id)
        return with_own_configs(facts_of(described), restores)

    @property
    def _throttle(self) -> Throttle | None:
        settings, name = self.settings, self.application.application_id
        return throttle(
            f"backup {name}",
            settings.bytes_per_s,
            settings.broker_bytes_per_s,
            tasks=settings.tasks,
        )

    @property
    def _compression(self) -> tuple[str, int]:
        return self.settings.compression, self.settings.compression_level

    def _provenance(self, windows: Iterable[Window]) -> dict[str, object]:
        return {
            "run_id": self.run_id,
            "application_id": self.application.application_id,
            "windows": sorted({window.key for window in windows}),
        }

    def _check_what_is_needed(self) -> None:
        """Refuse what cannot succeed before a recovery point is taken for it."""
        self.spark.check()
        self.warehouse.require_space(_LEAST_FREE_BYTES)
        self._planner().check_access()
        if not self.new_lineage:
            require_lineage(self.warehouse, self.application.application_id, self.cluster)

    def ensure_closing_point(self, newest_closed: Window) -> None:
        """Take the point that bounds the newest closed window, should it have none.

        A window of which a topic is backed up already keeps its edges.
        """
        if self._lacks_point(newest_closed):
            self._take_point(newest_closed.end_ms)

    def _lacks_point(self, newest_closed: Window) -> bool:
        names = [topic.name for topic in self.topics]
        if self._ledger.done(names, windows=[newest_closed]).get(newest_closed):
            return False
        application_id = self.application.application_id
        bounds = RecoveryPointTable(self.warehouse).bounds(application_id)
        return bounds.last_inside(newest_closed.start_ms, newest_closed.end_ms) is None

    def take_last_point(self) -> RecoveryPoint | None:
        """Take the point that a run ends with, sealed if it can be.

        None when the cluster or another recorder stands in the way: the backups that the run made
        do not depend on it, and the next point seals what this one would have.
        """
        try:
            return self._take_point()
        except (KafkaError, WarehouseLockedError) as error:
            _log.warning(
                "The backups are done, but no recovery point could be taken after them: %s", error
            )
            return None

    def _take_point(self, closes_window_end_ms: int | None = None) -> RecoveryPoint:
        """Take a point with what the backups hold: only the rest of the changelogs is saved."""
        points = self.recovery_points
        recorder = Recorder(
            self.application,
            self.cluster,
            self.warehouse,
            points,
            new_lineage=self.new_lineage,
        )
        return recorder.take(
            closes_window_end_ms=closes_window_end_ms,
            held=self._ledger.held_positions(self.application),
            seal_bytes=points.closing_seal_bytes,
        )

    @property
    def _records(self) -> StorePath:
        return self.warehouse.records(self.application.application_id)

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.warehouse, self.application.application_id)

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

    def _groups(self, plan: RunPlan, amounts: Amounts) -> list[tuple[Window, ...]]:
        sizes = {one.window: 0 for one in plan.unread}
        for topic in plan.topics:
            sizes[topic.window] = sizes.get(topic.window, 0) + round(amounts.of([topic]))
        return commit_groups(
            sizes, limit_bytes=self.settings.commit_bytes, most=self.settings.windows_per_commit
        )

    def _back_up_settled(
        self,
        windows: Sequence[Window],
        plan: RunPlan,
        lock: LockHandle,
        plan_again: Callable[[], RunPlan],
    ) -> list[WindowBackup]:
        """Plan the group anew when the log moved under the read (retention, recreated topics)."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._back_up_group(windows, plan, lock)
            except (BackupReadError, TopicRecreatedWhileReadingError) as error:
                anew = plan_again()
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
        again = [topic for topic in plans if topic.lacks_only_the_look]
        settings = self.settings
        with Accountant(
            self.cluster.connection,
            settings.scan_stall_s,
            settings.scan_connections,
            self._throttle,
        ) as accountant:
            fresh = _richer((t, self._staying(accountant, t)) for t in plans if t not in again)
            with self._written(fresh, windows, lock) as (files, looks, left_out):
                fresh = [topic for topic in fresh if topic.id not in left_out]
                plans = [topic for topic in plans if topic.id not in left_out]
                contents_of(self._records, files)
                self._refuse_recreated(plan, windows, fresh, files)
                fresh = _richer((t, poorer_partitions(self._records, t, files)) for t in fresh)
                files = self._of_spans(fresh, files)
                contents = contents_of(self._records, files)
                compacted = self._compacted(plan, windows)
                results = accountant.results([*fresh, *again], contents, looks, compacted)
        # Outside the block: what a commit may refer to is never deleted.
        version = self._commit(files, fresh, windows, lock)
        took_s = time.monotonic() - began
        facts_table = TopicFactsTable(self.warehouse, self.application.application_id)
        facts = self._facts(plan.descriptions)
        previous = facts_table.before(min(window.start_ms for window in windows))
        kept = {topic.id: _kept(topic, results.get(topic.id, ())) for topic in plans}
        backups: dict[tuple[str, str], TopicBackup] = {}
        for topic in plans:
            name = topic.topic.name
            # The point that closes the window says nothing about the end of a part of it.
            closing = None if plan.ends_early else plan.edges.closing_point(topic.window)
            backups[topic.id] = TopicBackup(
                window=topic.window,
                topic=name,
                role="+".join(sorted(topic.topic.roles)),
                spans=_in_order(results.get(topic.id, ()), kept[topic.id]),
                facts=facts.get(name),
                previous_facts=previous.get(name),
                recovery_point_id=closing.id if closing else None,
                delta_version=topic.earlier[0].delta_version if topic in again else version,
                duration_s=took_s,
                below_first={p: o for p, o in plan.below_first.items() if p.topic == name},
            )
        found = [backups[id_] for id_ in backups if id_ in results]
        if any(INCREMENT in window.key for window in windows):
            changed = [one for one in found if previous.get(one.topic) != one.facts]
            facts_table.record([_at_its_point(one) for one in changed], writer=lock)
            self._ledger.record_increment(found, run_id=self.run_id, writer=lock)
        else:
            facts_table.record([backups[topic.id] for topic in fresh], writer=lock)
            stay = [entry for id_ in results for entry in kept[id_]]
            self._ledger.record(found, run_id=self.run_id, writer=lock, kept=stay)
        unread = [one for one in plan.unread if one.window in windows]
        staying = [topic for topic in plans if topic.increments and topic.id not in results]
        unread += map(_increments_stay, staying)
        unread += [*left_out.values(), *_not_read(results)]
        for topic in staying:
            del backups[topic.id]
        done = window_backups(
            self.warehouse, self.application, windows, backups.values(), plan.edges, unread
        )
        for one in unread:
            _log.warning("Window %s, topic %s: %s", one.window.key, one.topic, one.reason)
        for window in done:
            _log.info(
                "Window %s: %d records of %d topics.",
                window.window.key,
                window.records,
                len(window.topics),
            )
        return done

    def _staying(self, accountant: Accountant, topic: TopicPlan) -> Set[TopicPartitionId]:
        """Partitions whose backup stays; where Kafka has lost some, only damaged ones are read."""
        if topic.unread:
            return {entry.result.partition for entry in topic.held} - topic.unread
        gone = accountant.gone_since(topic)
        if not gone:
            return gone
        name, window = topic.topic.name, topic.window.key
        damaged = {
            TopicPartitionId(name, span.partition)
            for span in self._ledger.damaged([name], windows=[window])
        }
        return {entry.result.partition for entry in topic.held} - (damaged - gone)

    @contextmanager
    def _written(
        self, plans: Sequence[TopicPlan], windows: Sequence[Window], lock: LockHandle
    ) -> "Iterator[_Read]":
        """Files of what is to be read; they are deleted if the block fails."""
        spans = [span for topic in plans for span in topic.spans]
        reads = read_ranges(spans)
        if not reads:
            yield _Read([], {}, {})
            return
        ensure_records(self._records, first=self._ledger.ensure)
        with uncommitted(self._records) as folder:
            yield self._write(folder, plans, reads, windows, lock)

    def _write(
        self,
        folder: StorePath,
        plans: Sequence[TopicPlan],
        reads: Sequence[ReadRange],
        windows: Sequence[Window],
        lock: LockHandle,
    ) -> "_Read":
        spans = [span for topic in plans for span in topic.spans]
        offsets = sum(span.to_read for span in spans)
        topics = {span.partition.topic for span in spans}
        _log.info(
            "Reading %d offsets of %d topics for %s.", offsets, len(topics), range_of(windows)
        )
        from spark_resources.data_files import NewFolder, remove_unreported
        from spark_resources.span_tasks import edges_of, span_tasks

        connection = self.cluster.connection
        tasks = span_tasks(
            reads,
            edges_of(spans),
            folder=NewFolder(folder, *self._compression),
            connection=CarriedConnection.of(connection),
            idle_timeout_s=self.settings.read_stall_s,
            throttle=self._throttle,
        )
        began = time.monotonic()
        try:
            done = self._run(tasks, offsets, lock)
        except SparkLostError:
            raise
        except (OffsetOutOfRangeError, TopicNotFoundError, RuntimeError) as error:
            reason = error.problem if isinstance(error, KStreamsAssetsError) else str(error)
            raise BackupReadError(windows=windows, reason=connection.scrub(reason)) from None
        _log.info("Read in %.1f s.", time.monotonic() - began)
        looks = {
            SpanId(window, TopicPartitionId(topic, number)): Look(tally)
            for one in done
            for (window, topic, number), tally in one.tallies.items()
        }
        reasons = {
            SpanId(window, TopicPartitionId(topic, number)): reason
            for one in done
            for (window, topic, number), reason in one.unread.items()
        }
        looks |= {
            id_: nothing_seen(span, reasons[id_])
            for span in spans
            if (id_ := _span_id(span)) in reasons
        }
        left_out = self._left_out(plans, reasons)
        files = [
            file
            for file in _files(folder, done)
            if (file.values["window"], file.values["topic"]) not in left_out
        ]
        remove_unreported(folder, {file.path.rpartition("/")[2] for file in files})
        return _Read(files, looks, left_out)

    def _left_out(
        self, plans: Iterable[TopicPlan], reasons: Mapping[SpanId, str]
    ) -> dict[tuple[str, str], UnreadTopic]:
        """Topics of which nothing is recorded, since records of them could not be read.

        The next increment reads all of the topic again. Of a closed window the partitions that
        could be read are recorded, but where its increments stay.
        """
        found: dict[tuple[str, str], UnreadTopic] = {}
        for topic in plans:
            why = [reasons[id_] for s in topic.spans if (id_ := _span_id(s)) in reasons]
            if why and (INCREMENT in topic.window.key or topic.increments):
                found[topic.id] = UnreadTopic(topic.window, topic.topic.name, " ".join(why[:_MOST]))
        return found

    def _compacted(self, plan: RunPlan, windows: Sequence[Window]) -> set[str]:
        """Topics that compaction may have made holes in: now, or when they were backed up last."""
        table = TopicFactsTable(self.warehouse, self.application.application_id)
        previous = table.before(min(window.start_ms for window in windows))
        return {
            name
            for name, topic in plan.descriptions.items()
            if may_be_compacted(topic.effective_configs)
            or (name in previous and may_be_compacted(dict(previous[name].configs)))
        }

    def _run(
        self, tasks: "Sequence[SpanTask]", offsets: int, lock: LockHandle
    ) -> "Sequence[Written]":
        """Here if there is little to do, else on Spark."""
        from spark_resources.span_tasks import run_here

        few = offsets <= self.settings.few_offsets
        if few:
            return run_here(tasks, self.check, at_a_time=self.settings.tasks)
        return self._on_spark(tasks, lock)

    def _on_spark(self, tasks: "Sequence[SpanTask]", lock: LockHandle) -> "Sequence[Written]":
        from spark_resources.partition_tasks import run_partition_tasks
        from spark_resources.span_tasks import run_on_spark

        return run_partition_tasks(
            self.spark.spark_session,
            tasks,
            run_on_spark,
            lock=lock.tasks,
            at_a_time=self.settings.tasks,
        )

    def _commit(
        self,
        files: Sequence[NewFile],
        plans: Sequence[TopicPlan],
        windows: Sequence[Window],
        lock: LockHandle,
    ) -> int | None:
        """Replace what the table holds of these topics and windows; None when there is nothing."""
        table = open_records(self._records, to_write=True)
        if table is None:
            return None
        return commit(
            self._records,
            table,
            files,
            writer=lock,
            replaces=[{"window": t.window.key, "topic": t.topic.name} for t in plans],
            keeps=files_that_stay(self._records, plans),
            provenance=self._provenance(windows),
        )

    def _of_spans(self, plans: Iterable[TopicPlan], files: Sequence[NewFile]) -> list[NewFile]:
        """The files of planned spans; the others are deleted."""
        spans = {_span_id(span) for topic in plans for span in topic.spans}
        for file in files:
            if span_of(file) not in spans:
                with suppress(OSError):  # the next clean-up deletes it
                    (self._records / file.path).unlink()
        return [file for file in files if span_of(file) in spans]

    def _refuse_recreated(
        self,
        plan: RunPlan,
        windows: Sequence[Window],
        plans: Sequence[TopicPlan],
        files: Sequence[NewFile],
    ) -> None:
        """Refuse what may mix two topics of one name, or two incarnations of a log."""
        if not files and not any(topic.held for topic in plans):
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


class _Read(NamedTuple):
    """The files that were written, what lay in the log where they were read, and topics of which
    nothing may be recorded, by window and topic."""

    files: list[NewFile]
    looks: Mapping[SpanId, Look]
    left_out: Mapping[tuple[str, str], UnreadTopic]


def _not_read(
    results: Mapping[tuple[str, str], Sequence[SpanResult]],
) -> Iterator[UnreadTopic]:
    """Topics with partitions that could not be read."""
    for (_, topic), spans in results.items():
        unread = [span for span in spans if span.is_unread and span.not_examined_because]
        if unread:
            reasons = " ".join(span.not_examined_because for span in unread[:_MOST])
            yield UnreadTopic(unread[0].plan.window, topic, reasons)


def _files(folder: StorePath, done: "Iterable[Written]") -> list[NewFile]:
    return [NewFile.told(folder, row) for one in done for row in one.rows]


def _richer(
    plans: Iterable[tuple[TopicPlan, Collection[TopicPartitionId]]],
) -> list[TopicPlan]:
    """The plans without partitions of which more is stored than can be read.

    Increments make a window together, or not at all.
    """
    found: list[TopicPlan] = []
    for plan, poorer in plans:
        rest = plan.without(poorer)
        if len(rest.spans) == len(plan.spans):
            found.append(plan)
        elif rest.spans and not plan.increments:
            found.append(rest)
    return found


def _kept(topic: TopicPlan, results: Iterable[SpanResult]) -> list[LedgerEntry]:
    """What is stored of a topic and stays, given the results of what was read."""
    read = {result.partition for result in results}
    return [entry for entry in topic.held if entry.result.partition not in read]


def _in_order(results: Iterable[SpanResult], kept: Iterable[LedgerEntry]) -> tuple[SpanResult, ...]:
    every = [*results, *(replace(entry.result, kept=True) for entry in kept)]
    return tuple(sorted(every, key=lambda one: (one.partition, one.plan.window)))


def _at_its_point(increment: TopicBackup) -> TopicBackup:
    """The increment as if it ended with the point that ends it, one millisecond earlier.

    Facts that are recorded with it count for that point.
    """
    window = increment.window
    return replace(increment, window=replace(window, end_ms=window.end_ms - 1))


def _increments_stay(topic: TopicPlan) -> UnreadTopic:
    """Why a window is not made of its increments."""
    return UnreadTopic(
        topic.window,
        topic.topic.name,
        "Offsets are missing between its increments, and Kafka no longer holds all records that"
        " they hold. The increments stay, and recovery points restore from them. Records between"
        " them are lost.",
    )


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
    new_lineage: bool = False,
) -> list[WindowBackup]:
    """Back up windows of an application as it is configured; see `BackupRun.execute`.

    Schemas of its registry are stored at the end; if that fails, it is logged as a warning.
    """
    make_warehouse(settings.warehouse.root)
    with KafkaCluster(settings.connection) as cluster:
        run = backup_run(settings, topics, cluster, spark, run_id, new_lineage=new_lineage)
        backups = run.execute(windows, newest_closed=newest_closed)
    try_to_save_schemas(settings)
    return backups


def read_increments_again(
    settings: ApplicationSettings,
    increments: Iterable[LedgerEntry],
    *,
    topics: tuple[AppTopic, ...],
    spark: Spark,
    run_id: str,
) -> None:
    """Back up increments of a window that is open again, see `BackupRun.read_again`."""
    with KafkaCluster(settings.connection) as cluster:
        backup_run(settings, topics, cluster, spark, run_id).read_again(increments)


def estimate_backup(
    settings: ApplicationSettings,
    windows: Sequence[Window],
    *,
    topics: tuple[AppTopic, ...],
    newest_closed: Window | None,
    spark: Spark,
) -> Estimate:
    """What a backup of these windows would read now, see `BackupRun.estimate`."""
    with KafkaCluster(settings.connection) as cluster:
        run = backup_run(settings, topics, cluster, spark, "estimate")
        return run.estimate(windows, newest_closed=newest_closed)


def backup_run(
    settings: ApplicationSettings,
    topics: tuple[AppTopic, ...],
    cluster: KafkaCluster,
    spark: Spark,
    run_id: str,
    check: Callable[[], None] = lambda: None,
    *,
    progress: Callable[[Progress], None] = lambda _: None,
    new_lineage: bool = False,
) -> BackupRun:
    """A run over topics of an application as it is configured."""
    return BackupRun(
        application=settings.application,
        topics=topics,
        cluster=cluster,
        warehouse=settings.warehouse,
        spark=spark,
        run_id=run_id,
        begins_ms=WindowCalendar(settings.windows).first_ms,
        settings=settings.backup,
        recovery_points=settings.recovery_points,
        check=check,
        progress=progress,
        new_lineage=new_lineage,
    )


def commit_groups(
    sizes: Mapping[Window, int], *, limit_bytes: int, most: int
) -> list[tuple[Window, ...]]:
    """Windows in order, cut into groups of at most so many bytes and windows (one at least).

    Each group becomes one commit, so that a failure keeps what is done.
    """
    groups: list[list[Window]] = []
    filled = 0
    for window, size in sorted(sizes.items()):
        if not groups or filled + size > limit_bytes or len(groups[-1]) == most:
            groups.append([])
            filled = 0
        groups[-1].append(window)
        filled += size
    return [tuple(group) for group in groups]


def with_own_configs(
    facts: Mapping[str, TopicFacts], restores: Iterable[StoredRestore]
) -> Mapping[str, TopicFacts]:
    """Facts with the configs that `restore finish` will set, where a restore has relaxed them."""
    own = {
        topic.target_topic_id: topic.put_back
        for restore in restores
        if not restore.is_finished
        for topic in restore.topics
    }
    return {
        name: replace(
            one,
            configs=_changed(one.configs, own[one.topic_id]),
            effective_configs=_changed(
                one.effective_configs,
                {
                    config: value
                    for config, value in own[one.topic_id].items()
                    if config in dict(one.effective_configs)
                },
            ),
        )
        if one.topic_id in own
        else one
        for name, one in facts.items()
    }


def _changed(
    configs: Sequence[tuple[str, str]], own: Mapping[str, str | None]
) -> tuple[tuple[str, str], ...]:
    """None removes a value."""
    changed = {**dict(configs), **own}
    return tuple(sorted((name, value) for name, value in changed.items() if value is not None))


def facts_of(descriptions: Mapping[str, TopicDescription]) -> Mapping[str, TopicFacts]:
    """The facts that the table `topics` keeps of each described topic."""
    return {
        name: TopicFacts(
            topic_id=topic.topic_id,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=tuple(sorted(topic.explicit_configs.items())),
            effective_configs=tuple(sorted(topic.record_configs.items())),
        )
        for name, topic in descriptions.items()
    }


def window_backups(
    warehouse: Warehouse,
    application: StreamsApplication,
    windows: Sequence[Window],
    backups: Iterable[TopicBackup],
    edges: WindowEdges,
    unread: Sequence[UnreadTopic] = (),
) -> list[WindowBackup]:
    """Backups by window, with the points of it that their holes leave unproven."""
    backups = list(backups)
    thinned = {b.window for b in backups if any(s.first_hole is not None for s in b.spans)}
    points: list[RecoveryPoint] = []
    if thinned:
        table = RecoveryPointTable(warehouse)
        ids = [
            instant.id
            for instant in table.instants(application.application_id)
            if any(w.start_ms <= instant.effective_at_ms < w.end_ms for w in thinned)
        ]
        points = table.load(application.application_id, ids)
    restores = tuple(continued_restores(warehouse, application.application_id))
    return [
        WindowBackup(
            window,
            tuple(
                replace(backup, unproven_points=unproven_points(backup, points))
                for backup in backups
                if backup.window == window
            ),
            edges.point_before(window.start_ms),
            edges.closing_point(window),
            tuple(one for one in unread if one.window == window),
            restores,
        )
        for window in windows
    ]


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
            cut.topic_id == span.plan.topic_id
            and span.first_hole is not None
            and span.first_hole < cut.end
            and cut.log_start < span.plan.end
            for partition, span in thinned.items()
            if (cut := point.cut(partition)) is not None
            and (not point.sealed or cut.roles.is_source)
        )
    )
