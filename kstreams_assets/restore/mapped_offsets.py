"""Which group offsets a restore has to commit, from the recovery point and the offset maps. Pure.

The restore maps them as it plans; here they are found once more from what is stored, so that an
offset that was changed in between does not go to the target.
"""

from collections.abc import Mapping

from kstreams_assets.app.model import TopicRole
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.point import GroupOffset, RecoveryPoint
from kstreams_assets.restore.offset_maps_table import StoredMap
from kstreams_assets.restore.request import RestoreMode
from kstreams_assets.restore.restores_table import StoredRestore


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
