"""What a backup of a window turned out to hold, and what can stand in the way of one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.plan import UNKNOWN, Gap, GapCause, SpanPlan
from kstreams_assets.backup.windows import Window
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.warehouse.column import Column, TopicId
from kstreams_assets.warehouse.layout import WrittenFile


@dataclass(frozen=True, slots=True)
class SpanContent:
    """What the table holds of one span.

    To `bytes` each key, value and header adds four for its length. Offsets and timestamps are None
    without records.
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
    odd_timestamps: Annotated[int, Column("Records with a timestamp of 0 or below.")] = 0
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
            "The data files as they were right after the backup: path below the records table,"
            " bytes, records and SHA-256 of each. Restores compare them; null in rows of earlier"
            " releases.",
            nullable=True,
            last=True,
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class SpanResult:
    """One span after its backup: the plan, the content and why the rest is missing.

    `kept` says that the records are those of an earlier run, because Kafka no longer holds all of
    them.
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
            "Changelogs: lowest offset that the log did not hold any more after the span was"
            " read (compaction, retention); null: contiguous."
        ),
    ] = None
    contiguity_known: Annotated[
        bool, Column("Whether that was looked at: changelogs only.", nullable=True)
    ] = False
    not_examined_because: str = ""
    """Why the log could not be looked at in time; known to the run that tried."""

    @property
    def is_examined(self) -> bool:
        """Whether it was seen in the log why offsets have no record."""
        return all(gap.cause is not GapCause.NOT_EXAMINED for gap in self.gaps)

    @property
    def partition(self) -> TopicPartitionId:
        """The partition of the span."""
        return self.plan.partition

    @property
    def losses(self) -> tuple[Gap, ...]:
        """Gaps whose committed records are gone for good."""
        return tuple(gap for gap in self.gaps if gap.is_loss)

    @property
    def unaccounted(self) -> int:
        """Offsets of the span that are neither a record nor explained; negative: too many."""
        explained = sum(
            gap.offsets or 0
            for gap in self.gaps
            if gap.cause not in UNKNOWN and _inside(gap, self.plan)
        )
        return self.plan.end - self.plan.start - self.content.records - explained


def _inside(gap: Gap, plan: SpanPlan) -> bool:
    return gap.end is not None and gap.start >= plan.start and gap.end <= plan.end


@dataclass(frozen=True, slots=True)
class TopicLife:
    """A topic as a recovery point saw it."""

    topic_id: str
    partitions: int


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
        Column("Settings made on the topic itself, not the broker's defaults."),
    ]


@dataclass(frozen=True, slots=True)
class TopicBackup:
    """One topic in one window."""

    window: Window
    topic: str
    spans: tuple[SpanResult, ...]
    role: str
    facts: TopicFacts | None
    """None when the topic is gone."""
    previous_facts: TopicFacts | None
    """What was noted of the topic at the nearest earlier window."""
    opened: TopicLife | None
    """The topic when the window opened, None when no recovery point knew it by then."""
    closed: TopicLife | None
    recovery_point_id: str | None
    delta_version: int | None
    duration_s: float | None
    """Measured, of the read that this topic was part of: Spark reads all of a run at once. None
    where it is not known: the ledger does not keep it."""
    unproven_points: tuple[str, ...] = ()
    """Recovery points in the window that holes in its changelog spans leave unproven."""
    below_first: Mapping[TopicPartitionId, OffsetRange] = field(default_factory=dict)
    """Offsets that Kafka holds and that no window does: they lie below the first one."""

    @property
    def is_changelog(self) -> bool:
        """Whether the topic rebuilds a store."""
        return TopicRole.CHANGELOG in self.role.split("+")

    @property
    def records(self) -> int:
        """Records the window holds of the topic."""
        return sum(span.content.records for span in self.spans)

    @property
    def bytes(self) -> int:
        """Uncompressed bytes (see `SpanContent`)."""
        return sum(span.content.bytes for span in self.spans)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the files."""
        return sum(span.content.stored_bytes for span in self.spans)

    @property
    def tombstones(self) -> int:
        """Records with a null value."""
        return sum(span.content.tombstones for span in self.spans)

    @property
    def missing_offsets(self) -> int:
        """Offsets of the spans that hold no record, for whatever cause."""
        return sum(s.plan.end - s.plan.start - s.content.records for s in self.spans)


