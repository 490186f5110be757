"""Partitions, positions in them, and sets of offsets; without any Kafka client."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from kstreams_assets.errors import OffsetMapError

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class TopicPartitionId:
    """One partition of a topic; sorts by topic, then partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def offsets_of_topic(offsets: Mapping[TopicPartitionId, int], topic: str) -> tuple[int, ...]:
    """The offsets of one topic, in the order of its partitions."""
    return tuple(offset for id_, offset in sorted(offsets.items()) if id_.topic == topic)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a group for a partition.

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
    """Offsets of one partition as ranges: not empty, in order, and not adjacent.

    The constructor accepts ranges in any order, empty and overlapping ones too. Equal to any
    sequence of the same ranges. `|`, `-` and `&` accept any ranges, too.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        if isinstance(ranges, RangeSet):
            self._starts, self._ends = ranges._starts, ranges._ends  # noqa: SLF001
            return
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
        away = RangeSet(others)
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
        other = RangeSet(others)
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
        """The number of offsets."""
        return sum(self._ends) - sum(self._starts)

    def clip(self, start: int, end: int) -> "RangeSet":
        """The part in `[start, end)`."""
        return self & (OffsetRange(start, end),)

    def holds(self, offset: int) -> bool:
        """Whether the set contains an offset."""
        return self.reach(offset) > offset

    def covers(self, start: int, end: int) -> bool:
        """Whether the set contains all of `[start, end)`."""
        return self.reach(start) >= end

    def cover(self, starts: Offsets, ends: Offsets) -> npt.NDArray[np.bool_]:
        """For many `[start, end)`, whether the set covers each."""
        if not self._starts:
            return starts >= ends
        index = np.searchsorted(np.array(self._starts, np.int64), starts, side="right") - 1
        reached = np.array(self._ends, np.int64)[np.maximum(index, 0)]
        return np.maximum(np.where(index >= 0, reached, starts), starts) >= ends

    def reach(self, offset: int) -> int:
        """The end of the unbroken range from an offset; the offset itself if the set does not
        contain it.
        """
        index = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[index]) if index >= 0 else offset

    def next_start(self, offset: int) -> int | None:
        """The start of the next range above an offset."""
        index = bisect_right(self._starts, offset)
        return self._starts[index] if index < len(self._starts) else None

    def mask(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Which of many offsets the set contains."""
        if not self._starts:
            return np.zeros(len(offsets), np.bool_)
        ends = np.array(self._ends, np.int64)
        index = np.searchsorted(np.array(self._starts, np.int64), offsets, side="right") - 1
        return (index >= 0) & (offsets < ends[index])


def _made(starts: list[int], ends: list[int]) -> RangeSet:
    """A set of ranges that are already in order."""
    made = RangeSet()
    made._starts, made._ends = starts, ends  # noqa: SLF001
    return made


class OffsetRun(NamedTuple):
    """`length` records with consecutive source offsets that got consecutive target offsets."""

    source_start: int
    target_start: int
    length: int


class OffsetRuns(Sequence[OffsetRun]):
    """Runs as three columns of the same length: 24 bytes each, quick to pickle and to store.

    A compacted changelog has one run for each surviving record, so there may be millions. Equal to
    any sequence of the same runs. Nothing is checked here; `OffsetMap` checks runs.
    """

    __slots__ = ("lengths", "source_starts", "target_starts")

    def __init__(
        self, source_starts: npt.ArrayLike, target_starts: npt.ArrayLike, lengths: npt.ArrayLike
    ) -> None:
        self.source_starts: Offsets = np.asarray(source_starts, np.int64)
        self.target_starts: Offsets = np.asarray(target_starts, np.int64)
        self.lengths: Offsets = np.asarray(lengths, np.int64)

    @classmethod
    def of(cls, runs: Iterable[OffsetRun]) -> "OffsetRuns":
        """The same runs as columns."""
        if isinstance(runs, OffsetRuns):
            return runs
        rows = np.fromiter(chain.from_iterable(runs), np.int64).reshape(-1, 3)
        return cls(rows[:, 0].copy(), rows[:, 1].copy(), rows[:, 2].copy())

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> OffsetRun: ...
    @overload
    def __getitem__(self, index: slice) -> "OffsetRuns": ...
    def __getitem__(self, index: int | slice) -> "OffsetRun | OffsetRuns":
        columns = self.source_starts[index], self.target_starts[index], self.lengths[index]
        if isinstance(index, slice):
            return OffsetRuns(*columns)
        return OffsetRun(*map(int, columns))

    def __iter__(self) -> Iterator[OffsetRun]:
        columns = self.source_starts.tolist(), self.target_starts.tolist(), self.lengths.tolist()
        return map(OffsetRun, *columns)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OffsetRuns):
            return _same(self, other)
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{s}->{t} x{n}" for s, t, n in self[:3])
        return f"OffsetRuns({len(self)}: {shown}{', ...' if len(self) > 3 else ''})"


