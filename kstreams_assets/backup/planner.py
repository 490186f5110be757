"""Plans what a run has to do, from recovery points, the ledger and the cluster."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.context import RunContext
from kstreams_assets.backup.result import UnreadTopic
from kstreams_assets.backup.windows import Edges, WindowEdges
from kstreams_assets.errors import ConfigurationError, KafkaRequestError, TopicNotFoundError
from kstreams_assets.kafka.admin import TopicDescription
from kstreams_assets.model.lineage import Continuation
from kstreams_assets.model.point import PartitionIncarnation, topic_id_of
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import Gap, GapCause, Position, SpanPlan, Window
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.recovery.scene import incarnations
from kstreams_assets.repository.repository import Repository
from spark_resources.work import ReadRange

_POLL_S = 0.25
_MOST = 5
"""At most this many partitions are named."""
_ATTEMPTS = 3
_BROKERS_S = 12.0
"""How long a silent broker may take: by default the controller declares it dead after 9 s."""


@dataclass(frozen=True, slots=True)
class LogState:
    """The current log of a partition; `topic_id` (its incarnation) is None if the log is gone."""

    topic_id: str | None
    log_start: int
    committed: int | None = None
    """Committed offset of the application's group, for repartition topics only."""


def plan_span(
    window: Window,
    edges: Edges,
    log: LogState,
    *,
    repartition: bool,
    since: Continuation | None = None,
) -> SpanPlan:
    """Return the span of a window's edges, with gaps for offsets that the log has lost.

    Of a repartition topic only records from the committed offset on are read: the application may
    delete earlier ones at any time (`repartition.purge.interval.ms`). Restores do not need them.

    With `since` the application continues from a restore. A log that was left behind ends at the
    end of its backups; records after the restored point are a loss. A log written by the restore
    is read from the restore's end on: the backups of the older log contain what is below it.
    """
    continues = edges.start is not None and edges.start.topic_id == edges.end.topic_id
    start = edges.start.offset if edges.start and continues else edges.first_log_start
    end = max(edges.end.offset, start)
    gaps: list[Gap] = []
    gone_by = _gone_by(edges.end.topic_id, log.topic_id)
    if edges.start and (edges.vanished or not continues):
        left = _incarnation(edges, edges.start)
        if since is not None and since.is_left(left):
            lost = since.not_restored(left, edges.start.offset)
            gaps += _range(GapCause.NOT_RESTORED, lost.start, lost.end)
        else:
            cause = _gone_by(edges.start.topic_id, edges.end.topic_id)
            gaps.append(Gap(gone_by if edges.vanished else cause, edges.start.offset, None, None))
    is_gone = log.topic_id != edges.end.topic_id
    if is_gone and not edges.recorded and since and since.is_left(_incarnation(edges, edges.end)):
        end = start
    origin = since.origins.get(_incarnation(edges, edges.end)) if since is not None else None
    read_start = start
    if origin is not None:
        read_start = max(start, min(origin.offsets.end, end))
        gaps += _range(GapCause.RESTORED, start, read_start)
    if is_gone:
        gaps += _range(gone_by, read_start, end)
        read_start = end
    else:
        processed = min(log.committed or 0, end) if repartition else read_start
        gaps += _range(GapCause.PURGED, read_start, processed)
        read_start = max(read_start, processed)
        gone = min(max(log.log_start, read_start), end)
        gaps += _range(GapCause.RETENTION, read_start, gone)
        read_start = max(read_start, gone)
    return SpanPlan(
        window=window,
        partition=edges.partition,
        topic_id=edges.end.topic_id,
        start=start,
        end=end,
        read_start=read_start,
        continues=continues,
        gaps=tuple(gaps),
        log_start=log.log_start,
    )


def _incarnation(edges: Edges, position: Position) -> PartitionIncarnation:
    return edges.partition.topic, edges.partition.partition, position.topic_id


def _gone_by(before: str, now: str | None) -> GapCause:
    """Return the cause of the end of a log incarnation, given the current incarnation."""
    if now is None:
        return GapCause.TOPIC_DELETED
    same_topic = topic_id_of(before) == topic_id_of(now)
    return GapCause.LOG_TRUNCATED if same_topic else GapCause.TOPIC_RECREATED


def _range(cause: GapCause, start: int, end: int) -> list[Gap]:
    return [Gap(cause, start, end, end - start)] if end > start else []


