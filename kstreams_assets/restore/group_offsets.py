"""Committed offsets on the target: those of the application, and those of other groups."""

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import ConfigurationError, GroupOffsetsDifferError, KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.groups import ConsumerGroup, GroupOffset
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restores import (
    PlacedTopic,
    RestoreMode,
    RestoreState,
    StoredMap,
    StoredRestore,
    StoredTopic,
    writers_of,
)
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.public_form import TABLE, Form, Value
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.steps import Step, newest_locked, require
from kstreams_assets.restore.target import (
    inspect_target,
    require_empty_group,
    require_own_target,
    require_same_cluster,
    roles_of,
    target_changed,
)
from kstreams_assets.restore.target_topics import differing_positions, excluded_topic, placed
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store.locks import LockHandle

Gate = Callable[[ApplicationSettings, StoredRestore], None]
"""Raises the reason against committing the offsets of a restore, such as a failed rule."""

_HEADER: Final = ["topic", "partition", "offset"]
_GIVE_LINES: Final = "Give lines of topic,partition,offset[,metadata]; a header line is allowed."


def commit_group_offsets(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaConnection,
    *,
    gate: Gate,
) -> StoredRestore:
    """Commit the offsets of a verified restore; see `commit_verified`.

    The newest state of the restore counts, read under the restore's lock: another run of it may
    have found since that the target does not match the backup.

    Raises:
        KStreamsAssetsError: Another run of the restore has started since, or found differences.
            As `gate` and `commit_verified`.
    """
    gate(settings, restore)
    with (
        newest_locked(settings, restore, Step.COMMIT) as (repo, newest, lock),
        KafkaCluster(target) as cluster,
    ):
        return commit_verified(repo, newest, cluster, lock=lock)


def commit_verified(
    repo: Repository,
    restore: StoredRestore,
    target: KafkaCluster,
    *,
    lock: LockHandle | None = None,
) -> StoredRestore:
    """Commit the offsets, read them back, record it; a second call changes nothing.

    The group's former offsets are recorded before. Partitions of restored topics for which the
    group had no offset at the recovery point get none, and lose existing ones. A restore in mode
    `logs` does not change the group.

    Raises:
        KStreamsAssetsError: The restore was not verified, or differs from the backup.
        KafkaError: The application runs.
        KStreamsAssetsError: A topic was deleted or recreated since it was verified.
            Records were added or deleted since, or the group has continued since the offsets
            were committed.
        GroupOffsetsDifferError: The offsets do not match the recovery point and the offset maps,
            or offsets read back differ from the committed ones.
    """
    require(restore, Step.COMMIT)
    require_same_cluster(restore, target)
    require_empty_group(restore.group, target, operation="commit offsets")
    _require_present((*restore.topics, *restore.placed), target)
    _require_as_verified(repo, restore, target)
    _require_as_mapped(repo, restore, target)
    table, group = repo.restores, restore.group
    former = ConsumerGroup.of(group, target.group_offsets(group))
    _require_not_gone_on(restore, former)
    if restore.former_offsets is None:
        restore = table.change(restore, writer=lock, former_offsets=former.offsets)
    wanted = ConsumerGroup(group, restore.to_commit)
    restored = {topic.target for topic in (*restore.topics, *restore.placed)}
    if not restore.mode.commits_offsets:
        restored = set()
    _write(
        wanted,
        target,
        delete=[o.id for o in former.offsets if o.topic in restored and not wanted.at(o)],
    )
    found = target.group_offsets(group)
    _require_equal(
        {id_: offset for id_, offset in found.items() if id_.topic in restored},
        wanted,
        problem="not as committed when read back",
    )
    return table.change(
        restore, writer=lock, state=RestoreState.COMMITTED, committed=restore.to_commit
    )


def _require_not_gone_on(restore: StoredRestore, found: ConsumerGroup) -> None:
    """Raise if the application has continued from these offsets: it would read records twice."""
    committed = restore.committed if restore.state is RestoreState.COMMITTED else None
    moved = [
        f"{o.id} at {offset} instead of {o.offset}"
        for o in committed or ()
        if (offset := found.offset_in(o)) is not None and offset > o.offset
    ]
    if moved:
        raise KStreamsAssetsError(
            f"Group {restore.group} has committed other offsets since restore"
            f" {restore.restore_id}: {'; '.join(moved)}. No group offset was committed.",
            remedy="Start the application; it continues where it stopped. To restore again, delete"
            " the topics of this restore on the target, then run the restore again.",
        )


