"""Partitions, positions in them, and sets of offsets; without any Kafka client."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class TopicPartitionId:
    """One partition of a topic; sorts by topic, then partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def offsets_of_topic(offsets: Mapping[TopicPartitionId, int], topic: str) -> tuple[int, ...]:
    """Those of one topic, in the order of its partitions."""
    return tuple(offset for id_, offset in sorted(offsets.items()) if id_.topic == topic)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed for a partition.

    `offset` is the next offset the group will read, `metadata` the string exactly as committed (it
    carries Kafka Streams' partition time), `leader_epoch` None when none was committed.
    """

    offset: int
    metadata: str
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets from `start` up to but not including `end`."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end


class RangeSet(Sequence[OffsetRange]):
    """Offsets of one partition as ranges: none is empty, in order, none touches the next.

    Made of ranges in any order, which may be empty and overlap. Equal to any sequence of the same
    ranges. `|`, `-` and `&` take any ranges too.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted((one.start, one.end) for one in ranges):
            if start >= end:
                continue
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    @classmethod
    def of(cls, start: int, end: int, *, without: Iterable[OffsetRange] = ()) -> "RangeSet":
        """`[start, end)` without some ranges."""
        whole = _made([start], [end]) if start < end else _made([], [])
        return whole - without

    @classmethod
    def of_arrays(cls, starts: Offsets, ends: Offsets) -> "RangeSet":
        """Ranges by their starts and ends, of which there may be millions."""
        real = starts < ends
        order = np.argsort(starts[real], kind="stable")
        starts, ends = starts[real][order], np.maximum.accumulate(ends[real][order])
        if len(starts) == 0:
            return _made([], [])
        first = np.concatenate(([True], starts[1:] > ends[:-1]))
        last = np.concatenate((first[1:], [True]))
        return _made(starts[first].tolist(), ends[last].tolist())

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> OffsetRange: ...
    @overload
    def __getitem__(self, index: slice) -> "RangeSet": ...
    def __getitem__(self, index: int | slice) -> "OffsetRange | RangeSet":
        if isinstance(index, slice):
            return RangeSet(list(self)[index])
        return OffsetRange(self._starts[index], self._ends[index])

    def __iter__(self) -> Iterator[OffsetRange]:
        return map(OffsetRange, self._starts, self._ends)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RangeSet):
            return self._starts == other._starts and self._ends == other._ends
        if not isinstance(other, Sequence):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{one.start}-{one.end}" for one in self[:5])
        return f"RangeSet({shown}{', ...' if len(self) > 5 else ''})"

    def __or__(self, others: Iterable[OffsetRange]) -> "RangeSet":
        return RangeSet([*self, *others])

    def __sub__(self, others: Iterable[OffsetRange]) -> "RangeSet":
        away = _as_set(others)
        starts: list[int] = []
        ends: list[int] = []
        for start, end in zip(self._starts, self._ends, strict=True):
            index = bisect_right(away._ends, start)
            while index < len(away) and away._starts[index] < end:
                if start < away._starts[index]:
                    starts.append(start)
                    ends.append(away._starts[index])
                start = away._ends[index]
                index += 1
            if start < end:
                starts.append(start)
                ends.append(end)
        return _made(starts, ends)

    def __and__(self, others: Iterable[OffsetRange]) -> "RangeSet":
        other = _as_set(others)
        starts: list[int] = []
        ends: list[int] = []
        for start, end in zip(self._starts, self._ends, strict=True):
            index = bisect_right(other._ends, start)
            while index < len(other) and other._starts[index] < end:
                starts.append(max(start, other._starts[index]))
                ends.append(min(end, other._ends[index]))
                index += 1
        return _made(starts, ends)

    @property
    def size(self) -> int:
        """How many offsets there are."""
        return sum(self._ends) - sum(self._starts)

    def clip(self, start: int, end: int) -> "RangeSet":
        """What of them lies in `[start, end)`."""
        return self & (OffsetRange(start, end),)

    def holds(self, offset: int) -> bool:
        """Whether an offset is one of them."""
        return self.reach(offset) > offset

    def covers(self, start: int, end: int) -> bool:
        """Whether all of `[start, end)` are among them."""
        return self.reach(start) >= end

    def meets(self, start: int, end: int) -> bool:
        """Whether some of `[start, end)` are among them."""
        index = bisect_right(self._ends, start)
        return start < end and index < len(self._starts) and self._starts[index] < end

    def reach(self, offset: int) -> int:
        """How far they go on from an offset without a break; the offset, if not at all."""
        index = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[index]) if index >= 0 else offset

    def next_start(self, offset: int) -> int | None:
        """Where the next range begins above an offset."""
        index = bisect_right(self._starts, offset)
        return self._starts[index] if index < len(self._starts) else None

    def gaps(self, start: int, end: int) -> "RangeSet":
        """What of `[start, end)` is not among them."""
        return RangeSet.of(start, end, without=self)

    def mask(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Which of many offsets are among them."""
        if not self._starts:
            return np.zeros(len(offsets), np.bool_)
        ends = np.array(self._ends, np.int64)
        index = np.searchsorted(np.array(self._starts, np.int64), offsets, side="right") - 1
        return (index >= 0) & (offsets < ends[index])


def _made(starts: list[int], ends: list[int]) -> RangeSet:
    """A set of ranges that are in order already."""
    made = RangeSet()
    made._starts, made._ends = starts, ends  # noqa: SLF001
    return made


def _as_set(ranges: Iterable[OffsetRange]) -> RangeSet:
    return ranges if isinstance(ranges, RangeSet) else RangeSet(ranges)


def outside(start: int, end: int, excluded: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """`[start, end)` without the excluded ranges."""
    return tuple(RangeSet.of(start, end, without=excluded))
