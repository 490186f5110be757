"""Offsets of a cluster's logs: log start, high watermark, last stable offset, by time.

Asked by requests of our own: librdkafka's list_offsets waits for a dead leader until its timeout,
and then gives the offset -1001 without any error.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from kafka.protocol.consumer import ListOffsetsRequest

from kstreams_assets.kafka.leaders import PartitionLeaders, ask_leaders
from kstreams_assets.kafka.librdkafka_admin import LibrdkafkaAdmin
from kstreams_assets.kafka.topics import granted
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import TopicPartitionId

EARLIEST = -2
LATEST = -1

_NONE = -1
_OPERATION = "list_offsets"
_LIST_OFFSETS_VERSION = 7


class Isolation(IntEnum):
    """Kafka's isolation levels, in the numbers of its protocol."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


def list_offsets(
    wire: WireClient,
    leaders: PartitionLeaders,
    wanted: Mapping[TopicPartitionId, int],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    timeout_s: float | None = None,
) -> dict[TopicPartitionId, int]:
    """The offset for EARLIEST, LATEST or a timestamp in ms of each partition; -1 for none.

    One request per leader, asked again while leaders change. Raises TopicNotFoundError,
    AuthorizationFailedError (DESCRIBE), ClusterUnavailableError, KafkaRequestError.
    """
    answers = ask_leaders(
        wire,
        leaders,
        wanted,
        lambda asked: _request(asked, isolation),
        _answers,
        operation=_OPERATION,
        timeout_s=timeout_s,
    )
    for partition, answer in answers.items():
        if wanted[partition] == LATEST:  # else it is the epoch of a record
            leaders.answered.setdefault(partition, set()).add(answer.leader_epoch)
    return {partition: answer.offset for partition, answer in answers.items()}


def offsets_for_times(
    wire: WireClient, leaders: PartitionLeaders, timestamps_ms: Mapping[TopicPartitionId, int]
) -> dict[TopicPartitionId, int | None]:
    """The first offset whose record has that timestamp or a later one, None when there is none."""
    found = list_offsets(wire, leaders, timestamps_ms)
    return {p: None if offset == _NONE else offset for p, offset in found.items()}


def delete_records(
    admin: LibrdkafkaAdmin, before: Mapping[TopicPartitionId, int], *, cluster: str
) -> dict[TopicPartitionId, int]:
    """Delete the records below the given offsets; the new log start of each partition.

    Raises TopicNotFoundError, AuthorizationFailedError (DELETE), KafkaRequestError.
    """
    if not before:
        return {}
    targets = [
        TopicPartition(partition.topic, partition.partition, offset)
        for partition, offset in before.items()
    ]
    results = admin.call(
        "delete_records",
        lambda client: client.delete_records(
            targets, request_timeout=admin.timeout_s, operation_timeout=admin.timeout_s
        ),
    )
    refused = {p.topic: r for p, r in results.items() if isinstance(r, KafkaException)}
    granted(refused, operation="delete_records", needed="DELETE", cluster=cluster)
    return {
        TopicPartitionId(p.topic, p.partition): result.low_watermark
        for p, result in results.items()
        if not isinstance(result, KafkaException)
    }


def _answers(response: Any) -> Iterator[tuple[TopicPartitionId, Any]]:  # noqa: ANN401
    for topic in response.topics:
        for answer in topic.partitions:
            yield TopicPartitionId(topic.name, answer.partition_index), answer


def _request(asked: Mapping[TopicPartitionId, int], isolation: Isolation) -> ListOffsetsRequest:
    topic = ListOffsetsRequest.ListOffsetsTopic
    by_topic: defaultdict[str, list[ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition]]
    by_topic = defaultdict(list)
    for partition, timestamp in asked.items():
        by_topic[partition.topic].append(
            topic.ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp)
        )
    return ListOffsetsRequest(
        isolation_level=isolation.value,
        topics=[topic(name=name, partitions=entries) for name, entries in by_topic.items()],
        min_version=2,
        max_version=_LIST_OFFSETS_VERSION,
    )
