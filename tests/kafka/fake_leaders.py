"""Brokers that answer Fetch requests as Kafka does, in memory, and fail when told to."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsResponse

from kstreams_assets.errors import ClusterUnavailableError
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.kafka.throttle import wait_throttle_time
from kstreams_assets.offsets import TopicPartitionId
from tests.kafka.batch_bytes import batch_bytes

_TOPIC = FetchResponse.FetchableTopicResponse
_OFFSETS = ListOffsetsResponse.ListOffsetsTopicResponse


@dataclass
class FakeLog:
    """One partition: its batches by (base offset, last offset), and who leads it."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    leader: int | None = 0
    log_start: int = 0
    high_watermark: int = 0
    last_stable_offset: int | None = None
    errors: list[int] = field(default_factory=list)

    def append(self, records: int, *, size: int = 10, attributes: int = 0) -> None:
        """A batch of that many records at the end."""
        base = self.high_watermark
        made = [RawRecord(base + n, 1_000, 0, b"k", b"v" * size, ()) for n in range(records)]
        data = batch_bytes(made, base_offset=base, attributes=attributes)
        self.batches.append((base, base + records - 1, data))
        self.high_watermark = base + records


class FakeWire:
    """Stands for a WireClient; `asked` has the positions of each request, in order.

    `answered_bytes` counts the bytes of records in all answers.
    """

    timeout_s = 10.0

    def __init__(self, logs: dict[TopicPartitionId, FakeLog]) -> None:
        self.logs = logs
        self.asked: list[tuple[int, dict[TopicPartitionId, int]]] = []
        self.answered_bytes = 0
        self.before_fetch: Callable[[], None] = lambda: None
        self.throttled = 0
        self.muting = 0
        """So many answers have no topic but a time in which nothing is read (KIP-219)."""
        self._muted_ms = 0
        self.dead: set[int] = set()
        self.late = 0
        """So many answers hold nothing although there is something: a remote read is slow."""
        self.configs: dict[str, str] = {}
        """The effective configs of every topic."""

    def _configs(self, request: Any) -> Any:
        entries = [SimpleNamespace(name=name, value=value) for name, value in self.configs.items()]
        (resource,) = request.resources
        result = SimpleNamespace(
            resource_name=resource.resource_name, error_code=0, configs=entries
        )
        return SimpleNamespace(results=[result])

    def request(
        self,
        make: Callable[[], Any],
        *,
        operation: str,
        node: int | None = None,
        timeout_s: float = 1.0,
        retry: bool = True,
    ) -> Any:
        """The answer of a broker."""
        if operation == "describe_configs":
            return self._configs(make())
        assert node is not None
        assert not retry
        assert 0 < timeout_s <= self.timeout_s
        if node in self.dead:
            raise self.unavailable(operation, timeout_s, "the broker is dead")
        request = make()
        wait_throttle_time(self._muted_ms)
        self._muted_ms = 0
        if isinstance(request, FetchRequest):
            self.before_fetch()
            return self._fetch(request, node)
        return self._list_offsets(request)

    def unavailable(self, operation: str, timeout_s: float, reason: str) -> ClusterUnavailableError:
        """As WireClient."""
        return ClusterUnavailableError(
            bootstrap_servers="fake", operation=operation, timeout_s=timeout_s, reason=reason
        )

    def _fetch(self, request: Any, node: int) -> Any:
        if self.muting > 0:
            self.muting, self._muted_ms = self.muting - 1, 300
            return FetchResponse(throttle_time_ms=300, responses=[])
        left, answers, asked, found_any = request.max_bytes, defaultdict(list), {}, False
        throttled = self.throttled > 0
        self.throttled -= throttled
        for topic in request.topics:
            for entry in topic.partitions:
                partition = TopicPartitionId(topic.topic, entry.partition)
                asked[partition] = entry.fetch_offset
                log = self.logs[partition]
                limit = 0 if throttled else min(left, entry.partition_max_bytes)
                error, data = self._read(log, node, entry.fetch_offset, limit, request)
                if not (found_any or throttled or error) and not data:
                    data = self._first(log, entry.fetch_offset, request)
                if data and self._is_late():
                    data = b""
                found_any, left = found_any or bool(data), max(0, left - len(data))
                self.answered_bytes += len(data)
                answers[topic.topic].append(
                    _TOPIC.PartitionData(
                        partition_index=entry.partition,
                        error_code=error,
                        high_watermark=-1 if error else log.high_watermark,
                        last_stable_offset=-1 if error else self._stable(log),
                        log_start_offset=-1 if error else log.log_start,
                        records=data,
                    )
                )
        self.asked.append((node, asked))
        responses = [_TOPIC(topic=name, partitions=parts) for name, parts in answers.items()]
        return FetchResponse(throttle_time_ms=5 if throttled else 0, responses=responses)

    def _read(
        self,
        log: FakeLog,
        node: int,
        position: int,
        limit: int,
        request: Any,
    ) -> tuple[int, bytes]:
        if log.errors:
            return log.errors.pop(0), b""
        if log.leader != node:
            return 6, b""
        if not log.log_start <= position <= log.high_watermark:
            return 1, b""
        data = b"".join(self._visible(log, position, request))[:limit]
        first = next(self._visible(log, position, request), b"")
        # brokers leave out a first batch that is not whole
        return 0, data if len(data) >= len(first) else b""

    def _is_late(self) -> bool:
        """Whether this answer holds nothing although there is something."""
        self.late -= 1
        return self.late >= 0

    def _first(self, log: FakeLog, position: int, request: Any) -> bytes:
        return next(self._visible(log, position, request), b"")

    def _visible(self, log: FakeLog, position: int, request: Any) -> Any:
        end = self._stable(log) if request.isolation_level else log.high_watermark
        return (data for base, last, data in log.batches if last >= position and base < end)

    def _stable(self, log: FakeLog) -> int:
        return log.high_watermark if log.last_stable_offset is None else log.last_stable_offset

    def _list_offsets(self, request: Any) -> Any:
        topics = []
        for topic in request.topics:
            parts = []
            for entry in topic.partitions:
                log = self.logs[TopicPartitionId(topic.name, entry.partition_index)]
                offset = log.log_start if entry.timestamp == -2 else log.high_watermark
                parts.append(
                    _OFFSETS.ListOffsetsPartitionResponse(
                        partition_index=entry.partition_index, error_code=0, offset=offset
                    )
                )
            topics.append(_OFFSETS(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)


class FakeLeaders:
    """Stands for PartitionLeaders: remembers leaders until it is told to forget."""

    def __init__(self, logs: dict[TopicPartitionId, FakeLog]) -> None:
        self._logs = logs
        self._known: dict[TopicPartitionId, int] = {}
        self.answered: dict[TopicPartitionId, set[int]] = {}
        self.elect: Callable[[], None] = lambda: time.sleep(0)

    def of(
        self, partitions: Iterable[TopicPartitionId], *, operation: str, timeout_s: float
    ) -> dict[TopicPartitionId, int]:
        """As PartitionLeaders."""
        assert operation
        assert timeout_s > 0
        wanted = list(partitions)
        if any(partition not in self._known for partition in wanted):
            self.elect()
        for partition in wanted:
            leader = self._logs[partition].leader
            if leader is not None:
                self._known.setdefault(partition, leader)
        return {p: self._known[p] for p in wanted if p in self._known}

    def forget(self, partition: TopicPartitionId) -> None:
        """As PartitionLeaders."""
        self._known.pop(partition, None)
