"""Which broker leads a partition, remembered until it turns out wrong."""

import time
from collections.abc import Iterable

import kafka.errors as client_errors
from kafka.protocol.metadata import MetadataRequest

from kstreams_assets.errors import AuthorizationFailedError, TopicNotFoundError
from kstreams_assets.kafka.positions import TopicPartitionId
from kstreams_assets.kafka.wire import WireClient

MOVED = {
    client_errors.UnknownTopicOrPartitionError.errno,
    client_errors.LeaderNotAvailableError.errno,
    client_errors.NotLeaderForPartitionError.errno,
    client_errors.ReplicaNotAvailableError.errno,
    client_errors.KafkaStorageError.errno,
    client_errors.FencedLeaderEpochError.errno,
    client_errors.UnknownLeaderEpochError.errno,
    client_errors.OffsetNotAvailableError.errno,
}
"""Errors of a partition that pass: forget its leader, and ask again."""
TOPIC_NOT_ALLOWED = client_errors.TopicAuthorizationFailedError.errno

_UNKNOWN_TOPIC = client_errors.UnknownTopicOrPartitionError.errno
# From version 10 on topics may go by id.
_METADATA_VERSION = 9
_MORE_ATTEMPTS = 3
_RETRY_S = 0.1


class PartitionLeaders:
    """The leaders of partitions of one cluster, as its brokers tell them."""

    def __init__(self, wire: WireClient, *, cluster: str) -> None:
        self._wire = wire
        self._cluster = cluster
        self._leaders: dict[TopicPartitionId, int] = {}

    def of(
        self, partitions: Iterable[TopicPartitionId], *, operation: str, timeout_s: float
    ) -> dict[TopicPartitionId, int]:
        """The broker that leads each partition; partitions in an election are absent.

        Asks a broker only for what is not remembered. Raises TopicNotFoundError for topics
        and partitions that do not exist, AuthorizationFailedError (DESCRIBE),
        ClusterUnavailableError.
        """
        wanted = list(partitions)
        unknown = sorted({p.topic for p in wanted if p not in self._leaders})
        absent = self._ask(unknown, wanted, operation, timeout_s) if unknown else []
        for _ in range(_MORE_ATTEMPTS if absent else 0):
            time.sleep(_RETRY_S)  # a broker may not have heard yet of a topic just created
            absent = self._ask(unknown, wanted, operation, timeout_s)
            if not absent:
                break
        if absent:
            raise TopicNotFoundError(topics=absent, cluster=self._cluster)
        return {p: self._leaders[p] for p in wanted if p in self._leaders}

    def forget(self, partition: TopicPartitionId) -> None:
        """Ask again next time."""
        self._leaders.pop(partition, None)

    def _ask(
        self, names: list[str], wanted: list[TopicPartitionId], operation: str, timeout_s: float
    ) -> list[str]:
        """Remember the leaders of these topics; the names of what does not exist."""
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(
            topics=topics, allow_auto_topic_creation=False, max_version=_METADATA_VERSION
        )
        response = self._wire.request(
            lambda: request, operation=operation, timeout_s=timeout_s, retry=False
        )
        answers = {topic.name: topic for topic in response.topics}
        denied = [n for n in names if answers[n].error_code == TOPIC_NOT_ALLOWED]
        if denied:
            resource = f"topic{'s' if len(denied) > 1 else ''} {', '.join(denied)}"
            raise AuthorizationFailedError(
                operation=operation, resource=resource, needed="DESCRIBE"
            )
        absent = [n for n in names if answers[n].error_code == _UNKNOWN_TOPIC]
        for name in names:
            known = {entry.partition_index for entry in answers[name].partitions}
            for entry in answers[name].partitions:
                if entry.leader_id >= 0:
                    partition = TopicPartitionId(name, entry.partition_index)
                    self._leaders[partition] = entry.leader_id
            if answers[name].error_code == 0:
                absent += (
                    f"{name} (partition {p.partition})"
                    for p in wanted
                    if p.topic == name and p.partition not in known
                )
        return absent
