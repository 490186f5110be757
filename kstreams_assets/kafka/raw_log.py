"""The raw log of a partition: batch headers, with control batches and aborted data."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import kafka.errors as client_errors
from kafka.protocol.consumer import FetchRequest

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
    OffsetOutOfRangeError,
    RawReadTimeoutError,
)
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.leaders import MOVED, TOPIC_NOT_ALLOWED, PartitionLeaders
from kstreams_assets.kafka.offsets import EARLIEST, LATEST, Isolation, list_offsets
from kstreams_assets.kafka.positions import TopicPartitionId
from kstreams_assets.kafka.raw_batch import RawBatch, parse_batches
from kstreams_assets.kafka.wire import WireClient

_FIRST_FETCH_BYTES = 2**19
_LARGEST_FETCH_BYTES = 2**24
_RETRY_S = 0.05
_LEAST_S = 0.001
# From version 13 on topics go by id; version 12 is what every broker from 2.7 to 4.x answers.
_FETCH_VERSION = 12
_OUT_OF_RANGE = client_errors.OffsetOutOfRangeError.errno


@dataclass(frozen=True, slots=True)
class _Deadline:
    """When a scan must end, and what it then says."""

    partition: TopicPartitionId
    end: int
    limit_s: float
    at: float

    def remaining_s(self) -> float:
        return self.at - time.monotonic()

    def check(self, reached: int, reason: str) -> None:
        if time.monotonic() >= self.at:
            raise RawReadTimeoutError(
                partition=str(self.partition),
                reached=reached,
                end=self.end,
                timeout_s=self.limit_s,
                reason=reason.rstrip("."),
            )


class RawLogReader:
    """Reads batch headers of partitions of one cluster, from their leaders.

    Needs READ on the topics. Keeps its connections until `close`; usable from one thread at a time.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._wire = WireClient(connection, timeout_s=connection.request_timeout_seconds)
        self._leaders = PartitionLeaders(self._wire, cluster=connection.bootstrap_servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._wire.close()

    def scan(
        self, partition: TopicPartitionId, start: int, end: int, *, deadline_s: float
    ) -> Iterator[RawBatch]:
        """Every batch that holds an offset in [start, end), in offset order, as it is in the log.

        The first and last batch may reach beyond the range. Offsets in no batch were removed by
        compaction. Batches at or above the last stable offset have `aborted` None. Waits for an
        `end` that is not yet replicated. Ends or fails within `deadline_s` (the time the caller
        takes between batches counts). Raises RawReadTimeoutError, OffsetOutOfRangeError,
        AuthorizationFailedError, TopicNotFoundError, CorruptBatchError, AuthenticationFailedError.
        """
        deadline = _Deadline(partition, end, deadline_s, time.monotonic() + deadline_s)
        position, size, isolation, empty_answers = (
            start,
            _FIRST_FETCH_BYTES,
            Isolation.READ_COMMITTED,
            0,
        )
        while position < end:
            answer = self._fetch(deadline, position, size, isolation)
            batches = list(_judged(answer, partition, isolation))
            yield from (
                batch for batch in batches if batch.last_offset >= start and batch.base_offset < end
            )
            if batches:
                position = max(position, batches[-1].last_offset + 1)
                size, empty_answers = min(2 * size, _LARGEST_FETCH_BYTES), 0
            elif isolation is Isolation.READ_COMMITTED:
                isolation = (
                    Isolation.READ_UNCOMMITTED
                )  # what lies from here on was undecided just now
            elif answer.high_watermark >= end and empty_answers:
                return  # nothing is left below the end: compaction may empty even a log's tail
            else:
                empty_answers += answer.high_watermark >= end
                time.sleep(_RETRY_S)
                deadline.check(position, f"the log ends at {answer.high_watermark}")

    def _fetch(self, deadline: _Deadline, position: int, size: int, isolation: Isolation) -> Any:  # noqa: ANN401
        """The answer for one partition, asked of its leader, whoever that is by now."""
        partition, reason = deadline.partition, "no leader"
        while True:
            deadline.check(position, reason)
            try:
                leader = self._leader(deadline)
                if leader is not None:
                    request = _fetch_request(partition, position, size, isolation)
                    response = self._wire.request(
                        lambda request=request: request,
                        operation="fetch",
                        node=leader,
                        timeout_s=self._limit_s(deadline),
                        retry=False,
                    )
                    answer = response.responses[0].partitions[0]
                    if answer.error_code == 0 and (answer.records or not response.throttle_time_ms):
                        return answer
                    self._judge_error(answer.error_code, deadline, position)
                    reason = client_errors.for_code(answer.error_code).__name__
            except ClusterUnavailableError as error:
                reason = error.reason
            self._leaders.forget(partition)
            time.sleep(_RETRY_S)

    def _judge_error(self, code: int, deadline: _Deadline, position: int) -> None:
        """Raise what will not pass by asking again."""
        partition = deadline.partition
        if code == _OUT_OF_RANGE:
            low, high = self._edge(EARLIEST, deadline), self._edge(LATEST, deadline)
            # a follower that has just become leader may lag for a moment
            if not low <= position <= high:
                raise OffsetOutOfRangeError(
                    partition=str(partition), offset=position, log_start=low, log_end=high
                )
        elif code == TOPIC_NOT_ALLOWED:
            raise AuthorizationFailedError(
                operation="fetch", resource=f"topic {partition.topic}", needed="READ"
            )
        elif code not in MOVED and code:
            name = client_errors.for_code(code).__name__
            raise KafkaRequestError(operation="fetch", resource=str(partition), reason=name)

    def _edge(self, which: int, deadline: _Deadline) -> int:
        """Log start or end of the partition, as its leader says."""
        partition = deadline.partition
        found = list_offsets(
            self._wire,
            self._leaders,
            {partition: which},
            timeout_s=max(_LEAST_S, deadline.remaining_s()),
        )
        return found[partition]

    def _leader(self, deadline: _Deadline) -> int | None:
        """The broker that leads the partition, None during an election."""
        leaders = self._leaders.of(
            [deadline.partition], operation="fetch", timeout_s=self._limit_s(deadline)
        )
        return leaders.get(deadline.partition)

    def _limit_s(self, deadline: _Deadline) -> float:
        return max(_LEAST_S, min(self._wire.timeout_s, deadline.remaining_s()))


def _fetch_request(
    partition: TopicPartitionId, position: int, size: int, isolation: Isolation
) -> FetchRequest:
    topic = FetchRequest.FetchTopic
    entry = topic.FetchPartition(
        partition=partition.partition, fetch_offset=position, partition_max_bytes=size
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=size,
        isolation_level=isolation.value,
        topics=[topic(topic=partition.topic, partitions=[entry])],
        max_version=_FETCH_VERSION,
    )


def _judged(answer: Any, partition: TopicPartitionId, isolation: Isolation) -> Iterator[RawBatch]:  # noqa: ANN401
    """Batches of one answer, told apart as Kafka's own consumers do.

    A read_committed answer lists the aborted transactions its data overlaps: producer and first
    offset. From there on the producer's batches are aborted, until its abort marker.
    """
    if not answer.records:
        return
    upcoming = sorted(
        ((entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions or ()),
        reverse=True,
    )
    aborting: set[int] = set()
    for batch in parse_batches(memoryview(answer.records), partition=str(partition)):
        if not batch.is_transactional:
            yield batch
            continue
        while upcoming and upcoming[-1][0] <= batch.last_offset:
            aborting.add(upcoming.pop()[1])
        if batch.is_control:
            if batch.control_type == "abort":
                aborting.discard(batch.producer_id)
            yield batch
        elif isolation is Isolation.READ_UNCOMMITTED:
            yield batch._replace(aborted=None)
        elif batch.producer_id in aborting:
            yield batch._replace(aborted=True)
        else:
            yield batch
