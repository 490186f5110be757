"""What Kafka Streams itself writes about its start and the restoration of its stores. Pure.

Lines of the classes `KafkaStreams`, `StreamThread` and `StoreChangelogReader` at level INFO.
"""

import re
from dataclasses import dataclass, field
from typing import Final

_ASSIGNED: Final = re.compile(r"State transition from \w+ to PARTITIONS_ASSIGNED")
_RESTORED: Final = re.compile(
    r"Finished restoring changelog (\S+) to store (\S+) with a total number of (\d+) records"
)
_IN_PROGRESS: Final = re.compile(r"Restoration in progress for \d+ partitions")


@dataclass(slots=True)
class StreamsLog:
    """Takes lines in order, each with the time (seconds) at which it was seen.

    `records` are those that were restored, by changelog partition; a partition that is restored
    again after a rebalance counts once.
    """

    running_line: str
    running_at_s: float | None = None
    records: dict[str, int] = field(default_factory=dict)
    _assigned_at_s: float | None = None
    _restored_at_s: float | None = None
    _running: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        self._running = re.compile(self.running_line)

    def take(self, line: str, at_s: float) -> None:
        """Note what a line says."""
        if self.running_at_s is None and self._running.search(line):
            self.running_at_s = at_s
        if self._assigned_at_s is None and (_ASSIGNED.search(line) or _IN_PROGRESS.search(line)):
            self._assigned_at_s = at_s
        restored = _RESTORED.search(line)
        if restored is not None:
            self.records.setdefault(restored[1], int(restored[3]))
            self._restored_at_s = at_s

    @property
    def restoration_s(self) -> float | None:
        """From the assignment of partitions to the last restored store; None if not written."""
        if self._assigned_at_s is None or self._restored_at_s is None:
            return None
        return self._restored_at_s - self._assigned_at_s
