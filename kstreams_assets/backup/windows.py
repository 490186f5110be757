"""Assigns offsets to windows. The windows cover every partition's log without overlap.

A window ends at the offsets of the last recovery point taken before its closing time, and starts
at the end of the window before it. Record timestamps have no influence. Edges in the ledger are
frozen: an edge that was used once never moves.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from kstreams_assets.model.point import PartitionCut, RecoveryPoint, effective_points
from kstreams_assets.model.spans import Position, RecordedSpan, Window
from kstreams_assets.offsets import TopicPartitionId


@dataclass(frozen=True, slots=True)
class Edges:
    """The two ends of a window in one partition.

    `start` is None if the partition was unknown before the window, and in the first window of all
    (its records then start at `first_log_start`). A window has no `Edges` for a partition that was
    unknown at its end. An exception are partitions that existed when the window opened: they have
    `vanished`, and the window ends at its start. `recorded`: the ledger already has the edges.
    """

    partition: TopicPartitionId
    start: Position | None
    end: Position
    first_log_start: int
    vanished: bool = False
    recorded: bool = False


@dataclass(slots=True)
class _Recorded:
    """The ledger's edges of one partition, by the times for which they are valid."""

    by_window: dict[Window, RecordedSpan] = field(default_factory=dict)
    by_instant: dict[int, Position] = field(default_factory=dict)
    _ends: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _starts: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, spans: Iterable[RecordedSpan]) -> "_Recorded":
        recorded = cls()
        for span in sorted(spans, key=lambda s: s.window):
            recorded._add(span)
        return recorded

    def _add(self, span: RecordedSpan) -> None:
        window, life = span.window, span.topic_id
        self.by_window[window] = span
        if span.continues:
            self.by_instant.setdefault(window.start_ms, Position(life, span.start))
        self.by_instant[window.end_ms] = Position(life, span.end)
        self._ends.setdefault(life, []).append((window.end_ms, span.end))
        self._starts.setdefault(life, []).append((window.start_ms, span.start))

    def end_of_increments(self, window: Window) -> Position | None:
        """Return the end of its window's increments before this one; None without one.

        A partition may have been left out of some of them.
        """
        before = [
            span
            for other, span in self.by_window.items()
            if other.is_increment
            and other.first_window == window.first_window
            and other.start_ms < window.start_ms
        ]
        last = max(before, key=lambda span: span.window, default=None)
        return None if last is None else Position(last.topic_id, last.end)

    def end_before(self, instant_ms: int) -> Position | None:
        """Return the end of the last recorded window that ended by a time, None without one."""
        before = [span for span in self.by_window.values() if span.window.end_ms <= instant_ms]
        last = max(before, key=lambda span: span.window, default=None)
        return None if last is None else Position(last.topic_id, last.end)

    def clamp(self, instant_ms: int, position: Position) -> Position:
        """Keep an edge between adjacent windows, in case a late point would move it."""
        ends = self._ends.get(position.topic_id, [])
        starts = self._starts.get(position.topic_id, [])
        before = bisect_right(ends, instant_ms, key=itemgetter(0))
        after = bisect_left(starts, instant_ms, key=itemgetter(0))
        offset = position.offset
        if before:
            offset = max(offset, ends[before - 1][1])
        if after < len(starts):
            offset = min(offset, starts[after][1])
        return Position(position.topic_id, offset)


_NOTHING = _Recorded()


