"""Committed offsets on the target: the application's own, put back, and those of other groups."""

import csv
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import (
    ConfigurationError,
    GroupOffsetsDifferError,
    GroupOffsetsFileError,
    NoGroupOffsetsError,
    RestoredTopicsChangedError,
    RestoreNotVerifiedError,
    RollbackRefusedError,
    TargetTopicChangedError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.placed_inputs import differing_positions, excluded_topic, placed
from kstreams_assets.restore.request import RestoreMode
from kstreams_assets.restore.selection import is_recomputed_from
from kstreams_assets.restore.target import (
    inspect_target,
    require_empty_group,
    require_own_target,
    require_same_cluster,
    roles_of,
)
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.point import GroupOffset, RecoveryPoint
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.restores import (
    OffsetMapsTable,
    RestoresTable,
    RestoreState,
    StoredMap,
    StoredRestore,
    writers_of,
)


def read_topics(restore: StoredRestore) -> frozenset[str]:
    """The restored topics, by their names in the source, that can have a committed offset."""
    if restore.mode is RestoreMode.STATE:
        return frozenset(topic.source for topic in restore.topics)
    read = TopicRole.INPUT.value
    return frozenset(topic.source for topic in restore.topics if read in topic.roles)


def mapped_offsets(
    restore: StoredRestore,
    point: RecoveryPoint,
    maps: Mapping[TopicPartitionId, StoredMap],
) -> tuple[GroupOffset, ...]:
    """The offsets on the target, by topic and partition; `maps` are those of the topics read.

    With its state the application goes on at the point's offsets; to recompute everything it begins
    at the first restored record of its inputs.
    """
    read = read_topics(restore)
    committed = {TopicPartitionId(o.topic, o.partition): o for o in point.group_offsets}
    found: list[GroupOffset] = []
    for source, stored in maps.items():
        if source.topic not in read:
            continue
        target = stored.target
        if restore.mode is not RestoreMode.STATE:
            first = stored.map.target_start
            found.append(GroupOffset(target.topic, target.partition, first, ""))
        elif source in committed:
            offset, metadata = committed[source].offset, committed[source].metadata
            mapped = stored.map.map(offset)
            found.append(GroupOffset(target.topic, target.partition, mapped, metadata))
    return tuple(sorted(found, key=lambda o: (o.topic, o.partition)))


def differing_offsets(
    expected: tuple[GroupOffset, ...], found: tuple[GroupOffset, ...]
) -> list[str]:
    """Where two sets of offsets differ, in words; metadata counts."""
    mine, theirs = (
        {TopicPartitionId(o.topic, o.partition): o for o in offsets}
        for offsets in (expected, found)
    )
    return [
        f"{id_} {_told(theirs.get(id_))} instead of {_told(mine.get(id_))}"
        for id_ in sorted({*mine, *theirs})
        if mine.get(id_) != theirs.get(id_)
    ]


def _told(offset: GroupOffset | None) -> str:
    return "none" if offset is None else f"{offset.offset} (metadata {offset.metadata!r})"


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


GroupOffsets = Mapping[TopicPartitionId, CommittedOffset]

_HEADER: Final = ("topic", "partition", "offset")
_VERIFIED: Final = {
    RestoreState.VERIFIED,
    RestoreState.COMMITTED,
    RestoreState.ROLLED_BACK,
    RestoreState.FINISHED,
}


@dataclass(frozen=True, slots=True)
class MappedOffset:
    """One offset of a group, in the source's and in the target's partition.

    `unread` are records that were restored and that the group has not read. `first_unread` is the
    source offset of the first of them, None without any. `is_beyond`: the group had read records
    that are not part of the restore; what the application writes again it will get again.
    """

    source: TopicPartitionId
    source_offset: int
    target: TopicPartitionId
    committed: CommittedOffset
    unread: int
    first_unread: int | None
    is_beyond: bool


@dataclass(frozen=True, slots=True)
class MappedGroup:
    """Offsets of a group for the target; `not_restored` have no partition there, and get none."""

    offsets: tuple[MappedOffset, ...]
    not_restored: tuple[TopicPartitionId, ...]

    @property
    def to_commit(self) -> dict[TopicPartitionId, CommittedOffset]:
        """What is committed on the target."""
        return {mapped.target: mapped.committed for mapped in self.offsets}


def map_offsets(
    maps: Mapping[TopicPartitionId, StoredMap],
    offsets: GroupOffsets,
    ends: Mapping[TopicPartitionId, int],
) -> MappedGroup:
    """The offsets of a group on the target, by the offset maps of a restore.

    `ends` are the recovery point's ends, in source offsets. An offset goes to the first restored
    record at or above it, or to the end of what was restored. Metadata stays as it is, leader
    epochs are dropped. Nothing is guessed for other partitions.
    """
    mapped = []
    for source, committed in sorted(offsets.items()):
        stored = maps.get(source)
        if stored is None:
            continue
        first_unread = stored.map.first_source(committed.offset)
        runs = stored.map.runs
        source_end = runs[-1].source_start + runs[-1].length if len(runs) else 0
        mapped.append(
            MappedOffset(
                source=source,
                source_offset=committed.offset,
                target=stored.target,
                committed=CommittedOffset(stored.map.map(committed.offset), committed.metadata),
                unread=stored.map.records - stored.map.records_below(committed.offset),
                first_unread=first_unread,
                # behind its last record a partition may end with control records
                is_beyond=committed.offset > max(source_end, ends.get(source, source_end)),
            )
        )
    return MappedGroup(tuple(mapped), tuple(id_ for id_ in sorted(offsets) if id_ not in maps))


def map_group(
    settings: ApplicationSettings, restore: StoredRestore, offsets: GroupOffsets
) -> MappedGroup:
    """The same by the stored offset maps of a restore; nothing is committed.

    Raises RestoreNotVerifiedError while the target is not known to be as the backup.
    """
    if restore.state not in _VERIFIED:
        raise RestoreNotVerifiedError(restore_id=restore.restore_id, state=restore.state)
    maps = OffsetMapsTable(settings.warehouse).load(
        restore.application_id, restore.restore_id, topics={id_.topic for id_ in offsets}
    )
    points = RecoveryPointTable(settings.warehouse).load(restore.application_id, [restore.point_id])
    ends = {cut.id: cut.end for point in points for cut in point.partitions}
    return map_offsets(maps, offsets, ends)


def commit_other_group(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaCluster,
    *,
    group: str,
    offsets: GroupOffsets,
) -> MappedGroup:
    """Commit another group's mapped offsets on the target, and read them back.

    `offsets` are in the source's partitions. Partitions that were not restored are in the result
    and get no offset; offsets that the group has there for other partitions stay. Needs READ on the
    group and the topics.

    Raises:
        ConfigurationError: The group is the application's own.
        RestoreNotVerifiedError: The target is not known to be as the backup.
        GroupNotEmptyError: The group has members.
        GroupOffsetsDifferError: What was read back is not what was committed.
        KStreamsAssetsError: See `require_own_target`, and what the target refuses.
    """
    require_own_target(settings, restore, target)
    if group == restore.group:
        raise ConfigurationError(
            f"Group {group} is the application's own; its offsets belong to its state.",
            remedy="Let the restore commit them; give another group here.",
        )
    mapped = map_group(settings, restore, offsets)
    wanted = mapped.to_commit
    if not wanted:
        return mapped
    target.commit_group_offsets(group, wanted)
    found = target.group_offsets(group, partitions=wanted)
    differing = [str(id_) for id_, offset in sorted(wanted.items()) if found.get(id_) != offset]
    if differing:
        raise GroupOffsetsDifferError(
            problem="not as committed when read back", partitions=differing
        )
    return mapped


def offsets_on_source(settings: ApplicationSettings, group: str) -> GroupOffsets:
    """What a group has committed on the source cluster, which has to be there still.

    Needs DESCRIBE on the group. Raises NoGroupOffsetsError, ClusterUnavailableError.
    """
    with KafkaCluster(settings.connection) as source:
        offsets = source.group_offsets(group)
    if not offsets:
        cluster = settings.connection.bootstrap_servers
        raise NoGroupOffsetsError(group=group, cluster=cluster)
    return offsets


def offsets_from_file(path: Path) -> GroupOffsets:
    """Offsets from a CSV file of `topic,partition,offset[,metadata]`, one line for each partition.

    A first line with these words is passed over. So `kafka-consumer-groups.sh --export` of one
    group is read as it is. Raises GroupOffsetsFileError.
    """
    offsets: dict[TopicPartitionId, CommittedOffset] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.reader(file), start=1):
                if not row or (number == 1 and tuple(c.strip() for c in row[:3]) == _HEADER):
                    continue
                id_, committed = _parsed(path, number, row)
                if id_ in offsets:
                    raise GroupOffsetsFileError(
                        path=path, line=number, problem=f"{id_} is there twice"
                    )
                offsets[id_] = committed
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GroupOffsetsFileError(path=path, line=None, problem=str(error)) from None
    if not offsets:
        raise GroupOffsetsFileError(path=path, line=None, problem="no offsets in it")
    return offsets


def _parsed(path: Path, number: int, row: list[str]) -> tuple[TopicPartitionId, CommittedOffset]:
    problem = None
    if len(row) not in (3, 4):
        problem = f"{len(row)} columns"
    elif not row[0].strip():
        problem = "no topic"
    elif not (row[1].strip().isdecimal() and row[2].strip().isdecimal()):
        problem = f"partition {row[1]!r}, offset {row[2]!r}"
    if problem is not None:
        raise GroupOffsetsFileError(path=path, line=number, problem=problem)
    metadata = row[3] if len(row) == 4 else ""
    return (
        TopicPartitionId(row[0].strip(), int(row[1])),
        CommittedOffset(int(row[2]), metadata),
    )
