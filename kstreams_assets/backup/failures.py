"""What can stand in the way of a backup run."""

from collections.abc import Iterable, Sequence

from kstreams_assets.backup.result import UnreadTopic
from kstreams_assets.backup.windows import Window
from kstreams_assets.errors import KStreamsAssetsError


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
