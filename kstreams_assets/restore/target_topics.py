"""Target topics: names, configs, and the positions of a group in topics that are not restored."""

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from kstreams_assets.app.model import TopicRole
from kstreams_assets.app.names import internal_topic, name_problem
from kstreams_assets.checks import Finding
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import PartitionCut, RecoveryPoint
from kstreams_assets.model.restores import (
    InputsAt,
    PlacedTopic,
    RestoreMode,
    StoredMap,
    StoredRestore,
)
from kstreams_assets.offsets import TopicPartitionId, offsets_of_topic
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import InputsExtent, RestoreRequest
from kstreams_assets.restore.selection import Roles
from kstreams_assets.restore.target import TargetTopic

_FEW = 3


@dataclass(frozen=True, slots=True)
class TargetNames:
    """`group` is the application id on the target, `targets` maps source to target topics.

    `internal` are the source topics created by Kafka Streams, `excluded` those that the request
    leaves out. Excluded topics are missing in `targets`; `placed` has the names of those in which
    the group continues.
    """

    group: str
    targets: Mapping[str, str]
    internal: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    placed: Mapping[str, str] = field(default_factory=dict)
    blockers: tuple[Finding, ...] = ()


def target_names(
    application_id: str,
    topics: Collection[str],
    internal: Collection[str],
    request: RestoreRequest,
) -> TargetNames:
    """Return target names for these source topics; `internal` are those created by Streams.

    Kafka Streams derives the names of its internal topics from the application id, so a new id
    renames them and `prefix` does not. `request.topics` wins over both.
    """
    group = application_id if request.application_id is None else request.application_id
    excluded = {t for t in topics if any(fnmatchcase(t, glob) for glob in request.exclude)}
    derived = {t: _renamed(t, application_id, group) for t in sorted(internal) if t in topics}
    names = {
        topic: request.topics.get(topic, derived.get(topic, request.prefix + topic))
        for topic in sorted(set(topics))
    }
    targets = {topic: name for topic, name in names.items() if topic not in excluded}
    placed = {} if request.inputs_are_at is None else {t: names[t] for t in sorted(excluded)}
    derived = {topic: name for topic, name in derived.items() if topic not in excluded}
    blockers = [
        *_group_blockers(group),
        *_unknown(topics, excluded, request),
        *_illegal(targets),
        *_shared({**targets, **placed}),
        *_underivable(application_id, group, targets, derived, request),
    ]
    return TargetNames(
        group, targets, frozenset(internal), frozenset(excluded), placed, tuple(blockers)
    )


def _renamed(topic: str, application_id: str, group: str) -> str:
    prefix = internal_topic(application_id, "")
    if not topic.startswith(prefix):
        return topic
    return internal_topic(group, topic.removeprefix(prefix))


def _group_blockers(group: str) -> Iterable[Finding]:
    problem = name_problem(group)
    if problem is not None:
        yield Finding(
            f"application_id {group!r}",
            f"The application id {problem}.",
            action="It is part of topic names. Choose an id that is valid in a topic name.",
        )


def _unknown(
    topics: Collection[str], excluded: Collection[str], request: RestoreRequest
) -> Iterable[Finding]:
    remedy = "Correct the name (case sensitive) or take it out of the request."
    for name in sorted(request.topics):
        if name not in topics:
            yield Finding(
                f"topics: {name}",
                f"The application has no topic {name!r}{_hint(name, topics)}.",
                action=remedy,
            )
        elif name in excluded and request.inputs_are_at is None:
            yield Finding(
                f"topics: {name}",
                f"The topic has the target name {request.topics[name]!r}, but is also excluded.",
                action="Take it out of topics or out of exclude.",
            )
    for glob in request.exclude:
        if not any(fnmatchcase(topic, glob) for topic in topics):
            yield Finding(
                f"exclude: {glob}",
                f"The pattern {glob!r} matches no topic of the application{_hint(glob, topics)}.",
                action=remedy,
            )


def _illegal(targets: Mapping[str, str]) -> Iterable[Finding]:
    for source, target in targets.items():
        problem = name_problem(target)
        if problem is not None:
            yield Finding(
                f"topic {source}",
                f"Its name on the target, {target!r}, {problem}.",
                action="Choose another prefix, application id or name in topics.",
            )


def _shared(targets: Mapping[str, str]) -> Iterable[Finding]:
    """Yield equal names; Kafka refuses names that differ from another one only in `.` and `_`."""
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in targets.items():
        sources[target.replace(".", "_")].append(source)
    for same in sources.values():
        if len(same) > 1:
            names = sorted({targets[source] for source in same})
            listed = repr(names[0])
            if len(names) > 1:
                listed = " and ".join(map(repr, names)) + ", which Kafka treats as equal"
            yield Finding(
                f"topics {', '.join(same)}",
                f"{len(same)} topics get the same name on the target: {listed}.",
                action="Give each topic a unique name in topics, or use another prefix.",
            )


