"""Puts a restore plan together from what is wanted, what is held and what the target is. Pure."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.checks import Finding
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.plan import (
    PartitionPlan,
    PlacedTopic,
    RestorePlan,
    SnapshotSource,
    TopicPlan,
)
from kstreams_assets.restore.request import ChangelogSource, InputsAt, RestoreMode, RestoreRequest
from kstreams_assets.restore.selection import Selection, WantedTopic
from kstreams_assets.restore.target import TargetState, TargetTopic
from kstreams_assets.restore.target_topics import (
    REPARTITION_CONFIGS,
    RestoredConfigs,
    TargetNames,
    of_existing_topic,
    of_new_topic,
)
from kstreams_assets.warehouse.contents import Holding, NotedFacts
from kstreams_assets.warehouse.judge import PointStatus, Restores
from kstreams_assets.warehouse.point import RecoveryPoint, WantedPartition, topic_id_of
from kstreams_assets.warehouse.restores import StoredRestore, StoredTopic

_IN_FLIGHT_ONLY = TopicRoles({TopicRole.REPARTITION})
_FEW = 5
_NOTHING = Selection()


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that a plan is made from.

    `point` and `status` are None when no point can be restored; `holdings` are by source partition,
    `facts` and `snapshots` by source topic; the holdings of a topic that is written from a snapshot
    are those of the snapshot. `stored` is this very restore as an earlier run left it. `placed` are
    excluded topics with the group's offsets there. `refusals` and `notes` are those found so far.
    """

    application_id: str
    request: RestoreRequest
    names: TargetNames
    target: TargetState
    point: RecoveryPoint | None = None
    status: PointStatus | None = None
    selection: Selection = _NOTHING
    holdings: Mapping[TopicPartitionId, Holding] = field(default_factory=dict)
    facts: Mapping[str, NotedFacts] = field(default_factory=dict)
    snapshots: Mapping[str, SnapshotSource] = field(default_factory=dict)
    stored: StoredRestore | None = None
    placed: tuple[PlacedTopic, ...] = ()
    refusals: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def of_this_restore(self, target: str) -> StoredTopic | None:
        """What was noted of a target topic when this restore began, if it is still that topic."""
        there = self.target.topics.get(target)
        if self.stored is None or there is None:
            return None
        return self.stored.own_topic(target, there.topic_id)


def restore_id(
    application_id: str, point_id: str, target_cluster_id: str, request: RestoreRequest
) -> str:
    """The id of a restore: the same request for the same point and target is the same restore."""
    headers = request.original_headers
    parts = [
        application_id,
        point_id,
        request.mode.value,
        request.inputs.value,
        target_cluster_id,
        [request.application_id or application_id, request.prefix, sorted(request.topics.items())],
        sorted(set(request.exclude)),
        [headers.offset, headers.timestamp, headers.partition],
    ]
    if request.changelog_source is not ChangelogSource.RAW:
        # Only then: a restore that an earlier release has begun keeps its id.
        parts.append(request.changelog_source.value)
    if request.inputs_are_at is not None:
        parts.append(f"inputs {request.inputs_are_at}")
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"{point_id}-{digest[:8]}"


def plan_topics(found: Findings) -> tuple[tuple[TopicPlan, ...], tuple[str, ...]]:
    """The topics as they would be restored, by source name, and what is to be told of them."""
    topics, notes = [], []
    for wanted in found.selection.topics:
        topic, of_topic = _topic_plan(found, wanted)
        topics.append(topic)
        notes += of_topic
    lowered = [t.source for t in topics if not t.exists and t.replication_factor < _asked(found, t)]
    if lowered and found.request.replication_factor is None:
        notes.append(
            f"The target has {found.target.brokers} broker(s): {_some(lowered)} get(s) fewer"
            " replicas than on the source."
        )
    return tuple(topics), tuple(notes)


def make_plan(
    found: Findings, topics: Sequence[TopicPlan], *, refusals: Iterable[Finding] = ()
) -> RestorePlan:
    """The plan with everything that stands against it, each thing once."""
    point_id = found.point.id if found.point else ""
    identity = restore_id(found.application_id, point_id, found.target.cluster_id, found.request)
    every = (*found.refusals, *found.names.refusals, *found.selection.refusals, *refusals)
    return RestorePlan(
        restore_id=identity if found.point else "",
        application_id=found.application_id,
        group=found.names.group,
        target_cluster_id=found.target.cluster_id,
        target_bootstrap_servers=found.target.bootstrap_servers,
        request=found.request,
        point=found.point,
        gives=_gives(found),
        topics=tuple(topics),
        refusals=tuple(dict.fromkeys(every)),
        notes=tuple(dict.fromkeys((*found.notes, *found.selection.notes, *_notes(found, topics)))),
        group_offsets=dict(found.target.group_offsets),
        placed=found.placed,
    )


def _gives(found: Findings) -> Restores:
    if found.status is None:
        return Restores.NOTHING
    if any(topic.inputs_are_at is InputsAt.LATEST for topic in found.placed):
        return Restores.UNPROVEN
    return found.status.gives


