"""Consumer groups and their committed offsets. Row classes, without Arrow."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from kstreams_assets.model.column import Int32
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId


class OfPartition(Protocol):
    """A value of one partition: its id, its cut, an offset in it."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """One committed offset of a consumer group.

    `metadata` is kept character for character: Kafka Streams stores the partition time in it.
    """

    topic: str
    partition: Int32
    offset: int
    metadata: str

    @property
    def id(self) -> TopicPartitionId:
        """The partition's identity."""
        return TopicPartitionId(self.topic, self.partition)


@dataclass(frozen=True)
class ConsumerGroup:
    """A consumer group with its committed offsets at one time.

    Example:
        >>> group = ConsumerGroup("shop", (GroupOffset("orders", 0, 80, ""),))
        >>> group.offset_in(TopicPartitionId("orders", 0))
        80
    """

    id: str
    offsets: tuple[GroupOffset, ...] = ()

    @classmethod
    def of(
        cls, group_id: str, committed: Mapping[TopicPartitionId, CommittedOffset]
    ) -> "ConsumerGroup":
        """A group as reported by a cluster, by partition; leader epochs are omitted."""
        return cls(
            group_id,
            tuple(
                GroupOffset(id_.topic, id_.partition, found.offset, found.metadata)
                for id_, found in sorted(committed.items(), key=lambda item: item[0])
            ),
        )

    @cached_property
    def committed(self) -> Mapping[TopicPartitionId, CommittedOffset]:
        """The offsets to commit on a cluster for this group."""
        return {one.id: CommittedOffset(one.offset, one.metadata) for one in self.offsets}

    @cached_property
    def topics(self) -> frozenset[str]:
        """The topics in which the group has offsets."""
        return frozenset(one.topic for one in self.offsets)

    def of_topic(self, topic: str) -> tuple[GroupOffset, ...]:
        """The offsets in one topic."""
        return tuple(one for one in self.offsets if one.topic == topic)

    def at(self, partition: OfPartition) -> GroupOffset | None:
        """The committed offset of a partition with its metadata, None without one."""
        return self._by_partition.get((partition.topic, partition.partition))

    def offset_in(self, partition: OfPartition) -> int | None:
        """The next offset of a partition that the group reads; None without a committed one."""
        found = self.at(partition)
        return None if found is None else found.offset

    @cached_property
    def _by_partition(self) -> Mapping[tuple[str, int], GroupOffset]:
        return {(one.topic, one.partition): one for one in self.offsets}
