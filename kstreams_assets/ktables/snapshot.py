"""What a KTable snapshot is: the content of one store at the recovery point of one window. Pure."""

from dataclasses import dataclass

from kstreams_assets.backup.windows import Window
from kstreams_assets.ktables.store_format import StoreFormat
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.warehouse.digest import WrittenFile


@dataclass(frozen=True, slots=True)
class TableStore:
    """A store of which tables are made.

    `topic` is its changelog; of a global table and of an optimised `table()` it is the source
    topic. `is_changelog_only`: the topic has no other role.
    """

    store: str
    topic: str
    format: StoreFormat
    is_global: bool = False
    is_changelog_only: bool = True


@dataclass(frozen=True, slots=True)
class SnapshotPartition:
    """Where a snapshot stands in one partition of its topic.

    It holds what the records in `[log_start, end)` outside `excluded` leave behind, as `rows` rows
    of about `bytes` bytes (keys, values, headers). `stream_time_ms` is the greatest window start,
    session end or version timestamp seen, on which retention is counted; None before the first.
    """

    partition: int
    topic_id: str
    log_start: int
    end: int
    excluded: tuple[OffsetRange, ...] = ()
    rows: int = 0
    bytes: int = 0
    stream_time_ms: int | None = None

    @property
    def whole_below(self) -> int:
        """Every committed record below this offset is in it (exclusive end)."""
        return self.excluded[0].start if self.excluded else self.end


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row that is kept but could not be read: null key, key of a wrong length, no decoding."""

    partition: int
    offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot, as noted in the table `ktable_snapshots`.

    `proved`: it is exactly the store's content at the point; else `reason` says why that cannot be
    proved (point not exact, compaction before the backup). `base_window` is the earlier snapshot
    it builds on, None when it was made from the begin of the log. `records` were read to make it.
    `problem_rows` counts rows with a problem, of which `problems` are the first few. `written` are
    its files right after they were written; empty where an earlier release made it.
    """

    application_id: str
    store: str
    topic: str
    window: Window
    point_id: str
    taken_at_ms: int
    proved: bool
    reason: str
    base_window: str | None
    fingerprint: str
    partitions: tuple[SnapshotPartition, ...]
    records: int
    problem_rows: int = 0
    problems: tuple[RowProblem, ...] = ()
    delta_version: int | None = None
    took_ms: int = 0
    run_id: str = ""
    written: tuple[WrittenFile, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows it has, those with a problem included."""
        return sum(partition.rows for partition in self.partitions)

    @property
    def bytes(self) -> int:
        """About how many bytes, uncompressed."""
        return sum(partition.bytes for partition in self.partitions)
