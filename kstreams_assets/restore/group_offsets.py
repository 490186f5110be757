"""The last step of a restore: the group's offsets, committed once everything was verified."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kstreams_assets.errors import (
    GroupOffsetsDifferError,
    RestoredTopicsChangedError,
    RestoreNotVerifiedError,
    TargetTopicChangedError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.point import GroupOffset, RecoveryPoint
from kstreams_assets.recovery.table import RecoveryPointTable
from kstreams_assets.restore.mapped_offsets import (
    differing_offsets,
    mapped_offsets,
    read_topics,
)
from kstreams_assets.restore.offset_maps_table import OffsetMapsTable
from kstreams_assets.restore.own_target import (
    require_empty_group,
    require_same_cluster,
    roles_of,
)
from kstreams_assets.restore.placed_inputs import differing_positions, excluded_topic, placed
from kstreams_assets.restore.restores_table import (
    RestoresTable,
    RestoreState,
    StoredRestore,
    writers_of,
)
from kstreams_assets.restore.selection import is_recomputed_from
from kstreams_assets.restore.target import inspect_target
from kstreams_assets.warehouse.layout import Warehouse

_READY = (RestoreState.VERIFIED, RestoreState.COMMITTED)


@dataclass(frozen=True, slots=True)
class GroupOffsetsCommit:
    """Commits what a verified restore has mapped."""

    warehouse: Warehouse
    cluster: KafkaCluster

    def execute(self, restore: StoredRestore) -> StoredRestore:
        """Commit the offsets, read them back, note it; a second time changes nothing.

        The group's former offsets are noted before. Partitions of restored topics for which the
        group had no offset at the recovery point get none, and lose what was there.

        Raises:
            RestoreNotVerifiedError: The restore was not verified, or differs from the backup.
            GroupNotEmptyError: The application runs.
            TargetTopicChangedError: A topic was deleted or made anew since it was verified.
            RestoredTopicsChangedError: Records were added or deleted since.
            GroupOffsetsDifferError: The offsets are not those that the recovery point and the
                offset maps give, or what was read back is not what was committed.
        """
        if restore.state not in _READY:
            raise RestoreNotVerifiedError(restore_id=restore.restore_id, state=restore.state)
        require_same_cluster(restore, self.cluster)
        require_empty_group(restore.group, self.cluster, operation="commit offsets")
        self._require_same_topics(restore)
        self._require_as_verified(restore)
        self._require_as_mapped(restore)
        former = self.cluster.group_offsets(restore.group)
        if restore.former_offsets is None:
            restore = self._store(restore, former_offsets=_rows(former))
        wanted = {
            TopicPartitionId(o.topic, o.partition): CommittedOffset(o.offset, o.metadata)
            for o in restore.to_commit
        }
        restored = {topic.target for topic in (*restore.topics, *restore.placed)}
        stale = [id_ for id_ in former if id_.topic in restored and id_ not in wanted]
        if stale:
            self.cluster.delete_group_offsets(restore.group, stale)
        if wanted:
            self.cluster.commit_group_offsets(restore.group, wanted)
        self._compare(restore, wanted, restored)
        return self._store(restore, state=RestoreState.COMMITTED, committed=restore.to_commit)

    def _require_same_topics(self, restore: StoredRestore) -> None:
        present = self.cluster.metadata().topics
        for topic in (*restore.topics, *restore.placed):
            found = present.get(topic.target)
            if found is None or found.topic_id != topic.target_topic_id:
                raise TargetTopicChangedError(
                    subject=f"topic {topic.target}",
                    expected=topic.target_topic_id,
                    found=None if found is None else found.topic_id,
                )

    def _require_as_verified(self, restore: StoredRestore) -> None:
        """Refuse logs that begin later or end elsewhere, so that every offset lies inside them.

        Producers may write to inputs already.
        """
        stored = OffsetMapsTable(self.warehouse).ends(restore.application_id, restore.restore_id)
        topics = {topic.target: topic for topic in restore.topics}
        starts, ends = self.cluster.log_start_offsets(stored), self.cluster.high_watermarks(stored)
        changed = []
        for id_, end in sorted(stored.items()):
            topic = topics[id_.topic]
            base = topic.base_offsets[id_.partition]
            if starts[id_] < base or (starts[id_] > base and end > base):
                changed.append(f"{id_} begins at offset {starts[id_]}, not {base}")
            grown = ends[id_] > end and not is_recomputed_from(roles_of(topic))
            if ends[id_] < end or grown:
                changed.append(f"{id_} ends at offset {ends[id_]}, not {end}")
        if changed:
            raise RestoredTopicsChangedError(restore_id=restore.restore_id, partitions=changed)

    def _require_as_mapped(self, restore: StoredRestore) -> None:
        """Refuse offsets that do not follow from what is stored of the point and of the records."""
        application_id = restore.application_id
        points = RecoveryPointTable(self.warehouse).load(application_id, [restore.point_id])
        if not points:
            raise GroupOffsetsDifferError(
                problem="not to be verified",
                partitions=[f"recovery point {restore.point_id} is not stored any more"],
            )
        maps = OffsetMapsTable(self.warehouse).load(
            application_id, restore.restore_id, topics=sorted(read_topics(restore))
        )
        left = {topic.target for topic in restore.placed}
        expected = mapped_offsets(restore, points[0], maps)
        differing = differing_offsets(
            expected, tuple(o for o in restore.to_commit if o.topic not in left)
        )
        differing += self._differing_where_placed(restore, points[0])
        if differing:
            raise GroupOffsetsDifferError(
                problem="not as the offset maps give them", partitions=differing
            )

    def _differing_where_placed(self, restore: StoredRestore, point: RecoveryPoint) -> list[str]:
        """The same for topics that are left as they are, from what is known of them now."""
        if not restore.placed:
            return []
        there = inspect_target(
            self.cluster, [topic.target for topic in restore.placed], restore.group
        ).topics
        onto = RestoresTable(self.warehouse).onto(restore.target_cluster_id)
        again = {}
        for topic in restore.placed:
            known = excluded_topic(
                self.warehouse, self.cluster, topic.source, topic.target, there, writers_of(onto)
            )
            found, _ = placed(
                known,
                point,
                {},
                inputs_are_at=topic.inputs_are_at,
                target_cluster_id=restore.target_cluster_id,
            )
            if found is not None:
                again[topic.source] = found
        left = {topic.target for topic in restore.placed}
        wanted = tuple(offset for topic in restore.placed for offset in topic.offsets)
        to_commit = tuple(o for o in restore.to_commit if o.topic in left)
        return [
            *differing_offsets(wanted, to_commit),
            *differing_positions(restore.placed, again, there),
        ]

    def _compare(
        self,
        restore: StoredRestore,
        wanted: Mapping[TopicPartitionId, CommittedOffset],
        topics: Iterable[str],
    ) -> None:
        of_restore = set(topics)
        found = {
            id_: (committed.offset, committed.metadata, committed.leader_epoch)
            for id_, committed in self.cluster.group_offsets(restore.group).items()
            if id_.topic in of_restore
        }
        expected = {id_: (c.offset, c.metadata, None) for id_, c in wanted.items()}
        differing = sorted(
            str(id_) for id_ in {*found, *expected} if found.get(id_) != expected.get(id_)
        )
        if differing:
            raise GroupOffsetsDifferError(
                problem="not as committed when read back", partitions=differing
            )

    def _store(self, restore: StoredRestore, **changes: object) -> StoredRestore:
        stamped = {"changed_at_ms": time.time_ns() // 1_000_000, **changes}
        changed = replace(restore, **stamped)  # pyright: ignore[reportArgumentType]
        RestoresTable(self.warehouse).append(changed)
        return changed


def _rows(offsets: Mapping[TopicPartitionId, CommittedOffset]) -> tuple[GroupOffset, ...]:
    return tuple(
        GroupOffset(id_.topic, id_.partition, committed.offset, committed.metadata)
        for id_, committed in sorted(offsets.items())
    )