@dataclass(frozen=True, slots=True)
class UnreadTopic:
    """A topic whose records of a window cannot be read yet: the window stays due for it."""

    window: Window
    topic: str
    reason: str
    """Which open transaction is in the way, and what to do."""


@dataclass(frozen=True, slots=True)
class WindowBackup:
    """One window of an application: its topics, and whether a recovery point bounds it.

    `unread` are topics of the run that had to be left out of it.
    """

    window: Window
    topics: tuple[TopicBackup, ...]
    recovery_point_id: str | None
    partition_counts: Mapping[str, int]
    """Partitions of every topic of the application when the window closed."""
    has_own_point: bool = True
    unread: tuple[UnreadTopic, ...] = ()

    @property
    def note(self) -> str:
        """What a reader must know who wonders why the window is empty."""
        if self.has_own_point:
            return ""
        return (
            "No recovery point was taken in this window: it ends where the window before it ends,"
            " and its records are in the next window that has a point."
        )

    @property
    def records(self) -> int:
        """Records of all its topics."""
        return sum(topic.records for topic in self.topics)


class BackupReadError(KStreamsAssetsError):
    """Spark could not read or write a group of windows."""

    def __init__(self, *, windows: Sequence[Window], reason: str) -> None:
        super().__init__(
            f"The backup of {range_of(windows)} failed: {reason.rstrip('.')}.",
            remedy="Nothing of these windows was changed. Run the same windows again once the"
            " cause is removed.",
        )
        self.windows = tuple(windows)
        self.reason = reason


class TopicRecreatedWhileReadingError(KStreamsAssetsError):
    """A topic was deleted or recreated, or a log truncated, while records were read."""

    def __init__(self, *, topics: Iterable[str]) -> None:
        self.topics = tuple(sorted(topics))
        super().__init__(
            f"Topic {', '.join(self.topics)} was deleted or recreated, or its log truncated, while"
            " it was read; what was read has been discarded.",
            remedy="Run the same windows again; what the old log held is reported as lost.",
        )


class TopicsNotReadError(KStreamsAssetsError):
    """Open transactions kept topics out of a backup whose other topics are done."""

    def __init__(self, *, unread: Sequence[UnreadTopic]) -> None:
        self.unread = tuple(unread)
        topics = ", ".join(sorted({one.topic for one in unread}))
        super().__init__(
            f"Not backed up: {topics} in {range_of([one.window for one in unread])}; everything"
            f" else of the run is done. {unread[0].reason.rstrip('.')}.",
            remedy="Run these windows again for these topics once the transaction has ended; the"
            " sensor of the backups does so by itself.",
        )


class PoorerBackupError(KStreamsAssetsError):
    """A second backup of a window came out with fewer records than the first."""

    def __init__(self, *, windows: Sequence[Window], topics: Iterable[str]) -> None:
        self.topics = tuple(sorted(topics))
        super().__init__(
            f"Reading {range_of(windows)} again gave fewer records of {', '.join(self.topics)}"
            " than the backup holds; the earlier backup stays.",
            remedy="Nothing needs to be done. Kafka is removing records"
            " (compaction or retention), do not back these windows up again.",
        )


def range_of(windows: Sequence[Window]) -> str:
    """The windows in words: the one, or the first and the last."""
    keys = [window.key for window in sorted(windows)]
    return f"window {keys[0]}" if len(keys) == 1 else f"windows {keys[0]} to {keys[-1]}"