class OffsetMap:
    """Map source offsets of one partition to target offsets.

    `runs` are in order of offsets. `end` is the target's end after the last restored record.
    `partition` is the name in errors.

    Raises:
        OffsetMapError: A run is empty, an offset is negative, or runs do not increase strictly in
            both.
    """

    __slots__ = ("_below", "_end", "_runs", "_source_ends")

    def __init__(
        self,
        runs: Sequence[OffsetRun],
        end: int,
        *,
        partition: TopicPartitionId | None = None,
    ) -> None:
        self._runs = OffsetRuns.of(runs)
        self._end = end
        _refuse_disorder(self._runs, end, partition)
        self._source_ends = self._runs.source_starts + self._runs.lengths
        self._below = np.concatenate((np.zeros(1, np.int64), np.cumsum(self._runs.lengths)))

    @property
    def runs(self) -> OffsetRuns:
        """The runs in order of offsets."""
        return self._runs

    @property
    def end(self) -> int:
        """The target's end after the last restored record."""
        return self._end

    @property
    def records(self) -> int:
        """The number of mapped records."""
        return int(self._below[-1])

    @property
    def target_start(self) -> int:
        """Target offset of the first restored record; the end if there is none."""
        return int(self._runs.target_starts[0]) if len(self._runs) else self._end

    def map(self, source_offset: int) -> int:
        """Target offset of the first restored record at or above a source offset, or the end.

        Offsets in a gap (control marker, aborted transaction, compaction) and after the last record
        are therefore mapped as well.
        """
        index, ahead = self._place(source_offset)
        if index == len(self._runs):
            return self._end
        return int(self._runs.target_starts[index]) + ahead

    def map_all(self, source_offsets: Offsets) -> Offsets:
        """`map` for many offsets."""
        if len(self._runs) == 0:
            return np.full(len(source_offsets), self._end, np.int64)
        index = self._source_ends.searchsorted(source_offsets, side="right")
        known = np.minimum(index, len(self._runs) - 1)
        ahead = np.maximum(source_offsets - self._runs.source_starts[known], 0)
        return np.where(index < len(self._runs), self._runs.target_starts[known] + ahead, self._end)

    def all_below(self, source_offsets: Offsets) -> Offsets:
        """`records_below` for many offsets."""
        index = self._source_ends.searchsorted(source_offsets, side="right")
        if len(self._runs) == 0:
            return np.zeros(len(source_offsets), np.int64)
        known = np.minimum(index, len(self._runs) - 1)
        ahead = np.maximum(source_offsets - self._runs.source_starts[known], 0)
        return self._below[index] + np.where(index < len(self._runs), ahead, 0)

    def runs_in(self, first: int, last: int) -> OffsetRuns:
        """The runs that may contain source offsets from `first` to `last`, both inclusive."""
        low = int(self._source_ends.searchsorted(first, side="right"))
        high = int(self._runs.source_starts.searchsorted(last, side="right"))
        return self._runs[low:high]

    def then(self, other: "OffsetMap") -> "OffsetMap":
        """The map of the records that another restore took from this one's target."""
        mine, theirs = self._runs, other.runs
        starts, ends = mine.target_starts, mine.target_starts + mine.lengths
        low = (theirs.source_starts + theirs.lengths).searchsorted(starts, side="right")
        count = np.maximum(theirs.source_starts.searchsorted(ends, side="left") - low, 0)
        first = np.repeat(np.arange(len(mine)), count)
        begin = np.repeat(np.cumsum(count) - count, count)
        second = np.repeat(low, count) + np.arange(int(count.sum())) - begin
        start = np.maximum(starts[first], theirs.source_starts[second])
        end = np.minimum(ends[first], theirs.source_starts[second] + theirs.lengths[second])
        runs = OffsetRuns(
            mine.source_starts[first] + start - starts[first],
            theirs.target_starts[second] + start - theirs.source_starts[second],
            end - start,
        )
        return OffsetMap(runs, other.end)

    def first_source(self, source_offset: int) -> int | None:
        """Source offset of the first restored record at or above a source offset, if any."""
        index, ahead = self._place(source_offset)
        if index == len(self._runs):
            return None
        return int(self._runs.source_starts[index]) + ahead

    def source_of(self, target_offset: int) -> int | None:
        """Source offset of the record at a target offset; None if the restore wrote none there."""
        starts = self._runs.target_starts
        index = int(starts.searchsorted(target_offset, side="right")) - 1
        if index < 0:
            return None
        ahead = target_offset - int(starts[index])
        if ahead >= int(self._runs.lengths[index]):
            return None
        return int(self._runs.source_starts[index]) + ahead

    def records_below(self, source_offset: int) -> int:
        """The number of restored records with a lower source offset."""
        index, ahead = self._place(source_offset)
        return int(self._below[index]) + ahead

    def _place(self, source_offset: int) -> tuple[int, int]:
        """The run of the first record at or above the offset, and how many of its records are
        below."""
        index = int(self._source_ends.searchsorted(source_offset, side="right"))
        if index == len(self._runs):
            return index, 0
        return index, max(0, source_offset - int(self._runs.source_starts[index]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetMap):
            return NotImplemented
        return self._end == other._end and self._runs == other._runs

    def __hash__(self) -> int:
        return hash((self._end, len(self._runs), self.records))

    def __repr__(self) -> str:
        return f"OffsetMap({self._runs!r}, end={self._end})"


def runs_of(
    source_offsets: npt.ArrayLike,
    target_offsets: npt.ArrayLike,
    *,
    partition: TopicPartitionId | None = None,
) -> OffsetRuns:
    """Runs of records from their source and target offsets, in the order of production.

    Raises:
        OffsetMapError: Offsets do not increase strictly, in the source or in the target.
        ValueError: The two have different lengths.
    """
    source, target = np.asarray(source_offsets, np.int64), np.asarray(target_offsets, np.int64)
    records = OffsetRuns(source, target, np.ones(len(source), np.int64))
    if len(source) != len(target):
        message = f"{len(source)} source offsets and {len(target)} target offsets of {partition}"
        raise ValueError(message)
    _refuse_disorder(records, None, partition)
    return _joined(records, partition)


def merge_runs(
    parts: Iterable[Iterable[OffsetRun]], *, partition: TopicPartitionId | None = None
) -> OffsetRuns:
    """Merge the runs of several attempts, in order, with neighbours joined.

    Records that two attempts both report count once. A resumed restore therefore gives the same
    runs as an uninterrupted one.

    Raises:
        OffsetMapError: Attempts contradict each other: a record has two target offsets, two records
            have the same one, or the order differs.
    """
    columns = [OffsetRuns.of(part) for part in parts]
    source, target, lengths = (
        np.concatenate([np.empty(0, np.int64), *arrays])
        for arrays in (
            [c.source_starts for c in columns],
            [c.target_starts for c in columns],
            [c.lengths for c in columns],
        )
    )
    order = np.argsort(source, kind="stable")
    return _joined(OffsetRuns(source[order], target[order], lengths[order]), partition)


def _joined(runs: OffsetRuns, partition: TopicPartitionId | None) -> OffsetRuns:
    """Merge runs in order of source offsets, which may overlap, into the fewest equal ones."""
    runs = _without(runs, runs.lengths < 1)
    if len(runs) == 0:
        return runs
    source, shift = runs.source_starts, runs.target_starts - runs.source_starts
    reach = np.maximum.accumulate(source + runs.lengths)
    elsewhere = shift[1:] != shift[:-1]
    _refuse(
        runs, elsewhere & (source[1:] < reach[:-1]), partition, "a record has two target offsets"
    )
    first = np.concatenate(([True], elsewhere | (source[1:] > reach[:-1])))
    last = np.concatenate((first[1:], [True]))
    joined = OffsetRuns(source[first], runs.target_starts[first], reach[last] - source[first])
    _refuse_disorder(joined, None, partition)
    return joined


def _without(runs: OffsetRuns, gone: npt.NDArray[np.bool_]) -> OffsetRuns:
    if not gone.any():
        return runs
    return OffsetRuns(runs.source_starts[~gone], runs.target_starts[~gone], runs.lengths[~gone])


def _refuse_disorder(runs: OffsetRuns, end: int | None, partition: TopicPartitionId | None) -> None:
    source, target, lengths = runs.source_starts, runs.target_starts, runs.lengths
    _refuse(runs, lengths < 1, partition, "a run has no record")
    _refuse(runs, (source < 0) | (target < 0), partition, "an offset is negative")
    behind = "the previous run ends later in the"
    _refuse(runs, source[1:] < (source + lengths)[:-1], partition, f"{behind} source")
    _refuse(runs, target[1:] < (target + lengths)[:-1], partition, f"{behind} target")
    if end is not None:
        reason = f"the target ends at {end}, before the end of the run"
        _refuse(runs, target + lengths > end, partition, reason)


def _refuse(
    runs: OffsetRuns,
    bad: npt.NDArray[np.bool_],
    partition: TopicPartitionId | None,
    reason: str,
) -> None:
    """Raise for the first bad run; `bad` may omit the first run."""
    if not bad.any():
        return
    run = runs[int(bad.argmax()) + len(runs) - len(bad)]
    raise OffsetMapError(
        partition="a partition" if partition is None else str(partition),
        source_offset=run.source_start,
        target_offset=run.target_start,
        reason=reason,
    )


def _same(left: OffsetRuns, right: OffsetRuns) -> bool:
    return (
        np.array_equal(left.source_starts, right.source_starts)
        and np.array_equal(left.target_starts, right.target_starts)
        and np.array_equal(left.lengths, right.lengths)
    )
