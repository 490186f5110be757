"""Backups of an application: their estimates, and the order of their steps."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.amounts import Estimate, Phase, Progress, TopicAmount, amounts, in_words
from kstreams_assets.backup.commits import Committer, commit_groups
from kstreams_assets.backup.context import RunContext
from kstreams_assets.backup.increments import IncrementMerger
from kstreams_assets.backup.parts import is_large, next_increments
from kstreams_assets.backup.planner import Planner, TopicPlan
from kstreams_assets.backup.recorded import window_backups
from kstreams_assets.backup.result import UnreadTopic, WindowBackup
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.errors import KafkaError, StoredDataError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import SpanPlan, Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store.locks import LockHandle, WarehouseLockedError
from spark_resources.work import Spark

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BackupResult:
    """The windows that a run has backed up."""

    windows: tuple[WindowBackup, ...] = ()
    took_s: float = 0.0

    @property
    def records(self) -> int:
        """Records of all windows."""
        return sum(window.records for window in self.windows)

    @property
    def unread(self) -> list[UnreadTopic]:
        """Topics that had to be left out: their windows stay due."""
        return [one for window in self.windows for one in window.unread]


@dataclass(frozen=True, slots=True)
class BackupJob:
    """Plans and runs backups of an application as it is configured.

    `topics` are backed up, by default all of them. `check`, `on_phase` and `new_lineage` are those
    of `RunContext`.

    Example:
        >>> job = BackupJob(settings, spark, run_id="nightly")
        >>> job.run(WindowCalendar(settings.windows).windows(["2026-11-26"])).records
        184467
    """

    settings: ApplicationSettings
    spark: Spark
    run_id: str
    topics: tuple[AppTopic, ...] | None = None
    check: Callable[[], None] = lambda: None
    on_phase: Callable[[Progress], None] = lambda _: None
    new_lineage: bool = False

    def plan(self, windows: Sequence[Window]) -> Estimate:
        """Estimate what a backup of these windows reads now; reads only. See `estimate`."""
        with self.opened() as ctx:
            return estimate(ctx, windows, newest_closed=self.newest_closed())

    def run(self, windows: Sequence[Window]) -> BackupResult:
        """Back up windows, see `BackupRun.execute`.

        Schemas of the application's registry are stored at the end; if that fails, it is logged as
        a warning.
        """
        began = time.monotonic()
        self.settings.warehouse.make()
        with self.opened() as ctx:
            backups = BackupRun(ctx).execute(windows, newest_closed=self.newest_closed())
        Repository.open(self.settings).schemas.try_to_save(self.settings.registry)
        return BackupResult(tuple(backups), time.monotonic() - began)

    def read_again(self, increments: Iterable[LedgerEntry]) -> None:
        """Back up increments of a reopened window, see `Committer.read_again`."""
        with self.opened() as ctx:
            BackupRun(ctx).committer.read_again(increments)

    def newest_closed(self) -> Window | None:
        """Return the window that closed last; a run takes the point that bounds it."""
        return WindowCalendar(self.settings.windows).newest_closed()

    @contextmanager
    def opened(self) -> Iterator[RunContext]:
        """Yield the context of a run."""
        with KafkaCluster(self.settings.connection) as cluster:
            yield self.on(cluster)

    def on(self, cluster: KafkaCluster) -> RunContext:
        """Return the context of a run on a cluster that is open already."""
        return RunContext(
            settings=self.settings,
            topics=self.settings.topics if self.topics is None else self.topics,
            cluster=cluster,
            spark=self.spark,
            run_id=self.run_id,
            begins_ms=WindowCalendar(self.settings.windows).first_ms,
            check=self.check,
            on_phase=self.on_phase,
            new_lineage=self.new_lineage,
        )


@dataclass(frozen=True, slots=True)
class BackupRun:
    """Plans under the application's lock, commits, then merges increments; knows no Dagster."""

    ctx: RunContext
    planner: Planner = field(init=False)
    committer: Committer = field(init=False)
    merger: IncrementMerger = field(init=False)

    def __post_init__(self) -> None:
        planner = Planner(self.ctx, self.ctx.settings.backup.stable_wait_seconds)
        committer = Committer(self.ctx, planner)
        object.__setattr__(self, "planner", planner)
        object.__setattr__(self, "committer", committer)
        object.__setattr__(self, "merger", IncrementMerger(self.ctx, planner, committer))

    def execute(
        self, windows: Sequence[Window], *, newest_closed: Window | None
    ) -> list[WindowBackup]:
        """Back up these windows, in order of time.

        Windows in the ledger keep their spans and are read again; if Kafka no longer has all of
        their records, the earlier backup stays. If the newest closed window is among them and has
        no recovery point, one is taken first. Another one is taken after all windows: the backups
        then have most of the changelogs, so sealing it costs little. If that fails, it is logged
        and the run has not failed.

        Raises:
            JarsMissingError: Spark is needed, and its jars are missing; nothing was written.
            JavaNotFoundError: The same of Java.
            KStreamsAssetsError: Its subclasses say what failed; groups of windows that were
                committed before stay.
        """
        ctx = self.ctx
        require_spark(ctx, windows, newest_closed=newest_closed)
        with ctx.writing() as lock:
            if newest_closed in windows and newest_closed is not None:
                ensure_closing_point(ctx, newest_closed)
            followed = [
                window
                for window in sorted(windows)
                if ctx.repo.ledger.increments_of(window) and ctx.missing(window)
            ]
            for window in followed:
                self.committer.complete(window, lock)
            others = sorted({*windows} - {*followed})
            large, done = self._large_and_others(others, lock)
        failures: list[StoredDataError] = []
        if followed or large:
            ctx.start(Phase.MERGE)
        for window in sorted([*followed, *large]):
            try:
                done += self.merger.close(window)
                done += self._close_rest(window)
            except StoredDataError as error:  # Other windows are closed all the same.
                _log.warning("Window %s cannot be closed: %s", window.key, error)
                failures.append(error)
        self.merger.drop_superseded()
        take_last_point(ctx)
        if failures:
            raise failures[0]
        return sorted(done, key=lambda backup: backup.window)

    def increment(self, window: Window, *, newest_closed: Window | None) -> WindowBackup | None:
        """Back up what came since the last increment, up to the newest point, as another one.

        Before the first increment of a window, the previous window needs its closing point: a
        later one would end in the middle of the increments.

        Args:
            window: The window that is open.
            newest_closed: The one before it, None if it is the first.

        Returns:
            The contents of the increment; its window is the increment's. None when no point was
            taken since the last one.

        Raises:
            KStreamsAssetsError: As `execute`.
        """
        ctx = self.ctx
        with ctx.writing() as lock:
            if newest_closed is not None and not ctx.repo.ledger.increments_so_far(window)[0]:
                ensure_closing_point(ctx, newest_closed)
            bounds = ctx.repo.points.bounds()
            newest = bounds.last_inside(window.start_ms, window.end_ms)
            if newest is None:
                return None
            parts = next_increments(ctx.repo, window, newest.effective_at_ms + 1, ctx.topics)
            done = [self.committer.back_up_part(part, topics, lock) for part, topics in parts]
        if not done:
            return None
        return replace(
            done[0],
            topics=tuple(topic for one in done for topic in one.topics),
            unread=tuple(topic for one in done for topic in one.unread),
        )

    def _large_and_others(
        self, windows: Sequence[Window], lock: LockHandle
    ) -> tuple[list[Window], list[WindowBackup]]:
        """Back up windows; return those that became increments, and the results of the others.

        A window becomes increments if one commit cannot take all of it and nothing of it is stored
        yet.
        """
        if not windows:
            return [], []
        ctx = self.ctx
        plan = self.planner.plan(windows)
        sizes = amounts(ctx.cluster, ctx.repo, plan.topics)
        offsets = sum(topic.to_read for topic in plan.topics)
        if ctx.settings.spark.needs_spark(offsets):
            size = sizes.of(plan.topics)
            _log.info("To be read: %s.", in_words(size, offsets, ctx.expected_pace()))
            ctx.has_read(0, size)
        by_window: dict[Window, list[TopicPlan]] = {}
        for topic in plan.topics:
            by_window.setdefault(topic.window, []).append(topic)
        large = [
            window
            for window, topics in sorted(by_window.items())
            if is_large(sizes.of(topics), ctx.settings.backup)
            and not any(topic.earlier for topic in topics)
        ]
        if not large:
            return [], self.committer.commit(plan, sizes, lock)
        for window in large:
            self.committer.complete(window, lock)
        return large, self.committer.back_up([one for one in windows if one not in large], lock)

    def _close_rest(self, window: Window) -> list[WindowBackup]:
        """Close a window for topics that could not be read before the others were closed.

        A topic is read again from the window's start only if offsets are missing between its
        increments.
        """
        ctx = self.ctx
        if not ctx.missing(window):
            return []
        with self.merger.locked():
            with ctx.writing() as lock:
                unread = self.committer.complete(window, lock)
            done = self.merger.merge(window)
        if unread:
            edges = self.planner.edges([window])
            done += window_backups(ctx.repo, [window], (), edges, unread)
        rest = ctx.missing(window) - {one.topic for one in unread}
        if rest:
            with ctx.writing() as lock:
                done += self.committer.back_up([window], lock, ctx.topics_of(rest))
        return done