def _topic_plan(found: Findings, wanted: WantedTopic) -> tuple[TopicPlan, tuple[str, ...]]:
    target = found.names.targets[wanted.source]
    there = found.target.topics.get(target)
    mine = found.of_this_restore(target)
    noted = found.facts.get(wanted.source)
    replicas = there.replication_factor if there else _replicas(found, noted)
    notes: tuple[str, ...] = ()
    if there is None:
        source, notes = _source_configs(wanted, noted)
        configs = of_new_topic(wanted.source, source, replication_factor=replicas)
        notes += configs.notes
    else:
        configs = of_existing_topic(there.explicit_configs)
    if mine is not None:
        # They are relaxed already, so only what was noted then says what they were.
        configs = RestoredConfigs(configs.configs, mine.put_back)
    held = [found.holdings.get(p.cut.id, Holding()) for p in wanted.partitions]
    topic = TopicPlan(
        source=wanted.source,
        target=target,
        roles=wanted.roles,
        partitions=tuple(
            _partition(target, partition, holding, _base(there, mine, partition.cut.partition))
            for partition, holding in zip(wanted.partitions, held, strict=True)
        ),
        replication_factor=replicas,
        target_topic_id=None if there is None else there.topic_id,
        configs=configs.configs,
        put_back=configs.put_back,
        windows=len(frozenset[str]().union(*(holding.windows for holding in held))),
        snapshot=found.snapshots.get(wanted.source),
    )
    return topic, notes


def _partition(target: str, wanted: WantedPartition, held: Holding, base: int) -> PartitionPlan:
    return PartitionPlan(
        source=wanted.cut.id,
        target=TopicPartitionId(target, wanted.cut.partition),
        topic_id=wanted.cut.topic_id,
        ranges=wanted.ranges,
        files=held.files,
        records=held.records,
        bytes=held.bytes,
        saved_records=held.saved_records,
        committed=wanted.committed,
        base_offset=base,
    )


def _base(there: TargetTopic | None, mine: StoredTopic | None, partition: int) -> int:
    if mine is not None and partition < len(mine.base_offsets):
        return mine.base_offsets[partition]
    return there.ends[partition] if there is not None and partition < there.partitions else 0


def _source_configs(
    wanted: WantedTopic, noted: NotedFacts | None
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    topic = wanted.source
    if noted is None and wanted.roles == _IN_FLIGHT_ONLY:
        return REPARTITION_CONFIGS, (
            f"The configs of {topic} were never backed up: it gets those that Kafka Streams gives"
            " its repartition topics.",
        )
    if noted is None:
        return {}, (f"The configs of {topic} were never backed up: it gets the target's defaults.",)
    if noted.facts.topic_id != topic_id_of(wanted.partitions[0].cut.topic_id):
        note = f"The configs of {topic} are those of another topic of this name: it was recreated."
    else:
        note = ""
    return dict(noted.facts.configs), (note,) if note else ()


def _replicas(found: Findings, noted: NotedFacts | None) -> int:
    asked = found.request.replication_factor
    if asked is None:
        asked = noted.facts.replication_factor if noted else 1
    return max(1, min(asked, found.target.brokers))


def _asked(found: Findings, topic: TopicPlan) -> int:
    noted = found.facts.get(topic.source)
    return noted.facts.replication_factor if noted else 1


def _notes(found: Findings, topics: Sequence[TopicPlan]) -> Iterable[str]:
    request, status = found.request, found.status
    if status is not None and request.mode is RestoreMode.STATE:
        if status.gives is Restores.AT_LEAST_ONCE:
            yield "The point is at least once: up to one commit interval is processed again."
        elif status.gives is Restores.UNPROVEN:
            yield f"The state is not proved to be complete. {status.reason}"
    for placed in found.placed:
        yield _about_placed(placed)
    later = [t.source for t in topics if not t.exists and _is_later(found.facts.get(t.source))]
    if later:
        yield f"Configs are those noted when a window ended after the point: {_some(later)}."
    for topic in topics:
        held = [found.holdings.get(partition.source, Holding()) for partition in topic.partitions]
        if lost := sum(holding.lost for holding in held):
            yield f"Kafka had lost {lost:,} offset(s) of {topic.source} before they were backed up."
        odd = sum(holding.odd_timestamps for holding in held)
        if odd and request.accept_replaced_timestamps:
            yield (
                f"{odd:,} record(s) of {topic.source} have a timestamp of 0 or below and get the"
                " time of the restore, as accepted."
            )
    if found.names.group != found.application_id:
        yield (
            f"The application goes on as {found.names.group}: set its application.id, and give its"
            " user the rights on the group, on topics and on transactional ids of that prefix."
            " Schema registry subjects that are named after internal topics change as well."
        )
    headers = request.original_headers
    if topics and (headers.offset or headers.timestamp or headers.partition):
        yield "Headers are added to every record: an application that reads headers sees them."
    if topics and found.target.group_offsets and not (found.stored and found.stored.committed):
        count = len(found.target.group_offsets)
        yield (
            f"Group {found.names.group} has {count} committed offset(s) on the target; they are"
            " kept for a rollback before others take their place."
        )


def _about_placed(topic: PlacedTopic) -> str:
    where = f"Topic {topic.target} is left as it is on the target"
    if topic.inputs_are_at is InputsAt.LATEST:
        return (
            f"{where}: the group goes on at its end as of now ({len(topic.offsets)} partition(s))."
            " What lies in it is never read; what of it the application had not read is lost."
        )
    by = f", by the offset map of restore {topic.written_by} of {topic.writer_application_id}"
    return (
        f"{where}: the group goes on at the same records in it ({len(topic.offsets)} partition(s)"
        f"{by if topic.written_by else ''})."
    )


def _is_later(noted: NotedFacts | None) -> bool:
    return noted is not None and noted.later


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more
