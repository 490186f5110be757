"""Recorded facts of a backup: windows, spans, gaps, contents, topics. Row classes, without
Arrow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, Self

from kstreams_assets.model.column import Column, Columns, SpanColumns, TopicId
from kstreams_assets.model.files import NewFile, WrittenFile
from kstreams_assets.offsets import TopicPartitionId


class SpanKind(StrEnum):
    """The kinds of ledger rows under one key."""

    WINDOW = "window"
    """One closed window."""
    INCREMENT = "increment"
    """A follower's backup of a part of a window before it closed; there are several."""
    MERGED = "merged"
    """Several windows, which `expire` merged."""


@dataclass(frozen=True, slots=True)
class SpanKey:
    """The parsed key of a span: `number` is that of an increment, 0 for other kinds."""

    kind: SpanKind
    first_window: str
    last_window: str
    number: int = 0

    @classmethod
    def of(cls, key: str) -> "SpanKey":
        """Parse a key if it is all that is stored: names of folders, rows of earlier releases."""
        window, is_increment, number = key.partition(_INCREMENT)
        if is_increment and number.isdigit():
            return cls(SpanKind.INCREMENT, window, window, int(number))
        first, is_merged, last = key.partition(_MERGED)
        if is_merged:
            return cls(SpanKind.MERGED, first, last)
        return cls(SpanKind.WINDOW, key, key)


_INCREMENT: Final = "+"
"""Separates, in keys of increments, the key of their window and their number."""
_MERGED: Final = "~"
"""Separates, in keys of merged windows, the first and the last of them."""


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """One time partition `[start_ms, end_ms)` of wall-clock time; `key` as in Dagster.

    An increment is a part of one, a merged window covers several: `first_window` and `last_window`
    are the keys of its windows in the schedule.
    """

    start_ms: int
    end_ms: int
    key: str
    kind: SpanKind = field(default=SpanKind.WINDOW, compare=False)
    first_window: str = field(default="", compare=False)
    last_window: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.first_window:
            object.__setattr__(self, "first_window", self.key)
            object.__setattr__(self, "last_window", self.key)

    @property
    def is_increment(self) -> bool:
        """Whether it is a part of a window, which a follower backed up before it closed."""
        return self.kind is SpanKind.INCREMENT

    @property
    def is_merged(self) -> bool:
        """Whether it covers several windows, which `expire` merged."""
        return self.kind is SpanKind.MERGED

    def increment(self, number: int, start_ms: int, end_ms: int) -> "Window":
        """An increment of this window."""
        key = f"{self.key}{_INCREMENT}{number:06d}"
        return Window(start_ms, end_ms, key, SpanKind.INCREMENT, self.key, self.key)

    def merged_to(self, last: "Window") -> "Window":
        """All windows from this one to the last, as one."""
        begin, end = self.first_window, last.last_window
        key = f"{begin}{_MERGED}{end}"
        return Window(self.start_ms, last.end_ms, key, SpanKind.MERGED, begin, end)


