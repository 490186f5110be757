"""Raw ranges of partitions, read from their leaders batch by batch."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import kafka.errors as client_errors
from kafka.protocol.admin import DescribeConfigsRequest

from kstreams_assets.closing import Closing
from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    CoordinatorRecordError,
    CorruptBatchError,
    KafkaError,
    KafkaRequestError,
    OffsetOutOfRangeError,
    RawReadLimitError,
    RawReadTimeoutError,
)
from kstreams_assets.kafka.admin import may_be_compacted
from kstreams_assets.kafka.channel import (
    Channel,
    Channels,
    Wanted,
    fetch_request,
    receive_fetch,
    send_fetch,
)
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.leaders import (
    EARLIEST,
    LATEST,
    MOVED,
    Isolation,
    PartitionLeaders,
    list_offsets,
)
from kstreams_assets.kafka.raw_batch import RawBatch, RawRecord, decode_records, parse_with_bytes
from kstreams_assets.kafka.throttle import (
    QUOTA_PATIENCE_S,
    QUOTA_REASON,
    QuotaPatience,
    Throttle,
    count_throttled,
    set_throttled,
    throttled_s,
    unthrottled_time,
    wait_throttle_time,
)
from kstreams_assets.kafka.wire import TOPIC_NOT_ALLOWED, WireClient, topics_not_allowed
from kstreams_assets.offsets import OffsetRange, TopicPartitionId

T = TypeVar("T")


class LoadedBatch(NamedTuple):
    """The header of a batch, and its bytes in the log (a view; nothing is copied)."""

    header: RawBatch
    data: memoryview
    partition: TopicPartitionId

    def records(self) -> list[RawRecord]:
        """All its records, decoded at each call, including those outside of the range.

        Raises CorruptBatchError.
        """
        return decode_records(self.data, partition=str(self.partition))


UNREADABLE: Final = (
    AuthorizationFailedError,
    CoordinatorRecordError,
    CorruptBatchError,
    KafkaRequestError,
    OffsetOutOfRangeError,
    RawReadLimitError,
    RawReadTimeoutError,
)
"""Why the raw log of a partition, or a coordinator's records in it, could not be read."""
FIRST_FETCH_BYTES: Final = 2**19
LARGEST_FETCH_BYTES: Final = 2**23

_OUT_OF_RANGE: Final = client_errors.OffsetOutOfRangeError.errno


def error_name(code: int) -> str:
    """kafka-python's name of an error code."""
    return client_errors.for_code(code).__name__


def raise_lasting(
    code: int,
    wanted: Wanted,
    wire: WireClient,
    leaders: PartitionLeaders,
    *,
    timeout_s: float,
) -> None:
    """Raise the error of a partition if a retry will not help.

    OffsetOutOfRangeError, AuthorizationFailedError (READ), KafkaRequestError; the errors of
    list_offsets, because the bounds of a log are requested.
    """
    partition = wanted.partition
    if code == _OUT_OF_RANGE:
        low, high = (
            list_offsets(wire, leaders, {partition: which}, timeout_s=timeout_s)[partition]
            for which in (EARLIEST, LATEST)
        )
        # a new leader that was a follower may lag for a moment
        if not low <= wanted.position <= high:
            raise OffsetOutOfRangeError(
                partition=str(partition), offset=wanted.position, log_start=low, log_end=high
            )
    elif code == TOPIC_NOT_ALLOWED:
        raise topics_not_allowed("fetch", [partition.topic], "READ")
    elif code not in MOVED and code:
        raise KafkaRequestError(operation="fetch", resource=str(partition), reason=error_name(code))


