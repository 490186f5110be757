"""The spans that the ledger holds of a partition, as chains: how far they reach, where holes are.

Pure. A chain is what one life of a topic (one topic id) left in one partition; offsets of different
lives have nothing to do with each other.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from kstreams_assets.backup.windows import Window
from kstreams_assets.offsets import OffsetRange, TopicPartitionId

DELETE_RETENTION_MS: Final = 86_400_000
"""Kafka's default of `delete.retention.ms`."""
_NEVER = 2**63
"""Above every version of a table."""

PartitionLife = tuple[str, int, str]
"""Topic, partition, topic id."""


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """One row of the ledger, as far as it says what a restore could take from the backup.

    Stored are the records of `[read_start, end)`, unless some of them are missing for no known
    cause, or its files do not match the ledger (`complete` is False). `first_hole` is the lowest
    offset that may have been removed before the span was read; where that was not looked at, the
    first.

    A span may stand for several windows that follow each other (see `folded`): `window` is the
    first, `last_window` the last of them, `recorded_at_ms` the earliest time at which offsets of
    them were recorded.
    """

    window: Window
    partition: TopicPartitionId
    topic_id: str
    start: int
    end: int
    read_start: int
    continues: bool
    complete: bool
    log_start: int
    first_hole: int | None
    recorded_at_ms: int
    last: Window | None = None
    ledger_version: int | None = None
    """Version of the ledger when the span had been read; None: not known."""
    closed_at_ms: int | None = None
    """When the recovery point was begun that the span ends with (never after `recorded_at_ms`): no
    record at or above `end` had been committed then. None: not known."""

    @property
    def last_window(self) -> Window:
        """The last of the windows that the span stands for."""
        return self.last or self.window

    @property
    def begins_life(self) -> bool:
        """Whether nothing that is still to be had lies before it."""
        return not self.continues or self.log_start >= self.start


def folded(
    spans: Iterable[StoredSpan], *, holes_matter: Set[str] | None = None
) -> list[StoredSpan]:
    """Neighbouring spans put together where that changes no answer of their chain.

    The later one begins where and when the earlier one ends, all that lies in them was stored, and
    nothing had been removed from the log before they were read. In topics that are not among
    `holes_matter` (None: all are) removed records are no hindrance; only how far their chains
    reach is right then.
    """
    made: list[StoredSpan] = []
    for span in sorted(spans, key=_in_chain):
        if made and _join(made[-1], span, holes_matter):
            made[-1] = _joined(made[-1], span)
        else:
            made.append(span)
    return made


def _in_chain(span: StoredSpan) -> tuple[str, int, str, int, int, Window]:
    partition = span.partition
    return partition.topic, partition.partition, span.topic_id, span.start, span.end, span.window


def _join(one: StoredSpan, other: StoredSpan, holes_matter: Set[str] | None) -> bool:
    return (
        one.end == other.start
        and one.last_window.end_ms == other.window.start_ms
        and one.partition == other.partition
        and one.topic_id == other.topic_id
        and _is_plain(one, holes_matter)
        and _is_plain(other, holes_matter)
    )


def _is_plain(span: StoredSpan, holes_matter: Set[str] | None) -> bool:
    no_hole = span.first_hole is None or not (
        holes_matter is None or span.partition.topic in holes_matter
    )
    return no_hole and span.complete and span.read_start == span.start


def _joined(one: StoredSpan, other: StoredSpan) -> StoredSpan:
    read = [span.recorded_at_ms for span in (one, other) if span.start < span.end]
    hole = one.first_hole if one.first_hole is not None else other.first_hole
    return replace(
        one,
        end=other.end,
        last=other.last_window,
        first_hole=hole,
        recorded_at_ms=min(read, default=one.recorded_at_ms),
        closed_at_ms=one.closed_at_ms if other.closed_at_ms is None else other.closed_at_ms,
    )


class Ranges:
    """Offset ranges in order, adjacent ones merged: found by bisection."""

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for found in sorted(ranges):
            if self._ends and found.start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], found.end)
            else:
                self._starts.append(found.start)
                self._ends.append(found.end)

    def reach(self, offset: int) -> int:
        """How far the ranges go on from an offset without a break; the offset, if not at all."""
        index = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[index]) if index >= 0 else offset

    def next_start(self, offset: int) -> int | None:
        """Where the next range begins above an offset."""
        index = bisect_right(self._starts, offset)
        return self._starts[index] if index < len(self._starts) else None


