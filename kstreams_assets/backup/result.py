"""What a backup of a window turned out to hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.plan import UNKNOWN, Gap, GapCause, SpanPlan
from kstreams_assets.backup.windows import Window
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.warehouse.digest import WrittenFile


@dataclass(frozen=True, slots=True)
class SpanContent:
    """What the table holds of one span.

    `bytes` is the uncompressed size of keys, values and headers in Parquet's plain encoding (four
    bytes of length for each included), `stored_bytes` the size of the files. Offsets and
    timestamps are None without records. `odd_timestamps` counts records at or before the epoch.
    `written` are the files as they were right after they were written; empty where a release
    before did not note them.
    """

    records: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    files: int = 0
    tombstones: int = 0
    null_keys: int = 0
    odd_timestamps: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    written: tuple[WrittenFile, ...] = ()


@dataclass(frozen=True, slots=True)
class SpanResult:
    """One span after its backup: the plan, the content and why the rest is missing.

    `kept` says that the records are those of an earlier run, because Kafka no longer holds all of
    them. `first_hole` is the lowest offset of the span that the log did not hold any more after it
    was read (compaction, retention); None: contiguous, or not looked at (`contiguity_known`, which
    is for changelogs only).
    """

    plan: SpanPlan
    content: SpanContent
    gaps: tuple[Gap, ...]
    kept: bool = False
    first_hole: int | None = None
    contiguity_known: bool = False
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

    topic_id: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


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