def classified_batches(
    answer: Any,  # noqa: ANN401 (kafka-python builds its response classes at run time)
    partition: TopicPartitionId,
    isolation: Isolation,
    position: int,
) -> Iterator[tuple[RawBatch, memoryview]]:
    """Classify batches of one partition's answer, with their bytes, as Kafka's consumers do.

    The request started at `position`: the answer's first batch contains that offset, and the others
    follow.

    A read_committed answer lists the aborted transactions that overlap its data: producer and first
    offset. From there the producer's batches are aborted, until its abort marker. Raises
    CorruptBatchError.
    """
    if not answer.records:
        return
    upcoming = sorted(
        ((entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions or ()),
        reverse=True,
    )
    aborting: set[int] = set()
    before = -1
    for batch, data in parse_with_bytes(memoryview(answer.records), partition=str(partition)):
        if batch.last_offset < position or batch.base_offset <= before:
            reason = f"the broker's answer has a batch that ends at {batch.last_offset}"
            raise CorruptBatchError(
                partition=str(partition), offset=max(position, before + 1), reason=reason
            )
        before = batch.last_offset
        if not batch.is_transactional:
            yield batch, data
            continue
        while upcoming and upcoming[-1][0] <= batch.last_offset:
            aborting.add(upcoming.pop()[1])
        if batch.is_control:
            if batch.control_type == "abort":
                aborting.discard(batch.producer_id)
            yield batch, data
        elif isolation is Isolation.READ_UNCOMMITTED:
            yield batch._replace(aborted=None), data
        elif batch.producer_id in aborting:
            yield batch._replace(aborted=True), data
        else:
            yield batch, data


EMPTY_S: Final = 5.0
"""A log must be empty below an end for this time before compaction is assumed as the cause."""
_TOPIC: Final = 2
_COMPACTED_BY_EVERY_CLUSTER: Final = frozenset({"__consumer_offsets", "__transaction_state"})
_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 0.5
_LEAST_S: Final = 0.001


def _effective_configs(wire: WireClient, topic: str) -> Mapping[str, str]:
    """Every effective config of a topic; empty if configs are not reported.

    Uses our own request, on the connections of the reader: tasks and `recovery-points take` do not
    load confluent-kafka for it.
    """
    if topic in _COMPACTED_BY_EVERY_CLUSTER:
        return {"cleanup.policy": "compact"}
    resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=None)],
        include_synonyms=False,
        include_documentation=False,
    )
    (result,) = wire.request(lambda: request, operation="describe_configs").results
    return {entry.name: entry.value for entry in result.configs or () if entry.value is not None}


class _Cluster:
    """Shared state of the readings of one cluster.

    It caches, from the effective configs of topics, whether compaction may have removed records.
    """

    def __init__(self, wire: WireClient, leaders: PartitionLeaders) -> None:
        self.wire, self.leaders = wire, leaders
        self.channels = Channels(wire, timeout_s=wire.timeout_s)
        self._compacted: dict[str, bool] = {}

    def is_compacted(self, topic: str) -> bool:
        """Whether a topic is compacted; false if its configs are unknown."""
        if topic not in self._compacted:
            try:
                configs = _effective_configs(self.wire, topic)
            except KafkaError:
                return False
            self._compacted[topic] = may_be_compacted(configs)
        return self._compacted[topic]