def _underivable(
    application_id: str,
    group: str,
    targets: Mapping[str, str],
    derived: Mapping[str, str],
    request: RestoreRequest,
) -> Iterable[Finding]:
    """Yield internal topics that the application on the target would not find."""
    if request.mode is not RestoreMode.STATE:
        return
    prefix = internal_topic(application_id, "")
    for topic, expected in derived.items():
        if topic.startswith(prefix) and targets[topic] != expected:
            yield Finding(
                f"topic {topic}",
                f"It would be called {targets[topic]!r}, but application {group} looks for"
                f" {expected!r} and would start with an empty store.",
                action="Take it out of topics; application_id renames internal topics.",
            )
        elif not topic.startswith(prefix) and group != application_id and topic == targets[topic]:
            yield Finding(
                f"topic {topic}",
                f"It is internal, but its name does not begin with {prefix!r}: its name for"
                f" application {group} is unknown.",
                action="Give its name on the target in topics.",
            )


def _hint(name: str, topics: Iterable[str]) -> str:
    plain = "".join(character for character in name if character not in "*?[]")
    by_lower = {topic.lower(): topic for topic in topics}
    near = difflib.get_close_matches(plain.lower(), by_lower, n=_FEW, cutoff=0.5)
    return f" (similar: {', '.join(by_lower[lower] for lower in near)})" if near else ""


MAX_MESSAGE_BYTES = "max.message.bytes"
MAX_DECOMPRESSED = "max.decompressed.message.bytes"
"""For a single record, since Kafka 4.4; records from before a reduction may be larger."""
TIMESTAMP_TYPE = "message.timestamp.type"
MIN_IN_SYNC = "min.insync.replicas"

LARGEST_BATCH = 104_857_600
"""The largest request that a broker accepts by default (`socket.request.max.bytes`)."""

_FOR_EVER = str(2**63 - 1)
_RELAXED: Mapping[str, str] = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.before.max.ms": _FOR_EVER,
    "message.timestamp.after.max.ms": _FOR_EVER,
    "min.compaction.lag.ms": _FOR_EVER,
    "max.compaction.lag.ms": _FOR_EVER,
    # A segment is rolled when timestamps jump forward: alternating ones would make many.
    "segment.ms": _FOR_EVER,
}
_DEFAULT_MESSAGE_BYTES = 1_048_588
NO_DECOMPRESSED_LIMIT = str(2**31 - 9)
"""The default: the largest array of a JVM (`ServerLogConfigs`)."""
_NOT_CARRIED = (
    # of certain brokers, by their ids
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    # removed in Kafka 4.0, which refuses them
    "message.timestamp.difference.max.ms",
    "message.format.version",
    "message.downconversion.enable",
)

REPARTITION_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "segment.bytes": "52428800",
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}
"""The configs of repartition topics in Kafka Streams (`RepartitionTopicConfig`)."""


@dataclass(frozen=True, slots=True)
class RestoredConfigs:
    """`configs` during the restore; `put_back` later, None removes the topic's own value."""

    configs: Mapping[str, str]
    put_back: Mapping[str, str | None]
    notes: tuple[str, ...] = ()


def of_new_topic(
    topic: str, source: Mapping[str, str], *, replication_factor: int, known: Collection[str] = ()
) -> RestoredConfigs:
    """Return the configs of a topic to create, from those set on the source topic.

    `known` are configs that the target's release is known to have.
    """
    own = {name: value for name, value in source.items() if name not in _NOT_CARRIED}
    notes = []
    if dropped := sorted(source.keys() - own.keys()):
        notes.append(
            f"Configs of {topic} without effect on the target are omitted: {', '.join(dropped)}."
        )
    if int(own.get(MIN_IN_SYNC, 1)) > replication_factor:
        notes.append(
            f"{MIN_IN_SYNC} of {topic} is {replication_factor} instead of {own[MIN_IN_SYNC]}:"
            f" with {replication_factor} replica(s) nothing could be written otherwise."
        )
        own[MIN_IN_SYNC] = str(replication_factor)
    limit = max(int(own.get(MAX_MESSAGE_BYTES, _DEFAULT_MESSAGE_BYTES)), LARGEST_BATCH)
    relaxed = {**_RELAXED, TIMESTAMP_TYPE: "CreateTime", MAX_MESSAGE_BYTES: str(limit)}
    if MAX_DECOMPRESSED in own or MAX_DECOMPRESSED in known:
        relaxed[MAX_DECOMPRESSED] = NO_DECOMPRESSED_LIMIT
    put_back = {name: own.get(name) for name in relaxed}
    return RestoredConfigs({**own, **relaxed}, put_back, tuple(notes))