def window_of(key: str) -> str:
    """The key of an increment's window; other keys unchanged."""
    span = SpanKey.of(key)
    return span.first_window if span.kind is SpanKind.INCREMENT else key


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset of a partition of one topic incarnation."""

    topic_id: str
    offset: int


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """A span in the ledger: its edges are frozen.

    `continues`: it starts where the previous window ends. A span that starts a topic's incarnation
    (first window, new partition, recreated topic) says nothing about the previous window.
    """

    window: Window
    partition: TopicPartitionId
    topic_id: str
    start: int
    end: int
    continues: bool


class GapCause(StrEnum):
    """Why offsets of a span have no record in the backup."""

    TRANSACTION_MARKER = "transaction_marker"
    ABORTED = "aborted"
    COMPACTED = "compacted"
    PURGED = "purged"
    """Repartition records below the committed offset: processed, the application deletes them."""
    RETENTION = "retention"
    """The log start offset has passed them: retention, or DeleteRecords."""
    TOPIC_RECREATED = "topic_recreated"
    """They belonged to an earlier topic of the same name."""
    TOPIC_DELETED = "topic_deleted"
    LOG_TRUNCATED = "log_truncated"
    """They were in a log that an unclean leader election truncated."""
    UNEXPLAINED = "unexplained"
    NOT_EXAMINED = "not_examined"
    """The log could not be read or inspected in time; the next run repeats it."""
    COMPACTED_BY_EXPIRE = "folded"
    """Earlier values of keys, which `expire` omitted when it merged windows."""
    EXPIRED = "expired"
    """No kept recovery point needs them; `expire` dropped them."""
    RESTORED = "restored"
    """A restore of this warehouse wrote them: their records came from this backup."""
    NOT_RESTORED = "not_restored"
    """They came after the restored recovery point. The offsets are those of the log before the
    restore."""


LOSSES = frozenset(
    {
        GapCause.RETENTION,
        GapCause.TOPIC_RECREATED,
        GapCause.TOPIC_DELETED,
        GapCause.LOG_TRUNCATED,
        GapCause.NOT_RESTORED,
    }
)
"""Causes by which committed records are permanently lost."""

UNREAD = frozenset(
    {
        GapCause.PURGED,
        GapCause.RETENTION,
        GapCause.TOPIC_RECREATED,
        GapCause.TOPIC_DELETED,
        GapCause.LOG_TRUNCATED,
        GapCause.EXPIRED,
        GapCause.RESTORED,
    }
)
"""Causes by which offsets of a span were never read, or whose records were dropped."""


UNKNOWN = frozenset({GapCause.UNEXPLAINED, GapCause.NOT_EXAMINED})
"""Causes by which it is unknown whether committed records are missing."""


@dataclass(frozen=True, slots=True)
class Gap:
    """`offsets` offsets inside `[start, end)` are missing for one cause.

    `end` and `offsets` are None if they can no longer be known (a topic was deleted before its end
    was seen).
    """

    cause: GapCause
    start: int
    end: int | None
    offsets: int | None

    @property
    def is_loss(self) -> bool:
        """Whether committed records are permanently lost."""
        return self.cause in LOSSES

    @property
    def is_of_this_log(self) -> bool:
        """Whether the offsets belong to the span's own log, not to an earlier one."""
        return self.end is not None and self.cause is not GapCause.NOT_RESTORED

    def describe(self) -> str:
        """Offsets and cause in words."""
        if self.end is None:
            return f"from offset {self.start} on, end unknown ({self.cause})"
        if self.offsets == self.end - self.start:
            return f"offsets {self.start} to {self.end - 1} ({self.cause})"
        return f"{self.offsets} offsets within {self.start} to {self.end - 1} ({self.cause})"


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """One span of the window, `[start, end)`, and the part to read, `[read_start, end)`.

    `gaps` are known before anything is read; in the ledger they are among those of the result.
    """

    window: Annotated[Window, SpanColumns]
    partition: Annotated[
        TopicPartitionId,
        Columns(
            topic=Column("Topic."),
            partition=Column(
                "Partition; -1 in the only row of a topic that no recovery point contained yet.",
                type="int32",
            ),
        ),
    ]
    topic_id: TopicId
    start: Annotated[int, Column("First offset of the span.")]
    end: Annotated[int, Column("Exclusive end of the span.")]
    read_start: Annotated[int, Column("First offset that was read; `gaps` explains earlier ones.")]
    continues: Annotated[bool, Column("Whether the span starts where the previous window ends.")]
    gaps: tuple[Gap, ...] = ()
    log_start: Annotated[int, Column("Log start offset when the span was planned.")] = 0

    @property
    def to_read(self) -> int:
        """Number of offsets to read."""
        return self.end - self.read_start

    @property
    def restored_end(self) -> int:
        """End of the part that a restore wrote; the start without a restore."""
        ends = [gap.end or 0 for gap in self.gaps if gap.cause is GapCause.RESTORED]
        return max(ends, default=self.start)


