"""Which topics and brokers a cluster has, by one request to any live broker.

Of one's own, since librdkafka's admin client may wait for a dead broker until its timeout while
others could answer.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka.errors import TopicAuthorizationFailedError
from kafka.protocol.metadata import MetadataRequest

from kstreams_assets.kafka.wire import WireClient

_OPERATION = "metadata"
_WITH_TOPIC_IDS = 10
# From version 13 on the answer has a top-level error that older brokers do not know.
_METADATA_VERSION = 12


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """A topic: its id in Kafka's own notation (22 characters) and its number of partitions."""

    name: str
    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The id the cluster was formatted with, and every topic this user may describe, by name."""

    cluster_id: str
    topics: Mapping[str, TopicIdentity]


def cluster_metadata(wire: WireClient) -> ClusterMetadata:
    """What the cluster tells now; internal topics too. Raises ClusterUnavailableError."""
    response = _ask(wire, None)
    topics = {
        topic.name: TopicIdentity(topic.name, _notation(topic.topic_id), len(topic.partitions))
        for topic in sorted(response.topics, key=lambda topic: topic.name)
        if topic.partitions
    }
    return ClusterMetadata(str(response.cluster_id), topics)


def hidden_topics(wire: WireClient, names: Iterable[str]) -> frozenset[str]:
    """Those of these topics that this user may not describe, whether they exist or not.

    Left out of a list of all topics they look absent; asked for by name, the broker says that it
    does not say (`KafkaApis.handleTopicMetadataRequest`). Raises ClusterUnavailableError.
    """
    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(set(names))]
    if not wanted:
        return frozenset()
    denied = TopicAuthorizationFailedError.errno
    return frozenset(t.name for t in _ask(wire, wanted).topics if t.error_code == denied)


def broker_ids(wire: WireClient) -> tuple[int, ...]:
    """The ids of the brokers that are alive now, in order. Raises ClusterUnavailableError."""
    return tuple(sorted(broker.node_id for broker in _ask(wire, []).brokers))


def _ask(wire: WireClient, topics: list[Any] | None) -> Any:  # noqa: ANN401
    """The answer for these topics, None for all."""
    return wire.request(
        lambda: MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=False,
            min_version=_WITH_TOPIC_IDS,
            max_version=_METADATA_VERSION,
        ),
        operation=_OPERATION,
    )


def _notation(topic_id: UUID) -> str:
    """A topic id as Kafka's own `Uuid` writes it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
