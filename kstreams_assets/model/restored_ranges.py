"""The offsets and group offsets that restores wrote on a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kstreams_assets.model.groups import ConsumerGroup
from kstreams_assets.model.point import Guarantee
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId


@dataclass(frozen=True, slots=True)
class RestoredRange:
    """Offsets of one target partition that one restore wrote; empty if it wrote no record.

    `source` is the partition at the recovery point `point_id`, `target` the one on the cluster, in
    the topic with the id `target_topic_id`.
    """

    application_id: str
    restore_id: str
    point_id: str
    state: RestoreState
    source: TopicPartitionId
    target: TopicPartitionId
    target_topic_id: str
    offsets: OffsetRange
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    """The guarantee of the restored state and offsets, as long as the application writes
    nothing."""

    @property
    def is_committed(self) -> bool:
        """Whether the group offsets of the restore are committed."""
        return self.state.is_committed


@dataclass(frozen=True, slots=True)
class RestoredOffsets:
    """Offsets that one restore, or the restoring of the previous offsets, committed for a group.

    They are offsets of the target.
    """

    application_id: str
    restore_id: str
    state: RestoreState
    group: ConsumerGroup
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    """The guarantee of the restored state and offsets, as long as the application writes
    nothing."""

    @property
    def is_committed(self) -> bool:
        """Whether the group offsets of the restore are committed."""
        return self.state.is_committed


@dataclass(frozen=True, slots=True)
class RestoredRanges:
    """The records that restores of a warehouse, of any application, wrote on one cluster.

    Only restores whose target was read back and matched the backup count: `verified`, `committed`,
    `rolled_back` and `finished`. Those of one partition are in the order in which they started.
    """

    cluster_id: str = ""
    ranges: tuple[RestoredRange, ...] = ()
    group_offsets: tuple[RestoredOffsets, ...] = ()
    _by_partition: Mapping[tuple[TopicPartitionId, str], Sequence[RestoredRange]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        by_partition: dict[tuple[TopicPartitionId, str], list[RestoredRange]] = {}
        for one in self.ranges:
            by_partition.setdefault((one.target, one.target_topic_id), []).append(one)
        object.__setattr__(self, "_by_partition", by_partition)

    def __bool__(self) -> bool:
        return bool(self.ranges or self.group_offsets)

    def of(self, partition: TopicPartitionId, topic_id: str) -> RangeSet:
        """The restored offsets of a partition; none if its topic has another id by now."""
        return RangeSet(one.offsets for one in self.in_partition(partition, topic_id))

    def in_partition(self, partition: TopicPartitionId, topic_id: str) -> Sequence[RestoredRange]:
        """The restores that wrote a partition, and the ranges; none if its topic has another id by
        now."""
        return self._by_partition.get((partition, topic_id), ())

    def committed_for(self, group: str) -> Sequence[RestoredOffsets]:
        """The offsets that restores committed for a group."""
        return [one for one in self.group_offsets if one.group.id == group]

    @property
    def of_committed_restores(self) -> "RestoredRanges":
        """A copy with only the restores whose group offsets are committed."""
        return RestoredRanges(
            self.cluster_id,
            tuple(one for one in self.ranges if one.is_committed),
            tuple(one for one in self.group_offsets if one.is_committed),
        )
