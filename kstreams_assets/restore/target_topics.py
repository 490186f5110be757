"""What topics are called on the target, and the configs they get and get back. Pure."""

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from kstreams_assets.app.names import internal_topic, name_problem
from kstreams_assets.checks import Finding
from kstreams_assets.restore.request import RestoreMode, RestoreRequest

_FEW = 3


@dataclass(frozen=True, slots=True)
class TargetNames:
    """`group` is the application id on the target, `targets` maps source to target topics.

    `internal` are the source topics that Kafka Streams creates, `excluded` those that the request
    leaves out. The latter are no targets; `placed` has their names where the group is to go on in
    them.
    """

    group: str
    targets: Mapping[str, str]
    internal: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    placed: Mapping[str, str] = field(default_factory=dict)
    refusals: tuple[Finding, ...] = ()


def target_names(
    application_id: str,
    topics: Collection[str],
    internal: Collection[str],
    request: RestoreRequest,
) -> TargetNames:
    """Names on the target for these source topics; `internal` are those that Streams creates.

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
    refusals = [
        *_group_refusals(group),
        *_unknown(topics, excluded, request),
        *_illegal(targets),
        *_shared({**targets, **placed}),
        *_underivable(application_id, group, targets, derived, request),
    ]
    return TargetNames(
        group, targets, frozenset(internal), frozenset(excluded), placed, tuple(refusals)
    )


def _renamed(topic: str, application_id: str, group: str) -> str:
    prefix = internal_topic(application_id, "")
    if not topic.startswith(prefix):
        return topic
    return internal_topic(group, topic.removeprefix(prefix))


def _group_refusals(group: str) -> Iterable[Finding]:
    problem = name_problem(group)
    if problem is not None:
        yield Finding(
            f"application_id {group!r}",
            f"The application id {problem}.",
            action="It is part of topic names: choose one that Kafka takes as a topic name.",
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
                f"The topic is given the name {request.topics[name]!r} and is excluded, too.",
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
    """Kafka itself refuses a name that differs from another one in `.` and `_` alone."""
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in targets.items():
        sources[target.replace(".", "_")].append(source)
    for same in sources.values():
        if len(same) > 1:
            names = sorted({targets[source] for source in same})
            told = repr(names[0])
            if len(names) > 1:
                told = " and ".join(map(repr, names)) + ", which Kafka takes for one name"
            yield Finding(
                f"topics {', '.join(same)}",
                f"{len(same)} topics would be restored into {told}.",
                action="Give each a name of its own in topics, or another prefix.",
            )


def _underivable(
    application_id: str,
    group: str,
    targets: Mapping[str, str],
    derived: Mapping[str, str],
    request: RestoreRequest,
) -> Iterable[Finding]:
    """Internal topics that the application on the target would not look for."""
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
                f"It is internal, but its name does not begin with {prefix!r}: what application"
                f" {group} calls it is not known.",
                action="Give its name on the target in topics.",
            )


def _hint(name: str, topics: Iterable[str]) -> str:
    plain = "".join(character for character in name if character not in "*?[]")
    by_lower = {topic.lower(): topic for topic in topics}
    near = difflib.get_close_matches(plain.lower(), by_lower, n=_FEW, cutoff=0.5)
    return f" (near: {', '.join(by_lower[lower] for lower in near)})" if near else ""


MAX_MESSAGE_BYTES = "max.message.bytes"
TIMESTAMP_TYPE = "message.timestamp.type"
MIN_IN_SYNC = "min.insync.replicas"

LARGEST_BATCH = 104_857_600
"""What a broker takes in one request by default (`socket.request.max.bytes`)."""

_FOR_EVER = str(2**63 - 1)
_RELAXED: Mapping[str, str] = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.before.max.ms": _FOR_EVER,
    "message.timestamp.after.max.ms": _FOR_EVER,
    "min.compaction.lag.ms": _FOR_EVER,
    "max.compaction.lag.ms": _FOR_EVER,
    # A segment is rolled when timestamps jump forward: old and new ones in turn would make many.
    "segment.ms": _FOR_EVER,
}
_DEFAULT_MESSAGE_BYTES = 1_048_588
_NOT_CARRIED = (
    # of certain brokers, by their ids
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    # gone with Kafka 4.0, which refuses them
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
"""Those that Kafka Streams gives its repartition topics (`RepartitionTopicConfig`)."""


@dataclass(frozen=True, slots=True)
class RestoredConfigs:
    """`configs` while it is restored; `put_back` later, None removes the topic's own value."""

    configs: Mapping[str, str]
    put_back: Mapping[str, str | None]
    notes: tuple[str, ...] = ()


def of_new_topic(
    topic: str, source: Mapping[str, str], *, replication_factor: int
) -> RestoredConfigs:
    """Those of a topic to create, from the ones that were set on the source topic."""
    own = {name: value for name, value in source.items() if name not in _NOT_CARRIED}
    notes = []
    if dropped := sorted(source.keys() - own.keys()):
        notes.append(
            f"Configs of {topic} that mean nothing on the target are left out:"
            f" {', '.join(dropped)}."
        )
    if int(own.get(MIN_IN_SYNC, 1)) > replication_factor:
        notes.append(
            f"{MIN_IN_SYNC} of {topic} is {replication_factor} instead of {own[MIN_IN_SYNC]}, for"
            f" it has {replication_factor} replica(s) only: nothing could be written otherwise."
        )
        own[MIN_IN_SYNC] = str(replication_factor)
    limit = max(int(own.get(MAX_MESSAGE_BYTES, _DEFAULT_MESSAGE_BYTES)), LARGEST_BATCH)
    relaxed = {**_RELAXED, TIMESTAMP_TYPE: "CreateTime", MAX_MESSAGE_BYTES: str(limit)}
    put_back = {name: own.get(name) for name in relaxed}
    return RestoredConfigs({**own, **relaxed}, put_back, tuple(notes))


def of_existing_topic(explicit: Mapping[str, str]) -> RestoredConfigs:
    """Those of a topic that is there; type and size of its records stay as they are."""
    return RestoredConfigs(dict(_RELAXED), {name: explicit.get(name) for name in _RELAXED})