@dataclass(frozen=True, slots=True)
class SpanContent:
    """The contents of one span in the table.

    For `bytes` each key, value and header counts four more for its length. Offsets and timestamps
    are None without records.
    """

    records: Annotated[int, Column("Records stored.")] = 0
    bytes: Annotated[
        int,
        Column("Uncompressed keys, values and headers in Parquet's plain encoding."),
    ] = 0
    stored_bytes: Annotated[int, Column("Size of the span's files.")] = 0
    files: Annotated[int, Column("Number of the span's files.", type="int32")] = 0
    tombstones: Annotated[int, Column("Records with a null value.")] = 0
    null_keys: Annotated[int, Column("Records with a null key.")] = 0
    non_positive_timestamps: Annotated[
        int, Column("Records with a timestamp of 0 or below.", name="odd_timestamps")
    ] = 0
    first_offset: Annotated[int | None, Column("Smallest offset stored; null without records.")] = (
        None
    )
    last_offset: Annotated[int | None, Column("Largest offset stored; null without records.")] = (
        None
    )
    min_timestamp_ms: Annotated[int | None, Column("Smallest timestamp stored.")] = None
    max_timestamp_ms: Annotated[int | None, Column("Largest timestamp stored.")] = None
    written: Annotated[
        tuple[WrittenFile, ...],
        Column(
            "The data files right after the backup: path below the records table, bytes, records"
            " and SHA-256 of each. Restores verify them; null in rows of earlier releases.",
            nullable=True,
            last=1,
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class SpanResult:
    """One span after its backup: the plan, the contents and the causes of gaps.

    `kept`: the records are those of an earlier run, because Kafka no longer has all of them.
    """

    plan: SpanPlan
    content: SpanContent
    gaps: Annotated[
        tuple[Gap, ...],
        Column("Offsets without a record: cause, range, number (see [checks](checks.md))."),
    ]
    kept: bool = False
    first_hole: Annotated[
        int | None,
        Column(
            "Changelogs: lowest offset that was missing in the log after the span was read"
            " (compaction, retention); null: contiguous."
        ),
    ] = None
    contiguity_known: Annotated[
        bool, Column("Whether that was checked: changelogs only.", nullable=True)
    ] = False
    not_examined_because: str = ""
    """Why the log could not be inspected in time; known only to the run that tried."""

    @property
    def is_examined(self) -> bool:
        """Whether the log was inspected for why offsets have no record."""
        return all(gap.cause is not GapCause.NOT_EXAMINED for gap in self.gaps)

    @property
    def is_unread(self) -> bool:
        """Whether its records could not be read, so the next run has to read them."""
        return not self.is_examined and self.content.records == 0

    @property
    def partition(self) -> TopicPartitionId:
        """The partition of the span."""
        return self.plan.partition

    @property
    def losses(self) -> tuple[Gap, ...]:
        """Gaps whose committed records are permanently lost."""
        return tuple(gap for gap in self.gaps if gap.is_loss)

    @property
    def unaccounted(self) -> int:
        """Offsets of the span without a record or an explanation; negative: too many
        explanations."""
        explained = sum(
            gap.offsets or 0
            for gap in self.gaps
            if gap.cause not in UNKNOWN and _inside(gap, self.plan)
        )
        return self.plan.end - self.plan.start - self.content.records - explained


def _inside(gap: Gap, plan: SpanPlan) -> bool:
    return gap.is_of_this_log and gap.start >= plan.start and (gap.end or 0) <= plan.end


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the cluster described it at a backup; `configs` are those set on the topic."""

    topic_id: TopicId
    partitions: Annotated[int, Column("Number of partitions.", type="int32")]
    replication_factor: Annotated[
        int, Column("Smallest number of replicas of a partition.", type="int32")
    ]
    configs: Annotated[
        tuple[tuple[str, str], ...],
        Column("Settings of the topic itself, not the broker's defaults."),
    ]
    effective_configs: Annotated[
        tuple[tuple[str, str], ...],
        Column(
            "The settings among these that decide which records are kept and accepted, with their"
            " effective values, set on the topic or not: `cleanup.policy`, `retention.*`,"
            " `delete.retention.ms`, `*.compaction.lag.ms`, `max.*message.bytes`,"
            " `message.timestamp.*`; null in rows of earlier releases."
        ),
    ] = ()

    @property
    def known_configs(self) -> Mapping[str, str]:
        """The topic's settings as far as recorded: effective values, and its own."""
        return {**dict(self.effective_configs), **dict(self.configs)}


@dataclass(frozen=True, slots=True)
class NotedFacts:
    """A topic as a backup recorded it; `later`: only after the recovery point."""

    facts: TopicFacts
    later: bool


@dataclass(frozen=True, slots=True)
class SpanId:
    """A partition's part of one window."""

    window: str
    partition: TopicPartitionId

    @classmethod
    def of(cls, span: SpanPlan) -> Self:
        """That of a planned span."""
        return cls(span.window.key, span.partition)

    @classmethod
    def of_file(cls, file: NewFile) -> Self:
        """The id of the span whose records a new file contains."""
        partition = TopicPartitionId(file.values["topic"], file.about["partition"])
        return cls(file.values["window"], partition)
