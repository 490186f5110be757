"""Which brokers keep a partition, and which of them are in sync with its leader."""

from collections.abc import Iterable
from dataclasses import dataclass

from kafka.protocol.metadata import MetadataRequest

from kstreams_assets.errors import AuthorizationFailedError
from kstreams_assets.kafka.leaders import TOPIC_NOT_ALLOWED
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import TopicPartitionId

_OPERATION = "replicas"
# From version 10 on topics may go by id.
_METADATA_VERSION = 9


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
            topics=wanted, allow_auto_topic_creation=False, max_version=_METADATA_VERSION
        ),
        operation=_OPERATION,
    )
    denied = sorted(t.name for t in response.topics if t.error_code == TOPIC_NOT_ALLOWED)
    if denied:
        resource = f"topic{'s' if len(denied) > 1 else ''} {', '.join(denied)}"
        raise AuthorizationFailedError(operation=_OPERATION, resource=resource, needed="DESCRIBE")
    return {
        TopicPartitionId(topic.name, entry.partition_index): Replicas(
            tuple(sorted(entry.replica_nodes)), tuple(sorted(entry.isr_nodes))
        )
        for topic in response.topics
        for entry in topic.partitions
    }