def _require_present(topics: Iterable[StoredTopic | PlacedTopic], target: KafkaCluster) -> None:
    """Raise KStreamsAssetsError for topics that were deleted or recreated since."""
    present = target.metadata().topics
    for topic in topics:
        found = present.get(topic.target)
        if found is None or found.topic_id != topic.target_topic_id:
            raise target_changed(
                f"topic {topic.target}",
                expected=topic.target_topic_id,
                found=None if found is None else found.topic_id,
            )


def _require_as_verified(repo: Repository, restore: StoredRestore, target: KafkaCluster) -> None:
    """Raise for logs that start later or end elsewhere, so that every offset is inside them.

    Producers may write to inputs already.
    """
    stored = repo.offset_maps.ends(restore.restore_id)
    topics = {topic.target: topic for topic in restore.topics}
    starts, ends = target.log_start_offsets(stored), target.high_watermarks(stored)
    changed = []
    for id_, end in sorted(stored.items()):
        topic = topics[id_.topic]
        base = topic.base_offsets[id_.partition]
        if starts[id_] < base or (starts[id_] > base and end > base):
            changed.append(f"{id_} starts at offset {starts[id_]}, not {base}")
        grown = ends[id_] > end and not roles_of(topic).is_recomputed_from
        if ends[id_] < end or grown:
            changed.append(f"{id_} ends at offset {ends[id_]}, not {end}")
    if changed:
        raise KStreamsAssetsError(
            f"Since restore {restore.restore_id} was verified its topics have changed:"
            f" {'; '.join(changed)}. No group offset was committed.",
            remedy="Stop the processes that write or delete there, delete the restored topics and"
            " run the restore again. If the application has run since, do not change its offsets.",
        )


def _require_as_mapped(repo: Repository, restore: StoredRestore, target: KafkaCluster) -> None:
    """Raise for offsets that do not match the stored point and records.

    The run has mapped them from its plan. Here they are mapped once more, so that an offset that
    was changed in between does not reach the target.
    """
    points = repo.points.load([restore.point_id])
    if not points:
        raise GroupOffsetsDifferError(
            problem="impossible to verify",
            partitions=[f"recovery point {restore.point_id} is not stored any more"],
        )
    maps = repo.offset_maps.load(restore.restore_id, topics=sorted(read_topics(restore)))
    left = {topic.target for topic in restore.placed}
    differing = differing_offsets(
        mapped_offsets(restore, points[0], maps),
        [offset for offset in restore.to_commit if offset.topic not in left],
    )
    differing += _differing_where_placed(repo, restore, points[0], target)
    if differing:
        raise GroupOffsetsDifferError(
            problem="different from the offset maps", partitions=differing
        )


def _differing_where_placed(
    repo: Repository, restore: StoredRestore, point: RecoveryPoint, target: KafkaCluster
) -> list[str]:
    """Return the same for topics that are not restored, from their present state."""
    if not restore.placed:
        return []
    left = {topic.target for topic in restore.placed}
    there = inspect_target(target, left, restore.group).topics
    writers = writers_of(repo.restores.onto(restore.target_cluster_id))
    again = {}
    for topic in restore.placed:
        known = excluded_topic(repo.warehouse, target, topic.source, topic.target, there, writers)
        found, _ = placed(
            known,
            point,
            {},
            inputs_are_at=topic.inputs_are_at,
            target_cluster_id=restore.target_cluster_id,
        )
        if found is not None:
            again[topic.source] = found
    return [
        *differing_offsets(
            [offset for topic in restore.placed for offset in topic.offsets],
            [offset for offset in restore.to_commit if offset.topic in left],
        ),
        *differing_positions(restore.placed, again, there),
    ]


def read_topics(restore: StoredRestore) -> frozenset[str]:
    """Return the restored topics, by their source names, that can have a committed offset."""
    if not restore.mode.commits_offsets:
        return frozenset()
    if restore.mode is RestoreMode.STATE:
        return frozenset(topic.source for topic in restore.topics)
    read = TopicRole.INPUT.value
    return frozenset(topic.source for topic in restore.topics if read in topic.roles)


