"""The blockers of a restore: conditions on the target or in the records. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kstreams_assets.checks import Finding
from kstreams_assets.model.groups import ConsumerGroup
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restorability import PointStatus
from kstreams_assets.model.restores import (
    InputsAt,
    PlacedTopic,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from kstreams_assets.model.spans import NotedFacts
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.contents import PartitionContents
from kstreams_assets.restore.plan import (
    OTHER_WRITER,
    RestorePlan,
    SnapshotSource,
    TopicPlan,
    identity,
)
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.selection import Selection
from kstreams_assets.restore.target import TargetState, TargetTopic
from kstreams_assets.restore.target_topics import (
    MAX_MESSAGE_BYTES,
    MIN_IN_SYNC,
    TIMESTAMP_TYPE,
    TargetNames,
)
from kstreams_assets.texts import iso_time

_TOPIC_RIGHTS = ("READ", "WRITE", "ALTER_CONFIGS")
_GROUP_RIGHTS = ("READ",)
_ALL = "ALL"
_TAKEN_OVER = frozenset({"classic", "consumer", "streams"})
"""Types of groups from whose offsets the application can continue."""


_NOTHING = Selection()


@dataclass(frozen=True, slots=True)
class Facts:
    """All input of a plan.

    `point` and `status` are None if no point can be restored. `holdings` are by source partition,
    `facts` and `snapshots` by source topic; the holdings of a topic that is written from a
    snapshot are those of the snapshot. `stored` is this restore as an earlier run left it.
    `placed` are excluded topics with the group's offsets there. `blockers` and `notes` are those
    found so far.
    """

    application_id: str
    request: RestoreRequest
    names: TargetNames
    target: TargetState
    point: RecoveryPoint | None = None
    status: PointStatus | None = None
    selection: Selection = _NOTHING
    holdings: Mapping[TopicPartitionId, PartitionContents] = field(default_factory=dict)
    facts: Mapping[str, NotedFacts] = field(default_factory=dict)
    snapshots: Mapping[str, SnapshotSource] = field(default_factory=dict)
    stored: StoredRestore | None = None
    placed: tuple[PlacedTopic, ...] = ()
    blockers: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def of_this_restore(self, target: str) -> StoredTopic | None:
        """Return what this restore recorded of a target topic, if it is still the same topic."""
        there = self.target.topics.get(target)
        if self.stored is None or there is None:
            return None
        return self.stored.own_topic(target, there.topic_id)


def blockers(
    found: Facts,
    topics: Sequence[TopicPlan],
    *,
    largest: Mapping[str, int],
    writers: Mapping[str, StoredRestore],
) -> list[Finding]:
    """Return all blockers, in the order in which an operator would fix them.

    Args:
        largest: By source topic, the size of its largest record in a batch of its own, if the
            target topic would refuse it.
        writers: By id of a target topic, the restore that wrote it, of any application.
    """
    handed_over = _handed_over(found, topics)
    if handed_over is not None:
        return [*found.target.problems, handed_over]
    return [
        *_damaged(found, topics),
        *found.target.problems,
        *_group(found),
        *_source_cluster(found, topics),
        *_replication(found),
        *_without_facts(found, topics),
        *(
            blocker
            for topic in topics
            if (there := found.target.topics.get(topic.target)) is not None
            for blocker in _existing(found, topic, there, largest, writers)
        ),
        *_left_there(found, topics),
        *_rights_on_placed(found),
        *_begun_otherwise(found, topics),
    ]


def _damaged(found: Facts, topics: Sequence[TopicPlan]) -> Iterable[Finding]:
    for topic in topics:
        for partition in topic.partitions:
            for damage in found.holdings.get(partition.source, PartitionContents()).damaged:
                yield Finding(
                    f"backup of {partition.source}",
                    f"Its files do not match the ledger: {damage}.",
                    action=damage.remedy,
                )


def changed_since(then: RestorePlan, now: RestorePlan, own: StoredRestore | None) -> list[Finding]:
    """Return differences of the target from the plan; `now` is the plan under the restore's lock.

    Changes by this restore itself do not count: `own` is its stored record. An interrupted attempt
    is continued; a second command at the same time finds everything done.
    """
    before = {topic.target: topic for topic in then.topics}
    if {t.source: t.target for t in now.topics} != {t.source: t.target for t in then.topics}:
        problem = "The topics of the plan have changed."
        return [Finding(f"restore {then.restore_id}", problem, action="Plan the restore again.")]
    found = [
        blocker
        for topic in now.topics
        if (difference := _difference(before[topic.target], topic, own))
        for blocker in [Finding(f"topic {topic.target}", difference, action=OTHER_WRITER)]
    ]
    if [_place(topic) for topic in now.placed] != [_place(topic) for topic in then.placed]:
        problem = "The excluded topics on the target have changed since the plan."
        found.append(
            Finding(f"restore {then.restore_id}", problem, action="Plan the restore again.")
        )
    committed = ConsumerGroup(now.group, (own.committed if own else None) or ())
    moved = sorted(
        id_
        for id_ in {*then.group_offsets, *now.group_offsets}
        if then.group_offsets.get(id_) != (offset := now.group_offsets.get(id_))
        and (offset is None or committed.offset_in(id_) != offset.offset)
    )
    if moved:
        found.append(
            Finding(
                f"group {now.group}",
                f"Its committed offsets of {len(moved)} partition(s) have changed since the restore"
                f" was planned, the first of them {moved[0]}.",
                action="Another restore or the application committed them. Stop it and plan the"
                " restore again.",
            )
        )
    return found


def _place(topic: PlacedTopic) -> PlacedTopic:
    """Return the topic without its end, which changes while producers write."""
    return replace(topic, offsets=()) if topic.inputs_are_at is InputsAt.LATEST else topic


def _difference(then: TopicPlan, now: TopicPlan, own: StoredRestore | None) -> str:
    """Return how a topic differs from its plan, empty if it does not."""
    if now.records != then.records:
        return f"The restore now has {now.records:,} records; the plan had {then.records:,}."
    is_own = (
        own is not None
        and now.target_topic_id is not None
        and own.own_topic(now.target, now.target_topic_id) is not None
    )
    if is_own:
        return ""
    if now.target_topic_id != then.target_topic_id:
        was, is_ = identity(then.target_topic_id), identity(now.target_topic_id)
        return f"At planning time it {was}; now it {is_}."
    for partition, before in zip(now.partitions, then.partitions, strict=True):
        if partition.base_offset != before.base_offset:
            return (
                f"Partition {partition.target} ended at offset {before.base_offset} at planning"
                f" time; now it ends at {partition.base_offset}."
            )
    return ""


def _handed_over(found: Facts, topics: Sequence[TopicPlan]) -> Finding | None:
    """Return a blocker if this restore is complete and its application has continued from it."""
    stored, group = found.stored, found.target.group
    if stored is None or not stored.state.is_committed or stored.committed is None:
        return None
    signs = []
    if group is not None and not group.is_empty:
        members = "" if group.member_count is None else f" with {group.member_count} member(s)"
        signs.append(f"group {found.names.group} is {group.state}{members}")
    now = found.target.group_offsets
    if moved := sum(o.id in now and now[o.id].offset != o.offset for o in stored.committed):
        signs.append(f"its committed offsets have moved in {moved} partition(s)")
    grown = [
        topic.target
        for topic in topics
        if (there := found.target.topics.get(topic.target)) is not None
        and found.of_this_restore(topic.target) is not None
        and any(
            end > partition.base_offset + partition.records
            for partition, end in zip(topic.partitions, there.ends, strict=False)
        )
    ]
    if grown:
        signs.append(f"{len(grown)} topic(s) have newer records, such as {grown[0]}")
    if not signs:
        return None
    return Finding(
        f"restore {stored.restore_id}",
        f"It was {stored.state} at {iso_time(stored.changed_at_ms)}, and the application has"
        f" continued from it since: {'; '.join(signs)}.",
        action="The restore is complete. Start the application if it does not run, run"
        " kstreams-assets restore watch, then restore finish. To restore again, stop the"
        " application and its producers, delete the topics of this restore on the target, then run"
        " this command again.",
    )


def _group(found: Facts) -> Iterable[Finding]:
    name, group = found.names.group, found.target.group
    if group is not None and not group.is_empty and found.request.before_command is None:
        members = "" if group.member_count is None else f", {group.member_count} member(s)"
        yield Finding(
            f"group {name}",
            f"It is in use on the target ({group.type} group, state {group.state}{members}).",
            action="Stop all instances of the application there. A killed instance remains a member"
            " until session.timeout.ms elapses (45 s by default).",
        )
    elif group is not None and group.type not in _TAKEN_OVER:
        yield Finding(
            f"group {name}",
            f"It is a {group.type} group on the target, which has no committed offsets.",
            action="Delete that group, or restore under another application_id.",
        )
    operations = found.target.group_operations
    if operations is not None:
        yield from _missing_rights(f"group {name}", operations, _GROUP_RIGHTS)


def _source_cluster(found: Facts, topics: Sequence[TopicPlan]) -> Iterable[Finding]:
    """Yield a blocker for the source cluster: topics of it may be recreated in place."""
    if found.point is None or found.point.cluster_id != found.target.cluster_id:
        return
    same = [
        topic.source
        for topic in topics
        if topic.source == topic.target
        and topic.exists
        and found.of_this_restore(topic.target) is None
    ]
    if same:
        yield Finding(
            f"cluster {found.target.cluster_id}",
            f"It is the source cluster and still has these topics: {', '.join(same)}.",
            action="Restore to another cluster, or use another application_id and a prefix for the"
            " other topics. To restore in place, stop the application and delete these topics"
            " first; keep their backup.",
        )


def _replication(found: Facts) -> Iterable[Finding]:
    asked, brokers = found.request.replication_factor, found.target.brokers
    if asked is not None and not 1 <= asked <= brokers:
        yield Finding(
            f"replication_factor {asked}",
            f"The target has {brokers} broker(s).",
            action=f"Use a value from 1 to {brokers}, or omit it.",
        )


def _without_facts(found: Facts, topics: Sequence[TopicPlan]) -> Iterable[Finding]:
    """Yield topics to create whose configs and replicas no backup recorded.

    Kafka Streams itself defines the configs of its repartition topics.
    """
    for topic in topics:
        if topic.exists or topic.roles.in_flight_only or topic.source in found.facts:
            continue
        yield Finding(
            f"topic {topic.target}",
            f"No backup recorded the configs and the replication factor of {topic.source}. The"
            " target's defaults may delete its records (cleanup.policy=delete).",
            action=f"Create it on the target with {len(topic.partitions)} partition(s) and the"
            " configs of the source, then plan the restore again. Or run another backup while the"
            " source cluster exists: each backup records them.",
        )


def _existing(
    found: Facts,
    topic: TopicPlan,
    there: TargetTopic,
    largest: Mapping[str, int],
    writers: Mapping[str, StoredRestore],
) -> Iterable[Finding]:
    subject = f"topic {topic.target}"
    needed = len(topic.partitions)
    if there.partitions != needed:
        yield Finding(
            subject,
            f"It has {there.partitions} partition(s) on the target, the source had {needed}.",
            action=f"Delete it, so that the restore creates it, or recreate it with {needed}.",
        )
    yield from _content(found, topic, there, writers)
    if there.effective_configs.get(TIMESTAMP_TYPE) == "LogAppendTime":
        yield Finding(
            subject,
            f"Its {TIMESTAMP_TYPE} is LogAppendTime: records would get the time of the restore.",
            action=f"Set {TIMESTAMP_TYPE} to CreateTime on it, or delete it.",
        )
    if topic.source in largest:
        yield Finding(
            subject,
            f"Its {MAX_MESSAGE_BYTES} is {there.effective_configs.get(MAX_MESSAGE_BYTES)}, the"
            f" largest record to restore takes {largest[topic.source]} bytes.",
            action=f"Set {MAX_MESSAGE_BYTES} to {largest[topic.source]} or more on it, or delete"
            " it.",
        )
    in_sync = int(there.effective_configs.get(MIN_IN_SYNC, 1))
    if in_sync > there.replication_factor:
        yield Finding(
            subject,
            f"Its {MIN_IN_SYNC} is {in_sync}, but it has {there.replication_factor} replica(s):"
            " nothing can be written to it.",
            action=f"Lower {MIN_IN_SYNC} on it, or delete it.",
        )
    yield from _missing_rights(subject, there.operations, _TOPIC_RIGHTS)


def _content(
    found: Facts, topic: TopicPlan, there: TargetTopic, writers: Mapping[str, StoredRestore]
) -> Iterable[Finding]:
    mine = found.of_this_restore(topic.target)
    if mine is not None and mine.base_offsets:
        yield from _other_writers(topic, there)
        return
    writer = writers.get(there.topic_id)
    if writer is not None and writer.application_id != found.application_id:
        if there.holds_records or writer.state is RestoreState.PLANNED:
            yield _shared(topic, writer)
    elif there.holds_records:
        yield _not_empty(topic.target, there, writer, topic)


def _left_there(found: Facts, topics: Sequence[TopicPlan]) -> Iterable[Finding]:
    """Yield topics that are not restored, but whose records would be used as state.

    Without a point the restored topics are unknown: then every topic counts.
    """
    planned = {topic.source for topic in topics}
    for source, target in found.names.targets.items():
        there = found.target.topics.get(target)
        if source in planned or there is None or not there.holds_records:
            continue
        if source in found.names.internal and found.point is not None:
            yield Finding(
                f"topic {target}",
                "It is an internal topic of the application and has records on the target that"
                " are not part of this restore. The application would use them as its state.",
                action="Delete it.",
            )
        elif found.point is None:
            yield _not_empty(target, there, None, None)


def _not_empty(
    target: str, there: TargetTopic, writer: StoredRestore | None, topic: TopicPlan | None
) -> Finding:
    offsets = sum(there.ends) - sum(there.starts)
    written = f" (written by restore {writer.restore_id})" if writer else ""
    remedy = "Delete it, or restore under another name."
    if topic is not None and not (topic.roles.is_changelog or topic.roles.is_repartition):
        remedy = (
            f"Delete it, restore under another name, or keep it unchanged with {_leave(topic)}."
        )
    return Finding(
        f"topic {target}",
        f"It is not empty on the target: its logs hold {offsets:,} offsets{written}.",
        action=remedy,
    )


def _leave(topic: TopicPlan) -> str:
    """Return the options that leave a topic unchanged."""
    exclude = f"--exclude {topic.source}"
    if all(partition.committed is None for partition in topic.partitions):
        return exclude
    return f"{exclude} --inputs-are-at mapped (at the same records) or latest (at its end)"


def _shared(topic: TopicPlan, writer: StoredRestore) -> Finding:
    """Return the blocker for a topic that another application uses too."""
    name = f"restore {writer.restore_id} of application {writer.application_id}"
    other_names = (
        "or restore this application under other names (--target-application-id, --prefix)."
    )
    if writer.state is RestoreState.PLANNED:
        return Finding(
            f"topic {topic.target}",
            f"Both applications use it, and {name} has started to write it.",
            action=f"Complete that restore first (run it again if it was stopped), {other_names}",
        )
    problem = (
        f"Both applications use it, and {name} ({writer.state}) has restored its records. A second"
        " restore would append them again."
    )
    exclude = f"--exclude {topic.source}"
    if topic.roles.is_changelog or topic.roles.is_repartition:
        remedy = "It is internal to both, so restore one of them under another application id."
    elif any(partition.committed is not None for partition in topic.partitions):
        remedy = (
            f"Do not delete it. Run this restore with {exclude} --inputs-are-at mapped: the group"
            " continues at the same records, if the recovery point of the other restore contains"
            f" them; {other_names}"
        )
    else:
        remedy = (
            f"Do not delete it. Run this restore with {exclude} to keep the topic as the other"
            f" restore wrote it; {other_names}"
        )
    return Finding(f"topic {topic.target}", problem, action=remedy)


def _rights_on_placed(found: Facts) -> Iterable[Finding]:
    """Offsets are committed for these topics, records are not written."""
    for topic in found.placed:
        there = found.target.topics.get(topic.target)
        if there is not None:
            yield from _missing_rights(f"topic {topic.target}", there.operations, _GROUP_RIGHTS)


def _other_writers(topic: TopicPlan, there: TargetTopic) -> Iterable[Finding]:
    """Yield signs of other writers in a topic that this restore has started to write."""
    for partition, start, end in zip(topic.partitions, there.starts, there.ends, strict=False):
        base, last = partition.base_offset, partition.base_offset + partition.records
        if end > last:
            problem = f"The log ends at offset {end}; this restore would end at {last}"
            who = "another process has written to it."
        elif start < base:
            problem = f"The log starts at offset {start}, this restore started at {base}"
            who = "earlier records are not part of this restore."
        elif start > base and end > base:
            problem = f"The log starts at offset {start}, this restore started at {base}"
            who = "restored records were deleted."
        else:
            continue
        yield Finding(
            f"partition {partition.target}",
            f"{problem}: {who}",
            action=f"Delete topic {topic.target} and restore again.",
        )


def _missing_rights(
    subject: str, operations: Collection[str], needed: Sequence[str]
) -> Iterable[Finding]:
    missing = [right for right in needed if right not in operations and _ALL not in operations]
    if missing:
        yield Finding(
            subject,
            f"The user of the target connection has no right {', '.join(missing)} on it.",
            action=f"Give it the right {', '.join(missing)} on {subject}.",
        )


def _begun_otherwise(found: Facts, topics: Iterable[TopicPlan]) -> Iterable[Finding]:
    """Yield topics that this restore started from a snapshot with another number of rows."""
    for topic in topics:
        mine = found.of_this_restore(topic.target)
        if topic.snapshot and mine is not None and mine.records != topic.records:
            yield Finding(
                f"topic {topic.target}",
                f"This restore started with {mine.records:,} records of the KTable snapshot of"
                f" store {topic.snapshot.store}; the snapshot now has {topic.records:,}.",
                action="Delete the topics of this restore on the target and restore again.",
            )