def ensure_closing_point(ctx: RunContext, newest_closed: Window) -> None:
    """Take the point that bounds the newest closed window, if it has none.

    A window of which a topic is backed up already keeps its edges.
    """
    if needs_closing_point(ctx, newest_closed):
        ctx.start(Phase.CLOSING_POINT)
        _take(ctx, newest_closed.end_ms)


def needs_closing_point(ctx: RunContext, newest_closed: Window) -> bool:
    """Whether nothing of a window is backed up, and no point was taken in it."""
    if ctx.repo.ledger.done(ctx.names, windows=[newest_closed]).get(newest_closed):
        return False
    bounds = ctx.repo.points.bounds()
    return bounds.last_inside(newest_closed.start_ms, newest_closed.end_ms) is None


def take_last_point(ctx: RunContext) -> RecoveryPoint | None:
    """Take the last point of a run, sealed if possible.

    Return None if the cluster or another recorder prevents it: the backups of the run do not
    depend on it, and the next point seals what this one would have sealed.
    """
    ctx.start(Phase.LAST_POINT)
    try:
        return _take(ctx)
    except (KafkaError, WarehouseLockedError) as error:
        _log.warning(
            "The backups are done, but no recovery point could be taken after them: %s", error
        )
        return None


def _take(ctx: RunContext, closes_window_end_ms: int | None = None) -> RecoveryPoint:
    """Take a point; only changelog records that are not backed up yet are saved with it."""
    settings = ctx.settings
    recorder = Recorder(
        settings.application,
        ctx.cluster,
        settings.warehouse,
        settings.recovery_points,
        new_lineage=ctx.new_lineage,
    )
    return recorder.take(
        closes_window_end_ms=closes_window_end_ms,
        held=ctx.repo.ledger.held_positions(settings.application),
        seal_bytes=settings.recovery_points.closing_seal_bytes,
        commit_wait_s=settings.recovery_points.wait_s(),
    )


