"""Gathers what recovery points, ledger and cluster say, and lays out what a run has to do."""

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole
from kstreams_assets.backup.ledger import Ledger, LedgerEntry
from kstreams_assets.backup.plan import LogState, SpanPlan, plan_span
from kstreams_assets.backup.result import TopicLife
from kstreams_assets.backup.windows import Edges, Window, WindowEdges
from kstreams_assets.errors import ConfigurationError, KafkaError, TopicNotFoundError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.positions import TopicPartitionId
from kstreams_assets.kafka.topics import TopicDescription
from kstreams_assets.recovery.point import RecoveryPoint
from kstreams_assets.recovery.table import RecoveryPointTable, at_edges

_POLL_S = 0.25


class StableOffsetNotReachedError(KafkaError):
    """An open transaction keeps committed records of a window from being read."""

    def __init__(
        self, *, partition: TopicPartitionId, needed: int, found: int, waited_s: float
    ) -> None:
        super().__init__(
            f"The last stable offset of {partition} stays at {found}; the window ends at {needed}"
            f" (waited {waited_s:g} s).",
            remedy="Look for a hanging transaction (kafka-transactions.sh find-hanging) or a log"
            " that was truncated by an unclean leader election; then try again.",
        )
        self.partition = partition
        self.needed = needed
        self.found = found
        self.waited_s = waited_s


