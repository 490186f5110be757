"""The Spark task of a restore's verification: some partitions, read back and compared.

Records read back and the backup are compared as columns of Arrow. From the first difference on they
are compared one by one, so that each difference can be named.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kstreams_assets.errors import OffsetMapError
from kstreams_assets.kafka.connection import CarriedConnection
from kstreams_assets.kafka.raw_batch import Tallies
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.throttle import Throttle
from kstreams_assets.offsets import OffsetMap, OffsetRange, OffsetRuns
from spark_resources.comparison import ANY_CREATE_TIME, CREATE_TIME, Comparison, RecordColumns
from spark_resources.partition_records import (
    PartitionVerified,
    PartitionWork,
    header_counts,
    header_lists,
    work_records,
)
from spark_resources.partition_tasks import check_stop
from spark_resources.span_tasks import committed
from spark_resources.work import ReadRange

_READ_ON: Final = 1_000
"""How many records after the last expected one are read, to name them."""


@dataclass(frozen=True, slots=True)
class PartitionReading:
    """The part of one partition to compare.

    `runs` and `end` are its offset map, `stretches` the target offsets to compare (in order,
    disjoint), `stable_end` the target's last stable offset. With `accept_replaced_timestamps`
    timestamps that are 0 or below in the backup are not compared: earlier releases could not send
    them.
    """

    work: PartitionWork
    runs: OffsetRuns
    end: int
    stretches: tuple[OffsetRange, ...]
    stable_end: int
    accept_replaced_timestamps: bool


@dataclass(frozen=True, slots=True)
class ReadBackTask:
    """Reads partitions back one after the other; pickled into Spark tasks.

    Raises what `span_tasks.committed` and `work_records` do.
    """

    connection: CarriedConnection
    idle_timeout_s: float
    throttle: Throttle | None = None

    def __call__(self, readings: Sequence[PartitionReading]) -> list[PartitionVerified]:
        """Compare each partition."""
        with RawLogReader(self.connection.opened(), throttle=self.throttle) as reader:
            return [self._compared(reading, reader) for reading in readings]

    def _compared(self, reading: PartitionReading, reader: RawLogReader) -> PartitionVerified:
        work = reading.work
        offset_map = OffsetMap(reading.runs, reading.end, partition=work.target)
        comparison = Comparison(work.target, offset_map.source_of)
        backup = _Backup(reading)
        replaced = 0
        for stretch in reading.stretches:
            stop = stretch.end + _READ_ON if stretch.end == reading.end else stretch.end
            there = ReadRange(work.target, stretch.start, min(stop, reading.stable_end))
            target = committed(reader, there, Tallies([]), idle_timeout_s=self.idle_timeout_s)
            replaced += _compare(
                comparison,
                backup.records(stretch),
                target,
                accept_replaced=reading.accept_replaced_timestamps,
            )
        return PartitionVerified(
            target=work.target,
            records=work.records,
            compared=comparison.compared,
            differing=comparison.differing,
            differences=tuple(comparison.differences),
            replaced_timestamps=replaced,
        )


def _compare(
    comparison: Comparison,
    backup: Iterator[pa.RecordBatch],
    target: Iterator[pa.RecordBatch],
    *,
    accept_replaced: bool,
) -> int:
    """Compare one range, to the ends of both; return how many timestamps were replaced."""
    replaced = 0
    ours, its = next(backup, None), next(target, None)
    while ours is not None and its is not None:
        count = min(ours.num_rows, its.num_rows)
        differing = _differing_times(ours[:count], its[:count], accept_replaced=accept_replaced)
        if differing is None or not _equal(ours[:count], its[:count]):
            break
        replaced += differing
        comparison.equal(count)
        ours = ours[count:] if count < ours.num_rows else next(backup, None)
        its = its[count:] if count < its.num_rows else next(target, None)
    if ours is None and its is None:
        return replaced
    ours_on = chain([ours] if ours is not None else [], backup)
    its_on = chain([its] if its is not None else [], target)
    rest = _Listed(accept_replaced)
    comparison.run(map(rest.of_backup, ours_on), map(_listed, its_on))
    return replaced + rest.replaced


def _differing_times(
    ours: pa.RecordBatch, its: pa.RecordBatch, *, accept_replaced: bool
) -> int | None:
    """Return how many timestamps differ in an accepted way; None if others differ."""
    if its.column("timestamp_type").to_numpy().any():
        return None
    of_ours = ours.column("timestamp_ms").to_numpy()
    differ = of_ours != its.column("timestamp_ms").to_numpy()
    allowed = of_ours <= 0 if accept_replaced else False
    return None if (differ & ~np.asarray(allowed)).any() else int(np.count_nonzero(differ))


def _equal(ours: pa.RecordBatch, its: pa.RecordBatch) -> bool:
    """Whether offsets, keys, values and headers are equal."""
    if not all(ours.column(name).equals(its.column(name)) for name in ("offset", "key", "value")):
        return False
    of_ours, of_its = ours.column("headers"), its.column("headers")
    if of_ours.equals(of_its):
        return True
    # An empty list equals none.
    counts = header_counts(of_ours), header_counts(of_its)
    return np.array_equal(*counts) and of_ours.flatten().equals(of_its.flatten())


class _Listed:
    """The backup's records as lists."""

    def __init__(self, accept_replaced: bool) -> None:
        self.replaced = 0
        self._accept_replaced = accept_replaced

    def of_backup(self, batch: pa.RecordBatch) -> RecordColumns:
        timestamps_ms = batch.column("timestamp_ms").to_numpy()
        listed = _listed(batch)
        if self._accept_replaced:
            replaced = np.flatnonzero(timestamps_ms <= 0)
            for index in replaced.tolist():
                listed.times[index] = ANY_CREATE_TIME
            self.replaced += len(replaced)
        return listed


