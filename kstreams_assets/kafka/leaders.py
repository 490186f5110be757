"""Leaders of partitions, and the starts and ends of logs that they report."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, TypeVar

import kafka.errors as client_errors
from kafka.protocol.admin import DeleteRecordsRequest, DescribeLogDirsRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import ListOffsetsRequest

from kstreams_assets.errors import ClusterUnavailableError, KafkaRequestError, TopicNotFoundError
from kstreams_assets.kafka.throttle import unthrottled_time
from kstreams_assets.kafka.wire import TOPIC_NOT_ALLOWED, WireClient, topics_not_allowed
from kstreams_assets.offsets import TopicPartitionId

T = TypeVar("T")

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
"""Transient errors of a partition: forget its leader, and try again."""

_UNKNOWN_TOPIC = client_errors.UnknownTopicOrPartitionError.errno
_MORE_ATTEMPTS = 3
_RETRY_S = 0.1
_MOVED_RETRY_S = 0.05


class PartitionLeaders:
    """The leaders of partitions of one cluster, as reported by its brokers."""

    def __init__(self, wire: WireClient) -> None:
        self._wire = wire
        self._leaders: dict[TopicPartitionId, int] = {}
        self.answered: dict[TopicPartitionId, set[int]] = {}
        """The leader epochs in which ends of logs were reported, since this was last cleared."""
        self._epochs: dict[TopicPartitionId, int] = {}

    def of(
        self, partitions: Iterable[TopicPartitionId], *, operation: str, timeout_s: float
    ) -> dict[TopicPartitionId, int]:
        """The leader of each partition; partitions during an election are absent.

        Only unknown partitions cost a request. Raises TopicNotFoundError for missing topics and
        partitions, AuthorizationFailedError (DESCRIBE), ClusterUnavailableError.
        """
        wanted = list(partitions)
        unknown = sorted({p.topic for p in wanted if p not in self._leaders})
        absent = self._ask(unknown, wanted, operation, timeout_s) if unknown else []
        for _ in range(_MORE_ATTEMPTS if absent else 0):
            time.sleep(_RETRY_S)  # a broker may not know a new topic yet
            absent = self._ask(unknown, wanted, operation, timeout_s)
            if not absent:
                break
        if absent:
            raise TopicNotFoundError(topics=absent, cluster=self._wire.bootstrap_servers)
        return {p: self._leaders[p] for p in wanted if p in self._leaders}

    def forget(self, partition: TopicPartitionId) -> None:
        """Look the leader up again next time."""
        self._leaders.pop(partition, None)

    def remember(self, partition: TopicPartitionId, leader: int, epoch: int) -> None:
        """Set the leader and its epoch from newer metadata."""
        self._leaders[partition], self._epochs[partition] = leader, epoch

    def newest_epoch(self, partition: TopicPartitionId) -> int:
        """The newest leader epoch of a partition in any answer, -1 without one."""
        return max({self._epochs.get(partition, -1), *self.answered.get(partition, ())})

    def _ask(
        self, names: list[str], wanted: list[TopicPartitionId], operation: str, timeout_s: float
    ) -> list[str]:
        """Look up the leaders of these topics; return the names of missing ones."""
        response = self._wire.metadata(names, operation=operation, timeout_s=timeout_s, retry=False)
        denied = [t.name for t in response.topics if t.error_code == TOPIC_NOT_ALLOWED]
        if denied:
            raise topics_not_allowed(operation, denied, "DESCRIBE")
        absent = [t.name for t in response.topics if t.error_code == _UNKNOWN_TOPIC]
        for topic in response.topics:
            known = {entry.partition_index for entry in topic.partitions}
            for entry in topic.partitions:
                if entry.leader_id >= 0:
                    partition = TopicPartitionId(topic.name, entry.partition_index)
                    self.remember(partition, entry.leader_id, entry.leader_epoch)
            if topic.error_code == 0:
                absent += (
                    f"{topic.name} (partition {p.partition})"
                    for p in wanted
                    if p.topic == topic.name and p.partition not in known
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
    needed: str = "DESCRIBE",
) -> dict[TopicPartitionId, Any]:
    """The leader's answer for each partition; one request per leader.

    Repeated while leaders change. `make` builds the request for some partitions, `answers_in`
    returns the answer about each, with its `error_code`; `needed` is the required right. Raises
    TopicNotFoundError, AuthorizationFailedError, ClusterUnavailableError, KafkaRequestError.
    """
    limit_s = wire.timeout_s if timeout_s is None else timeout_s
    deadline = unthrottled_time() + limit_s
    found: dict[TopicPartitionId, Any] = {}
    reason = ""
    while missing := [partition for partition in wanted if partition not in found]:
        remaining_s = max(0.001, deadline - unthrottled_time())
        try:
            led = leaders.of(missing, operation=operation, timeout_s=remaining_s)
            by_leader: defaultdict[int, dict[TopicPartitionId, int]] = defaultdict(dict)
            for partition, leader in led.items():
                by_leader[leader][partition] = wanted[partition]
            reason = "an election is in progress"
            for leader, asked in by_leader.items():
                try:
                    response = wire.request(
                        lambda asked=asked: make(asked),
                        operation=operation,
                        node=leader,
                        timeout_s=max(0.001, deadline - unthrottled_time()),
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
                    reason = _passing(answer.error_code, partition, operation, needed)
        except ClusterUnavailableError as error:
            reason = error.reason
        if len(found) == len(wanted):
            break
        if unthrottled_time() + _MOVED_RETRY_S > deadline:
            absent = ", ".join(str(partition) for partition in missing if partition not in found)
            raise wire.unavailable(operation, limit_s, f"{reason}; no answer for {absent}")
        time.sleep(_MOVED_RETRY_S)
    return dict(sorted(found.items()))


def _passing(code: int, partition: TopicPartitionId, operation: str, needed: str) -> str:
    """The name of a transient error; raises the others."""
    if code == TOPIC_NOT_ALLOWED:
        raise topics_not_allowed(operation, [partition.topic], needed)
    error = client_errors.for_code(code).__name__
    if code not in MOVED:
        raise KafkaRequestError(operation=operation, resource=str(partition), reason=error)
    return error


def by_topic(entries: Iterable[tuple[TopicPartitionId, T]]) -> dict[str, list[T]]:
    """Group entries of partitions by topic, as in Kafka's requests."""
    topics: defaultdict[str, list[T]] = defaultdict(list)
    for partition, entry in entries:
        topics[partition.topic].append(entry)
    return topics