def estimate(
    ctx: RunContext, windows: Sequence[Window], *, newest_closed: Window | None
) -> Estimate:
    """Estimate what a backup of these windows reads now; write nothing, take no recovery point.

    Raises:
        KafkaError: Its subclasses say why the cluster could not be reached.
    """
    topics = _planned(ctx, windows, newest_closed)
    sizes = amounts(ctx.cluster, ctx.repo, topics)
    return Estimate(
        ctx.settings.application_id,
        tuple(window.key for window in sorted(windows)),
        tuple(
            TopicAmount(
                topic.name,
                sum(one.to_read for one in topics if one.topic.name == topic.name),
                round(sizes.of(one for one in topics if one.topic.name == topic.name)),
            )
            for topic in ctx.topics
        ),
        ctx.expected_pace(),
    )


def require_spark(
    ctx: RunContext, windows: Sequence[Window], *, newest_closed: Window | None
) -> None:
    """Check for jars and Java if a backup of these windows needs Spark; write nothing.

    Only a machine without them needs the plan that decides it.

    Raises:
        JarsMissingError: Jars of Spark are missing.
        JavaNotFoundError: No supported Java is installed.
        KafkaError: Its subclasses say why the cluster could not be reached.
    """
    from spark_resources.java import is_present

    if is_present("spark"):
        return
    topics = _planned(ctx, windows, newest_closed)
    sizes = amounts(ctx.cluster, ctx.repo, topics)
    backup, by_window = ctx.settings.backup, dict[Window, list[TopicPlan]]()
    for topic in topics:
        by_window.setdefault(topic.window, []).append(topic)
    whole = {
        window: round(sizes.of(of_window))
        for window, of_window in by_window.items()
        if not window.is_increment
    }
    for group in (
        *((window,) for window in by_window if window.is_increment),
        *commit_groups(whole, limit_bytes=backup.commit_bytes, most=backup.windows_per_commit),
    ):
        of_group = [topic for window in group for topic in by_window[window]]
        size, offsets = sizes.of(of_group), sum(topic.to_read for topic in of_group)
        if size > backup.commit_bytes:  # read in parts; the smallest ones that it can have
            offsets = int(offsets * min(1.0, backup.part_bytes / size))
        if ctx.settings.spark.needs_spark(offsets):
            ctx.spark.check()


