"""The last step of a restore: the group's offsets, committed once everything was verified."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kstreams_assets.errors import (
    GroupOffsetsDifferError,
    RestoreNotVerifiedError,
    TargetTopicChangedError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.positions import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.point import GroupOffset
from kstreams_assets.restore.own_target import require_empty_group, require_same_cluster
from kstreams_assets.restore.restores_table import RestoresTable, RestoreState, StoredRestore
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
            GroupOffsetsDifferError: What was read back is not what was committed, or lies outside
                the log.
        """
        if restore.state not in _READY:
            raise RestoreNotVerifiedError(restore_id=restore.restore_id, state=restore.state)
        require_same_cluster(restore, self.cluster)
        require_empty_group(restore.group, self.cluster, operation="commit offsets")
        self._require_same_topics(restore)
        former = self.cluster.group_offsets(restore.group)
        if restore.former_offsets is None:
            restore = self._store(restore, former_offsets=_rows(former))
        wanted = {
            TopicPartitionId(o.topic, o.partition): CommittedOffset(o.offset, o.metadata)
            for o in restore.to_commit
        }
        self._require_inside(wanted)
        restored = {topic.target for topic in restore.topics}
        stale = [id_ for id_ in former if id_.topic in restored and id_ not in wanted]
        if stale:
            self.cluster.delete_group_offsets(restore.group, stale)
        if wanted:
            self.cluster.commit_group_offsets(restore.group, wanted)
        self._compare(restore, wanted, restored)
        return self._store(restore, state=RestoreState.COMMITTED, committed=restore.to_commit)

    def _require_same_topics(self, restore: StoredRestore) -> None:
        present = self.cluster.metadata().topics
        for topic in restore.topics:
            found = present.get(topic.target)
            if found is None or found.topic_id != topic.target_topic_id:
                raise TargetTopicChangedError(
                    subject=f"topic {topic.target}",
                    expected=topic.target_topic_id,
                    found=None if found is None else found.topic_id,
                )

    def _require_inside(self, wanted: Mapping[TopicPartitionId, CommittedOffset]) -> None:
        starts = self.cluster.log_start_offsets(wanted)
        ends = self.cluster.last_stable_offsets(wanted)
        outside = [
            f"{id_} offset {committed.offset} (log holds {starts[id_]} to {ends[id_]})"
            for id_, committed in sorted(wanted.items())
            if not starts[id_] <= committed.offset <= ends[id_]
        ]
        if outside:
            raise GroupOffsetsDifferError(problem="outside the log", partitions=outside)

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