@dataclass(slots=True)
class Chain:
    """The spans of one partition in one life of its topic."""

    spans: Sequence[StoredSpan]
    """In order of offsets, those without offsets in order of time."""
    recorded: Ranges = field(init=False)
    """Offsets that the ledger answers for, whether or not their records could still be read."""
    stored: Ranges = field(init=False)
    """Offsets whose records, as far as the log held them, are in the backup."""
    _ends: list[int] = field(init=False)
    _thinned: "_Thinned | None" = field(init=False, default=None)
    _late: "dict[int, tuple[LateHole, ...]]" = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.spans = sorted(self.spans, key=lambda s: (s.start, s.end, s.window))
        self.recorded = Ranges(OffsetRange(s.start, s.end) for s in self.spans)
        self.stored = Ranges(OffsetRange(s.read_start, s.end) for s in self.spans if s.complete)
        self._ends = [span.end for span in self.spans]

    @property
    def begin(self) -> int:
        """Below it the ledger answers for nothing, but nothing was to be had either."""
        first = self.spans[0]
        return first.start if first.begins_life else 0

    @property
    def unbroken_end(self) -> int | None:
        """How far the recorded spans reach from the begin of the life without a missing window.

        Offsets that Kafka had lost before they could be read are no break: nobody can read them
        any more. A span that lacks records for no known cause is one. None when the begin of the
        life was not backed up.
        """
        if not self.spans[0].begins_life:
            return None
        end = self.spans[0].start
        for span in self.spans:
            if span.start > end or not span.complete:
                break
            end = max(end, span.end)
        return end

    def neighbours(self, offset: int) -> tuple[StoredSpan | None, StoredSpan | None]:
        """The spans before and after an offset that no span holds."""
        index = bisect_right(self._ends, offset)
        before = self.spans[index - 1] if index else None
        return before, self.spans[index] if index < len(self.spans) else None

    def hole_read_after(self, start: int, end: int, ledger_version: int | None) -> int | None:
        """A hole below `end` in a span that reaches above `start` and was read after a point's cut.

        `ledger_version` is that of the ledger before the cut. A span that had been read when the
        ledger was older still was read before the cut: versions only grow, whatever clocks say.
        Where either is not known it counts as read after. None when all such spans were contiguous
        up to `end`.
        """
        if self._thinned is None:
            self._thinned = _Thinned(self.spans)
        return self._thinned.hole(start, end, ledger_version)

    def late_holes(self, delete_retention_ms: int) -> tuple["LateHole", ...]:
        """Where a deletion may have been removed before it was backed up, in order of offsets.

        Nothing takes the place of a deletion in the log, so a key that an earlier span holds would
        live on. Kafka keeps a deletion for `delete.retention.ms` from the first cleaning on, and
        this cleaning removes the key's earlier records (KIP-534). It came after an earlier span was
        read, else that span would not hold the key. It also came after the deletion was committed
        (the cleaner stops at the last stable offset), so after the cut that closes the span before
        the hole. A span that was read within `delete.retention.ms` of the later of the two has
        missed none. Half of that time is left for clocks that differ, for cleanings that last,
        and since a span is recorded some time after it was read.
        """
        if delete_retention_ms not in self._late:
            self._late[delete_retention_ms] = tuple(self._find_late(delete_retention_ms))
        return self._late[delete_retention_ms]

    def _find_late(self, delete_retention_ms: int) -> Iterator["LateHole"]:
        first_read_ms: int | None = None
        closed: StoredSpan | None = None
        for span in self.spans:
            hole, read_ms = span.first_hole, span.recorded_at_ms
            if hole is not None and first_read_ms is not None:
                cleaned_ms = first_read_ms
                # A time behind the reading comes of a wrong clock.
                if closed and closed.end <= hole and (closed.closed_at_ms or 0) <= read_ms:
                    cleaned_ms = max(cleaned_ms, closed.closed_at_ms or 0)
                if 2 * (read_ms - cleaned_ms) >= delete_retention_ms:
                    yield LateHole(hole, span.end, span.window.key)
            if span.start < span.end:
                first_read_ms = min(read_ms, read_ms if first_read_ms is None else first_read_ms)
            if span.closed_at_ms is not None:
                closed = span


@dataclass(frozen=True, slots=True)
class LateHole:
    """Offsets `[start, end)` of a window's span that may have held deletions."""

    start: int
    end: int
    window: str

    def doubt(
        self, partition: TopicPartitionId, start: int, end: int, saved: Ranges, retention_ms: int
    ) -> str | None:
        """Why a state that is made of `[start, end)` is not proved; None where it is.

        `saved` are the offsets of which every record was saved with recovery points.
        """
        low, high = max(self.start, start), min(self.end, end)
        if low >= high or saved.reach(low) >= high:
            return None
        return (
            f"{partition}: compaction may have taken deletions before they were backed up with"
            f" window {self.window}: the log did not hold offset {low} any more"
            f" (delete.retention.ms is {retention_ms})"
        )


class _Thinned:
    """The spans with a hole, in order; which of a stretch of them was recorded last.

    The spans of a life do not overlap, so their ends and first holes come in the same order.
    """

    def __init__(self, spans: Sequence[StoredSpan]) -> None:
        thinned = [
            (s.first_hole, s.end, _NEVER if s.ledger_version is None else s.ledger_version)
            for s in spans
            if s.first_hole is not None
        ]
        self._holes = [hole for hole, _, _ in thinned]
        self._ends = [end for _, end, _ in thinned]
        self._recorded = [recorded for _, _, recorded in thinned]
        # Sparse table: level k holds, of each stretch of 2**k, the index of the last recorded.
        self._levels: list[list[int]] = [list(range(len(thinned)))]
        width = 1
        while 2 * width <= len(thinned):
            below = self._levels[-1]
            self._levels.append(
                [self._later(below[i], below[i + width]) for i in range(len(below) - width)]
            )
            width *= 2

    def hole(self, start: int, end: int, ledger_version: int | None) -> int | None:
        low, high = bisect_right(self._ends, start), bisect_left(self._holes, end)
        if low >= high:
            return None
        level = (high - low).bit_length() - 1
        row = self._levels[level]
        latest = self._later(row[low], row[high - (1 << level)])
        before_the_cut = ledger_version is not None and self._recorded[latest] < ledger_version
        return None if before_the_cut else self._holes[latest]

    def _later(self, one: int, other: int) -> int:
        return one if self._recorded[one] >= self._recorded[other] else other


def chains_of(spans: Iterable[StoredSpan]) -> dict[PartitionLife, Chain]:
    """Spans sorted into chains."""
    grouped: dict[PartitionLife, list[StoredSpan]] = defaultdict(list)
    for span in spans:
        grouped[span.partition.topic, span.partition.partition, span.topic_id].append(span)
    return {life: Chain(of_life) for life, of_life in grouped.items()}
