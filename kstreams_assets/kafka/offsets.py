"""Offsets of a cluster's logs: log start, high watermark, last stable offset, by time.

Asked by requests of our own: librdkafka's list_offsets waits for a dead leader until its timeout,
and then gives the offset -1001 without any error.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from enum import IntEnum

import kafka.errors as client_errors
from confluent_kafka import KafkaException, TopicPartition
from kafka.protocol.consumer import ListOffsetsRequest

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
)
from kstreams_assets.kafka.leaders import MOVED, TOPIC_NOT_ALLOWED, PartitionLeaders
from kstreams_assets.kafka.librdkafka_admin import LibrdkafkaAdmin
from kstreams_assets.kafka.positions import TopicPartitionId
from kstreams_assets.kafka.topics import granted
from kstreams_assets.kafka.wire import WireClient

EARLIEST = -2
LATEST = -1

_NONE = -1
_RETRY_S = 0.05
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
    limit_s = wire.timeout_s if timeout_s is None else timeout_s
    deadline = time.monotonic() + limit_s
    found: dict[TopicPartitionId, int] = {}
    reason = ""
    while missing := [partition for partition in wanted if partition not in found]:
        remaining_s = max(0.001, deadline - time.monotonic())
        try:
            led = leaders.of(missing, operation=_OPERATION, timeout_s=remaining_s)
            by_leader: defaultdict[int, dict[TopicPartitionId, int]] = defaultdict(dict)
            for partition, leader in led.items():
                by_leader[leader][partition] = wanted[partition]
            reason = "an election is going on"
            for leader, asked in by_leader.items():
                reason = _ask(wire, leaders, leader, asked, isolation, found, deadline) or reason
        except ClusterUnavailableError as error:
            reason = error.reason
        if len(found) == len(wanted):
            break
        if time.monotonic() + _RETRY_S > deadline:
            absent = ", ".join(str(partition) for partition in missing if partition not in found)
            raise wire.unavailable(_OPERATION, limit_s, f"{reason}; no answer for {absent}")
        time.sleep(_RETRY_S)
    return dict(sorted(found.items()))


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


def _ask(
    wire: WireClient,
    leaders: PartitionLeaders,
    leader: int,
    asked: Mapping[TopicPartitionId, int],
    isolation: Isolation,
    found: dict[TopicPartitionId, int],
    deadline: float,
) -> str | None:
    """Put one leader's answers into `found`; the reason why some are missing."""
    remaining_s = max(0.001, deadline - time.monotonic())
    try:
        response = wire.request(
            lambda: _request(asked, isolation),
            operation=_OPERATION,
            node=leader,
            timeout_s=remaining_s,
            retry=False,
        )
    except ClusterUnavailableError as error:
        for partition in asked:
            leaders.forget(partition)
        return error.reason
    reason = None
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartitionId(topic.name, answer.partition_index)
            if answer.error_code == 0:
                found[partition] = answer.offset
                continue
            error = client_errors.for_code(answer.error_code).__name__
            if answer.error_code == TOPIC_NOT_ALLOWED:
                raise AuthorizationFailedError(
                    operation=_OPERATION, resource=f"topic {topic.name}", needed="DESCRIBE"
                )
            if answer.error_code not in MOVED:
                raise KafkaRequestError(operation=_OPERATION, resource=str(partition), reason=error)
            leaders.forget(partition)
            reason = error
    return reason


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