@dataclass(slots=True)
class WindowEdges:
    """Finds the position of each partition at a time, from recovery points and the ledger.

    `begins_ms` is the start of the first window of the schedule (epoch milliseconds). That window
    starts at the log start, or at the end of the ledger: offsets below a recovery point that is
    older than the window are in no other window.
    """

    points: Sequence[RecoveryPoint]
    recorded: Iterable[RecordedSpan] = ()
    begins_ms: int = 0
    _ordered: list[RecoveryPoint] = field(init=False)
    _instants: list[int] = field(init=False)
    _ledger: dict[TopicPartitionId, _Recorded] = field(init=False)
    _recorded_in: dict[Window, set[TopicPartitionId]] = field(init=False)

    def __post_init__(self) -> None:
        self._ordered = effective_points(self.points)
        self._instants = [point.effective_at_ms for point in self._ordered]
        spans: dict[TopicPartitionId, list[RecordedSpan]] = defaultdict(list)
        self._recorded_in = defaultdict(set)
        for span in self.recorded:
            spans[span.partition].append(span)
            self._recorded_in[span.window].add(span.partition)
        self._ledger = {partition: _Recorded.of(of_it) for partition, of_it in spans.items()}

    def closing_point(self, window: Window) -> RecoveryPoint | None:
        """Return the recovery point that bounds a window, None without one before its end."""
        return self.point_before(window.end_ms)

    def point_before(self, instant_ms: int) -> RecoveryPoint | None:
        """Return the last valid recovery point before a time, None without one."""
        index = bisect_left(self._instants, instant_ms)
        return self._ordered[index - 1] if index else None

    def partitions_of(self, window: Window, topics: Iterable[str]) -> list[Edges]:
        """Return the edges of every partition of these topics that was known at the window's end.

        Partitions that existed at the window's start and had gone at its end are included.
        """
        wanted = set(topics)
        closing = self.closing_point(window)
        known = {cut.id for cut in closing.partitions} if closing else set()
        opening = self.point_before(window.start_ms)
        known |= {cut.id for cut in opening.partitions} if opening else set()
        known |= self._recorded_in.get(window, set())
        edges = (
            self._edges(window, partition, closing)
            for partition in sorted(known)
            if partition.topic in wanted
        )
        return [edge for edge in edges if edge is not None]

    def _edges(
        self, window: Window, partition: TopicPartitionId, closing: RecoveryPoint | None
    ) -> Edges | None:
        span = self._ledger.get(partition, _NOTHING).by_window.get(window)
        if span is not None:
            start = Position(span.topic_id, span.start) if span.continues else None
            end = Position(span.topic_id, span.end)
            return Edges(partition, start, end, span.start, recorded=True)
        opening = self.point_before(window.start_ms)
        cut = closing.cut(partition) if closing else None
        recorded = self._ledger.get(partition, _NOTHING)
        if window.is_increment and (ended := recorded.end_of_increments(window)) is not None:
            start = ended
        elif window.start_ms <= self.begins_ms:
            start = self._first_position(partition, window, cut)
        else:
            start = self._position(partition, window.start_ms)
        if opening and partition.topic in opening.absent_topics:
            start = None  # its end was reported in the window in which it vanished
        if cut is None and start is not None:
            return Edges(partition, start, start, start.offset, vanished=True)
        end = self._position(partition, window.end_ms)
        if end is None:
            return None
        if start is not None and start.topic_id == end.topic_id and start.offset > end.offset:
            end = start
        first_log_start = cut.log_start if cut else 0
        return Edges(partition, start, end, first_log_start)

    def _first_position(
        self, partition: TopicPartitionId, window: Window, closing: PartitionCut | None
    ) -> Position | None:
        """Return where the first window of the schedule starts, None for the log start.

        A topic incarnation that ended before the window closed was never backed up: it is lost
        from its log start on, not only from a point's position on.
        """
        ended = self._ledger.get(partition, _NOTHING).end_before(window.start_ms)
        if ended is not None:
            return ended
        opening = self.point_before(window.start_ms)
        cut = opening.cut(partition) if opening else None
        if cut is None or (closing is not None and closing.topic_id == cut.topic_id):
            return None
        return Position(cut.topic_id, cut.log_start)

    def _position(self, partition: TopicPartitionId, instant_ms: int) -> Position | None:
        """Return the partition's position at a time; edges of the ledger win over points."""
        recorded = self._ledger.get(partition, _NOTHING)
        if instant_ms in recorded.by_instant:
            return recorded.by_instant[instant_ms]
        point = self.point_before(instant_ms)
        cut = point.cut(partition) if point else None
        if cut is None:
            return None
        return recorded.clamp(instant_ms, Position(cut.topic_id, cut.end))