@dataclass(slots=True)
class _Reading:
    """The progress of reading one range, and what blocks it."""

    cluster: _Cluster
    partition: TopicPartitionId
    start: int
    end: int
    isolation: Isolation
    largest: int
    position: int = field(init=False)
    max_bytes: int = field(init=False)
    held: list[LoadedBatch] = field(default_factory=list)
    held_bytes: int = 0
    was_served: bool = False
    """Whether the last answer had records; readings without records go first next time."""
    corrupt: CorruptBatchError | None = None
    """The problem with the batch at `position`."""
    reason: str = "no leader"
    has_answer: bool = False
    """Whether the broker answers, but without the records."""
    empty_since: float | None = None
    """Since when answers are empty.

    One empty answer proves nothing: brokers with tiered storage return them, without an error,
    while a remote read takes longer than `remote.fetch.max.wait.ms` (KIP-1018).
    """

    def __post_init__(self) -> None:
        self.position, self.max_bytes = self.start, min(FIRST_FETCH_BYTES, self.largest)

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.partition, self.position, self.max_bytes)

    @property
    def pause_s(self) -> float:
        """How long to wait before the broker is asked again."""
        passed_s = 0.0 if self.empty_since is None else time.monotonic() - self.empty_since
        return min(_LONGEST_RETRY_S, _RETRY_S + passed_s / 10)

    def fail(self, reason: str, *, has_answer: bool = False) -> None:
        """Record an answer without information about the log."""
        self.reason, self.has_answer, self.empty_since = reason, has_answer, None

    def take(self, answer: Any, *, was_first: bool) -> list[LoadedBatch]:  # noqa: ANN401
        """The batches of an answer without an error, up to the end or to a corrupt one.

        `was_first`: no earlier partition was served, so no limit can have left it empty.
        """
        self.was_served = False
        before, batches = self.position, []
        try:
            for header, data in classified_batches(
                answer, self.partition, self.isolation, self.position
            ):
                self.was_served = True
                if header.base_offset >= self.end:
                    self.position = self.end
                    break
                batches.append(LoadedBatch(header, data, self.partition))
                self.position = header.last_offset + 1
        except CorruptBatchError as error:
            if self.position < self.end <= error.offset:
                self.position = self.end
            elif self.position < self.end:
                self.corrupt = error
        if self.was_served:
            self.empty_since, self.has_answer = None, False
            # Batches beyond the end were fetched in vain.
            rest = len(answer.records) * (self.end - self.position) // (self.position - before)
            most = min(self.largest, FIRST_FETCH_BYTES + max(0, rest))
            self.max_bytes = min(2 * self.max_bytes, most)
        elif self.corrupt is None and self.position < self.end:
            self._take_nothing(answer, was_first=was_first)
        return batches

    def _take_nothing(self, answer: Any, *, was_first: bool) -> None:  # noqa: ANN401
        high_watermark, stable = answer.high_watermark, answer.last_stable_offset
        self.has_answer = high_watermark >= self.end
        self.reason = f"the log ends at {high_watermark}"
        if self.has_answer:
            self.reason = (
                "the broker's answers hold no records, although the log ends at"
                f" {high_watermark}: remote storage may be slow"
            )
        is_committed = self.isolation is Isolation.READ_COMMITTED
        if is_committed and self.position >= stable:
            self.isolation = Isolation.READ_UNCOMMITTED  # the rest was undecided just now
        elif high_watermark < self.end:
            self.empty_since = None
        elif was_first and self._is_emptied():
            # the log is empty below the end: compaction may empty even a log's tail
            if is_committed and stable < self.end:
                self.isolation = Isolation.READ_UNCOMMITTED
            else:
                self.position = self.end

    def _is_emptied(self) -> bool:
        """Record an empty answer; return whether compaction is the only remaining cause."""
        now = time.monotonic()
        if self.empty_since is None:
            self.empty_since = now
        return now - self.empty_since >= EMPTY_S and self.cluster.is_compacted(self.partition.topic)

    def hold(self, batches: list[LoadedBatch], answered: int) -> None:
        """Keep batches of an answer of this size in bytes."""
        used = sum(len(batch.data) for batch in batches)
        if used < answered:
            # a view keeps the whole answer in memory, including data beyond the range
            batches = [one._replace(data=memoryview(bytes(one.data))) for one in batches]
        self.held_bytes += used
        self.held += batches


class _Asked(NamedTuple):
    """One request for partitions with the same leader."""

    node: int
    isolation: Isolation
    readings: list[_Reading]
    max_bytes: int


class _Answered(NamedTuple):
    """A broker's answer about the partitions of a request.

    An answer that a quota has emptied (`is_throttled`, KIP-219) contains no information.
    """

    throttle_time_ms: int
    error_code: int
    is_throttled: bool
    partitions: Iterable[tuple[TopicPartitionId, Any]]