def _listed(batch: pa.RecordBatch) -> RecordColumns:
    """Return records as lists; the backup's have no timestamp type: a restore sets it."""
    times = batch.column("timestamp_ms").to_pylist()
    types = [0] * len(times)
    if "timestamp_type" in batch.schema.names:
        types = batch.column("timestamp_type").to_pylist()
    return RecordColumns(
        batch.column("offset").to_pylist(),
        [(kind + CREATE_TIME, ms) for kind, ms in zip(types, times, strict=True)],
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        header_lists(batch.column("headers")),
    )


class _Backup:
    """The backup's records of one partition, at their offsets in the offset map."""

    def __init__(self, reading: PartitionReading) -> None:
        self._reading = reading
        self._batches = work_records(_part(reading))
        self._rest: pa.RecordBatch | None = None

    def records(self, stretch: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield those with target offsets in a range; call in order, and read each to its end."""
        while (batch := self._rest or self._next()) is not None:
            self._rest = None
            inside = int(batch.column("offset").to_numpy().searchsorted(stretch.end))
            if inside < batch.num_rows:
                self._rest = batch[inside:]
                if inside:
                    yield batch[:inside]
                return
            yield batch

    def _next(self) -> pa.RecordBatch | None:
        check_stop()
        batch = next(self._batches, None)
        if batch is None:
            return None
        offsets = self._target_offsets(batch.column("offset").to_numpy())
        index = batch.schema.get_field_index("offset")
        return batch.set_column(index, batch.schema.field(index), pa.array(offsets))

    def _target_offsets(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        runs = self._reading.runs
        index = runs.source_starts.searchsorted(offsets, side="right") - 1
        ahead = offsets - runs.source_starts[index]
        unmapped = (index < 0) | (ahead >= runs.lengths[index])
        if unmapped.any():
            raise OffsetMapError(
                partition=str(self._reading.work.target),
                source_offset=int(offsets[unmapped.argmax()]),
                target_offset=-1,
                reason="the backup has a record there that was not produced",
            )
        return runs.target_starts[index] + ahead


def _part(reading: PartitionReading) -> PartitionWork:
    """Return the work with only the records to compare."""
    ranges: list[OffsetRange] = []
    records = 0
    for stretch in reading.stretches:
        source, count = source_range(reading.runs, stretch)
        records += count
        ranges += [
            OffsetRange(max(part.start, source.start), min(part.end, source.end))
            for part in reading.work.ranges
            if part.start < source.end and source.start < part.end
        ]
    # The files were found to match when they were produced; here their contents are compared.
    return replace(reading.work, ranges=tuple(ranges), records=records, noted={})


def source_range(runs: OffsetRuns, stretch: OffsetRange) -> tuple[OffsetRange, int]:
    """Return the source offsets of the records with target offsets in a range, and their number."""
    starts, ends = runs.target_starts, runs.target_starts + runs.lengths
    first = int(ends.searchsorted(stretch.start, side="right"))
    last = int(starts.searchsorted(stretch.end, side="left"))
    if first >= last:
        return OffsetRange(0, 0), 0
    before = max(0, stretch.start - int(starts[first]))
    behind = max(0, int(ends[last - 1]) - stretch.end)
    source_starts, lengths = runs.source_starts[first:last], runs.lengths[first:last]
    source = OffsetRange(
        int(source_starts[0]) + before, int(source_starts[-1] + lengths[-1]) - behind
    )
    return source, int(lengths.sum()) - before - behind
