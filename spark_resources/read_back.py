"""The Spark task of a restore's verification: some partitions, read back and compared."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kstreams_assets.errors import OffsetMapError
from kstreams_assets.kafka.clients import LibrdkafkaConfig
from kstreams_assets.offsets import OffsetMap, OffsetRange, OffsetRuns
from spark_resources.comparison import ANY_CREATE_TIME, CREATE_TIME, Comparison, RecordColumns
from spark_resources.kafka_reader import KafkaReader, no_cyclic_collection
from spark_resources.partition_records import (
    PartitionVerified,
    PartitionWork,
    header_lists,
    work_records,
)
from spark_resources.partition_tasks import check_stop

_READ_ON: Final = 1_000
"""How many records behind the last expected one are looked at, to name them."""

_SHORT: Final = 2_000
_AHEAD_KB: Final = 32_768
_AHEAD_OF_SHORT_KB: Final = 512


@dataclass(frozen=True, slots=True)
class PartitionReading:
    """What is compared of one partition.

    `runs` and `end` are its offset map, `stretches` the target offsets to compare (in order,
    disjoint), `stable_end` the target's last stable offset. With `accept_replaced_timestamps` the
    timestamps of records that have 0 or below in the backup are not compared.
    """

    work: PartitionWork
    runs: OffsetRuns
    end: int
    stretches: tuple[OffsetRange, ...]
    stable_end: int
    accept_replaced_timestamps: bool


@dataclass(frozen=True, slots=True)
class ReadBackTask:
    """Reads partitions back one after the other with one consumer; pickled into Spark tasks.

    `config` is librdkafka's, with secrets. Raises what `KafkaReader.read` and `work_records` do.
    """

    config: LibrdkafkaConfig
    idle_timeout_s: float

    def __call__(self, readings: Sequence[PartitionReading]) -> list[PartitionVerified]:
        """Compare each."""
        longest = max(len(s) for reading in readings for s in reading.stretches)
        reader = KafkaReader(
            self.config,
            idle_timeout_s=self.idle_timeout_s,
            # what is fetched behind a short stretch is fetched for nothing
            read_ahead_kb=_AHEAD_KB if longest > _SHORT else _AHEAD_OF_SHORT_KB,
        )
        with no_cyclic_collection(), reader:
            return [_compare(reading, reader) for reading in readings]

    def __repr__(self) -> str:
        return f"ReadBackTask({self.config['bootstrap.servers']})"


def _compare(reading: PartitionReading, reader: KafkaReader) -> PartitionVerified:
    work = reading.work
    offset_map = OffsetMap(reading.runs, reading.end, partition=work.target)
    comparison = Comparison(work.target, offset_map.source_of)
    backup = _Backup(reading)
    for stretch in reading.stretches:
        stop = stretch.end
        if stop == reading.end:
            stop = min(reading.stable_end, reading.end + _READ_ON)
        target = reader.read(work.target, stretch.start, stop)
        comparison.run(backup.records(stretch), target)
    return PartitionVerified(
        target=work.target,
        records=work.records,
        compared=comparison.compared,
        differing=comparison.differing,
        differences=tuple(comparison.differences),
        replaced_timestamps=backup.replaced_timestamps,
    )


class _Backup:
    """The backup's records of one partition, where the offset map puts them."""

    def __init__(self, reading: PartitionReading) -> None:
        self.replaced_timestamps = 0
        self._reading = reading
        self._batches = work_records(_part(reading))
        self._rest: RecordColumns | None = None

    def records(self, stretch: OffsetRange) -> Iterator[RecordColumns]:
        """Those whose target offsets lie in a stretch; ask in order, and read each to its end."""
        while chunk := self._rest or self._next():
            inside = bisect_left(chunk.offsets, stretch.end)
            self._rest = None
            if inside < len(chunk.offsets):
                self._rest = chunk.part(inside, len(chunk.offsets))
                yield chunk.part(0, inside)
                return
            yield chunk

    def _next(self) -> RecordColumns | None:
        check_stop()
        batch = next(self._batches, None)
        if batch is None:
            return None
        return RecordColumns(
            self._target_offsets(batch.column("offset").to_numpy()).tolist(),
            self._times(batch.column("timestamp_ms").to_numpy()),
            batch.column("key").to_numpy(zero_copy_only=False).tolist(),
            batch.column("value").to_numpy(zero_copy_only=False).tolist(),
            header_lists(batch.column("headers")),
        )

    def _times(self, timestamps_ms: npt.NDArray[np.int64]) -> list[Any]:
        times: list[Any] = [(CREATE_TIME, ms) for ms in timestamps_ms.tolist()]
        if self._reading.accept_replaced_timestamps:
            replaced = np.flatnonzero(timestamps_ms <= 0)
            for index in replaced.tolist():
                times[index] = ANY_CREATE_TIME
            self.replaced_timestamps += len(replaced)
        return times

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
    """The work with no other records than those to compare."""
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
    # The files were found to match when they were produced; here their content is compared.
    return replace(reading.work, ranges=tuple(ranges), records=records, noted={})


def source_range(runs: OffsetRuns, stretch: OffsetRange) -> tuple[OffsetRange, int]:
    """The source offsets of the records with target offsets in a stretch, and how many they are."""
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
