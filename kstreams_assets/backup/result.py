"""The result of a window's backup, and the errors that can prevent one."""

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
    """Facts recorded for the topic at the nearest earlier window."""
    recovery_point_id: str | None
    delta_version: int | None
    duration_s: float | None
    """Duration of the read that included this topic: Spark reads a run's topics in one job. None if
    unknown: the ledger does not store it."""
    unproven_points: tuple[str, ...] = ()
    """Recovery points in the window that holes in its changelog spans leave unproven."""
    below_first: Mapping[TopicPartitionId, OffsetRange] = field(default_factory=dict)
    """Offsets in Kafka that belong to no window because they are below the first one."""
    executor: Executor | None = None
    """Where the read of this topic ran. None if only the ledger reports it."""

    @property
    def is_changelog(self) -> bool:
        """Whether the topic rebuilds a store."""
        return TopicRole.CHANGELOG in self.role.split("+")

    @property
    def records(self) -> int:
        """Records of the topic in the window."""
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
        """Offsets of the spans without a record, for any cause."""
        return sum(s.plan.end - s.plan.start - s.content.records for s in self.spans)


@dataclass(frozen=True, slots=True)
class UnreadTopic:
    """A topic whose records of a window cannot be read (yet); the window stays due for it."""

    window: Window
    topic: str
    reason: str
    """The cause (an open transaction, a corrupt batch), and what to do."""


@dataclass(frozen=True, slots=True)
class WindowBackup:
    """One window of an application: its topics, and the recovery points that bound it.

    `unread` are topics of the run that had to be left out.
    """

    window: Window
    topics: tuple[TopicBackup, ...]
    opening: RecoveryPoint | None
    closing: RecoveryPoint | None
    unread: tuple[UnreadTopic, ...] = ()
    restores: tuple[StoredRestore, ...] = ()
    """Restores from which the application may have continued, newest first."""

    def continues_from(self, topic_id: str) -> StoredRestore | None:
        """Return the restore that explains this id of a topic; None without one.

        The restore wrote the topic, or led to another cluster than that of the opening point.
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
        """Whether a topic was backed up with the window, even if it received no records."""
        return self.has_point or topic.records > 0

    @property
    def note(self) -> str:
        """Why the window is empty, for readers who expect records."""
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
            remedy="Nothing of these windows was changed. Fix the cause, then run the same windows"
            " again.",
        )
        self.windows = tuple(windows)
        self.reason = reason


class TopicRecreatedWhileReadingError(KStreamsAssetsError):
    """A topic was deleted or recreated, or a log truncated, while records were read."""

    def __init__(self, *, topics: Iterable[str]) -> None:
        self.topics = tuple(sorted(topics))
        super().__init__(
            f"Topic {', '.join(self.topics)} was deleted or recreated, or its log truncated, while"
            " it was read. The records that were read have been discarded.",
            remedy="Run the same windows again. Records of the old log are reported as lost.",
        )


def range_of(windows: Sequence[Window]) -> str:
    """Return the windows in words: the only one, or the first and the last."""
    keys = [window.key for window in sorted(windows)]
    return f"window {keys[0]}" if len(keys) == 1 else f"windows {keys[0]} to {keys[-1]}"
