"""Ranges of many partitions read together: one request per leader and round."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

from kstreams_assets.errors import (
    ClusterUnavailableError,
    RawReadLimitError,
    RawReadTimeoutError,
)
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
from kstreams_assets.kafka.raw_range import LoadedBatch, RawRange
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import OffsetRange, TopicPartitionId

_RETRY_S: Final = 0.05
_LEAST_S: Final = 0.001
_EMPTY_ANSWERS_AT_THE_END: Final = 2


@dataclass(slots=True)
class _Reading:
    """How far one range has been read."""

    partition: TopicPartitionId
    start: int
    end: int
    position: int
    isolation: Isolation
    log_start: int | None = None
    batches: list[LoadedBatch] = field(default_factory=list)
    held_bytes: int = 0
    max_bytes: int = FIRST_FETCH_BYTES
    empty_answers: int = 0
    # whether the last answer held anything: who came away empty-handed goes first next time
    served: bool = False
    reason: str = "no leader"

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.partition, self.position, self.max_bytes)

    def take(self, answer: Any, *, was_first: bool) -> None:  # noqa: ANN401
        """Keep what an answer without an error holds.

        `was_first`: nothing was served before it, so that no limit can have left it empty.
        """
        self.log_start = answer.log_start_offset
        self.served = False
        kept: list[LoadedBatch] = []
        for header, data in judged(answer, self.partition, self.isolation):
            self.served = True
            if header.base_offset >= self.end:
                self.position = self.end
                break
            kept.append(LoadedBatch(header, data, self.partition))
            self.position = header.last_offset + 1
        self._keep(kept, len(answer.records or b""))
        if self.served:
            self.max_bytes = min(2 * self.max_bytes, LARGEST_FETCH_BYTES)
            self.empty_answers = 0
        else:
            self._take_nothing(answer, was_first=was_first)

    def _keep(self, batches: list[LoadedBatch], answered: int) -> None:
        used = sum(len(batch.data) for batch in batches)
        if used < answered:
            # a view keeps the whole answer alive, also what lies behind the range
            batches = [one._replace(data=memoryview(bytes(one.data))) for one in batches]
        self.held_bytes += used
        self.batches += batches

    def _take_nothing(self, answer: Any, *, was_first: bool) -> None:  # noqa: ANN401
        self.reason = f"the log ends at {answer.high_watermark}"
        undecided = self.position >= answer.last_stable_offset
        if self.isolation is Isolation.READ_COMMITTED and (undecided or was_first):
            self.isolation = Isolation.READ_UNCOMMITTED  # the rest was undecided just now
        elif was_first and answer.high_watermark >= self.end:
            # nothing is left below the end: compaction may empty even a log's tail
            self.empty_answers += 1
            if self.empty_answers == _EMPTY_ANSWERS_AT_THE_END:
                self.position = self.end


class BulkReader:
    """Reads the ranges of one call of `RawLogReader.read`."""

    def __init__(
        self,
        wire: WireClient,
        leaders: PartitionLeaders,
        ranges: Mapping[TopicPartitionId, OffsetRange],
        *,
        deadline_s: float,
        isolation: Isolation,
        limit_bytes: int | None = None,
    ) -> None:
        self._wire = wire
        self._leaders = leaders
        self._readings = [
            _Reading(partition, asked.start, asked.end, asked.start, isolation)
            for partition, asked in ranges.items()
        ]
        self._limit_bytes = limit_bytes
        self._limit_s = deadline_s
        self._deadline = time.monotonic() + deadline_s

    def read(self) -> dict[TopicPartitionId, RawRange]:
        """Read until every range is complete."""
        while unfinished := [r for r in self._readings if r.position < r.end]:
            if time.monotonic() >= self._deadline:
                raise self._late(unfinished[0])
            if not self._round(unfinished):
                time.sleep(_RETRY_S)
            if self._limit_bytes is not None and self._held() > self._limit_bytes:
                raise RawReadLimitError(limit_bytes=self._limit_bytes)
        return {
            r.partition: RawRange(r.start, r.end, r.log_start, tuple(r.batches))
            for r in self._readings
        }

    def _held(self) -> int:
        return sum(reading.held_bytes for reading in self._readings)

    def _most_bytes(self, requests: int) -> int:
        """How large each of so many answers may be; the first batch of one comes whole anyway."""
        if self._limit_bytes is None:
            return LARGEST_FETCH_BYTES
        left = (self._limit_bytes - self._held()) // requests
        return max(1, min(left, LARGEST_FETCH_BYTES))

    def _late(self, reading: _Reading) -> RawReadTimeoutError:
        return RawReadTimeoutError(
            partition=str(reading.partition),
            reached=reading.position,
            end=reading.end,
            timeout_s=self._limit_s,
            reason=reading.reason.rstrip("."),
        )

    def _remaining_s(self) -> float:
        return max(_LEAST_S, min(self._wire.timeout_s, self._deadline - time.monotonic()))

    def _round(self, unfinished: list[_Reading]) -> bool:
        """Ask every leader once; whether anything came."""
        try:
            led = self._leaders.of(
                [r.partition for r in unfinished], operation="fetch", timeout_s=self._remaining_s()
            )
        except ClusterUnavailableError as error:
            for reading in unfinished:
                reading.reason = error.reason
            return False
        requests: dict[tuple[int, Isolation], list[_Reading]] = {}
        for reading in sorted(unfinished, key=lambda r: r.served):
            reading.served = False
            leader = led.get(reading.partition)
            if leader is None:
                reading.reason = "no leader"
                self._leaders.forget(reading.partition)
            else:
                requests.setdefault((leader, reading.isolation), []).append(reading)
        most = self._most_bytes(len(requests)) if requests else 0
        if len(requests) > 1:
            with ThreadPoolExecutor(len(requests)) as pool:
                list(pool.map(self._ask, requests, requests.values(), repeat(most)))
        elif requests:
            self._ask(*next(iter(requests.items())), most)
        return any(reading.served for reading in unfinished)

    def _ask(self, whom: tuple[int, Isolation], readings: list[_Reading], most_bytes: int) -> None:
        leader, isolation = whom
        request = fetch_request(
            [r.wanted for r in readings], max_bytes=most_bytes, isolation=isolation
        )
        try:
            response = self._wire.request(
                lambda: request,
                operation="fetch",
                node=leader,
                timeout_s=self._remaining_s(),
                retry=False,
            )
        except ClusterUnavailableError as error:
            self._try_later(readings, error.reason)
            return
        by_partition = {reading.partition: reading for reading in readings}
        # a throttled broker answers without records
        was_first = not response.throttle_time_ms
        for topic in response.responses:
            for answer in topic.partitions:
                reading = by_partition[TopicPartitionId(topic.topic, answer.partition_index)]
                if answer.error_code:
                    self._judge_error(answer.error_code, reading)
                else:
                    reading.take(answer, was_first=was_first)
                    was_first = was_first and not answer.records

    def _judge_error(self, code: int, reading: _Reading) -> None:
        raise_lasting(
            code, reading.wanted, self._wire, self._leaders, timeout_s=self._remaining_s()
        )
        self._try_later([reading], error_name(code))

    def _try_later(self, readings: Iterable[_Reading], reason: str) -> None:
        for reading in readings:
            reading.reason = reason
            self._leaders.forget(reading.partition)
