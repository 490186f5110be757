"""Which configs a restored topic has while it is restored, and which it gets back. Pure.

Retention goes by record timestamps: without relaxing, records with old timestamps are deleted
minutes after they were restored. Brokers refuse timestamps out of bounds, and `min.compaction.lag`
counts from record timestamps, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
