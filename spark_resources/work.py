"""The input of Spark jobs. Pure: planning a job does not need Spark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.model.data_files import SpanFile, TableScan
from kstreams_assets.offsets import OffsetRange, OffsetRuns, TopicPartitionId
from kstreams_assets.store import StorePath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Spark(Protocol):
    """A Spark session that starts when it is needed (`spark_resources.session.LazySession`)."""

    @property
    def spark_session(self) -> "SparkSession":
        """The session."""
        ...

    def check(self) -> None:
        """Raise JarsMissingError or JavaNotFoundError if it could not be started."""
        ...


Ranges = Mapping[int, Sequence[OffsetRange]]
"""Disjoint offset ranges, in order, by partition."""


@dataclass(frozen=True, slots=True)
class ReadRange:
    """One contiguous offset range of a partition, `[start, end)`."""

    partition: TopicPartitionId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Renumbering:
    """Files of older logs, whose records count with the offsets that a restore assigned to them.

    See `SpanFile.runs`. Equal objects have the same `first` offsets by file.
    """

    first: frozenset[tuple[StorePath, int]] = frozenset()
    runs: Mapping[StorePath, OffsetRuns] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, files: Iterable[SpanFile]) -> "Renumbering":
        """Return the renumbered files among these files."""
        older = {f.path: (f.first_offset, f.runs) for f in files if f.runs is not None}
        return cls(
            frozenset((path, first) for path, (first, _) in older.items()),
            {path: runs for path, (_, runs) in older.items()},
        )


NOT_RENUMBERED: Final = Renumbering()


@dataclass(frozen=True, slots=True)
class SnapshotWork:
    """The rows of one snapshot: their files, and the offsets that count.

    Rows in `base_ranges` of `base_files` (an earlier window of the same table) count, all rows of
    `whole_files` and `saved_file`, and rows in `ranges` of `cut_files`; both ranges are by
    partition. `saved_file` may repeat offsets of the span files. `stream_times` are those of the
    base. `records` is about how many there are in all of these, `record_bytes` their mean size.
    `scan` reads `whole_files` and `cut_files` through the table of records; None: as files.
    """

    window: str
    format: StoreFormat
    partitions: tuple[int, ...]
    base_files: tuple[StorePath, ...]
    base_ranges: Mapping[int, Sequence[OffsetRange]] | None
    whole_files: tuple[StorePath, ...]
    cut_files: tuple[StorePath, ...]
    ranges: Mapping[int, Sequence[OffsetRange]]
    saved_file: StorePath | None = None
    stream_times: Mapping[int, int] = field(default_factory=dict)
    records: int = 0
    record_bytes: float = 0.0
    renumbering: Renumbering = NOT_RENUMBERED
    scan: TableScan | None = None


@dataclass(frozen=True, slots=True)
class LogSource:
    """Span files below the table of records `root`: equal sources have the same records.

    `is_whole`: all files of the topic, and few enough records to be cached. `records` is their
    approximate number. `windows` are the keys of the files' windows, one for each; records of a
    cluster are files of one evaluation, and have none. `scan` reads them through the table.
    """

    topic: str
    root: StorePath
    files: tuple[StorePath, ...]
    records: int
    is_whole: bool = False
    windows: tuple[str, ...] = ()
    renumbering: Renumbering = NOT_RENUMBERED
    scan: TableScan | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """A view of records, or of the newest one per key (`is_store`): those of `source` in `ranges`.

    From the offsets in `in_flight_from` on records were not yet processed; absent partitions had
    nothing in flight. `saved_file` has records that were saved with recovery points, for a topic
    only those that are in no span file. `records` is their number. `window`, for a store, is the
    window that ends with this state.
    """

    format: StoreFormat
    is_store: bool
    source: LogSource
    ranges: Ranges
    in_flight_from: Mapping[int, int]
    records: int
    saved_file: StorePath | None = None
    window: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """The rows of a KTable snapshot: all `records` of these files of the store's table."""

    format: StoreFormat
    window: str
    files: tuple[StorePath, ...]
    records: int


Content = LoggedRows | SnapshotRows
"""The rows of a view that completeness rules can name."""
