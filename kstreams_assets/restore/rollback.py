"""Puts back the group offsets that were on the target before a restore committed its own."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kstreams_assets.errors import (
    GroupOffsetsDifferError,
    RollbackRefusedError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.point import GroupOffset
from kstreams_assets.restore.own_target import require_empty_group, require_own_target
from kstreams_assets.restore.restores_table import RestoresTable, RestoreState, StoredRestore
from kstreams_assets.settings import ApplicationSettings


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A restore whose group offsets were taken back.

    `put_back` are the former offsets that are there again, `deleted` the partitions that had none.
    `absent` are former offsets of topics or partitions that are not on the target any more, `moved`
    partitions where the group had gone on since the restore.
    """

    restore: StoredRestore
    put_back: tuple[GroupOffset, ...]
    deleted: tuple[TopicPartitionId, ...]
    absent: tuple[GroupOffset, ...]
    moved: tuple[TopicPartitionId, ...]


def rollback(
    settings: ApplicationSettings, restore: StoredRestore, target: KafkaCluster
) -> RolledBack:
    """Put the target group's former offsets back, with their metadata; delete all others.

    Topics and records stay. A second time gives the same. Needs READ on the group and its topics,
    DELETE on the group.

    Raises:
        RollbackRefusedError: Nothing was committed yet, or the restore is finished.
        GroupNotEmptyError: The application runs.
        GroupOffsetsDifferError: What was read back is not what was put back.
        KStreamsAssetsError: See `require_own_target`, and what the target refuses.
    """
    require_own_target(settings, restore, target)
    former = _former(restore)
    group = restore.group
    require_empty_group(group, target, operation="rollback")
    there = target.metadata().topics
    absent = tuple(
        o for o in former if o.topic not in there or o.partition >= there[o.topic].partitions
    )
    put_back = tuple(offset for offset in former if offset not in absent)
    wanted = {
        TopicPartitionId(o.topic, o.partition): CommittedOffset(o.offset, o.metadata)
        for o in put_back
    }
    found = target.group_offsets(group)
    deleted = tuple(id_ for id_ in found if id_ not in wanted)
    if deleted:
        target.delete_group_offsets(group, deleted)
    if wanted:
        target.commit_group_offsets(group, wanted)
    _compare(group, wanted, target)
    rolled_back = replace(
        restore, state=RestoreState.ROLLED_BACK, changed_at_ms=time.time_ns() // 1_000_000
    )
    RestoresTable(settings.warehouse).append(rolled_back)
    return RolledBack(rolled_back, put_back, deleted, absent, _moved(restore, found))


def _former(restore: StoredRestore) -> tuple[GroupOffset, ...]:
    if restore.former_offsets is None:
        raise RollbackRefusedError(
            restore_id=restore.restore_id,
            problem=f"it is {restore.state}, its group offsets were never committed",
            remedy="There is nothing to undo; delete the topics if they are not wanted.",
        )
    if restore.state is RestoreState.FINISHED:
        raise RollbackRefusedError(
            restore_id=restore.restore_id,
            problem="it is finished, the offsets are the application's own now",
            remedy="Set them with kafka-consumer-groups.sh --reset-offsets if you must.",
        )
    return restore.former_offsets


def _moved(
    restore: StoredRestore, found: Mapping[TopicPartitionId, CommittedOffset]
) -> tuple[TopicPartitionId, ...]:
    if restore.state is not RestoreState.COMMITTED:
        return ()
    committed = {TopicPartitionId(o.topic, o.partition): o.offset for o in restore.committed or ()}
    return tuple(id_ for id_, now in found.items() if now.offset != committed.get(id_))


def _compare(
    group: str, wanted: Mapping[TopicPartitionId, CommittedOffset], target: KafkaCluster
) -> None:
    found = target.group_offsets(group)
    differing = [str(id_) for id_ in sorted({*wanted, *found}) if found.get(id_) != wanted.get(id_)]
    if differing:
        raise GroupOffsetsDifferError(
            problem="not as before the restore when read back", partitions=differing
        )
