"""Raw ranges of partitions, read from their leaders batch by batch."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby, repeat
from typing import Any, Final, NamedTuple

import kafka.errors as client_errors
from kafka.protocol.consumer import FetchRequest

from kstreams_assets.closing import Closing
from kstreams_assets.errors import (
    ClusterUnavailableError,
    CorruptBatchError,
    KafkaError,
    KafkaRequestError,
    OffsetOutOfRangeError,
    RawReadLimitError,
    RawReadTimeoutError,
)
from kstreams_assets.kafka.channel import Channels, FetchAnswer, receive_fetch, send_fetch
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
from kstreams_assets.kafka.topics import is_compacted
from kstreams_assets.kafka.wire import TOPIC_NOT_ALLOWED, WireClient, topics_not_allowed
from kstreams_assets.offsets import OffsetRange, TopicPartitionId


class LoadedBatch(NamedTuple):
    """The header of a batch, and its bytes as they lie in the log (a view, nothing is copied)."""

    header: RawBatch
    data: memoryview
    partition: TopicPartitionId

    def records(self) -> list[RawRecord]:
        """All its records, decoded anew at each call; also those outside of the range read.

        Raises CorruptBatchError.
        """
        return decode_records(self.data, partition=str(self.partition))


@dataclass(frozen=True, slots=True)
class RawRange:
    """Every batch that holds an offset in [start, end), in offset order.

    The first and last batch may reach beyond the range; offsets in no batch are not in the log.
    `log_start` is that of the last Fetch answer, None where none was asked because the range is
    empty.
    """

    start: int
    end: int
    log_start: int | None
    batches: tuple[LoadedBatch, ...]

    @property
    def offsets(self) -> OffsetRange:
        """The range that was asked for."""
        return OffsetRange(self.start, self.end)


FIRST_FETCH_BYTES: Final = 2**19
LARGEST_FETCH_BYTES: Final = 2**23

# From version 13 on topics go by id; version 12 is what every broker from 2.7 to 4.x answers.
_FETCH_VERSION: Final = 12
_OUT_OF_RANGE: Final = client_errors.OffsetOutOfRangeError.errno


class Wanted(NamedTuple):
    """What is asked of one partition."""

    partition: TopicPartitionId
    position: int
    max_bytes: int


def fetch_request(
    wanted: Iterable[Wanted], *, max_bytes: int, isolation: Isolation
) -> FetchRequest:
    """A request that is answered at once, and whose answer is filled in the order of `wanted`.

    The first partition that has data gives at least one batch, however large it is.
    """
    topic = FetchRequest.FetchTopic
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=isolation.value,
        topics=[
            topic(
                topic=name,
                partitions=[
                    topic.FetchPartition(
                        partition=entry.partition.partition,
                        fetch_offset=entry.position,
                        partition_max_bytes=entry.max_bytes,
                    )
                    for entry in entries
                ],
            )
            for name, entries in groupby(wanted, key=lambda entry: entry.partition.topic)
        ],
        max_version=_FETCH_VERSION,
    )


def error_name(code: int) -> str:
    """What kafka-python calls an error code."""
    return client_errors.for_code(code).__name__


def raise_lasting(
    code: int,
    wanted: Wanted,
    wire: WireClient,
    leaders: PartitionLeaders,
    *,
    timeout_s: float,
) -> None:
    """Raise the error of a partition if asking again will not cure it.

    OffsetOutOfRangeError, AuthorizationFailedError (READ), KafkaRequestError; what list_offsets
    raises, as the bounds of a log are asked for.
    """
    partition = wanted.partition
    if code == _OUT_OF_RANGE:
        low, high = (
            list_offsets(wire, leaders, {partition: which}, timeout_s=timeout_s)[partition]
            for which in (EARLIEST, LATEST)
        )
        # a follower that has just become leader may lag for a moment
        if not low <= wanted.position <= high:
            raise OffsetOutOfRangeError(
                partition=str(partition), offset=wanted.position, log_start=low, log_end=high
            )
    elif code == TOPIC_NOT_ALLOWED:
        raise topics_not_allowed("fetch", [partition.topic], "READ")
    elif code not in MOVED and code:
        raise KafkaRequestError(operation="fetch", resource=str(partition), reason=error_name(code))


def judged(
    answer: Any,  # noqa: ANN401 (kafka-python builds its response classes at run time)
    partition: TopicPartitionId,
    isolation: Isolation,
    position: int,
) -> Iterator[tuple[RawBatch, memoryview]]:
    """Batches of one partition's answer with their bytes, told apart as Kafka's consumers do.

    The answer is to a request from `position` on: its first batch reaches that offset, and the
    others follow.

    A read_committed answer lists the aborted transactions its data overlaps: producer and first
    offset. From there on the producer's batches are aborted, until its abort marker. Raises
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
"""So long a log must have nothing below an end before compaction is taken for the cause."""


