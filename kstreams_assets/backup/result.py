"""What a backup of a window turned out to hold, and what can stand in the way of one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.model.spans import SpanResult, TopicFacts, Window
from kstreams_assets.offsets import OffsetRange, TopicPartitionId


class Executor(StrEnum):
    """Where the tasks of a backup ran: in this process, or on Spark."""

    PYTHON = "python"
    SPARK = "spark"


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
    recovery_point_id: str | None
    delta_version: int | None
    duration_s: float | None
    """Measured, of the read that this topic was part of: Spark reads all of a run at once. None
    where it is not known: the ledger does not keep it."""
    unproven_points: tuple[str, ...] = ()
    """Recovery points in the window that holes in its changelog spans leave unproven."""
    below_first: Mapping[TopicPartitionId, OffsetRange] = field(default_factory=dict)
    """Offsets that Kafka holds and that no window does: they lie below the first one."""
    executor: Executor | None = None
    """Where the read that this topic was part of ran. None where the ledger alone reports it."""

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
    """A topic whose records of a window cannot be read (yet): the window stays due for it."""

    window: Window
    topic: str
    reason: str
    """What is in the way (an open transaction, a corrupt batch), and what to do."""


@dataclass(frozen=True, slots=True)
class WindowBackup:
    """One window of an application: its topics, and the recovery points that bound it.

    `unread` are topics of the run that had to be left out of it.
    """

    window: Window
    topics: tuple[TopicBackup, ...]
    opening: RecoveryPoint | None
    closing: RecoveryPoint | None
    unread: tuple[UnreadTopic, ...] = ()
    restores: tuple[StoredRestore, ...] = ()
    """Restores from which the application may have continued, the newest first."""

    def continues_from(self, topic_id: str) -> StoredRestore | None:
        """The restore after which a topic has this id; None where none explains it.

        It wrote the topic, or it led to another cluster than that of the opening point.
        """
        for restore in self.restores:
            if any(topic.target_topic_id == topic_id for topic in restore.topics):
                return restore
        for restore in self.restores[:1]:
            if self.opening and restore.target_cluster_id != self.opening.cluster_id:
                return restore
        return None

    @property
    def recovery_point_id(self) -> str | None:
        """The recovery point that ends the window."""
        return self.closing.id if self.closing else None

    @property
    def has_point(self) -> bool:
        """Whether a recovery point was taken in the window; without one, nothing is backed up."""
        return self.closing is not None and self.closing.effective_at_ms >= self.window.start_ms

    def holds(self, topic: TopicBackup) -> bool:
        """Whether something of a topic was backed up with the window, be it that nothing came."""
        return self.has_point or topic.records > 0

    @property
    def note(self) -> str:
        """What a reader must know who wonders why the window is empty."""
        if self.has_point:
            return ""
        return (
            "No recovery point was taken in this window: it ends where the window before it ends,"
            " and its records are in the next window that has a point."
        )

    @property
    def executor(self) -> Executor | None:
        """Where its topics were read: on Spark if any of them was."""
        return max((one.executor for one in self.topics if one.executor is not None), default=None)

    @property
    def records(self) -> int:
        """Records of all its topics."""
        return sum(topic.records for topic in self.topics)


class BackupReadError(KStreamsAssetsError):
    """A group of windows could not be read or written."""

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


def range_of(windows: Sequence[Window]) -> str:
    """The windows in words: the one, or the first and the last."""
    keys = [window.key for window in sorted(windows)]
    return f"window {keys[0]}" if len(keys) == 1 else f"windows {keys[0]} to {keys[-1]}"
