"""What a ledger says of one partition: spans, and chains of them. Pure."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from kstreams_assets.model.point import PartitionLife
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId

DELETE_RETENTION_MS: Final = 86_400_000
"""Kafka's default of `delete.retention.ms`."""


NEVER = 2**63 - 1
"""Above every version of a table."""


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
    expired: bool = False
    """Whether `expire` dropped what lies below `read_start`: no kept point needs it."""
    has_every_record: bool = False
    """Of a span that `expire` has merged: whether it left none out. Others have all of them."""

    unread: RangeSet | None = None
    """Offsets of which nothing was stored, where they are not just those below `read_start`."""

    @property
    def is_compacted(self) -> bool:
        """Whether `expire` may have left the last record of each key only: those of a point that
        ends inside it may be missing."""
        return self.window.is_merged and not self.has_every_record

    @property
    def stored(self) -> Sequence[OffsetRange]:
        """Offsets whose records, as far as the log held them, are stored."""
        if not self.complete:
            return ()
        if self.unread is None:
            return (OffsetRange(self.read_start, self.end),)
        return RangeSet.of(self.start, self.end, without=self.unread)

    @property
    def life(self) -> PartitionLife:
        """The partition in this life of its topic."""
        return self.partition.topic, self.partition.partition, self.topic_id

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
    stored = span.complete and span.read_start == span.start and not span.is_compacted
    return no_hole and stored


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


@dataclass
class Chain:
    """The spans of one partition in one life of its topic."""

    spans: Sequence[StoredSpan]
    """In order of offsets, those without offsets in order of time."""
    recorded: RangeSet = field(init=False)
    """Offsets that the ledger answers for, whether or not their records could still be read."""
    stored: RangeSet = field(init=False)
    """Offsets whose records, as far as the log held them, are in the backup."""
    expired: RangeSet = field(init=False)
    """Offsets whose records `expire` dropped, since no kept point needs them."""
    restored_at_ms: int | None = field(init=False, default=None)
    """Not before this a restore wrote the first records of the log; None where none did."""
    _ends: list[int] = field(init=False)
    _compacted: list[StoredSpan] = field(init=False)
    _late: "dict[int, tuple[LateHole, ...]]" = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.spans = sorted(self.spans, key=lambda s: (s.start, s.end, s.window))
        self.recorded = RangeSet(OffsetRange(s.start, s.end) for s in self.spans)
        self.stored = RangeSet(offsets for span in self.spans for offsets in span.stored)
        self.expired = RangeSet(OffsetRange(s.start, s.read_start) for s in self.spans if s.expired)
        self._ends = [span.end for span in self.spans]
        self._compacted = [span for span in self.spans if span.is_compacted]

    @property
    def last_window_end_ms(self) -> int:
        """When the last of its windows ended, epoch milliseconds."""
        return max(span.last_window.end_ms for span in self.spans)

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

    def compacted_inside(self, whole_from: int, end: int) -> StoredSpan | None:
        """A compacted span that cannot give every record of `[whole_from, end)`.

        Nor the last ones of each key below `whole_from`, if it reaches beyond. None without any.
        """
        spans = self._compacted
        return next((s for s in spans if s.start < end and s.end > whole_from), None)

    def hole_read_after(self, start: int, end: int, ledger_version: int | None) -> int | None:
        """A hole below `end` in a span that reaches above `start` and was read after a point's cut.

        `ledger_version` is that of the ledger before the cut. A span that had been read when the
        ledger was older still was read before the cut: versions only grow, whatever clocks say.
        Where either is not known it counts as read after. None when all such spans were contiguous
        up to `end`.
        """
        holes, ends, read_at = self._thinned
        low, high = bisect_right(ends, start), bisect_left(holes, end)
        if low >= high:
            return None
        latest = low + int(read_at[low:high].argmax())
        before_the_cut = ledger_version is not None and read_at[latest] < ledger_version
        return None if before_the_cut else holes[latest]

    @cached_property
    def _thinned(self) -> tuple[list[int], list[int], npt.NDArray[np.int64]]:
        """First hole, end and version of the ledger of each span with a hole, in order.

        The spans of a life do not overlap, so their ends and first holes come in the same order.
        """
        thinned = [
            (s.first_hole, s.end, NEVER if s.ledger_version is None else s.ledger_version)
            for s in self.spans
            if s.first_hole is not None
        ]
        holes, ends, read_at = ([one[column] for one in thinned] for column in range(3))
        return holes, ends, np.array(read_at, np.int64)

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
        first_read_ms = self.restored_at_ms  # the backups of the older log hold what it wrote
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
        self, partition: TopicPartitionId, start: int, end: int, saved: RangeSet, retention_ms: int
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


def chains_of(spans: Iterable[StoredSpan]) -> dict[PartitionLife, Chain]:
    """Spans sorted into chains."""
    grouped: dict[PartitionLife, list[StoredSpan]] = defaultdict(list)
    for span in spans:
        grouped[span.life].append(span)
    return {life: Chain(of_life) for life, of_life in grouped.items()}