EARLIEST = -2
LATEST = -1

_NONE = -1
_LIST_OFFSETS_VERSION = 7
_LOG_DIRS_VERSION = 4


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

    Uses our own requests: librdkafka's list_offsets waits for a dead leader until its timeout, and
    then returns the offset -1001 without any error. Raises the errors of `ask_leaders`.
    """
    topic = ListOffsetsRequest.ListOffsetsTopic

    def request(asked: Mapping[TopicPartitionId, int]) -> ListOffsetsRequest:
        entries = by_topic(
            (p, topic.ListOffsetsPartition(partition_index=p.partition, timestamp=timestamp))
            for p, timestamp in asked.items()
        )
        return ListOffsetsRequest(
            isolation_level=isolation.value,
            topics=[topic(name=name, partitions=of_topic) for name, of_topic in entries.items()],
            min_version=2,
            max_version=_LIST_OFFSETS_VERSION,
        )

    answers = ask_leaders(
        wire,
        leaders,
        wanted,
        request,
        answers_in,
        operation="list_offsets",
        timeout_s=timeout_s,
    )
    for partition, answer in answers.items():
        if wanted[partition] == LATEST:  # else it is the epoch of a record
            leaders.answered.setdefault(partition, set()).add(answer.leader_epoch)
    return {partition: answer.offset for partition, answer in answers.items()}


def answers_in(response: Any) -> Iterator[tuple[TopicPartitionId, Any]]:  # noqa: ANN401
    """A response's entries by partition, for responses that name topics and partitions alike."""
    for topic in response.topics:
        for answer in topic.partitions:
            yield TopicPartitionId(topic.name, answer.partition_index), answer


class Requests:
    """The shared base of `KafkaCluster`'s parts: one wire client, and the known leaders."""

    def __init__(self, wire: WireClient) -> None:
        self._wire = wire
        self._leaders = PartitionLeaders(wire)