def read_ranges(spans: Iterable[SpanPlan]) -> list[ReadRange]:
    """Return the offset ranges to read; adjacent spans of a partition become one range."""
    wanted: defaultdict[TopicPartitionId, list[OffsetRange]] = defaultdict(list)
    for span in spans:
        if span.to_read:
            wanted[span.partition].append(OffsetRange(span.read_start, span.end))
    return [
        ReadRange(partition, one.start, one.end)
        for partition, ranges in sorted(wanted.items())
        for one in RangeSet(ranges)
    ]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic in one window.

    `earlier` are its ledger rows; without any, `increments` are the rows of its increments.
    """

    window: Window
    topic: AppTopic
    spans: tuple[SpanPlan, ...]
    earlier: tuple[LedgerEntry, ...] = ()
    increments: tuple[LedgerEntry, ...] = ()

    @property
    def id(self) -> tuple[str, str]:
        """Window key and topic name."""
        return (self.window.key, self.topic.name)

    @property
    def held(self) -> list[LedgerEntry]:
        """Rows stored for the planned topic incarnations, which this read would replace."""
        topic_ids = {span.partition: span.topic_id for span in self.spans}
        return [
            *(entry for entry in self.earlier if entry.has_span),
            *(
                entry
                for entry in self.increments
                if topic_ids.get(entry.result.partition) == entry.result.plan.topic_id
            ),
        ]

    def without(self, partitions: Collection[TopicPartitionId]) -> "TopicPlan":
        """The plan without the spans of these partitions."""
        kept = tuple(span for span in self.spans if span.partition not in partitions)
        return replace(self, spans=kept)

    @property
    def to_read(self) -> int:
        """Offsets to read."""
        return 0 if self.needs_only_inspection else sum(span.to_read for span in self.spans)

    @property
    def needs_only_inspection(self) -> bool:
        """Whether the records are stored, and only the log was not inspected in time."""
        return not self.unread and any(not entry.result.is_examined for entry in self.earlier)

    @property
    def unread(self) -> set[TopicPartitionId]:
        """Partitions that could not be read before."""
        return {entry.result.partition for entry in self.earlier if entry.result.is_unread}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The work of a run, and the topics as the cluster describes them now.

    `unread` are topics of windows that the run leaves out only because an open transaction, maybe
    another application's, blocks their records. `below_first` are offsets in Kafka that belong to
    no window because they are below the first one. A plan that `ends_early` covers a part of a
    window, which has no recovery point at its end.
    """

    topics: tuple[TopicPlan, ...]
    unread: tuple[UnreadTopic, ...]
    descriptions: Mapping[str, TopicDescription]
    edges: WindowEdges
    below_first: Mapping[TopicPartitionId, OffsetRange]
    ends_early: bool = False


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans backups of one application; waits up to `stable_wait_s` for open transactions."""

    ctx: RunContext
    stable_wait_s: float

    def plan(self, windows: Sequence[Window], topics: Sequence[AppTopic] | None = None) -> RunPlan:
        """Plan these windows, of these topics or of all topics of the run.

        Raises:
            TopicNotFoundError: A topic is not on the cluster, and never was in a recovery point.
            AuthorizationFailedError: The right to READ a topic is missing.
            ConfigurationError: The schedule of the windows has changed.
        """
        topics = self.ctx.topics if topics is None else topics
        names = {topic.name for topic in topics}
        ledger = self.ctx.repo.ledger
        edges = self.edges(windows, names)
        by_window = {window: edges.partitions_of(window, names) for window in windows}
        points = [edges.closing_point(window) for window in windows]
        seen = {topic for point in points if point for topic in point.absent_topics}
        seen |= {edge.partition.topic for found in by_window.values() for edge in found}
        descriptions = self._describe(names, seen)
        since = self.continuation(descriptions)
        logs, stable = self._log_states(by_window.values(), descriptions)
        unread = self._unread(by_window, stable)
        left_out = {(one.window, one.topic) for one in unread}
        earlier: defaultdict[tuple[str, str], list[LedgerEntry]] = defaultdict(list)
        for entry in ledger.entries(windows={w.key for w in windows}, topics=names):
            plan = entry.result.plan
            earlier[plan.window.key, plan.partition.topic].append(entry)
        parts = {window.key for window in windows if window.is_increment}
        for entry in ledger.entries(windows=parts, topics=names, increments=True):
            plan = entry.result.plan
            earlier[plan.window.key, plan.partition.topic].append(entry)
        # A partition whose increments were not merged has no row in its window.
        unrecorded = {
            (window, edge.partition, edge.end.topic_id)
            for window, edges_of_it in by_window.items()
            for edge in edges_of_it
        } - {
            (entry.result.plan.window, entry.result.partition, entry.result.plan.topic_id)
            for of_topic in earlier.values()
            for entry in of_topic
        }
        increments: defaultdict[tuple[str, str], list[LedgerEntry]] = defaultdict(list)
        whole = [window for window in windows if not window.is_increment]
        for entry in ledger.increments_between(whole, names):
            part = entry.result.plan.window
            for window in whole:
                key = window.key, entry.result.partition.topic
                life = window, entry.result.partition, entry.result.plan.topic_id
                is_open = key not in earlier or life in unrecorded
                if window.start_ms <= part.start_ms < window.end_ms and is_open:
                    increments[key].append(entry)
        plans = [
            TopicPlan(
                window,
                topic,
                tuple(
                    plan_span(
                        window,
                        edge,
                        logs[edge.partition],
                        repartition=topic.roles.in_flight_only,
                        since=since,
                    )
                    for edge in by_window[window]
                    if edge.partition.topic == topic.name
                ),
                tuple(earlier[window.key, topic.name]),
                tuple(increments[window.key, topic.name]),
            )
            for window in windows
            for topic in topics
            if (window, topic.name) not in left_out
        ]
        return RunPlan(
            tuple(plans),
            unread,
            descriptions,
            edges,
            self._below_first(names, descriptions),
        )

    def continuation(self, descriptions: Mapping[str, TopicDescription]) -> Continuation | None:
        """Return the restore from which the application continues here, None without one."""
        return Repository.open(self.ctx.settings).lineage.continuation(
            cluster_id=self.ctx.cluster.cluster_id(),
            topic_ids={name: topic.topic_id for name, topic in descriptions.items()},
        )

    def edges(self, windows: Sequence[Window], topics: Set[str] | None = None) -> WindowEdges:
        """Return where these windows start and end, see `load_edges`."""
        ctx = self.ctx
        return load_edges(
            ctx.repo, windows, ctx.names if topics is None else topics, begins_ms=ctx.begins_ms
        )

    def described(self) -> Mapping[str, TopicDescription]:
        """Return the existing topics, as the cluster describes them."""
        return self.ctx.cluster.describe_topics(self.ctx.present())

    def _below_first(
        self, names: Set[str], descriptions: Mapping[str, TopicDescription]
    ) -> Mapping[TopicPartitionId, OffsetRange]:
        """Return offsets below the ledger's first windows that Kafka still has."""
        begins = {
            partition: first.offset
            for partition, first in self.ctx.repo.ledger.first_spans_cut_short(
                names, begins_ms=self.ctx.begins_ms
            ).items()
            if partition.topic in descriptions
            and descriptions[partition.topic].topic_id == first.topic_id
            and partition.partition < descriptions[partition.topic].partitions
        }
        log_starts = self.ctx.cluster.log_start_offsets(list(begins)) if begins else {}
        return {
            partition: OffsetRange(log_starts[partition], begin)
            for partition, begin in begins.items()
            if log_starts[partition] < begin
        }

    def _describe(self, names: Set[str], seen: Set[str]) -> Mapping[str, TopicDescription]:
        """Describe existing topics; a missing topic that a point knows is a loss, not an error."""
        present = set(self.ctx.cluster.topics())
        missing = names - present - seen
        if missing:
            raise TopicNotFoundError(
                topics=missing, cluster=self.ctx.cluster.connection.bootstrap_servers
            )
        here = sorted(names & present)
        self.ctx.cluster.require_read(here)
        return self.ctx.cluster.describe_topics(here)

    def _log_states(
        self,
        edges: Iterable[Sequence[Edges]],
        descriptions: Mapping[str, TopicDescription],
    ) -> tuple[Mapping[TopicPartitionId, LogState], Mapping[TopicPartitionId, int]]:
        """Return the logs, and the last stable offsets of those that were not stable in time."""
        needed: dict[TopicPartitionId, int] = {}
        gone: dict[TopicPartitionId, LogState] = {}
        incarnations_now = self.incarnations(descriptions)
        for edge in (edge for of_window in edges for edge in of_window):
            description = descriptions.get(edge.partition.topic)
            topic_id = description.topic_id if description else None
            now = incarnations_now.get(edge.partition, topic_id)
            if now == edge.end.topic_id:
                needed[edge.partition] = max(needed.get(edge.partition, 0), edge.end.offset)
            else:
                gone[edge.partition] = LogState(now, 0)
        behind = self._wait_until_stable(needed)
        log_starts = self.ctx.cluster.log_start_offsets(list(needed))
        committed = self._committed(needed)
        logs = gone | {
            partition: LogState(
                topic_id=incarnations_now.get(partition, descriptions[partition.topic].topic_id),
                log_start=log_starts[partition],
                committed=committed.get(partition),
            )
            for partition in needed
        }
        return logs, behind

    def incarnations(
        self, descriptions: Mapping[str, TopicDescription]
    ) -> Mapping[TopicPartitionId, str]:
        """Return log incarnations known to the newest recovery point, to detect truncation since.

        Raises:
            KafkaRequestError: The leaders changed during each attempt.
        """
        application_id = self.ctx.settings.application_id
        newest = self.ctx.repo.points.newest()
        known = [cut for point in newest for cut in point.partitions]
        topic_ids = {name: topic.topic_id for name, topic in descriptions.items()}
        partition = doubt = ""
        for _ in range(_ATTEMPTS):
            self.ctx.cluster.watch_leaders()
            found = incarnations(self.ctx.cluster, topic_ids, known)
            if not found.truncated:
                return found.now
            doubt = self.ctx.cluster.stale_leader_check(application_id, wait_s=_BROKERS_S)
            if not doubt:
                return found.now
            partition = str(next(iter(found.truncated)))
        raise KafkaRequestError(operation="epoch_ends", resource=partition, reason=doubt)

    def _wait_until_stable(
        self, needed: Mapping[TopicPartitionId, int]
    ) -> Mapping[TopicPartitionId, int]:
        """Return last stable offsets of partitions that did not reach the needed one in time."""
        deadline = time.monotonic() + self.stable_wait_s
        while True:
            stable = self.ctx.cluster.last_stable_offsets(list(needed))
            behind = {p: offset for p, offset in stable.items() if offset < needed[p]}
            if not behind or time.monotonic() >= deadline:
                return behind
            time.sleep(_POLL_S)

    def _unread(
        self,
        by_window: Mapping[Window, Sequence[Edges]],
        stable: Mapping[TopicPartitionId, int],
    ) -> tuple[UnreadTopic, ...]:
        """Return topics of windows that end beyond a last stable offset."""
        found: dict[tuple[Window, str], list[str]] = {}
        for window, edges in by_window.items():
            for edge in edges:
                readable = stable.get(edge.partition)
                if readable is not None and readable < edge.end.offset:
                    found.setdefault((window, edge.partition.topic), []).append(
                        f"the last stable offset of {edge.partition} stays at {readable}; the"
                        f" window ends at {edge.end.offset}"
                    )
        return tuple(
            UnreadTopic(
                window=window,
                topic=topic,
                reason=(
                    f"An open transaction blocks committed records:"
                    f" {'; '.join(partitions[:_MOST])} (waited {self.stable_wait_s:g} s). Look for"
                    " a hanging transaction (kafka-transactions.sh find-hanging) or a log that was"
                    " truncated by an unclean leader election. The other topics are backed up."
                    " This window stays due for the topic until it can be read."
                ),
            )
            for (window, topic), partitions in found.items()
        )

    def _committed(self, partitions: Iterable[TopicPartitionId]) -> Mapping[TopicPartitionId, int]:
        repartition = {t.name for t in self.ctx.topics if t.roles.in_flight_only}
        wanted = [p for p in partitions if p.topic in repartition]
        if not wanted:
            return {}
        offsets = self.ctx.cluster.group_offsets(self.ctx.settings.application_id)
        return {p: offsets[p].offset for p in wanted if p in offsets}


