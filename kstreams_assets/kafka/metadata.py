"""The brokers and topics of a cluster, by our own metadata requests.

librdkafka is not used: `recovery-points take` needs these answers and does not load
confluent-kafka.
"""

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import kafka.errors as client_errors
from kafka.admin import ACLOperation

from kstreams_assets.kafka.leaders import Requests, answers_in
from kstreams_assets.kafka.wire import TOPIC_NOT_ALLOWED, topics_not_allowed
from kstreams_assets.offsets import TopicPartitionId

ABSENT: Final = client_errors.UnknownTopicOrPartitionError.errno
RETRY_S: Final = 0.1
_MORE_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """A topic: its id in Kafka's own notation (22 characters) and its number of partitions."""

    name: str
    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The cluster id, and every topic that this user may describe, by name."""

    cluster_id: str
    topics: Mapping[str, TopicIdentity]


@dataclass(frozen=True, slots=True)
class Replicas:
    """The brokers (ids) with replicas of a partition, and those of them that are in sync."""

    brokers: tuple[int, ...]
    in_sync: tuple[int, ...]


class MetadataRequests(Requests):
    """The part of `KafkaCluster` for topics and brokers in general."""

    _cluster_id: str | None = None

    def cluster_id(self) -> str:
        """The cluster id; requested once."""
        return self._cluster_id or self.metadata().cluster_id

    def metadata(self) -> ClusterMetadata:
        """Ids and partitions of every topic that this user may describe; any live broker
        answers."""
        response = self._wire.metadata(None, operation="metadata")
        self._cluster_id = str(response.cluster_id)
        return ClusterMetadata(self._cluster_id, identities(response.topics))

    def topics(self) -> Mapping[str, int]:
        """Number of partitions of every topic that this user may describe, including internal
        ones."""
        return {name: topic.partitions for name, topic in self.metadata().topics.items()}

    def hidden_topics(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these topics that this user may not describe, whether they exist or not.

        A list of all topics omits them, so they look absent. If requested by name, the broker
        reports that it hides them (`KafkaApis.handleTopicMetadataRequest`).
        """
        names = sorted(set(names))
        if not names:
            return frozenset()
        response = self._wire.metadata(names, operation="metadata")
        return frozenset(t.name for t in response.topics if t.error_code == TOPIC_NOT_ALLOWED)

    def broker_ids(self) -> tuple[int, ...]:
        """The ids of the live brokers, in order."""
        response = self._wire.metadata([], operation="metadata")
        return tuple(sorted(broker.node_id for broker in response.brokers))

    def replicas(self, topics: Iterable[str]) -> Mapping[TopicPartitionId, Replicas]:
        """The brokers with replicas of each partition of these topics; absent topics are omitted.

        Needs DESCRIBE on the topics.
        """
        operation, names = "replicas", sorted(set(topics))
        if not names:
            return {}
        response = self._wire.metadata(names, operation=operation)
        denied = [t.name for t in response.topics if t.error_code == TOPIC_NOT_ALLOWED]
        if denied:
            raise topics_not_allowed(operation, denied, "DESCRIBE")
        return {
            id_: Replicas(tuple(sorted(entry.replica_nodes)), tuple(sorted(entry.isr_nodes)))
            for id_, entry in answers_in(response)
        }

    def _topics_with_rights(self, names: Sequence[str], operation: str) -> Sequence[Any]:
        """The answers by name; a broker may not know a new topic yet."""
        more_attempts = _MORE_ATTEMPTS
        while True:
            topics = self._wire.metadata(names, operation=operation, with_rights=True).topics
            if not more_attempts or all(topic.error_code != ABSENT for topic in topics):
                return sorted(topics, key=lambda topic: topic.name)
            more_attempts -= 1
            time.sleep(RETRY_S)


def identities(topics: Iterable[Any]) -> dict[str, TopicIdentity]:
    """The topics of a metadata response that exist and may be described, by name."""
    return {
        topic.name: TopicIdentity(topic.name, topic_id(topic.topic_id), len(topic.partitions))
        for topic in sorted(topics, key=lambda topic: topic.name)
        if topic.partitions
    }


def topic_id(uuid: UUID) -> str:
    """A topic id as Kafka's own `Uuid` writes it."""
    return base64.urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def operation_names(codes: Iterable[int]) -> frozenset[str]:
    """Kafka's names of these operations: READ, DESCRIBE ...; kafka-python has parsed the bits."""
    return frozenset(operation.name for operation in ACLOperation if operation.value in codes)