def mapped_offsets(
    restore: StoredRestore, point: RecoveryPoint, maps: Mapping[TopicPartitionId, StoredMap]
) -> tuple[GroupOffset, ...]:
    """Return the offsets on the target, by topic and partition; `maps` are those of read topics.

    With its state the application continues at the point's offsets. To recompute everything it
    starts at the first restored record of its inputs. Mode `logs` commits no offsets.
    """
    read = read_topics(restore)
    found: list[GroupOffset] = []
    for source, stored in maps.items():
        target = stored.target
        if source.topic not in read:
            continue
        if restore.mode.recomputes:
            first = stored.map.target_start
            found.append(GroupOffset(target.topic, target.partition, first, ""))
        elif (own := point.group.at(source)) is not None:
            found.append(stored.mapped(own))
    return tuple(sorted(found, key=lambda offset: offset.id))


def differing_offsets(expected: Iterable[GroupOffset], found: Iterable[GroupOffset]) -> list[str]:
    """Return the differences of two sets of offsets, in words; metadata counts."""
    mine, theirs = {o.id: o for o in expected}, {o.id: o for o in found}
    return [
        f"{id_} {_shown(theirs.get(id_))} instead of {_shown(mine.get(id_))}"
        for id_ in sorted({*mine, *theirs})
        if mine.get(id_) != theirs.get(id_)
    ]


def _shown(offset: GroupOffset | None) -> str:
    return "none" if offset is None else f"{offset.offset} (metadata {offset.metadata!r})"


def _write(
    wanted: ConsumerGroup, target: KafkaCluster, *, delete: Iterable[TopicPartitionId] = ()
) -> None:
    """Delete some offsets of a group and commit others.

    Offset commits are not atomic, so they must be read back and compared.
    """
    gone = list(delete)
    if gone:
        target.delete_group_offsets(wanted.id, gone)
    if wanted.offsets:
        target.commit_group_offsets(wanted.id, wanted.committed)


def _require_equal(
    found: Mapping[TopicPartitionId, CommittedOffset], wanted: ConsumerGroup, *, problem: str
) -> None:
    """Raise for differing offsets of a group; a leader epoch, which is never committed, counts."""
    ours = wanted.committed
    differing = [str(id_) for id_ in sorted({*found, *ours}) if found.get(id_) != ours.get(id_)]
    if differing:
        raise GroupOffsetsDifferError(problem=problem, partitions=differing)


@dataclass(frozen=True, slots=True)
class PreviousOffsets:
    """A restore whose group offsets were undone.

    `put_back` are the restored former offsets, `deleted` the partitions that had none. `absent`
    are former offsets of topics or partitions that are missing on the target, `moved` partitions
    in which the group had continued since the restore.
    """

    restore: StoredRestore
    put_back: tuple[GroupOffset, ...]
    deleted: tuple[TopicPartitionId, ...]
    absent: tuple[GroupOffset, ...]
    moved: tuple[TopicPartitionId, ...]


OFFSET: Final = Form(GroupOffset, "topic partition offset")
PREVIOUS_OFFSETS: Final = Form(
    PreviousOffsets,
    "restore_id=restore.restore_id state=restore.state",
    Value("put_back", form=OFFSET),
    "deleted",
    Value("absent", form=OFFSET),
    "moved",
)


def restore_previous_offsets(
    settings: ApplicationSettings, restore: StoredRestore, target: KafkaCluster
) -> PreviousOffsets:
    """Restore the target group's former offsets, with their metadata; delete all others.

    Topics and records stay. A second call has the same result. Needs READ on the group and its
    topics, DELETE on the group.

    Raises:
        KStreamsAssetsError: Nothing was committed yet, or the restore is finished.
        KafkaError: The application runs.
        GroupOffsetsDifferError: Offsets read back differ from the restored ones.
        KStreamsAssetsError: See `require_own_target`, and errors of the target.
    """
    require_own_target(settings, restore, target)
    require(restore, Step.PREVIOUS_OFFSETS)
    with newest_locked(settings, restore, Step.PREVIOUS_OFFSETS) as (repo, newest, lock):
        return _restored_previous(repo, newest, target, lock)


