"""Which broker leads a partition, and where its leader says that logs begin and end."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any

import kafka.errors as client_errors
from confluent_kafka import KafkaException, TopicPartition
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.admin import LibrdkafkaAdmin
from kstreams_assets.kafka.topics import granted
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import TopicPartitionId

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
_MOVED_RETRY_S = 0.05


class PartitionLeaders:
    """The leaders of partitions of one cluster, as its brokers tell them."""

    def __init__(self, wire: WireClient, *, cluster: str) -> None:
        self._wire = wire
        self._cluster = cluster
        self._leaders: dict[TopicPartitionId, int] = {}
        self.answered: dict[TopicPartitionId, set[int]] = {}
        """The leader epochs in which ends of logs were reported, since this was last cleared."""
        self._epochs: dict[TopicPartitionId, int] = {}

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

    def remember(self, partition: TopicPartitionId, leader: int, epoch: int) -> None:
        """Take this broker for the leader, in this epoch: it is from newer metadata."""
        self._leaders[partition], self._epochs[partition] = leader, epoch

    def newest_epoch(self, partition: TopicPartitionId) -> int:
        """The newest leader epoch of a partition that any answer named, -1 without one."""
        return max({self._epochs.get(partition, -1), *self.answered.get(partition, ())})

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
                    self._epochs[partition] = entry.leader_epoch
            if answers[name].error_code == 0:
                absent += (
                    f"{name} (partition {p.partition})"
                    for p in wanted
                    if p.topic == name and p.partition not in known
                )
        return absent


def ask_leaders(
    wire: WireClient,
    leaders: PartitionLeaders,
    wanted: Mapping[TopicPartitionId, int],
    make: Callable[[Mapping[TopicPartitionId, int]], ApiMessage],
    answers_in: Callable[[Any], Iterable[tuple[TopicPartitionId, Any]]],
    *,
    operation: str,
    timeout_s: float | None = None,
) -> dict[TopicPartitionId, Any]:
    """What its leader answers for each partition; one request per leader.

    Asked again while leaders change. `make` gives the request for some partitions, `answers_in`
    what a response says of each, with its `error_code`. Raises TopicNotFoundError,
    AuthorizationFailedError (DESCRIBE), ClusterUnavailableError, KafkaRequestError.
    """
    limit_s = wire.timeout_s if timeout_s is None else timeout_s
    deadline = time.monotonic() + limit_s
    found: dict[TopicPartitionId, Any] = {}
    reason = ""
    while missing := [partition for partition in wanted if partition not in found]:
        remaining_s = max(0.001, deadline - time.monotonic())
        try:
            led = leaders.of(missing, operation=operation, timeout_s=remaining_s)
            by_leader: defaultdict[int, dict[TopicPartitionId, int]] = defaultdict(dict)
            for partition, leader in led.items():
                by_leader[leader][partition] = wanted[partition]
            reason = "an election is going on"
            for leader, asked in by_leader.items():
                try:
                    response = wire.request(
                        lambda asked=asked: make(asked),
                        operation=operation,
                        node=leader,
                        timeout_s=max(0.001, deadline - time.monotonic()),
                        retry=False,
                    )
                except ClusterUnavailableError as error:
                    for partition in asked:
                        leaders.forget(partition)
                    reason = error.reason
                    continue
                for partition, answer in answers_in(response):
                    if answer.error_code == 0:
                        found[partition] = answer
                        continue
                    leaders.forget(partition)
                    reason = _passing(answer.error_code, partition, operation)
        except ClusterUnavailableError as error:
            reason = error.reason
        if len(found) == len(wanted):
            break
        if time.monotonic() + _MOVED_RETRY_S > deadline:
            absent = ", ".join(str(partition) for partition in missing if partition not in found)
            raise wire.unavailable(operation, limit_s, f"{reason}; no answer for {absent}")
        time.sleep(_MOVED_RETRY_S)
    return dict(sorted(found.items()))


def _passing(code: int, partition: TopicPartitionId, operation: str) -> str:
    """The name of an error that passes; raises the others."""
    if code == TOPIC_NOT_ALLOWED:
        raise AuthorizationFailedError(
            operation=operation, resource=f"topic {partition.topic}", needed="DESCRIBE"
        )
    error = client_errors.for_code(code).__name__
    if code not in MOVED:
        raise KafkaRequestError(operation=operation, resource=str(partition), reason=error)
    return error


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
