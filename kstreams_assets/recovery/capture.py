"""Reads, right after a cut, the records of it that may vanish from Kafka before the backup.

The application deletes repartition records as soon as it has processed them
(`repartition.purge.interval.ms`), and compaction removes changelog records whose successors lie
beyond the cut. What was captured is used only if the raw log was whole: without a missing offset.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kstreams_assets.errors import (
    CorruptBatchError,
    OffsetOutOfRangeError,
    RawReadLimitError,
    RawReadTimeoutError,
)
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.raw_range import LoadedBatch
from kstreams_assets.kafka.raw_record import RawRecord
from kstreams_assets.kafka.visible import content_of_range
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.recovery.segments import merged, tail_of

_READ_S = 30.0
"""For everything that one capture reads: a tick of a sensor has 60 s in all."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets `[start, end)` of a partition outside `excluded`; decided below `decided`."""

    partition: TopicPartitionId
    start: int
    end: int
    decided: int
    excluded: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a capture is not whole.

    `unread`: it was given up, for the number of bytes or the time; all may still be there.
    """

    reason: str
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Captured:
    """The committed records of stretches; `hole` says what the log no longer held, or nothing."""

    records: Mapping[TopicPartitionId, list[RawRecord]]
    hole: str = ""


@dataclass(frozen=True, slots=True)
class Capture:
    """Reads stretches of several partitions, and holds no more than a limit in bytes.

    The limit counts the bytes as they lie in the logs while these are read, and what keys, values
    and headers of the decoded records take: compression does not get round it. Beyond it at most
    one batch for each broker is held.
    """

    reader: RawLogReader
    limit_bytes: int | None = None

    def records(
        self, stretches: Sequence[Stretch]
    ) -> Mapping[TopicPartitionId, list[RawRecord]] | Missing:
        """The committed records of the stretches, or why they are not whole."""
        found = self.what_is_left(stretches)
        if isinstance(found, Captured):
            return Missing(found.hole) if found.hole else found.records
        return found

    def what_is_left(self, stretches: Sequence[Stretch]) -> Captured | Missing:
        """The committed records that the log still holds, with the first hole if there is one.

        Missing when there are too many bytes, they take too long to read, or the log begins behind
        a stretch.
        """
        ranges = {
            one.partition: OffsetRange(one.start, max(one.end, one.decided))
            for one in stretches
            if one.start < one.end
        }
        try:
            return self._committed(stretches, self._read(ranges))
        except RawReadLimitError:
            return Missing(f"there are more than {self.limit_bytes} bytes to save", unread=True)
        except RawReadTimeoutError as error:
            return Missing(error.problem.rstrip("."), unread=True)
        except (CorruptBatchError, OffsetOutOfRangeError) as error:
            return Missing(error.problem.rstrip("."))

    def _read(
        self, ranges: Mapping[TopicPartitionId, OffsetRange]
    ) -> dict[TopicPartitionId, Sequence[LoadedBatch]]:
        if not ranges:
            return {}
        found = self.reader.read(ranges, deadline_s=_READ_S, limit_bytes=self.limit_bytes)
        return {partition: raw.batches for partition, raw in found.items()}

    def _committed(
        self,
        stretches: Sequence[Stretch],
        read: dict[TopicPartitionId, Sequence[LoadedBatch]],
    ) -> Captured:
        found: dict[TopicPartitionId, list[RawRecord]] = {}
        first_hole = ""
        held = 0
        for stretch in stretches:
            batches = read.pop(stretch.partition, ())
            headers = [batch.header for batch in batches]
            holes = content_of_range(headers, stretch.start, stretch.end).holes
            if holes and not first_hole:
                first_hole = (
                    f"{stretch.partition} no longer holds offset {holes[0].start}, which belongs to"
                    " the point"
                )
            records = found[stretch.partition] = []
            for fresh in _decoded(stretch, batches):
                held += sum(map(_bytes_of, fresh))
                if self.limit_bytes is not None and held > self.limit_bytes:
                    raise RawReadLimitError(limit_bytes=self.limit_bytes)
                records += fresh
        return Captured(found, first_hole)


def _decoded(stretch: Stretch, batches: Sequence[LoadedBatch]) -> Iterator[list[RawRecord]]:
    """The committed records of a stretch, batch by batch."""
    tail = tail_of(stretch.partition, (batch.header for batch in batches), below=stretch.end)
    aborted = [s for s in tail.segments if s.marker and not s.marker.committed]
    bad = merged([*stretch.excluded, *(r for s in aborted for r in s.ranges)])
    for batch in batches:
        header = batch.header
        if header.base_offset >= stretch.end:
            return  # what lies behind the end was read for its markers only
        if not header.is_control and not _lies_in(header.base_offset, bad):
            yield [r for r in batch.records() if stretch.start <= r.offset < stretch.end]


def _bytes_of(record: RawRecord) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


def _lies_in(offset: int, ranges: Sequence[OffsetRange]) -> bool:
    return any(one.start <= offset < one.end for one in ranges)
