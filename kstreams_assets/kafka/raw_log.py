"""The raw log of partitions: batch headers, control batches, aborted data, and records."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kstreams_assets.closing import Closing
from kstreams_assets.errors import ClusterUnavailableError, RawReadTimeoutError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.fetch import (
    FIRST_FETCH_BYTES,
    LARGEST_FETCH_BYTES,
    Wanted,
    error_name,
    fetch_request,
    judged,
    raise_lasting,
)
from kstreams_assets.kafka.leaders import PartitionLeaders
from kstreams_assets.kafka.offsets import Isolation
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_bulk import BulkReader
from kstreams_assets.kafka.raw_range import RawRange
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import OffsetRange, TopicPartitionId

_RETRY_S = 0.05
_LEAST_S = 0.001


@dataclass(slots=True)
class _Deadline:
    """When a scan must end, or get on, and what it then says."""

    partition: TopicPartitionId
    end: int
    limit_s: float
    at: float

    def renew(self) -> None:
        self.at = time.monotonic() + self.limit_s

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


class RawLogReader(Closing):
    """Reads raw batches of partitions of one cluster, from their leaders.

    Needs READ on the topics. Keeps its connections until `close`; usable from one thread at a time.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        shared: tuple[WireClient, PartitionLeaders] | None = None,
    ) -> None:
        self._owns_wire = shared is None
        if shared is None:
            wire = WireClient(connection, timeout_s=connection.request_timeout_seconds)
            shared = wire, PartitionLeaders(wire, cluster=connection.bootstrap_servers)
        self._wire, self._leaders = shared

    def close(self) -> None:
        """Close all connections, unless they are shared with a `KafkaCluster`."""
        if self._owns_wire:
            self._wire.close()

    def scan(
        self,
        partition: TopicPartitionId,
        start: int,
        end: int,
        *,
        deadline_s: float,
        by_progress: bool = False,
    ) -> Iterator[RawBatch]:
        """Every batch that holds an offset in [start, end), in offset order, as it is in the log.

        The first and last batch may reach beyond the range. Offsets in no batch were removed by
        compaction. Batches at or above the last stable offset have `aborted` None. Waits for an
        `end` that is not yet replicated. Ends or fails within `deadline_s` (the time the caller
        takes between batches counts); with `by_progress` the time begins anew, and without the
        caller's, with every answer that holds batches. Raises RawReadTimeoutError,
        OffsetOutOfRangeError, AuthorizationFailedError, TopicNotFoundError, CorruptBatchError,
        AuthenticationFailedError.
        """
        deadline = _Deadline(partition, end, deadline_s, time.monotonic() + deadline_s)
        position, size, isolation, empty_answers = (
            start,
            FIRST_FETCH_BYTES,
            Isolation.READ_COMMITTED,
            0,
        )
        while position < end:
            answer = self._fetch(deadline, position, size, isolation)
            batches = [batch for batch, _ in judged(answer, partition, isolation)]
            yield from (
                batch for batch in batches if batch.last_offset >= start and batch.base_offset < end
            )
            if batches:
                position = max(position, batches[-1].last_offset + 1)
                size, empty_answers = min(2 * size, LARGEST_FETCH_BYTES), 0
                if by_progress:
                    deadline.renew()
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

    def read(
        self,
        ranges: Mapping[TopicPartitionId, OffsetRange],
        *,
        deadline_s: float,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        limit_bytes: int | None = None,
    ) -> dict[TopicPartitionId, RawRange]:
        """Every batch of these ranges with its bytes, one request per leader and round.

        Keys come in the order of `ranges`; an empty range costs no request. With READ_UNCOMMITTED
        `aborted` is None for all data of transactions; with READ_COMMITTED it is as `scan` gives
        it, at the price of one more request where a range reaches beyond the last stable offset.
        Waits for an end that is not yet replicated. The batches keep the answers they came in
        alive. Ends or fails within `deadline_s`. With `limit_bytes` no more than that is held of
        all ranges together, and one batch for each leader: what would not fit is not asked for.
        Raises what `scan` raises, and RawReadLimitError.
        """
        bulk = BulkReader(
            self._wire,
            self._leaders,
            ranges,
            deadline_s=deadline_s,
            isolation=isolation,
            limit_bytes=limit_bytes,
        )
        return bulk.read()

    def _fetch(self, deadline: _Deadline, position: int, size: int, isolation: Isolation) -> Any:  # noqa: ANN401
        """The answer for one partition, asked of its leader, whoever that is by now."""
        partition, reason = deadline.partition, "no leader"
        while True:
            deadline.check(position, reason)
            try:
                leader = self._leader(deadline)
                if leader is not None:
                    wanted = Wanted(partition, position, size)
                    request = fetch_request([wanted], max_bytes=size, isolation=isolation)
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
                    raise_lasting(
                        answer.error_code,
                        wanted,
                        self._wire,
                        self._leaders,
                        timeout_s=max(_LEAST_S, deadline.remaining_s()),
                    )
                    reason = error_name(answer.error_code)
            except ClusterUnavailableError as error:
                reason = error.reason
            self._leaders.forget(partition)
            time.sleep(_RETRY_S)

    def _leader(self, deadline: _Deadline) -> int | None:
        """The broker that leads the partition, None during an election."""
        leaders = self._leaders.of(
            [deadline.partition], operation="fetch", timeout_s=self._limit_s(deadline)
        )
        return leaders.get(deadline.partition)

    def _limit_s(self, deadline: _Deadline) -> float:
        return max(_LEAST_S, min(self._wire.timeout_s, deadline.remaining_s()))