def of_existing_topic(explicit: Mapping[str, str], effective: Mapping[str, str]) -> RestoredConfigs:
    """Return the configs of an existing topic; timestamp type and batch size stay unchanged."""
    relaxed = dict(_RELAXED)
    if MAX_DECOMPRESSED in effective:
        relaxed[MAX_DECOMPRESSED] = NO_DECOMPRESSED_LIMIT
    return RestoredConfigs(relaxed, {name: explicit.get(name) for name in relaxed})


@dataclass(frozen=True, slots=True)
class Writer:
    """The restore that wrote a topic of the target: its recovery point and its offset maps."""

    restore: StoredRestore
    point: RecoveryPoint | None = None
    maps: Mapping[TopicPartitionId, StoredMap] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExcludedTopic:
    """An excluded topic in which the group had committed offsets at the recovery point.

    `there` is the topic on the target, None if it is absent. `stable_ends` are its last stable
    offsets by partition. `writer` is set if a restore of this warehouse wrote it.
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
    """Return the facts of an excluded topic; `writers` are restores by ids of written topics."""
    found = there.get(target)
    if found is None:
        return ExcludedTopic(source, target)
    partitions = [TopicPartitionId(target, number) for number in range(found.partitions)]
    stable_ends = offsets_of_topic(cluster.last_stable_offsets(partitions), target)
    restore = writers.get(found.topic_id)
    if restore is None:
        return ExcludedTopic(source, target, found, stable_ends)
    application_id = restore.application_id
    repo = Repository.of(warehouse, application_id)
    points = repo.points.load([restore.point_id])
    maps = repo.offset_maps.load(restore.restore_id, topics=[source])
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
    """Return the topic with its offsets on the target, or None and blockers that explain why.

    `mapped`: each committed offset is set to the target offset of its record. That is the same
    offset in the topic of the recovery point itself, else the offset map of the restore that wrote
    the topic is used. `latest`: every partition is set to its present last stable offset.
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
    offsets = point.group.of_topic(topic.source)
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
                f"The group's position in it cannot be determined. {problems[0]}{more}",
                action="Restore a recovery point of this application that was taken before the one"
                " the topic was restored from, restore the other application from a later one, or"
                " use --inputs-are-at latest if the records in the topic are not to be read.",
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
    """Return a committed offset on the target, or why it is unknown."""
    number, cut = committed.partition, point.cut(committed.id)
    if cut is None or number >= there.partitions:
        return "it is not in the recovery point, or not on the target."
    start, end = there.starts[number], there.ends[number]
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
        return f"offset {at}, where it would continue, is outside its log ({start} to {end})."
    return at


def _by_writer(
    writer: Writer, committed: GroupOffset, point: RecoveryPoint, cut: PartitionCut, end: int
) -> int | str:
    restore = writer.restore
    name = f"restore {restore.restore_id} of {restore.application_id}"
    if not restore.matches_backup:
        return f"{name} wrote it and is {restore.state}; run that restore to its end first."
    other = writer.point.cut(cut.id) if writer.point else None
    stored = writer.maps.get(cut.id)
    if writer.point is None or other is None or stored is None:
        return f"the recovery point or the offset map of its writer, {name}, is gone."
    if (writer.point.cluster_id, other.topic_id) != (point.cluster_id, cut.topic_id):
        return f"{name} wrote it from another topic of this name (id {other.topic_id})."
    first = _first(writer, writer.point, other)
    # Behind an excluded transaction nothing is known: its application writes it again.
    if not first <= committed.offset <= other.whole_below:
        return (
            f"the group had committed offset {committed.offset}, {name} restored"
            f" {first} to {other.whole_below}."
        )
    if end < stored.map.end:
        return f"it ends at {end}, but {name} had written it up to {stored.map.end}."
    return stored.map.map(committed.offset)


def _first(writer: Writer, point: RecoveryPoint, cut: PartitionCut) -> int:
    """Return the first source offset from which on all records of the cut were restored."""
    if writer.restore.asked.get("inputs", InputsExtent.FULL.value) == InputsExtent.FULL.value:
        return cut.log_start
    return max(cut.log_start, point.group.offset_in(cut) or 0)


def differing_positions(
    topics: Iterable[PlacedTopic], again: Mapping[str, PlacedTopic], logs: Mapping[str, TargetTopic]
) -> list[str]:
    """Return placed topics whose offsets do not match the present state, in words.

    A topic placed at an end that has moved since keeps that offset: newer records are read.
    """
    wrong = []
    for topic in topics:
        now, there = again.get(topic.source), logs.get(topic.target)
        if now is None or there is None or there.topic_id != topic.target_topic_id:
            wrong.append(f"{topic.target} is not the topic that was planned with")
        elif topic.inputs_are_at is InputsAt.LATEST:
            wrong += [
                f"{topic.target}-{o.partition} {o.offset} is outside its log"
                for o in topic.offsets
                if not there.starts[o.partition] <= o.offset <= there.ends[o.partition]
            ]
        elif now.offsets != topic.offsets:
            wrong.append(f"{topic.target} has other offsets by its offset map")
    return wrong