class _Fetching(ABC):
    """Request ranges from leaders until each is complete; subclasses define how."""

    asks_ahead: ClassVar[bool]
    """Whether the next request is sent before the caller receives the last answer."""

    def __init__(
        self,
        cluster: _Cluster,
        readings: list[_Reading],
        *,
        deadline_s: float,
        limit_bytes: int | None = None,
    ) -> None:
        self._cluster, self._readings = cluster, readings
        self._limit_s, self._limit_bytes = deadline_s, limit_bytes
        self._patience = QuotaPatience()
        self._asked: Sequence[_Asked] = ()
        self.renew()

    def renew(self) -> None:
        """Restart the time limit."""
        self._deadline = unthrottled_time() + self._limit_s

    @abstractmethod
    def _send(self, requests: list[_Asked]) -> None:
        """Send requests; failures appear in the answers."""

    @abstractmethod
    def _answers(self) -> Iterator[tuple[_Asked, _Answered | str]]:
        """The answers to unanswered requests, or the reasons why there are none."""

    def batches(self) -> Iterator[tuple[_Reading, list[LoadedBatch], int]]:
        """Batches as they arrive, with the size in bytes of their answer."""
        is_asked = False
        while unfinished := [r for r in self._readings if r.position < r.end]:
            if unthrottled_time() >= self._deadline:
                raise _late(unfinished[0], self._limit_s)
            is_moving = False
            if is_asked or self._ask(unfinished):
                is_asked = False
                for asked, answer in self._answers():
                    if not isinstance(answer, str) and answer.is_throttled:
                        self._take_throttled(asked)
                        is_moving = True
                        continue
                    for reading, of_it, was_first in self._of_partitions(asked, answer):
                        before = reading.position, reading.isolation
                        batches = reading.take(of_it, was_first=was_first)
                        is_moving |= before != (reading.position, reading.isolation)
                        if self.asks_ahead and batches and reading.corrupt is None:
                            is_asked = reading.position < reading.end and self._ask([reading])
                        if batches:
                            yield reading, batches, len(of_it.records)
                        if reading.corrupt is not None:
                            raise reading.corrupt
            if not is_moving:
                time.sleep(min(reading.pause_s for reading in unfinished))

    def _request_s(self) -> float:
        """Time limit of the next request."""
        remaining_s = self._deadline - unthrottled_time()
        return max(_LEAST_S, min(self._cluster.wire.timeout_s, remaining_s))

    def _ask(self, unfinished: list[_Reading]) -> bool:
        """Send requests to the leaders of these; return whether there are any."""
        try:
            led = self._cluster.leaders.of(
                [reading.partition for reading in unfinished],
                operation="fetch",
                timeout_s=self._request_s(),
            )
        except ClusterUnavailableError as error:
            self._try_later(unfinished, error.reason)
            return False
        requests: dict[tuple[int, Isolation], list[_Reading]] = {}
        for reading in sorted(unfinished, key=lambda reading: reading.was_served):
            reading.was_served = False
            leader = led.get(reading.partition)
            if leader is None:
                self._try_later([reading], "no leader")
            else:
                requests.setdefault((leader, reading.isolation), []).append(reading)
        if not requests:
            return False
        most = LARGEST_FETCH_BYTES
        if self._limit_bytes is not None:  # the first batch of an answer comes whole anyway
            left = self._limit_bytes - sum(reading.held_bytes for reading in self._readings)
            most = max(1, min(left // len(requests), most))
        self._send([_Asked(*whom, readings, most) for whom, readings in requests.items()])
        return True

    def _of_partitions(
        self, asked: _Asked, answer: _Answered | str
    ) -> Iterator[tuple[_Reading, Any, bool]]:
        """The entries of partitions without an error, and whether nothing was served before
        each."""
        if isinstance(answer, str):
            self._try_later(asked.readings, answer)
            return
        if answer.error_code:
            self._judge_error(answer.error_code, asked.readings[0])
            self._try_later(asked.readings, error_name(answer.error_code))
            return
        self._patience.served()
        unmentioned = {reading.partition: reading for reading in asked.readings}
        was_first = not answer.throttle_time_ms  # a throttled broker answers without records
        for partition, of_it in answer.partitions:
            reading = unmentioned.pop(partition, None)
            if reading is None:
                continue
            if of_it.error_code:
                self._judge_error(of_it.error_code, reading)
                continue
            yield reading, of_it, was_first
            was_first = was_first and not of_it.records
        self._try_later(unmentioned.values(), "an answer that does not mention the partition")

    def _take_throttled(self, asked: _Asked) -> None:
        """Record an answer that a quota has emptied: neither a stall nor the end of a log."""
        for reading in asked.readings:
            reading.fail(QUOTA_REASON, has_answer=True)
            if self._patience.is_exhausted():
                raise _late(reading, QUOTA_PATIENCE_S)

    def _judge_error(self, code: int, reading: _Reading) -> None:
        wire, leaders = self._cluster.wire, self._cluster.leaders
        raise_lasting(code, reading.wanted, wire, leaders, timeout_s=self._request_s())
        self._try_later([reading], error_name(code))

    def _try_later(self, readings: Iterable[_Reading], reason: str) -> None:
        for reading in readings:
            reading.fail(reason)
            self._cluster.leaders.forget(reading.partition)


def _late(reading: _Reading, limit_s: float) -> RawReadTimeoutError:
    return RawReadTimeoutError(
        partition=str(reading.partition),
        reached=reading.position,
        end=reading.end,
        timeout_s=limit_s,
        reason=reading.reason.rstrip("."),
        answered=reading.has_answer,
    )


class _Together(_Fetching):
    """Many ranges: all leaders are asked at once, each for all its partitions."""

    asks_ahead = False

    def _send(self, requests: list[_Asked]) -> None:
        self._asked = requests

    def _answers(self) -> Iterator[tuple[_Asked, _Answered | str]]:
        asked, self._asked = self._asked, ()
        if len(asked) == 1:
            yield asked[0], self._answer(asked[0])
            return
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = [*pool.map(self._answer_beside, asked, repeat(throttled_s()))]
        count_throttled(max(waited_s for _, waited_s in answers))
        for one, (answer, _) in zip(asked, answers, strict=True):
            yield one, answer

    def _answer_beside(
        self, asked: _Asked, throttled_before_s: float
    ) -> tuple[_Answered | str, float]:
        """The answer, in a thread of a pool, and how long it was throttled."""
        set_throttled(throttled_before_s)
        return self._answer(asked), throttled_s() - throttled_before_s

    def _answer(self, asked: _Asked) -> _Answered | str:
        wanted = [reading.wanted for reading in asked.readings]
        request = fetch_request(wanted, max_bytes=asked.max_bytes, isolation=asked.isolation)
        try:
            response = self._cluster.wire.request(
                lambda: request,
                operation="fetch",
                node=asked.node,
                timeout_s=self._request_s(),
                retry=False,
            )
        except ClusterUnavailableError as error:
            return error.reason
        topics = response.responses or ()
        return _Answered(
            response.throttle_time_ms,
            response.error_code,
            response.throttle_time_ms > 0 and not topics,
            [
                (TopicPartitionId(topic.topic, answer.partition_index), answer)
                for topic in topics
                for answer in topic.partitions or ()
            ],
        )


class _Ahead(_Fetching):
    """One range; the next records are requested while the caller uses the last ones."""

    asks_ahead = True
    throttle: Throttle | None = None
    _failure = ""
    _mute_ms = 0
    """How long the broker reads nothing more, since its last answer."""
    _unpaid: tuple[int, int] | None = None
    """Bytes of the last answer, and its broker."""

    def close(self) -> None:
        """Discard unanswered requests; the connections stay usable for the next range."""
        self._leave()
        self._pay()

    def _send(self, requests: list[_Asked]) -> None:
        self._asked, self._failure = requests, ""
        ((node, isolation, (reading,), _),) = requests
        self._pay()
        partition, position, size = reading.wanted
        self._try(
            node,
            lambda channel: send_fetch(
                channel, partition, position, max_bytes=size, isolation=isolation
            ),
        )

    def _answers(self) -> Iterator[tuple[_Asked, _Answered | str]]:
        (asked,) = self._asked
        answer = None if self._failure else self._try(asked.node, receive_fetch)
        if answer is None:
            self._leave()
            yield asked, self._failure
            return
        self._asked = ()
        self._unpaid, self._mute_ms = (len(answer.records), asked.node), answer.throttle_time_ms
        entries = [(asked.readings[0].partition, answer)]
        yield asked, _Answered(self._mute_ms, 0, answer.is_throttled, entries)

    def _try(self, node: int, do: Callable[[Channel], T]) -> T | None:
        """Call a function with the channel to a broker; None if it fails."""
        limit_s = self._request_s()
        try:
            channel = self._cluster.channels.to(node, operation="fetch", timeout_s=limit_s)
            channel.limit(limit_s)
            return do(channel)
        except OSError as error:
            self._failure = str(error)
        except ClusterUnavailableError as error:
            self._failure = error.reason
        return None

    def _leave(self) -> None:
        for asked in self._asked:
            self._cluster.channels.drop(asked.node)
        self._asked = ()

    def _pay(self) -> None:
        """Wait for the rate limit; this does not count as a stall."""
        wait_throttle_time(self._mute_ms)
        self._mute_ms = 0
        if self.throttle is not None and self._unpaid is not None:
            self.throttle.wait(*self._unpaid)
        self._unpaid = None


class RawLogReader(Closing):
    """Read raw batches of partitions of one cluster, from their leaders.

    Needs READ on the topics. Keeps its connections until `close`; usable from one thread at a time.
    `throttle` applies to `scan` and `stream`; `read` has its own limits.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        shared: tuple[WireClient, PartitionLeaders] | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self._throttle = throttle
        self._owns_wire = shared is None
        if shared is None:
            wire = WireClient(connection, timeout_s=connection.request_timeout_seconds)
            shared = wire, PartitionLeaders(wire)
        self._cluster = _Cluster(*shared)

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers of the cluster."""
        return self._cluster.wire.bootstrap_servers

    def close(self) -> None:
        """Close all connections except those shared with a `KafkaCluster`."""
        self._cluster.channels.close()
        if self._owns_wire:
            self._cluster.wire.close()

    def scan(
        self,
        partition: TopicPartitionId,
        start: int,
        end: int,
        *,
        deadline_s: float,
        by_progress: bool = False,
    ) -> Iterator[RawBatch]:
        """Every batch with an offset in [start, end), in offset order, as it is in the log.

        The first and last batch may extend beyond the range. Offsets in no batch are not in the
        log. An empty rest up to `end` is accepted only for a compacted topic without tiered
        storage, after `EMPTY_S`; for others the deadline passes. Batches at or above the last
        stable offset have `aborted` None. Waits for an `end` that is not yet replicated. Ends or
        fails within `deadline_s` (the caller's time between batches counts). With `by_progress` the
        time restarts with every answer that has batches, and the caller's time does not count.
        Raises RawReadTimeoutError, OffsetOutOfRangeError, AuthorizationFailedError,
        TopicNotFoundError, CorruptBatchError, AuthenticationFailedError.
        """
        for batches in self.stream(
            partition, start, end, deadline_s=deadline_s, by_progress=by_progress
        ):
            yield from (batch.header for batch in batches)

    def stream(
        self,
        partition: TopicPartitionId,
        start: int,
        end: int,
        *,
        deadline_s: float,
        by_progress: bool = False,
    ) -> Iterator[list[LoadedBatch]]:
        """The batches of `scan` with their bytes, as they arrive; raises the errors of `scan`.

        The next batches are requested in the meantime and overwrite the bytes.
        """
        largest = LARGEST_FETCH_BYTES
        if self._throttle is not None:
            largest = min(largest, self._throttle.most_at_once)
        isolation = Isolation.READ_COMMITTED
        reading = _Reading(self._cluster, partition, start, end, isolation, largest)
        fetching = _Ahead(self._cluster, [reading], deadline_s=deadline_s)
        fetching.throttle = self._throttle
        try:
            for _, batches, _ in fetching.batches():
                yield batches
                if by_progress:
                    fetching.renew()
        finally:
            fetching.close()

    def read(
        self,
        ranges: Mapping[TopicPartitionId, OffsetRange],
        *,
        deadline_s: float,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        limit_bytes: int | None = None,
    ) -> dict[TopicPartitionId, tuple[LoadedBatch, ...]]:
        """Every batch with an offset of these ranges with its bytes, in offset order.

        One request per leader and round. The first and last batch may extend beyond their range;
        offsets in no batch are not in the log. Keys come in the order of `ranges`; an empty range
        costs no request. With READ_UNCOMMITTED `aborted` is None for all data of transactions; with
        READ_COMMITTED it is as in `scan`, which costs one more request if a range extends beyond
        the last stable offset. Waits for an end that is not yet replicated. The batches keep their
        answers in memory. Ends or fails within `deadline_s`. With `limit_bytes` all ranges together
        hold at most that much, plus one batch for each leader; larger data is not requested. Raises
        the errors of `scan`, and RawReadLimitError.
        """
        readings = [
            _Reading(
                self._cluster, partition, asked.start, asked.end, isolation, LARGEST_FETCH_BYTES
            )
            for partition, asked in ranges.items()
        ]
        fetching = _Together(
            self._cluster, readings, deadline_s=deadline_s, limit_bytes=limit_bytes
        )
        for reading, batches, answered in fetching.batches():
            reading.hold(batches, answered)
            held = sum(one.held_bytes for one in readings)
            if limit_bytes is not None and held > limit_bytes:
                raise RawReadLimitError(limit_bytes=limit_bytes)
        return {reading.partition: tuple(reading.held) for reading in readings}

    def newest(
        self,
        partitions: Iterable[TopicPartitionId],
        lookback_s: float | None,
        *,
        deadline_s: float,
        timeout_s: float | None = None,
    ) -> dict[TopicPartitionId, OffsetRange]:
        """The offsets of the newest `lookback_s` of each partition, or (None) of the whole log.

        Counted back from the newest record: brokers stamp it and all others, so a wrong clock here
        does not matter. `timeout_s` is that of each other request. Raises the errors of `read`.
        """

        def offsets(wanted: Mapping[TopicPartitionId, int]) -> dict[TopicPartitionId, int]:
            return list_offsets(
                self._cluster.wire, self._cluster.leaders, wanted, timeout_s=timeout_s
            )

        starts = offsets(dict.fromkeys(partitions, EARLIEST))
        ends = offsets(dict.fromkeys(starts, LATEST))
        if lookback_s is None:
            return {p: OffsetRange(start, ends[p]) for p, start in starts.items()}
        newest = self.read(
            {p: OffsetRange(max(start, ends[p] - 1), ends[p]) for p, start in starts.items()},
            deadline_s=deadline_s,
        )
        times = {
            p: batches[-1].header.max_timestamp - round(lookback_s * 1000)
            for p, batches in newest.items()
            if batches
        }
        found = offsets(times)
        return {p: OffsetRange(max(start, found.get(p, 0)), ends[p]) for p, start in starts.items()}
