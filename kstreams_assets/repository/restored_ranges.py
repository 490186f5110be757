"""Offsets and group offsets that restores of this warehouse wrote on a cluster."""

from collections.abc import Mapping, Sequence

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import ConsumerGroup
from kstreams_assets.model.point import Guarantee
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restored_ranges import RestoredOffsets, RestoredRange, RestoredRanges
from kstreams_assets.model.restores import InputsAt, RestoreMode, RestoreState, StoredRestore
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.repository import Repository


def restored_onto(repo: Repository, cluster_id: str) -> RestoredRanges:
    """Return the records that restores of a warehouse, of any application, wrote on a cluster.

    Reads no run of an offset map, and nothing again while both tables are unchanged.

    Raises:
        StoredDataError: A table cannot be read, or contradicts itself.
        WarehouseError: The same.
    """
    # Versions first: rows that are stored in the meantime are read again next time.
    version = repo.restores.version()
    if version < 0:
        return RestoredRanges(cluster_id)
    versions = version, repo.offset_maps.version()
    key = repo.application_id, cluster_id
    then, found = repo.known.restored.get(key) or (None, None)
    if found is None or then != versions:
        found = _load(repo, cluster_id)
        repo.known.restored.put(key, (versions, found))
    return found


def _load(repo: Repository, cluster_id: str) -> RestoredRanges:
    changes: dict[tuple[str, str], list[StoredRestore]] = {}
    for one in repo.restores.changes_onto(cluster_id):
        changes.setdefault((one.application_id, one.restore_id), []).append(one)
    restores = sorted(
        (states[-1] for states in changes.values() if states[-1].matches_backup),
        key=lambda one: (one.created_at_ms, one.application_id, one.restore_id),
    )
    if not restores:
        return RestoredRanges(cluster_id)
    ends = repo.offset_maps.ends_of(map(_key, restores))
    ranges: list[RestoredRange] = []
    group_offsets: list[RestoredOffsets] = []
    for restore in restores:
        guarantee = _guarantee(repo.warehouse, restore)
        ranges += _ranges(restore, ends.get(_key(restore), {}), guarantee)
        group_offsets += _group_offsets(restore, changes[_key(restore)], guarantee)
    return RestoredRanges(cluster_id, tuple(ranges), tuple(group_offsets))


def _key(restore: StoredRestore) -> tuple[str, str]:
    return restore.application_id, restore.restore_id


def _guarantee(warehouse: Warehouse, restore: StoredRestore) -> Guarantee:
    """The guarantee of the recovery point; an application that recomputes everything has no state
    yet."""
    if any(topic.inputs_are_at is InputsAt.LATEST for topic in restore.placed):
        return Guarantee.AT_LEAST_ONCE
    if restore.mode is not RestoreMode.STATE:
        return Guarantee.EXACT
    accepted = restore.asked.get("accept", Restorability.EXACT)
    if accepted == Restorability.EXACT:  # or the restore would have been refused
        return Guarantee.EXACT
    points = Repository.of(warehouse, restore.application_id).points.load(
        [restore.point_id], damaged_too=True
    )
    if accepted != Restorability.AT_LEAST_ONCE or not points or points[0].damaged:
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
    """Each set of offsets that was written for the group, including those of a killed run."""
    if not restore.mode.commits_offsets:
        return []
    # The previous offsets, which a roll-back commits again, have no restored state.
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
            state=restore.state,
            group=ConsumerGroup(restore.group, offsets),
            guarantee=of_offsets,
        )
        for offsets, of_offsets in written.items()
    ]
