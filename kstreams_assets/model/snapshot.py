"""A KTable snapshot: the content of one store at the recovery point of one window. Pure."""

from dataclasses import dataclass, field
from typing import Annotated, Final

from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.model.column import (
    ApplicationId,
    Column,
    Int32,
    RunId,
    TopicName,
    WindowColumns,
)
from kstreams_assets.model.files import WrittenFile
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.public_form import DAGSTER, JSON, Form, Timestamp, Value, only


@dataclass(frozen=True, slots=True)
class TableStore:
    """A store with tables.

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
    """The position of a snapshot in one partition of its topic.

    It contains the result of the records in `[log_start, end)` outside `excluded`, as `rows` rows
    of about `bytes` bytes (keys, values, headers). `stream_time_ms` is the greatest window start,
    session end or version timestamp so far, from which retention is counted; None before the first.
    """

    partition: Int32
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
    """A row that is kept but could not be read: null key, key of a wrong length, failed
    decoding."""

    partition: Int32
    offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot, a row of the table `ktable_snapshots`.

    `recorded_at_ms` is set when it is stored. It is not `proved` if its point is not exact, or if
    the log was compacted before the backup.
    """

    application_id: ApplicationId
    store: Annotated[str, Column("State store.")]
    topic: TopicName
    window: Annotated[Window, WindowColumns]
    point_id: Annotated[str, Column("The recovery point of the state.")]
    taken_at_ms: Annotated[int, Column("When that point was taken, epoch milliseconds.")]
    proved: Annotated[bool, Column("Whether it exactly equals the store's content at the point.")]
    reason: Annotated[str, Column("Why it is proved or not.")]
    base_window: Annotated[
        str | None,
        Column(
            "Window of the earlier snapshot that it is based on; null: made from the start of the"
            " log."
        ),
    ]
    fingerprint: Annotated[str, Column("Equal for formats that produce the same rows.")]
    partitions: Annotated[
        tuple[SnapshotPartition, ...],
        Column(
            "For each partition: its position in the log, rows, bytes, the time from which"
            " retention is counted."
        ),
    ]
    records: Annotated[int, Column("Records that were read for it.")]
    problem_rows: Annotated[int, Column("Rows that could not be decoded.")] = 0
    problems: Annotated[tuple[RowProblem, ...], Column("The first of these rows.")] = ()
    delta_version: Annotated[int | None, Column("Version of the table that contains it.")] = None
    took_ms: Annotated[int, Column("Its duration.")] = 0
    run_id: RunId = ""
    recorded_at_ms: Annotated[
        int,
        Column("When the row was written; the newest one of a store and window counts."),
    ] = field(default=0, compare=False)
    written: Annotated[
        tuple[WrittenFile, ...],
        Column(
            "The data files right after writing: path below the store's table, bytes, rows and"
            " SHA-256 of each; verified before a restore or the next snapshot uses them. Null in"
            " rows of earlier releases.",
            nullable=True,
        ),
    ] = ()

    @property
    def rows(self) -> int:
        """The number of its rows, including those with a problem."""
        return sum(partition.rows for partition in self.partitions)

    @property
    def bytes(self) -> int:
        """Its approximate size in bytes, uncompressed."""
        return sum(partition.bytes for partition in self.partitions)


_FROM_BEGIN: Final = "none: from the start of the log"
_PARTITION: Final = Form(
    SnapshotPartition,
    "partition",
    Value("log_start", text="First offset of the log that counts"),
    Value("end", text="Exclusive end"),
    Value(
        "excluded",
        int,
        lambda one: sum(hole.end - hole.start for hole in one.excluded),
        text="Offsets below the end that are not in it",
    ),
    "rows",
    Value("bytes", text="Uncompressed keys, values and headers"),
)
_PROBLEM: Final = Form(
    tuple,
    Value("topic", of=lambda row: row[0]),
    Value("partition", int, lambda row: row[1].partition),
    Value("offset", int, lambda row: row[1].offset),
    Value("problem", of=lambda row: row[1].problem, text="Why the row could not be decoded"),
)
SNAPSHOT: Final = Form(
    Snapshot,
    *only(JSON, "window=window.key store topic"),
    "recovery_point=point_id",
    Value("taken_at", Timestamp, "taken_at_ms", heading="recovery point"),
    "proved",
    Value("reason", where=JSON),
    Value("dagster/partition_row_count", of="rows", where=DAGSTER),
    "rows bytes",
    Value("base_window", of=lambda s: s.base_window or _FROM_BEGIN, where=DAGSTER),
    Value("base_window", heading="base", where=JSON),
    Value("records_read", of="records", heading="read"),
    "problem_rows delta_version",
    Value("took_ms", where=JSON),
    *only(
        DAGSTER,
        Value("reason", of=lambda snapshot: snapshot.reason or None),
        Value("duration_s", of=lambda snapshot: snapshot.took_ms / 1000),
        Value("offsets", of="partitions", form=_PARTITION),
        Value("problems", of=lambda s: [(s.topic, p) for p in s.problems] or None, form=_PROBLEM),
    ),
)