def _restored_previous(
    repo: Repository, restore: StoredRestore, target: KafkaCluster, lock: LockHandle
) -> PreviousOffsets:
    former, group = restore.former_offsets or (), restore.group
    require_empty_group(group, target, operation="restore previous-offsets")
    there = target.metadata().topics
    absent = tuple(
        o for o in former if o.topic not in there or o.partition >= there[o.topic].partitions
    )
    wanted = ConsumerGroup(group, tuple(one for one in former if one not in absent))
    found = target.group_offsets(group)
    deleted = tuple(id_ for id_ in found if wanted.at(id_) is None)
    _write(wanted, target, delete=deleted)
    _require_equal(
        target.group_offsets(group), wanted, problem="not as before the restore when read back"
    )
    moved: tuple[TopicPartitionId, ...] = ()
    if restore.state is RestoreState.COMMITTED:
        committed = ConsumerGroup(group, restore.committed or ())
        moved = tuple(id_ for id_, now in found.items() if now.offset != committed.offset_in(id_))
    rolled_back = repo.restores.change(restore, writer=lock, state=RestoreState.ROLLED_BACK)
    return PreviousOffsets(rolled_back, wanted.offsets, deleted, absent, moved)


@dataclass(frozen=True, slots=True)
class MappedOffset:
    """One offset of another group, on the source and on the target.

    `unread` are restored records that the group has not read. `first_unread` is the source offset
    of the first of them, None without any. `is_beyond`: the group had read records that are not
    part of the restore; if the application writes them again, the group reads them again.
    """

    source: GroupOffset
    target: GroupOffset
    unread: int
    first_unread: int | None
    is_beyond: bool


@dataclass(frozen=True, slots=True)
class MappedGroup:
    """Offsets of a group for the target; `not_restored` have no partition there, and get none."""

    offsets: tuple[MappedOffset, ...]
    not_restored: tuple[TopicPartitionId, ...]

    def as_group(self, group_id: str) -> ConsumerGroup:
        """Return the group to commit, under its name on the target."""
        return ConsumerGroup(group_id, tuple(mapped.target for mapped in self.offsets))


_BEYOND: Final = "had read beyond the restored records"
MAPPED_OFFSET: Final = Form(
    MappedOffset,
    Value("of", of=lambda one: str(one.source.id), heading="source", where=TABLE),
    "source=source.id",
    Value("source_offset", of="source.offset", heading="offset"),
    Value("at", of=lambda one: str(one.target.id), heading="target", where=TABLE),
    "target=target.id",
    Value("offset", of="target.offset", heading="mapped"),
    Value("unread", heading="not read yet"),
    "first_unread is_beyond",
    Value("note", of=lambda one: _BEYOND * one.is_beyond, where=TABLE),
)
MAPPED_GROUP: Final = Form(MappedGroup, Value("offsets", form=MAPPED_OFFSET), "not_restored")


def map_offsets(
    maps: Mapping[TopicPartitionId, StoredMap],
    group: ConsumerGroup,
    ends: Mapping[TopicPartitionId, int],
) -> MappedGroup:
    """Return the offsets of a group on the target, by the offset maps of a restore.

    `ends` are the recovery point's ends, in source offsets. An offset is mapped to the first
    restored record at or above it, or to the end of the restored records. Metadata is kept, leader
    epochs are dropped. Nothing is guessed for other partitions.
    """
    mapped: list[MappedOffset] = []
    not_restored: list[TopicPartitionId] = []
    for committed in group.offsets:
        stored = maps.get(committed.id)
        if stored is None:
            not_restored.append(committed.id)
            continue
        runs = stored.map.runs
        source_end = runs[-1].source_start + runs[-1].length if len(runs) else 0
        mapped.append(
            MappedOffset(
                source=committed,
                target=stored.mapped(committed),
                unread=stored.map.records - stored.map.records_below(committed.offset),
                first_unread=stored.map.first_source(committed.offset),
                # after its last record a partition may end with control records
                is_beyond=committed.offset > max(source_end, ends.get(committed.id, source_end)),
            )
        )
    return MappedGroup(tuple(mapped), tuple(not_restored))


def map_group(
    settings: ApplicationSettings, restore: StoredRestore, group: ConsumerGroup
) -> MappedGroup:
    """As `map_offsets`, by the stored offset maps of a restore; nothing is committed.

    Raises KStreamsAssetsError unless the target is known to match the backup.
    """
    require(restore, Step.GROUP_OFFSETS)
    repo = Repository.open(settings)
    maps = repo.offset_maps.load(restore.restore_id, topics=group.topics)
    points = repo.points.load([restore.point_id])
    ends = {cut.id: cut.end for point in points for cut in point.partitions}
    return map_offsets(maps, group, ends)


