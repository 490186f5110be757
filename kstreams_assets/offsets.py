"""Partitions and positions in them, without any Kafka client."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TopicPartitionId:
    """One partition of a topic; sorts by topic, then partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def offsets_of_topic(offsets: Mapping[TopicPartitionId, int], topic: str) -> tuple[int, ...]:
    """Those of one topic, in the order of its partitions."""
    return tuple(offset for id_, offset in sorted(offsets.items()) if id_.topic == topic)


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets from `start` up to but not including `end`."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed for a partition.

    `offset` is the next offset the group will read, `metadata` the string exactly as committed (it
    carries Kafka Streams' partition time), `leader_epoch` None when none was committed.
    """

    offset: int
    metadata: str
    leader_epoch: int | None = None


def outside(start: int, end: int, excluded: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """`[start, end)` without the excluded ranges (in order)."""
    found = []
    for bad in excluded:
        if start < min(bad.start, end):
            found.append(OffsetRange(start, min(bad.start, end)))
        start = max(start, bad.end)
    if start < end:
        found.append(OffsetRange(start, end))
    return tuple(found)