def _planned(
    ctx: RunContext, windows: Sequence[Window], newest_closed: Window | None
) -> list[TopicPlan]:
    """Plan what a backup of these windows reads now, without waiting for open transactions."""
    planner = Planner(ctx, stable_wait_s=0.0)
    topics: list[TopicPlan] = []
    whole: list[Window] = []
    for window in sorted(windows):
        missing = ctx.missing(window)
        if not missing or not ctx.repo.ledger.increments_of(window):
            whole.append(window)
            continue
        rest = next_increments(ctx.repo, window, window.end_ms, ctx.topics_of(missing))
        for part, of_part in rest:
            topics += planner.plan([part], of_part).topics
    if (
        newest_closed in whole
        and newest_closed is not None
        and needs_closing_point(ctx, newest_closed)
    ):
        topics += _until_now(ctx, newest_closed, planner, whole)
    elif whole:
        topics += planner.plan(whole).topics
    return topics


def _until_now(
    ctx: RunContext, newest_closed: Window, planner: Planner, windows: Sequence[Window]
) -> list[TopicPlan]:
    """Plan windows as if the missing point of the newest closed one were taken now."""
    cluster, here = ctx.cluster, ctx.present()
    seen = ctx.repo.points.newest()
    plans = list(planner.plan(windows).topics) if seen else []
    planned: dict[TopicPartitionId, int] = {}
    for span in (span for topic in plans for span in topic.spans):
        planned[span.partition] = max(span.end, planned.get(span.partition, 0))
    described = cluster.describe_topics(here)
    for topic in ctx.topics_of(here):
        if topic.roles.in_flight_only:
            continue  # there are few records in flight
        ids = [TopicPartitionId(topic.name, n) for n in range(described[topic.name].partitions)]
        starts = cluster.log_start_offsets(ids)
        ends = cluster.last_stable_offsets(ids)
        spans = [
            SpanPlan(newest_closed, id_, "", start, max(start, ends[id_]), start, True)
            for id_ in ids
            for start in [max(starts[id_], planned.get(id_, 0))]
        ]
        plans.append(TopicPlan(newest_closed, topic, tuple(spans)))
    return plans
