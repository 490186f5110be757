"""A range of the raw log in memory: batch headers, with records decoded where they are wanted."""

from dataclasses import dataclass
from typing import NamedTuple

from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_record import RawRecord, decode_records
from kstreams_assets.offsets import OffsetRange, TopicPartitionId


class LoadedBatch(NamedTuple):
    """The header of a batch, and its bytes as they lie in the log (a view, nothing is copied)."""

    header: RawBatch
    data: memoryview
    partition: TopicPartitionId

    def records(self) -> list[RawRecord]:
        """All its records, decoded anew at each call; also those outside of the range read.

        Raises CorruptBatchError.
        """
        return decode_records(self.data, partition=str(self.partition))


@dataclass(frozen=True, slots=True)
class RawRange:
    """Every batch that holds an offset in [start, end), in offset order.

    The first and last batch may reach beyond the range; offsets in no batch were removed by
    compaction. `log_start` is that of the last Fetch answer, None where none was asked because
    the range is empty.
    """

    start: int
    end: int
    log_start: int | None
    batches: tuple[LoadedBatch, ...]

    @property
    def offsets(self) -> OffsetRange:
        """The range that was asked for."""
        return OffsetRange(self.start, self.end)
