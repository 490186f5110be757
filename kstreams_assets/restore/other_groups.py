"""Offsets of other consumer groups, such as readers of the outputs, on the target of a restore."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.errors import (
    ConfigurationError,
    GroupOffsetsDifferError,
    GroupOffsetsFileError,
    NoGroupOffsetsError,
    RestoreNotVerifiedError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.table import RecoveryPointTable
from kstreams_assets.restore.offset_maps_table import OffsetMapsTable, StoredMap
from kstreams_assets.restore.own_target import require_own_target
from kstreams_assets.restore.restores_table import RestoreState, StoredRestore
from kstreams_assets.settings import ApplicationSettings

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