class LogRequests(Requests):
    """The part of `KafkaCluster` that concerns the ends of logs."""

    def log_start_offsets(
        self, partitions: Iterable[TopicPartitionId]
    ) -> Mapping[TopicPartitionId, int]:
        """The first remaining offset of each log. Needs DESCRIBE."""
        return list_offsets(self._wire, self._leaders, dict.fromkeys(partitions, EARLIEST))

    def high_watermarks(
        self, partitions: Iterable[TopicPartitionId]
    ) -> Mapping[TopicPartitionId, int]:
        """The end (exclusive) of the replicated log, including open transactions. Needs
        DESCRIBE."""
        return list_offsets(self._wire, self._leaders, dict.fromkeys(partitions, LATEST))

    def high_watermarks_before(
        self, partitions: Iterable[TopicPartitionId], last: TopicPartitionId
    ) -> tuple[Mapping[TopicPartitionId, int], int]:
        """The high watermarks of partitions, and one of `last` that was read after all of them.

        One request, unless brokers other than the leader of `last` are involved, or a leader has
        changed. Needs DESCRIBE.
        """
        wanted = [*partitions, last]
        started = time.monotonic()
        found = dict(self.high_watermarks(wanted))
        # A partition that was requested again may have been read after `last`.
        was_repeated = time.monotonic() - started >= _MOVED_RETRY_S
        led = self._leaders.of(wanted, operation="list_offsets", timeout_s=self._wire.timeout_s)
        if was_repeated or len(set(led.values())) > 1 or len(led) < len(wanted):
            found |= self.high_watermarks([last])
        return found, found.pop(last)

    def last_stable_offsets(
        self, partitions: Iterable[TopicPartitionId]
    ) -> Mapping[TopicPartitionId, int]:
        """The end (exclusive) of decided transactions. Needs DESCRIBE."""
        wanted = dict.fromkeys(partitions, LATEST)
        isolation = Isolation.READ_COMMITTED
        return list_offsets(self._wire, self._leaders, wanted, isolation=isolation)

    def log_sizes(self, partitions: Iterable[TopicPartitionId]) -> Mapping[TopicPartitionId, int]:
        """Bytes of the logs on their leaders' disks; partitions without a report are absent.

        Needs DESCRIBE on the cluster. A leader that does not answer is omitted, because the sizes
        are for estimates.
        """
        wanted = list(partitions)
        found: dict[TopicPartitionId, int] = {}
        topic = DescribeLogDirsRequest.DescribableLogDirTopic
        by_leader: defaultdict[int, list[TopicPartitionId]] = defaultdict(list)
        led = self._leaders.of(wanted, operation="log_sizes", timeout_s=self._wire.timeout_s)
        for partition, leader in led.items():
            by_leader[leader].append(partition)
        for leader, asked in by_leader.items():
            topics = by_topic((p, p.partition) for p in asked)
            request = DescribeLogDirsRequest(
                topics=[topic(topic=name, partitions=numbers) for name, numbers in topics.items()],
                max_version=_LOG_DIRS_VERSION,
            )
            try:
                response = self._wire.request(
                    lambda request=request: request,
                    operation="log_sizes",
                    node=leader,
                    retry=False,
                )
            except (ClusterUnavailableError, client_errors.IncompatibleBrokerVersion):
                continue
            for folder in response.results:
                for of_topic in folder.topics:
                    for of_it in of_topic.partitions:
                        if not of_it.is_future_key:
                            id_ = TopicPartitionId(of_topic.name, of_it.partition_index)
                            found[id_] = of_it.partition_size
        return found

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartitionId, int]
    ) -> Mapping[TopicPartitionId, int | None]:
        """The first offset with that timestamp or a later one, None without. Needs DESCRIBE."""
        found = list_offsets(self._wire, self._leaders, timestamps_ms)
        return {p: None if offset == _NONE else offset for p, offset in found.items()}

    def delete_records(
        self, before: Mapping[TopicPartitionId, int]
    ) -> Mapping[TopicPartitionId, int]:
        """Delete records below the given offsets; the new log start. Needs DELETE."""
        topic = DeleteRecordsRequest.DeleteRecordsTopic

        def request(asked: Mapping[TopicPartitionId, int]) -> DeleteRecordsRequest:
            entries = by_topic(
                (p, topic.DeleteRecordsPartition(partition_index=p.partition, offset=offset))
                for p, offset in asked.items()
            )
            return DeleteRecordsRequest(
                topics=[topic(name=name, partitions=of_it) for name, of_it in entries.items()],
                timeout_ms=round(1000 * self._wire.timeout_s),
            )

        answers = ask_leaders(
            self._wire,
            self._leaders,
            before,
            request,
            answers_in,
            operation="delete_records",
            needed="DELETE",
        )
        return {partition: answer.low_watermark for partition, answer in answers.items()}
