"""Where a group goes on in topics that it reads and that the restore leaves out.

The target has such a topic already: another application's restore wrote it, it never went, or
producers fill it. The operator says which (`inputs_are_at`); without a word it is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kstreams_assets.app.model import TopicRole
from kstreams_assets.checks import Finding
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import TopicPartitionId, offsets_of_topic
from kstreams_assets.restore.plan import PlacedTopic
from kstreams_assets.restore.request import InputsAt, InputsExtent
from kstreams_assets.restore.selection import Roles
from kstreams_assets.restore.target import TargetTopic
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.point import GroupOffset, PartitionCut, RecoveryPoint
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.restores import (
    OffsetMapsTable,
    StoredMap,
    StoredRestore,
)


@dataclass(frozen=True, slots=True)
class Writer:
    """The restore that wrote a topic of the target: its recovery point and its offset maps."""

    restore: StoredRestore
    point: RecoveryPoint | None = None
    maps: Mapping[TopicPartitionId, StoredMap] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExcludedTopic:
    """An excluded topic in which the group had committed offsets at the recovery point.

    `there` is the topic on the target, None when it is absent; `stable_ends` are its last stable
    offsets by partition; `writer` is set where a restore of this warehouse wrote it.
    """

    source: str
    target: str
    there: TargetTopic | None = None
    stable_ends: Sequence[int] = ()
    writer: Writer | None = None


def excluded_topic(
    warehouse: Warehouse,
    cluster: KafkaCluster,
    source: str,
    target: str,
    there: Mapping[str, TargetTopic],
    writers: Mapping[str, StoredRestore],
) -> ExcludedTopic:
    """What is known of an excluded topic; `writers` are restores by the topic ids they wrote."""
    found = there.get(target)
    if found is None:
        return ExcludedTopic(source, target)
    partitions = [TopicPartitionId(target, number) for number in range(found.partitions)]
    stable_ends = offsets_of_topic(cluster.last_stable_offsets(partitions), target)
    restore = writers.get(found.topic_id)
    if restore is None:
        return ExcludedTopic(source, target, found, stable_ends)
    application_id = restore.application_id
    points = RecoveryPointTable(warehouse).load(application_id, [restore.point_id])
    maps = OffsetMapsTable(warehouse).load(application_id, restore.restore_id, topics=[source])
    writer = Writer(restore, next(iter(points), None), maps)
    return ExcludedTopic(source, target, found, stable_ends, writer)


def placed(
    topic: ExcludedTopic,
    point: RecoveryPoint,
    roles: Roles,
    *,
    inputs_are_at: InputsAt,
    target_cluster_id: str,
) -> tuple[PlacedTopic | None, tuple[Finding, ...]]:
    """The topic with its offsets on the target; None with refusals that say why there are none.

    `mapped`: each committed offset goes where the record it points to is on the target: to the same
    offset if it is the very topic of the recovery point, else through the offset map of the restore
    that wrote it. `latest`: every partition goes to its last stable offset of now.
    """
    there = topic.there
    if there is None:
        return None, (
            Finding(
                f"topic {topic.target}",
                f"{topic.source} is excluded, and the target has no topic of that name.",
                action="Create it, restore it, or give its name on the target (--topic-name"
                f" {topic.source}=NAME).",
            ),
        )
    offsets = [o for o in point.group_offsets if o.topic == topic.source]
    if inputs_are_at is InputsAt.LATEST:
        if TopicRole.REPARTITION in roles.get(topic.source, ()):
            return None, (
                Finding(
                    f"topic {topic.source}",
                    "It is a repartition topic: at its end the records in flight would be skipped.",
                    action="Do not exclude it.",
                ),
            )
        metadata = {o.partition: o.metadata for o in offsets}
        found = tuple(
            GroupOffset(topic.target, number, end, metadata.get(number, ""))
            for number, end in enumerate(topic.stable_ends)
        )
        return PlacedTopic(topic.source, topic.target, there.topic_id, inputs_are_at, found), ()
    mapped: list[GroupOffset] = []
    problems: list[str] = []
    for committed in offsets:
        at = _mapped(topic, there, committed, point, target_cluster_id)
        if isinstance(at, str):
            problems.append(f"Partition {committed.partition}: {at}")
        else:
            target = GroupOffset(topic.target, committed.partition, at, committed.metadata)
            mapped.append(target)
    if problems:
        more = f" And {len(problems) - 1} more partition(s)." if len(problems) > 1 else ""
        return None, (
            Finding(
                f"topic {topic.target}",
                f"It is not known where the group goes on in it. {problems[0]}{more}",
                action="Restore a recovery point of this application that was taken before the one"
                " the topic was restored from, restore the other application from a later one, or"
                " say --inputs-are-at latest if what lies in the topic is not to be read.",
            ),
        )
    writer = None if topic.writer is None else topic.writer.restore
    return (
        PlacedTopic(
            topic.source,
            topic.target,
            there.topic_id,
            inputs_are_at,
            tuple(mapped),
            "" if writer is None else writer.application_id,
            "" if writer is None else writer.restore_id,
        ),
        (),
    )


def _mapped(
    topic: ExcludedTopic,
    there: TargetTopic,
    committed: GroupOffset,
    point: RecoveryPoint,
    target_cluster_id: str,
) -> int | str:
    """A committed offset on the target, or why it is not known there."""
    id_ = TopicPartitionId(committed.topic, committed.partition)
    cut = point.cut(id_)
    if cut is None or id_.partition >= there.partitions:
        return "it is not in the recovery point, or not on the target."
    start, end = there.starts[id_.partition], there.ends[id_.partition]
    if (target_cluster_id, there.topic_id) == (point.cluster_id, cut.topic_id):
        at = committed.offset
    elif topic.writer is None:
        return (
            f"the topic is not the one of the recovery point (id {cut.topic_id}), and no restore in"
            " this warehouse wrote it."
        )
    else:
        found = _by_writer(topic.writer, committed, point, cut, end)
        if isinstance(found, str):
            return found
        at = found
    if not start <= at <= end:
        return f"offset {at}, where it would go on, lies outside its log ({start} to {end})."
    return at


def _by_writer(
    writer: Writer, committed: GroupOffset, point: RecoveryPoint, cut: PartitionCut, end: int
) -> int | str:
    restore = writer.restore
    name = f"restore {restore.restore_id} of {restore.application_id}"
    if not restore.state.matches_backup:
        return f"{name} wrote it and is {restore.state}; run that restore to its end first."
    other = writer.point.cut(cut.id) if writer.point else None
    stored = writer.maps.get(cut.id)
    if writer.point is None or other is None or stored is None:
        return f"of {name}, which wrote it, the recovery point or the offset map is gone."
    if (writer.point.cluster_id, other.topic_id) != (point.cluster_id, cut.topic_id):
        return f"{name} wrote it from another topic of this name (id {other.topic_id})."
    first = _first(writer, writer.point, other)
    # Behind an excluded transaction nothing is known: it is written again by whoever wrote it.
    if not first <= committed.offset <= other.whole_below:
        return (
            f"the group had committed offset {committed.offset}, {name} brought back"
            f" {first} to {other.whole_below}."
        )
    if end < stored.map.end:
        return f"it ends at {end}, {name} had written it up to {stored.map.end}."
    return stored.map.map(committed.offset)


def _first(writer: Writer, point: RecoveryPoint, cut: PartitionCut) -> int:
    """The first source offset from which on all records of the cut were restored."""
    if writer.restore.asked.get("inputs", InputsExtent.FULL.value) == InputsExtent.FULL.value:
        return cut.log_start
    committed = [
        o.offset
        for o in point.group_offsets
        if (o.topic, o.partition) == (cut.topic, cut.partition)
    ]
    return max([cut.log_start, *committed])


def differing_positions(
    topics: Iterable[PlacedTopic], again: Mapping[str, PlacedTopic], logs: Mapping[str, TargetTopic]
) -> list[str]:
    """Placed topics whose offsets do not follow from what is known now, in words.

    What was placed at an end that has moved on since stays there: what came is read.
    """
    wrong = []
    for topic in topics:
        now, there = again.get(topic.source), logs.get(topic.target)
        if now is None or there is None or there.topic_id != topic.target_topic_id:
            wrong.append(f"{topic.target} is not the topic that was planned with")
        elif topic.inputs_are_at is InputsAt.LATEST:
            wrong += [
                f"{topic.target}-{o.partition} {o.offset} lies outside its log"
                for o in topic.offsets
                if not there.starts[o.partition] <= o.offset <= there.ends[o.partition]
            ]
        elif now.offsets != topic.offsets:
            wrong.append(f"{topic.target} is at other offsets by its offset map")
    return wrong