class CompactedTopics:
    """Of which topics of a cluster compaction may have removed records, by effective configs."""

    def __init__(self, wire: WireClient) -> None:
        self._wire = wire
        self._known: dict[str, bool] = {}

    def has(self, topic: str) -> bool:
        """Whether it is one of them; false where its configs are not known."""
        if topic not in self._known:
            try:
                self._known[topic] = is_compacted(self._wire, topic)
            except KafkaError:
                return False
        return self._known[topic]


class _Emptiness:
    """Whether compaction has left nothing of a range: seen by answers that stay empty.

    One empty answer proves nothing: brokers with tiered storage give them, without an error, while
    a remote read takes longer than `remote.fetch.max.wait.ms` (KIP-1018).
    """

    def __init__(self, compacted: "CompactedTopics", topic: str) -> None:
        self._compacted, self._topic = compacted, topic
        self._since: float | None = None

    def end(self) -> None:
        """There was an answer that was not empty, or no answer at all."""
        self._since = None

    def lasts(self) -> bool:
        """Take an empty answer; whether compaction is the only cause that is left."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since >= EMPTY_S and self._compacted.has(self._topic)

    @property
    def pause_s(self) -> float:
        """How long to wait before the broker is asked again."""
        passed = 0.0 if self._since is None else time.monotonic() - self._since
        return min(_LONGEST_RETRY_S, _BULK_RETRY_S + passed / 10)


def _whole_batches(
    answer: FetchAnswer, partition: TopicPartitionId, isolation: Isolation, position: int
) -> tuple[list[LoadedBatch], CorruptBatchError | None]:
    """The batches of an answer up to one that cannot be read, and what is wrong with that one."""
    batches: list[LoadedBatch] = []
    try:
        for header, data in judged(answer, partition, isolation, position):
            batches.append(LoadedBatch(header, data, partition))
    except CorruptBatchError as error:
        return batches, error
    return batches, None


_BULK_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 0.5
_BULK_LEAST_S: Final = 0.001


@dataclass(slots=True)
class _Reading:
    """How far one range has been read."""

    partition: TopicPartitionId
    start: int
    end: int
    position: int
    isolation: Isolation
    emptiness: _Emptiness
    log_start: int | None = None
    batches: list[LoadedBatch] = field(default_factory=list)
    held_bytes: int = 0
    max_bytes: int = FIRST_FETCH_BYTES
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
        for header, data in judged(answer, self.partition, self.isolation, self.position):
            self.served = True
            if header.base_offset >= self.end:
                self.position = self.end
                break
            kept.append(LoadedBatch(header, data, self.partition))
            self.position = header.last_offset + 1
        self._keep(kept, len(answer.records or b""))
        if self.served:
            self.max_bytes = min(2 * self.max_bytes, LARGEST_FETCH_BYTES)
            self.emptiness.end()
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
        self.reason = nothing_came(answer.high_watermark, self.end)
        is_committed = self.isolation is Isolation.READ_COMMITTED
        if is_committed and self.position >= answer.last_stable_offset:
            self.isolation = Isolation.READ_UNCOMMITTED  # the rest was undecided just now
        elif answer.high_watermark < self.end:
            self.emptiness.end()
        elif was_first and self.emptiness.lasts():
            # nothing is left below the end: compaction may empty even a log's tail
            if is_committed and answer.last_stable_offset < self.end:
                self.isolation = Isolation.READ_UNCOMMITTED
            else:
                self.position = self.end


def nothing_came(high_watermark: int, end: int) -> str:
    """Why a range is not complete, in words."""
    if high_watermark < end:
        return f"the log ends at {high_watermark}"
    return (
        f"the broker's answers hold no records, although the log ends at {high_watermark}: remote"
        " storage may be slow"
    )


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
        compacted: "CompactedTopics | None" = None,
    ) -> None:
        self._wire = wire
        self._leaders = leaders
        self._readings = [
            _Reading(
                partition,
                asked.start,
                asked.end,
                asked.start,
                isolation,
                _Emptiness(compacted or CompactedTopics(wire), partition.topic),
            )
            for partition, asked in ranges.items()
        ]
        self._patience = QuotaPatience()
        self._limit_bytes = limit_bytes
        self._limit_s = deadline_s
        self._deadline = unthrottled_time() + deadline_s

    def read(self) -> dict[TopicPartitionId, RawRange]:
        """Read until every range is complete."""
        while unfinished := [r for r in self._readings if r.position < r.end]:
            if unthrottled_time() >= self._deadline:
                raise self._late(unfinished[0])
            if not self._round(unfinished):
                time.sleep(min(reading.emptiness.pause_s for reading in unfinished))
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
        return max(_BULK_LEAST_S, min(self._wire.timeout_s, self._deadline - unthrottled_time()))

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
                asked = requests.items(), repeat(most), repeat(throttled_s())
                count_throttled(max(pool.map(self._ask_beside, *asked)))
        elif requests:
            self._ask(*next(iter(requests.items())), most)
        return any(reading.served for reading in unfinished)

    def _ask_beside(
        self,
        request: tuple[tuple[int, Isolation], list[_Reading]],
        most_bytes: int,
        throttled_before_s: float,
    ) -> float:
        """Ask in a thread of a pool; for how long it was throttled."""
        set_throttled(throttled_before_s)
        self._ask(*request, most_bytes)
        return throttled_s() - throttled_before_s

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
        if response.error_code:
            self._judge_error(response.error_code, readings[0])
            self._try_later(readings, error_name(response.error_code))
            return
        if response.throttle_time_ms > 0 and not response.responses:
            self._take_throttled(readings)
            return
        self._patience.served()
        unmentioned = {reading.partition: reading for reading in readings}
        # a throttled broker answers without records
        was_first = not response.throttle_time_ms
        for topic in response.responses or ():
            for answer in topic.partitions or ():
                reading = unmentioned.pop(
                    TopicPartitionId(topic.topic, answer.partition_index), None
                )
                if reading is None:
                    continue
                if answer.error_code:
                    self._judge_error(answer.error_code, reading)
                else:
                    reading.take(answer, was_first=was_first)
                    was_first = was_first and not answer.records
        self._try_later(unmentioned.values(), "an answer that does not mention the partition")

    def _take_throttled(self, readings: Iterable[_Reading]) -> None:
        """Take an answer that a quota has emptied: neither a stall nor the end of a log."""
        for reading in readings:
            reading.reason = QUOTA_REASON
            reading.emptiness.end()
            if self._patience.is_exhausted():
                raise self._late(reading)

    def _judge_error(self, code: int, reading: _Reading) -> None:
        raise_lasting(
            code, reading.wanted, self._wire, self._leaders, timeout_s=self._remaining_s()
        )
        self._try_later([reading], error_name(code))

    def _try_later(self, readings: Iterable[_Reading], reason: str) -> None:
        for reading in readings:
            reading.reason = reason
            reading.emptiness.end()
            self._leaders.forget(reading.partition)


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
        self.at = unthrottled_time() + self.limit_s

    def remaining_s(self) -> float:
        return self.at - unthrottled_time()

    def check(self, reached: int, reason: str, *, answered: bool = False) -> None:
        if unthrottled_time() >= self.at:
            raise RawReadTimeoutError(
                partition=str(self.partition),
                reached=reached,
                end=self.end,
                timeout_s=self.limit_s,
                reason=reason.rstrip("."),
                answered=answered,
            )


class _Fetching:
    """One partition, fetched from its leader, whoever that is by now."""

    def __init__(
        self,
        wire: WireClient,
        leaders: PartitionLeaders,
        channels: Channels,
        deadline: _Deadline,
        throttle: Throttle | None,
        emptiness: _Emptiness,
    ) -> None:
        self._wire, self._leaders, self._channels = wire, leaders, channels
        self._deadline, self._throttle, self._emptiness = deadline, throttle, emptiness
        self._patience = QuotaPatience()
        self._mute_ms = 0
        """For how long the broker reads nothing more, since its last answer."""
        self._unpaid: tuple[int, int] | None = None
        """Bytes of the last answer, and the broker they came from."""
        self._node: int | None = None
        """The broker that has been asked and has not answered yet."""

    def ask(self, position: int, size: int, isolation: Isolation) -> None:
        """Ask for the next answer; what stands against it shows when it is waited for."""
        with contextlib.suppress(OSError, ClusterUnavailableError):
            self._ask(position, size, isolation)

    def answer(self, position: int, size: int, isolation: Isolation) -> FetchAnswer:
        """The next answer, asked for unless it is on its way."""
        deadline, partition, reason = self._deadline, self._deadline.partition, "no leader"
        while True:
            deadline.check(position, reason)
            try:
                if self._node is not None or self._ask(position, size, isolation):
                    answer = self._received()
                    if answer.is_throttled:
                        self._take_throttled(position)
                        continue
                    self._patience.served()
                    if answer.error_code == 0:
                        return answer
                    raise_lasting(
                        answer.error_code,
                        Wanted(partition, position, size),
                        self._wire,
                        self._leaders,
                        timeout_s=max(_LEAST_S, deadline.remaining_s()),
                    )
                    reason = error_name(answer.error_code)
            except OSError as error:
                reason = str(error)
            except ClusterUnavailableError as error:
                reason = error.reason
            self.leave()
            self._leaders.forget(partition)
            time.sleep(_RETRY_S)

    def _take_throttled(self, position: int) -> None:
        """Take an answer that a quota has emptied: neither a stall nor the end of the log."""
        self._emptiness.end()
        if self._patience.is_exhausted():
            raise RawReadTimeoutError(
                partition=str(self._deadline.partition),
                reached=position,
                end=self._deadline.end,
                timeout_s=QUOTA_PATIENCE_S,
                reason=QUOTA_REASON,
                answered=True,
            )

    def leave(self) -> None:
        """Leave unread what was asked for."""
        if self._node is not None:
            self._channels.drop(self._node)
            self._node = None

    def _ask(self, position: int, size: int, isolation: Isolation) -> bool:
        """Whether there is a leader, which is asked then."""
        self.pay()
        partition = self._deadline.partition
        leaders = self._leaders.of([partition], operation="fetch", timeout_s=self._limit_s())
        node = leaders.get(partition)
        if node is None:
            return False
        channel = self._channels.to(node, operation="fetch", timeout_s=self._limit_s())
        self._node = node
        send_fetch(channel, partition, position, max_bytes=size, isolation=isolation)
        return True

    def _received(self) -> FetchAnswer:
        node = self._node
        assert node is not None  # noqa: S101 (it was asked)
        channel = self._channels.to(node, operation="fetch", timeout_s=self._limit_s())
        channel.limit(self._limit_s())
        answer = receive_fetch(channel)
        self._node = None
        self._unpaid = len(answer.records), node
        self._mute_ms = answer.throttle_time_ms
        return answer

    def pay(self) -> None:
        """Wait until there is time for the next answer; that is no lack of progress."""
        wait_throttle_time(self._mute_ms)
        self._mute_ms = 0
        if self._throttle is not None and self._unpaid is not None:
            self._throttle.wait(*self._unpaid)
        self._unpaid = None

    def _limit_s(self) -> float:
        return max(_LEAST_S, min(self._wire.timeout_s, self._deadline.remaining_s()))


class RawLogReader(Closing):
    """Reads raw batches of partitions of one cluster, from their leaders.

    Needs READ on the topics. Keeps its connections until `close`; usable from one thread at a time.
    `throttle` is for `scan` and `stream`: `read` has limits of its own.
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
        self._wire, self._leaders = shared
        self._channels = Channels(self._wire, timeout_s=self._wire.timeout_s)
        self._compacted = CompactedTopics(self._wire)

    @property
    def bootstrap_servers(self) -> str:
        """The cluster."""
        return self._wire.bootstrap_servers

    def close(self) -> None:
        """Close all connections but those that are shared with a `KafkaCluster`."""
        self._channels.close()
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

        The first and last batch may reach beyond the range. Offsets in no batch are not in the log.
        That nothing is left up to `end` is believed only of a compacted topic without tiered
        storage, after `EMPTY_S`; of others the deadline passes. Batches at or above the last stable
        offset have `aborted` None. Waits for an `end` that is not yet replicated. Ends or fails
        within `deadline_s` (the time the caller takes between batches counts); with `by_progress`
        the time begins anew, and without the caller's, with every answer that holds batches. Raises
        RawReadTimeoutError, OffsetOutOfRangeError, AuthorizationFailedError, TopicNotFoundError,
        CorruptBatchError, AuthenticationFailedError.
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
        """The batches of `scan` with their bytes, as they come; raises what `scan` raises.

        The next ones are on their way meanwhile. The bytes are overwritten when they are asked for.
        """
        deadline = _Deadline(partition, end, deadline_s, unthrottled_time() + deadline_s)
        largest = LARGEST_FETCH_BYTES
        if self._throttle is not None:
            largest = min(largest, self._throttle.most_at_once)
        position, size = start, min(FIRST_FETCH_BYTES, largest)
        isolation = Isolation.READ_COMMITTED
        emptiness = _Emptiness(self._compacted, partition.topic)
        fetching = _Fetching(
            self._wire, self._leaders, self._channels, deadline, self._throttle, emptiness
        )
        try:
            while position < end:
                answer = fetching.answer(position, size, isolation)
                batches, corrupt = _whole_batches(answer, partition, isolation, position)
                if batches:
                    before, position = position, max(position, batches[-1].header.last_offset + 1)
                    # What lies behind the end is fetched for nothing.
                    wanted = len(answer.records) / (position - before) * (end - position)
                    size = min(2 * size, largest, FIRST_FETCH_BYTES + int(wanted))
                    emptiness.end()
                    if position < end and corrupt is None:
                        fetching.ask(position, size, isolation)
                    yield [
                        batch
                        for batch in batches
                        if batch.header.last_offset >= start and batch.header.base_offset < end
                    ]
                    if by_progress:
                        deadline.renew()
                if corrupt is not None and position < end:
                    if corrupt.offset >= end:
                        return
                    raise corrupt
                if batches:
                    continue
                is_committed = isolation is Isolation.READ_COMMITTED
                if is_committed and position >= answer.last_stable_offset:
                    # what lies from here on was undecided just now
                    isolation = Isolation.READ_UNCOMMITTED
                    continue
                if answer.high_watermark < end:
                    emptiness.end()
                elif emptiness.lasts():
                    # nothing is left below the end: compaction may empty even a log's tail
                    if not is_committed or answer.last_stable_offset >= end:
                        return
                    isolation = Isolation.READ_UNCOMMITTED
                    continue
                time.sleep(emptiness.pause_s)
                reason = nothing_came(answer.high_watermark, end)
                deadline.check(position, reason, answered=answer.high_watermark >= end)
        finally:
            fetching.leave()
            fetching.pay()

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
            compacted=self._compacted,
            limit_bytes=limit_bytes,
        )
        return bulk.read()
