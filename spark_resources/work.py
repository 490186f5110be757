"""What Spark jobs are given. Pure: who plans a job needs no Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.offsets import OffsetRange, TopicPartitionId


@dataclass(frozen=True, slots=True)
class ReadRange:
    """One contiguous stretch of a partition, `[start, end)`."""

    partition: TopicPartitionId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SnapshotWork:
    """The rows of one snapshot: which files hold them, which of their offsets count.

    Of `base_files` (an earlier window of the same table) the rows in `base_ranges` count, of
    `whole_files` and `saved_file` all, of `cut_files` those in `ranges`; both are by partition.
    `saved_file` may repeat offsets of the span files. `stream_times` are those of the base.
    `records` is about how many there are in all of these, `record_bytes` what one takes.
    """

    window: str
    format: StoreFormat
    partitions: tuple[int, ...]
    base_files: tuple[str, ...]
    base_ranges: Mapping[int, Sequence[OffsetRange]] | None
    whole_files: tuple[str, ...]
    cut_files: tuple[str, ...]
    ranges: Mapping[int, Sequence[OffsetRange]]
    saved_file: str | None = None
    stream_times: Mapping[int, int] = field(default_factory=dict)
    records: int = 0
    record_bytes: float = 0.0