def commit_other_group(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaCluster,
    *,
    group: ConsumerGroup,
    target_group: str,
) -> MappedGroup:
    """Commit another group's mapped offsets on the target, and read them back.

    `group` has the source's offsets, `target_group` is its name on the target. Partitions that were
    not restored are in the result and get no offset; offsets that the group has there for other
    partitions stay. Needs READ on the group and the topics.

    Raises:
        ConfigurationError: The group is the application's own.
        KStreamsAssetsError: The target is not known to match the backup.
            A topic was deleted or recreated since it was restored.
        KafkaError: The group has members.
        GroupOffsetsDifferError: Offsets read back differ from the committed ones.
        KStreamsAssetsError: See `require_own_target`, and errors of the target.
    """
    require_own_target(settings, restore, target)
    if target_group == restore.group:
        raise ConfigurationError(
            f"Group {target_group} is the application's own; its offsets belong to its state.",
            remedy="Let the restore commit them; give another group here.",
        )
    mapped = map_group(settings, restore, group)
    wanted = mapped.as_group(target_group)
    if wanted.offsets:
        _require_present([t for t in restore.topics if t.target in wanted.topics], target)
        _write(wanted, target)
        found = target.group_offsets(target_group, partitions=wanted.committed)
        _require_equal(found, wanted, problem="not as committed when read back")
    return mapped


def offsets_on_source(settings: ApplicationSettings, group: str) -> ConsumerGroup:
    """Return the committed offsets of a group on the source cluster, which must still exist.

    Needs DESCRIBE on the group. Raises KStreamsAssetsError, ClusterUnavailableError.
    """
    with KafkaCluster(settings.connection) as source:
        offsets = source.group_offsets(group)
    if not offsets:
        raise KStreamsAssetsError(
            f"Group {group} has no committed offsets on {settings.connection.bootstrap_servers}.",
            remedy="Check the name of the group; if the source cluster is lost, give its offsets as"
            " a file of topic,partition,offset.",
        )
    return ConsumerGroup.of(group, offsets)


def offsets_of_point(
    settings: ApplicationSettings, restore: StoredRestore, group: str
) -> ConsumerGroup:
    """Return the offsets of a group in a restore's recovery point; uses no cluster.

    Raises KStreamsAssetsError if the point recorded none.
    """
    points = Repository.open(settings).points.load([restore.point_id])
    recorded = {one.id: one for point in points for one in point.groups}
    if group not in recorded:
        raise KStreamsAssetsError(
            f"Recovery point {restore.point_id} has no offsets of group {group}.",
            remedy="Give them as a file (--from-file), or read them from the source cluster. To"
            " record them with later points, list the group under recovery_points.other_groups.",
        )
    return recorded[group]


def offsets_from_file(path: Path, group: str) -> ConsumerGroup:
    """Return a group with offsets from a CSV file: lines `topic,partition,offset[,metadata]`.

    A first line with these words is skipped. So the output of `kafka-consumer-groups.sh --export`
    for one group is accepted unchanged. Raises ConfigurationError.
    """
    offsets: dict[TopicPartitionId, CommittedOffset] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.reader(file), start=1):
                if not row or (number == 1 and [cell.strip() for cell in row[:3]] == _HEADER):
                    continue
                id_, committed = _parsed(path, number, row)
                if id_ in offsets:
                    raise ConfigurationError(
                        f"{path} line {number}: {id_} is listed twice.", remedy=_GIVE_LINES
                    )
                offsets[id_] = committed
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path}: {error}.", remedy=_GIVE_LINES) from None
    if not offsets:
        raise ConfigurationError(f"{path}: no offsets in it.", remedy=_GIVE_LINES)
    return ConsumerGroup.of(group, offsets)


def _parsed(path: Path, number: int, row: list[str]) -> tuple[TopicPartitionId, CommittedOffset]:
    problem = None
    if len(row) not in (3, 4):
        problem = f"{len(row)} columns"
    elif not row[0].strip():
        problem = "no topic"
    elif not (row[1].strip().isdecimal() and row[2].strip().isdecimal()):
        problem = f"partition {row[1]!r}, offset {row[2]!r}"
    if problem is not None:
        raise ConfigurationError(f"{path} line {number}: {problem}.", remedy=_GIVE_LINES)
    metadata = row[3] if len(row) == 4 else ""
    id_ = TopicPartitionId(row[0].strip(), int(row[1]))
    return id_, CommittedOffset(int(row[2]), metadata)