def load_edges(
    repo: Repository, windows: Sequence[Window], topics: Set[str], *, begins_ms: int
) -> WindowEdges:
    """Return the edges of these windows, loading only the points and rows that they need.

    Raises:
        ConfigurationError: The schedule of the windows has changed.
    """
    edges = {edge for w in windows for edge in (w.start_ms, w.end_ms)}
    points = repo.points
    wanted = points.bounds().at_edges(edges)
    recorded = repo.ledger.recorded_spans(windows, topics)
    for window in windows:
        for other in {span.window for span in recorded} - {window}:
            if other.start_ms < window.end_ms and window.start_ms < other.end_ms:
                raise _overlap(window, other)
    return WindowEdges(points=points.load(wanted), recorded=recorded, begins_ms=begins_ms)


def _overlap(window: Window, recorded: Window) -> ConfigurationError:
    """Return the error for a window that shares time with a recorded one."""
    if recorded.is_merged:
        return ConfigurationError(
            f"Window {window.key} no longer exists on its own: kstreams-assets expire has"
            f" merged it with others ({recorded.key}).",
            remedy="Restore the recovery points that are kept (kstreams-assets recovery-points"
            " list); later windows can be backed up as before.",
        )
    return ConfigurationError(
        f"Window {window.key} overlaps window {recorded.key}, which was backed up under another"
        " schedule.",
        remedy="Set windows.every and windows.start to their earlier values, or start a new"
        " warehouse.",
    )
