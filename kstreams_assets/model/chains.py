"""The ledger's record of one partition: spans, and chains of spans. Pure."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from kstreams_assets.model.point import PartitionIncarnation
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId

DELETE_RETENTION_MS: Final = 86_400_000
"""Kafka's default of `delete.retention.ms`."""


NEVER = 2**63 - 1
"""Higher than every version of a table."""


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """One row of the ledger, reduced to what a restore needs to know about the backup.

    The records of `[read_start, end)` are stored, unless some are missing for an unknown cause or
    the files do not match the ledger (`complete` is False). `first_hole` is the lowest offset that
    may have been removed before the span was read; if that was not inspected, the first offset.

    A span may cover several consecutive windows (see `merge_spans`): `window` is the first,
    `last_window` the last of them, `recorded_at_ms` the earliest time at which offsets of them were
    recorded.
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
    """Version of the ledger when the span had been read; None: unknown."""
    closed_at_ms: int | None = None
    """When the recovery point at the end of the span was started (never after `recorded_at_ms`): at
    that time no record at or above `end` was committed. None: unknown."""
    expired: bool = False
    """Whether `expire` dropped the records below `read_start`, because no kept point needs them."""
    has_every_record: bool = False
    """For a span that `expire` has merged: whether it omitted records. Other spans have all of
    them."""

    unread: RangeSet | None = None
    """Offsets without stored records, if they are not exactly those below `read_start`."""

    @property
    def is_compacted(self) -> bool:
        """Whether `expire` may have kept only the last record of each key: records of a point that
        ends inside the span may be missing."""
        return self.window.is_merged and not self.has_every_record

    @property
    def stored(self) -> Sequence[OffsetRange]:
        """Offsets whose records are stored, as far as the log contained them."""
        if not self.complete:
            return ()
        if self.unread is None:
            return (OffsetRange(self.read_start, self.end),)
        return RangeSet.of(self.start, self.end, without=self.unread)

    @property
    def life(self) -> PartitionIncarnation:
        """The partition of this incarnation of its topic."""
        return self.partition.topic, self.partition.partition, self.topic_id

    @property
    def last_window(self) -> Window:
        """The last of the span's windows."""
        return self.last or self.window

    @property
    def begins_life(self) -> bool:
        """Whether no available record precedes the span."""
        return not self.continues or self.log_start >= self.start


def merge_spans(
    spans: Iterable[StoredSpan], *, holes_matter: Set[str] | None = None
) -> list[StoredSpan]:
    """Merge neighbouring spans if that changes no answer of their chain.

    The later one starts where and when the earlier one ends, all their records were stored, and
    nothing had been removed from the log before they were read. In topics outside `holes_matter`
    (None: all) removed records do not prevent a merge; for them only the extent of the chain is
    then correct.
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
    """The spans of one partition of one topic incarnation."""

    spans: Sequence[StoredSpan]
    """In order of offsets; those without offsets in order of time."""
    recorded: RangeSet = field(init=False)
    """Offsets that the ledger covers, whether or not their records could still be read."""
    stored: RangeSet = field(init=False)
    """Offsets whose records are in the backup, as far as the log contained them."""
    expired: RangeSet = field(init=False)
    """Offsets whose records `expire` dropped because no kept point needs them."""
    restored_at_ms: int | None = field(init=False, default=None)
    """A restore wrote the first records of the log at this time or later; None without a
    restore."""
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
        """End of its last window, epoch milliseconds."""
        return max(span.last_window.end_ms for span in self.spans)

    @property
    def begin(self) -> int:
        """The ledger covers no lower offset, but no lower record was available either."""
        first = self.spans[0]
        return first.start if first.begins_life else 0

    @property
    def unbroken_end(self) -> int | None:
        """End of the contiguous backed-up range of this topic incarnation.

        Offsets that Kafka had lost before they could be read do not break the range: they cannot be
        read any more. A span with records that are missing for an unknown cause does. None if the
        start of the incarnation was not backed up.
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
        """The spans before and after an offset outside all spans."""
        index = bisect_right(self._ends, offset)
        before = self.spans[index - 1] if index else None
        return before, self.spans[index] if index < len(self.spans) else None

    def compacted_inside(self, whole_from: int, end: int) -> StoredSpan | None:
        """A compacted span that does not have every record of `[whole_from, end)`.

        It does not have the last ones of each key below `whole_from` either, if it extends beyond.
        None without any.
        """
        spans = self._compacted
        return next((s for s in spans if s.start < end and s.end > whole_from), None)

    def hole_read_after(self, start: int, end: int, ledger_version: int | None) -> int | None:
        """A hole below `end` in a span that extends above `start` and was read after a point's cut.

        `ledger_version` is the version of the ledger before the cut. A span that was read at a
        lower version was read before the cut: versions only increase, whatever clocks say. If
        either is unknown, the span counts as read after it. None if all such spans were contiguous
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

        The spans of an incarnation do not overlap, so their ends and first holes have the same
        order.
        """
        thinned = [
            (s.first_hole, s.end, NEVER if s.ledger_version is None else s.ledger_version)
            for s in self.spans
            if s.first_hole is not None
        ]
        holes, ends, read_at = ([one[column] for one in thinned] for column in range(3))
        return holes, ends, np.array(read_at, np.int64)

    def late_holes(self, delete_retention_ms: int) -> tuple["LateHole", ...]:
        """Offsets where a deletion may have been removed before it was backed up, in order.

        A removed deletion leaves no trace in the log, so a key of an earlier span would live on.
        Kafka keeps a deletion for `delete.retention.ms` after the first cleaning, and this cleaning
        removes the key's earlier records (KIP-534). The cleaning came after an earlier span was
        read, otherwise that span would not contain the key. It also came after the deletion was
        committed (the cleaner stops at the last stable offset), that is after the cut that closes
        the span before the hole. A span that was read within `delete.retention.ms` of the later of
        the two has missed none. Half of that time is a margin for clock differences, long
        cleanings, and the time between reading and recording a span.
        """
        if delete_retention_ms not in self._late:
            self._late[delete_retention_ms] = tuple(self._find_late(delete_retention_ms))
        return self._late[delete_retention_ms]

    def _find_late(self, delete_retention_ms: int) -> Iterator["LateHole"]:
        first_read_ms = self.restored_at_ms  # backups of the older log contain its records
        closed: StoredSpan | None = None
        for span in self.spans:
            hole, read_ms = span.first_hole, span.recorded_at_ms
            if hole is not None and first_read_ms is not None:
                cleaned_ms = first_read_ms
                # A time after the reading is caused by a wrong clock.
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
    """Offsets `[start, end)` of a window's span that may have contained deletions."""

    start: int
    end: int
    window: str

    def doubt(
        self, partition: TopicPartitionId, start: int, end: int, saved: RangeSet, retention_ms: int
    ) -> str | None:
        """Why a state made of `[start, end)` is not proved; None if it is.

        `saved` are the offsets whose records were all saved with recovery points.
        """
        low, high = max(self.start, start), min(self.end, end)
        if low >= high or saved.reach(low) >= high:
            return None
        return (
            f"{partition}: compaction may have removed deletions before they were backed up with"
            f" window {self.window}: the log no longer had offset {low} (delete.retention.ms"
            f" is {retention_ms})"
        )


def chains_of(spans: Iterable[StoredSpan]) -> dict[PartitionIncarnation, Chain]:
    """Sort spans into chains."""
    grouped: dict[PartitionIncarnation, list[StoredSpan]] = defaultdict(list)
    for span in spans:
        grouped[span.life].append(span)
    return {life: Chain(of_life) for life, of_life in grouped.items()}
