"""What any live broker says of the cluster: topics, brokers, replicas, configs, retention."""

import base64
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import kafka.errors as client_errors
from kafka.errors import TopicAuthorizationFailedError
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
)
from kstreams_assets.kafka.leaders import TOPIC_NOT_ALLOWED
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import TopicPartitionId

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


_REPLICAS = "replicas"
# From version 10 on topics may go by id.
_METADATA_BY_NAME_VERSION = 9


@dataclass(frozen=True, slots=True)
class Replicas:
    """The brokers (ids) that keep a partition, and those of them that are in sync."""

    brokers: tuple[int, ...]
    in_sync: tuple[int, ...]


def replicas(wire: WireClient, topics: Iterable[str]) -> dict[TopicPartitionId, Replicas]:
    """The replicas of every partition of these topics, as one broker knows them.

    Topics that are not there are left out. Raises AuthorizationFailedError (DESCRIBE; it names
    every topic), ClusterUnavailableError.
    """
    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(set(topics))]
    if not wanted:
        return {}
    response = wire.request(
        lambda: MetadataRequest(
            topics=wanted, allow_auto_topic_creation=False, max_version=_METADATA_BY_NAME_VERSION
        ),
        operation=_REPLICAS,
    )
    denied = sorted(t.name for t in response.topics if t.error_code == TOPIC_NOT_ALLOWED)
    if denied:
        resource = f"topic{'s' if len(denied) > 1 else ''} {', '.join(denied)}"
        raise AuthorizationFailedError(operation=_REPLICAS, resource=resource, needed="DESCRIBE")
    return {
        TopicPartitionId(topic.name, entry.partition_index): Replicas(
            tuple(sorted(entry.replica_nodes)), tuple(sorted(entry.isr_nodes))
        )
        for topic in response.topics
        for entry in topic.partitions
    }


_DESCRIBE_CONFIGS: Final = "describe_configs"
_BROKER: Final = 4
# The first that is set holds; a broker's hours always are.
_SETTINGS: Final = {
    "log.retention.ms": 1,
    "log.retention.minutes": 60_000,
    "log.retention.hours": 3_600_000,
}


def broker_retention_ms(wire: WireClient) -> int | None:
    """The brokers' default of `retention.ms`, -1 for without end; None when they do not tell it.

    Needs DESCRIBE_CONFIGS on the cluster, and says None without. Raises ClusterUnavailableError.
    """
    for broker in wire.broker_ids(operation=_DESCRIBE_CONFIGS):
        with contextlib.suppress(ClusterUnavailableError):  # another one tells the same
            return _of_broker(wire, broker)
    return None


def _of_broker(wire: WireClient, broker: int) -> int | None:
    response = wire.request(
        lambda: DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=_BROKER,
                    resource_name=str(broker),
                    configuration_keys=list(_SETTINGS),
                )
            ],
            include_synonyms=False,
            include_documentation=False,
        ),
        operation=_DESCRIBE_CONFIGS,
        node=broker,
    )
    told = {entry.name: entry.value for entry in response.results[0].configs or ()}
    for name, unit_ms in _SETTINGS.items():
        value = told.get(name)
        if value not in (None, ""):
            return int(value) * unit_ms if int(value) >= 0 else -1
    return None


_TOPIC_CONFIGS: Final = "describe_configs"
_TOPIC: Final = 2
_ABSENT: Final = client_errors.UnknownTopicOrPartitionError.errno


def topic_configs(wire: WireClient, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The configs of topics by name, defaults included; topics that are not there are left out.

    Raises AuthorizationFailedError (DESCRIBE_CONFIGS; it names every topic), KafkaRequestError,
    ClusterUnavailableError.
    """
    wanted = sorted(set(topics))
    if not wanted:
        return {}
    response = wire.request(
        lambda: DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=name, configuration_keys=None
                )
                for name in wanted
            ],
            include_synonyms=False,
            include_documentation=False,
        ),
        operation=_TOPIC_CONFIGS,
    )
    codes = {result.resource_name: result.error_code for result in response.results}
    denied = sorted(name for name, code in codes.items() if code == TOPIC_NOT_ALLOWED)
    if denied:
        resource = f"topic{'s' if len(denied) > 1 else ''} {', '.join(denied)}"
        raise AuthorizationFailedError(
            operation=_TOPIC_CONFIGS, resource=resource, needed="DESCRIBE_CONFIGS"
        )
    for result in response.results:
        if result.error_code not in (0, _ABSENT):
            raise KafkaRequestError(
                operation=_TOPIC_CONFIGS,
                resource=f"topic {result.resource_name}",
                reason=result.error_message or f"error {result.error_code}",
            )
    return {
        result.resource_name: {
            entry.name: entry.value for entry in result.configs if entry.value is not None
        }
        for result in response.results
        if result.error_code == 0
    }
