"""Offsets and group offsets on a cluster that restores of this warehouse wrote there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.warehouse.judge import Restores
from kstreams_assets.warehouse.point import GroupOffset, Guarantee
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.restores import (
    InputsAt,
    OffsetMapsTable,
    RestoreMode,
    RestoresTable,
    RestoreState,
    StoredRestore,
)

_COMMITTED = (RestoreState.COMMITTED, RestoreState.FINISHED)


@dataclass(frozen=True, slots=True)
class RestoredRange:
    """Offsets of one target partition that one restore wrote; empty where it wrote no record.

    `source` is the partition at the recovery point `point_id`, `target` the one on the cluster, in
    the topic with the id `target_topic_id`.
    """

    application_id: str
    restore_id: str
    point_id: str
    state: RestoreState
    mode: RestoreMode
    source: TopicPartitionId
    target: TopicPartitionId
    target_topic_id: str
    offsets: OffsetRange
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    """That of the restored state and offsets, for as long as the application writes nothing."""

    @property
    def is_committed(self) -> bool:
        """Whether the group offsets of the restore are committed."""
        return self.state in _COMMITTED


@dataclass(frozen=True, slots=True)
class RestoredOffsets:
    """Offsets that one restore, or the restoring of the previous offsets, committed for a group.

    They are in offsets of the target.
    """

    application_id: str
    restore_id: str
    point_id: str
    state: RestoreState
    mode: RestoreMode
    group: str
    offsets: tuple[GroupOffset, ...]
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    """That of the restored state and offsets, for as long as the application writes nothing."""

    @property
    def is_committed(self) -> bool:
        """Whether the group offsets of the restore are committed."""
        return self.state in _COMMITTED


@dataclass(frozen=True, slots=True)
class RestoredRanges:
    """What restores of a warehouse, of any application, wrote on one cluster.

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
        """Which restores wrote a partition, and where; none if its topic has another id by now."""
        return self._by_partition.get((partition, topic_id), ())

    def committed_for(self, group: str) -> Sequence[RestoredOffsets]:
        """What restores committed for a group."""
        return [one for one in self.group_offsets if one.group == group]

    @property
    def of_committed_restores(self) -> "RestoredRanges":
        """The same of restores alone whose group offsets are committed."""
        return RestoredRanges(
            self.cluster_id,
            tuple(one for one in self.ranges if one.is_committed),
            tuple(one for one in self.group_offsets if one.is_committed),
        )


def restored_onto(warehouse: Warehouse, cluster_id: str) -> RestoredRanges:
    """Return what restores of a warehouse wrote on a cluster.

    Reads no run of an offset map, and nothing again while both tables are unchanged.

    Raises:
        StoredDataError: A table cannot be read, or contradicts itself.
        WarehouseError: The same.
    """
    # Versions first: rows that are stored meanwhile are read again next time.
    version = RestoresTable(warehouse).version()
    if version < 0:
        return RestoredRanges(cluster_id)
    return _load(warehouse, cluster_id, version, OffsetMapsTable(warehouse).version())


@lru_cache(maxsize=32)
def _load(
    warehouse: Warehouse, cluster_id: str, _restores_version: int, _maps_version: int
) -> RestoredRanges:
    changes: dict[tuple[str, str], list[StoredRestore]] = {}
    for one in RestoresTable(warehouse).changes_onto(cluster_id):
        changes.setdefault((one.application_id, one.restore_id), []).append(one)
    restores = sorted(
        (states[-1] for states in changes.values() if states[-1].matches_backup),
        key=lambda one: (one.created_at_ms, one.application_id, one.restore_id),
    )
    if not restores:
        return RestoredRanges(cluster_id)
    ends = OffsetMapsTable(warehouse).ends_of(map(_key, restores))
    ranges: list[RestoredRange] = []
    group_offsets: list[RestoredOffsets] = []
    for restore in restores:
        guarantee = _guarantee(warehouse, restore)
        ranges += _ranges(restore, ends.get(_key(restore), {}), guarantee)
        group_offsets += _group_offsets(restore, changes[_key(restore)], guarantee)
    return RestoredRanges(cluster_id, tuple(ranges), tuple(group_offsets))


def _key(restore: StoredRestore) -> tuple[str, str]:
    return restore.application_id, restore.restore_id


def _guarantee(warehouse: Warehouse, restore: StoredRestore) -> Guarantee:
    """That of the recovery point; an application that recomputes everything has no state yet."""
    if any(topic.inputs_are_at is InputsAt.LATEST for topic in restore.placed):
        return Guarantee.AT_LEAST_ONCE
    if restore.mode is not RestoreMode.STATE:
        return Guarantee.EXACT
    accepted = restore.asked.get("accept", Restores.EXACT)
    if accepted == Restores.EXACT:  # or the restore would have been refused
        return Guarantee.EXACT
    points = RecoveryPointTable(warehouse).load(
        restore.application_id, [restore.point_id], damaged_too=True
    )
    if accepted != Restores.AT_LEAST_ONCE or not points or points[0].damaged:
        return Guarantee.AT_LEAST_ONCE
    return points[0].guarantee_of_cut


def _ranges(
    restore: StoredRestore,
    ends: Mapping[TopicPartitionId, tuple[TopicPartitionId, int]],
    guarantee: Guarantee,
) -> list[RestoredRange]:
    topics = {topic.source: topic for topic in restore.topics}
    found = []
    for source, (target, end) in sorted(ends.items()):
        topic = topics.get(source.topic)
        if topic is None or topic.target != target.topic or not topic.target_topic_id:
            continue
        if target.partition >= len(topic.base_offsets):
            continue
        base = topic.base_offsets[target.partition]
        found.append(
            RestoredRange(
                application_id=restore.application_id,
                restore_id=restore.restore_id,
                point_id=restore.point_id,
                state=restore.state,
                mode=restore.mode,
                source=source,
                target=target,
                target_topic_id=topic.target_topic_id,
                offsets=OffsetRange(base, max(base, end)),
                guarantee=guarantee,
            )
        )
    return found


def _group_offsets(
    restore: StoredRestore, changes: Sequence[StoredRestore], guarantee: Guarantee
) -> list[RestoredOffsets]:
    """Each set of offsets that was written for the group, also by a run that was killed then."""
    # To the previous offsets, which a roll-back commits again, no restored state belongs.
    written = {
        one.former_offsets: Guarantee.AT_LEAST_ONCE
        for one in changes
        if one.state is RestoreState.ROLLED_BACK and one.former_offsets
    }
    written |= {one.to_commit: guarantee for one in changes if one.matches_backup}
    return [
        RestoredOffsets(
            application_id=restore.application_id,
            restore_id=restore.restore_id,
            point_id=restore.point_id,
            state=restore.state,
            mode=restore.mode,
            group=restore.group,
            offsets=offsets,
            guarantee=of_offsets,
        )
        for offsets, of_offsets in written.items()
    ]
