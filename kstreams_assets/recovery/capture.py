"""Reads, right after a cut, the records of it that may vanish from Kafka before the backup.

The application deletes repartition records as soon as it has processed them
(`repartition.purge.interval.ms`), and compaction removes changelog records whose successors lie
beyond the cut. What was captured is used only if the raw log was whole: without a missing offset.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kstreams_assets.errors import OffsetOutOfRangeError
from kstreams_assets.kafka.positions import OffsetRange, TopicPartitionId
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.raw_range import LoadedBatch
from kstreams_assets.kafka.raw_record import RawRecord
from kstreams_assets.kafka.visible import content_of_range
from kstreams_assets.recovery.segments import merged, tail_of

_READ_S = 30.0
_CHUNK_OFFSETS = 50_000


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
    """Why a capture is not whole."""

    reason: str


@dataclass(frozen=True, slots=True)
class Captured:
    """The committed records of stretches; `hole` says what the log no longer held, or nothing."""

    records: Mapping[TopicPartitionId, list[RawRecord]]
    hole: str = ""


@dataclass(slots=True)
class Capture:
    """Reads stretches of several partitions, chunk by chunk, up to a limit in bytes."""

    reader: RawLogReader
    limit_bytes: int | None = None
    _batches: dict[TopicPartitionId, list[LoadedBatch]] = field(init=False)
    _bytes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._batches = defaultdict(list)

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

        Missing when there are too many bytes, or the log begins behind a stretch.
        """
        positions = {one.partition: one.start for one in stretches}
        ends = {
            one.partition: max(one.end, one.decided) for one in stretches if one.start < one.end
        }
        while ends:
            chunk = {
                p: OffsetRange(positions[p], min(end, positions[p] + _CHUNK_OFFSETS))
                for p, end in ends.items()
            }
            try:
                self._read(chunk)
            except OffsetOutOfRangeError as error:
                return Missing(error.problem.rstrip("."))
            if self.limit_bytes is not None and self._bytes > self.limit_bytes:
                return Missing(f"there are more than {self.limit_bytes} bytes to save")
            positions.update({p: one.end for p, one in chunk.items()})
            ends = {p: end for p, end in ends.items() if positions[p] < end}
        return self._committed(stretches)

    def _read(self, chunk: Mapping[TopicPartitionId, OffsetRange]) -> None:
        for partition, raw in self.reader.read(chunk, deadline_s=_READ_S).items():
            known = self._batches[partition]
            last = known[-1].header.last_offset if known else -1
            fresh = [batch for batch in raw.batches if batch.header.base_offset > last]
            self._bytes += sum(len(batch.data) for batch in fresh)
            known += fresh

    def _committed(self, stretches: Sequence[Stretch]) -> Captured:
        found: dict[TopicPartitionId, list[RawRecord]] = {}
        first_hole = ""
        for stretch in stretches:
            batches = self._batches[stretch.partition]
            headers = [batch.header for batch in batches]
            holes = content_of_range(headers, stretch.start, stretch.end).holes
            if holes and not first_hole:
                first_hole = (
                    f"{stretch.partition} no longer holds offset {holes[0].start}, which belongs to"
                    " the point"
                )
            tail = tail_of(stretch.partition, headers, below=stretch.end)
            aborted = [s for s in tail.segments if s.marker and not s.marker.committed]
            bad = merged([*stretch.excluded, *(r for s in aborted for r in s.ranges)])
            found[stretch.partition] = [
                record
                for batch in batches
                if not batch.header.is_control and not _lies_in(batch.header.base_offset, bad)
                for record in batch.records()
                if stretch.start <= record.offset < stretch.end
            ]
        return Captured(found, first_hole)


def _lies_in(offset: int, ranges: Sequence[OffsetRange]) -> bool:
    return any(one.start <= offset < one.end for one in ranges)