class WindowsChangedError(ConfigurationError):
    """Windows of another length were backed up before over the same time."""

    def __init__(self, *, wanted: Window, recorded: Window) -> None:
        super().__init__(
            f"Window {wanted.key} overlaps window {recorded.key}, which was backed up under another"
            " schedule.",
            remedy="Put windows.every and windows.start back to what they were, or begin a new"
            " warehouse.",
        )
        self.wanted = wanted
        self.recorded = recorded


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic in one window; `earlier` is what the ledger holds of it already."""

    window: Window
    topic: AppTopic
    spans: tuple[SpanPlan, ...]
    opened: TopicLife | None
    closed: TopicLife | None
    recovery_point_id: str | None
    earlier: tuple[LedgerEntry, ...] = ()

    @property
    def id(self) -> tuple[str, str]:
        """Window key and topic name."""
        return (self.window.key, self.topic.name)

    @property
    def to_read(self) -> int:
        """Offsets to read."""
        return sum(span.to_read for span in self.spans)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run has to do, and the topics as the cluster describes them now."""

    topics: tuple[TopicPlan, ...]
    descriptions: Mapping[str, TopicDescription]
    partition_counts: Mapping[Window, Mapping[str, int]]
    """Partitions of every topic of the application when each window closed."""
    with_own_point: frozenset[Window]
    """Windows in which, or on whose behalf, a recovery point was taken."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans backups of one application."""

    application: StreamsApplication
    topics: tuple[AppTopic, ...]
    cluster: KafkaCluster
    points: RecoveryPointTable
    ledger: Ledger
    stable_wait_s: float

    def plan(self, windows: Sequence[Window]) -> RunPlan:
        """Lay out these windows.

        Raises:
            TopicNotFoundError: A topic is not on the cluster, and never was in a recovery point.
            AuthorizationFailedError: The right to READ a topic is missing.
            WindowsChangedError: The schedule of the windows is not what it was.
            StableOffsetNotReachedError: A window's records do not become readable.
        """
        names = {topic.name for topic in self.topics}
        edges = self._edges(windows, names)
        by_window = {window: edges.partitions_of(window, names) for window in windows}
        descriptions = self._describe(names, self._seen(windows, by_window, edges))
        logs = self._log_states(by_window.values(), descriptions)
        earlier = self._earlier(windows, names)
        plans = [
            self._topic_plan(window, topic, by_window[window], edges, logs, earlier)
            for window in windows
            for topic in self.topics
        ]
        return RunPlan(
            topics=tuple(plans),
            descriptions=descriptions,
            partition_counts={
                window: _partition_counts(edges.closing_point(window)) for window in windows
            },
            with_own_point=frozenset(w for w in windows if edges.has_own_point(w)),
        )

    def _edges(self, windows: Sequence[Window], names: Set[str]) -> WindowEdges:
        application_id = self.application.application_id
        instants = self.points.instants(application_id)
        wanted = at_edges(instants, {edge for w in windows for edge in (w.start_ms, w.end_ms)})
        recorded = self.ledger.recorded_spans(windows, names)
        _refuse_overlaps(windows, {span.window for span in recorded})
        return WindowEdges(points=self.points.load(application_id, wanted), recorded=recorded)

    def _seen(
        self,
        windows: Sequence[Window],
        by_window: Mapping[Window, Sequence[Edges]],
        edges: WindowEdges,
    ) -> set[str]:
        """Topics that were on the cluster once."""
        points = [edges.closing_point(window) for window in windows]
        absent = {topic for point in points if point for topic in point.absent_topics}
        return absent | {edge.partition.topic for found in by_window.values() for edge in found}

    def _describe(self, names: Set[str], seen: Set[str]) -> Mapping[str, TopicDescription]:
        """Describe what is there; a topic that is gone but was seen is a loss, not an error."""
        present = set(self.cluster.topics())
        missing = names - present - seen
        if missing:
            raise TopicNotFoundError(
                topics=missing, cluster=self.cluster.connection.bootstrap_servers
            )
        here = sorted(names & present)
        self.cluster.require_read(here)
        return self.cluster.describe_topics(here)

    def _log_states(
        self,
        edges: Iterable[Sequence[Edges]],
        descriptions: Mapping[str, TopicDescription],
    ) -> Mapping[TopicPartitionId, LogState]:
        needed: dict[TopicPartitionId, int] = {}
        gone: dict[TopicPartitionId, LogState] = {}
        for edge in (edge for of_window in edges for edge in of_window):
            description = descriptions.get(edge.partition.topic)
            if description and description.topic_id == edge.end.topic_id:
                needed[edge.partition] = max(needed.get(edge.partition, 0), edge.end.offset)
            else:
                topic_id = description.topic_id if description else None
                gone[edge.partition] = LogState(topic_id, 0)
        self._wait_until_stable(needed)
        log_starts = self.cluster.log_start_offsets(list(needed))
        committed = self._committed(needed)
        return gone | {
            partition: LogState(
                topic_id=descriptions[partition.topic].topic_id,
                log_start=log_starts[partition],
                committed=committed.get(partition),
            )
            for partition in needed
        }

    def _wait_until_stable(self, needed: Mapping[TopicPartitionId, int]) -> None:
        deadline = time.monotonic() + self.stable_wait_s
        while True:
            stable = self.cluster.last_stable_offsets(list(needed))
            behind = {p: offset for p, offset in stable.items() if offset < needed[p]}
            if not behind:
                return
            if time.monotonic() >= deadline:
                partition, found = sorted(behind.items())[0]
                raise StableOffsetNotReachedError(
                    partition=partition,
                    needed=needed[partition],
                    found=found,
                    waited_s=self.stable_wait_s,
                )
            time.sleep(_POLL_S)

    def _committed(self, partitions: Iterable[TopicPartitionId]) -> Mapping[TopicPartitionId, int]:
        repartition = {t.name for t in self.topics if _is_purged(t)}
        wanted = [p for p in partitions if p.topic in repartition]
        if not wanted:
            return {}
        offsets = self.cluster.group_offsets(self.application.application_id)
        return {p: offsets[p].offset for p in wanted if p in offsets}

    def _earlier(
        self, windows: Sequence[Window], names: Set[str]
    ) -> Mapping[tuple[str, str], tuple[LedgerEntry, ...]]:
        found: dict[tuple[str, str], list[LedgerEntry]] = {}
        for entry in self.ledger.entries(windows={w.key for w in windows}, topics=names):
            key = (entry.result.plan.window.key, entry.result.partition.topic)
            found.setdefault(key, []).append(entry)
        return {key: tuple(entries) for key, entries in found.items()}

    def _topic_plan(
        self,
        window: Window,
        topic: AppTopic,
        edges: Sequence[Edges],
        window_edges: WindowEdges,
        logs: Mapping[TopicPartitionId, LogState],
        earlier: Mapping[tuple[str, str], tuple[LedgerEntry, ...]],
    ) -> TopicPlan:
        closing = window_edges.closing_point(window)
        return TopicPlan(
            window=window,
            topic=topic,
            spans=tuple(
                plan_span(
                    window,
                    edge,
                    logs[edge.partition],
                    repartition=_is_purged(topic),
                )
                for edge in edges
                if edge.partition.topic == topic.name
            ),
            opened=_life(window_edges.point_before(window.start_ms), topic.name),
            closed=_life(closing, topic.name),
            recovery_point_id=closing.id if closing else None,
            earlier=earlier.get((window.key, topic.name), ()),
        )


def _refuse_overlaps(windows: Sequence[Window], recorded: Set[Window]) -> None:
    for wanted in windows:
        for other in recorded - {wanted}:
            if other.start_ms < wanted.end_ms and wanted.start_ms < other.end_ms:
                raise WindowsChangedError(wanted=wanted, recorded=other)


def _is_purged(topic: AppTopic) -> bool:
    return topic.roles == {TopicRole.REPARTITION}


def _life(point: RecoveryPoint | None, topic: str) -> TopicLife | None:
    cuts = [cut for cut in point.partitions if cut.topic == topic] if point else []
    return TopicLife(cuts[0].topic_id, len(cuts)) if cuts else None


def _partition_counts(point: RecoveryPoint | None) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for cut in point.partitions if point else ():
        counts[cut.topic] = counts.get(cut.topic, 0) + 1
    return counts
