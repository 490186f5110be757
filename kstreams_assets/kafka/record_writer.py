"""Write Arrow records to partitions as an idempotent producer (KIP-98), batch by batch.

This is a client of our own: Python's clients take each record as a separate object, and cannot send
a timestamp of 0. After any failure or kill a partition contains a prefix of the records, each once
and in order. An unacknowledged batch is sent again under the same number, by which the broker
recognises it, and the broker accepts batches only in order. The number of a record is its target
offset. Several writers with the same producer id may write the same records: the first one writes
each, and the broker refuses duplicates and records that come too early.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import kafka.errors as client_errors
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from kafka.protocol.producer import InitProducerIdRequest

from kstreams_assets.closing import Closing
from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
    KStreamsAssetsError,
    OvertakenError,
)
from kstreams_assets.kafka.channel import Channel, Channels, receive_produce, send_produce
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.leaders import LATEST, MOVED, PartitionLeaders, list_offsets
from kstreams_assets.kafka.record_columns import ProducerSequence, batches_of
from kstreams_assets.kafka.throttle import Throttle, unthrottled_time, wait_throttle_time
from kstreams_assets.kafka.wire import TOPIC_NOT_ALLOWED, WireClient
from kstreams_assets.offsets import TopicPartitionId

_BATCH_BYTES: Final = 1_000_000
_IN_FLIGHT: Final = 4
"""Brokers recognise the last five batches of a producer."""
_RETRY_S: Final = 0.1
_LEAST_S: Final = 0.001
_BROKER_S: Final = 30.0
_BEHIND_S: Final = 5.0
_SEQUENCES: Final = 2**31
_UNKNOWN: Final = -1
_INVALID_TIMESTAMP: Final = client_errors.InvalidTimestampError.errno
_TOO_LARGE: Final = client_errors.MessageSizeTooLargeError.errno
_KNOWN_ALREADY: Final = client_errors.DuplicateSequenceNumberError.errno
_NOT_THE_NEXT: Final = client_errors.OutOfOrderSequenceNumberError.errno
_CLUSTER_NOT_ALLOWED: Final = client_errors.ClusterAuthorizationFailedError.errno

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """After `delivery_timeout_s` without an acknowledgement the writing of a partition fails.

    `max_message_bytes` is the target topic's limit; only a batch of a single record may be larger.
    `compression` is none, gzip, snappy, lz4 or zstd. Batches are measured as they are sent.
    """

    delivery_timeout_s: float
    max_message_bytes: int
    compression: str = "none"
    throttle: Throttle | None = None


class ProducerId(NamedTuple):
    """The identity of a producer for brokers."""

    id: int
    epoch: int


class Acknowledged(NamedTuple):
    """Records on all replicas: their source offsets, and the target offset of the first."""

    sources: Offsets
    first: int


class RecordWriter(Closing):
    """Write partitions one after the other; usable from one thread.

    Needs WRITE and DESCRIBE on the topics.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        limits: WriterLimits,
        producer: ProducerId | None = None,
    ) -> None:
        """`producer` is shared with other attempts to write the same; by default a new one."""
        self._limits = limits
        self._wire = WireClient(connection, timeout_s=connection.request_timeout_seconds)
        self._leaders = PartitionLeaders(self._wire)
        self._channels = Channels(self._wire, timeout_s=self._wire.timeout_s)
        self._producer, self._is_shared = producer, producer is not None

    @property
    def delivery_timeout_s(self) -> float:
        """Time without an answer after which writing fails."""
        return self._limits.delivery_timeout_s

    def close(self) -> None:
        """Close the connections."""
        self._channels.close()
        self._wire.close()

    def end(self, partition: TopicPartitionId) -> int:
        """The partition's high watermark.

        Raises TopicNotFoundError, AuthorizationFailedError (DESCRIBE), ClusterUnavailableError.
        """
        wanted = {partition: LATEST}
        timeout_s = self._limits.delivery_timeout_s
        return list_offsets(self._wire, self._leaders, wanted, timeout_s=timeout_s)[partition]

    def write(
        self, partition: TopicPartitionId, records: Iterable[pa.RecordBatch], *, first: int
    ) -> Iterator[Acknowledged]:
        """Write records to the target offsets from `first` on.

        Batches have the columns of `record_columns.COLUMNS`; `offset` is the source's.
        Acknowledgements come in order; writing ends with the iterator.

        Raises:
            KStreamsAssetsError: The broker refused a record; names it. No later record is written.
                Or a record got another offset: another process writes the partition.
            OvertakenError: A writer with the same producer id writes the partition.
            ClusterUnavailableError: Nothing was acknowledged for too long.
            TopicNotFoundError, AuthorizationFailedError (WRITE), AuthenticationFailedError.
        """
        writing = _Writing(self, partition, first)
        is_done = False
        try:
            for batch in records:
                yield from writing.write(batch)
            yield from writing.rest()
            is_done = True
        finally:
            if not (is_done or self._is_shared):  # unknown which of its batches arrive
                self._producer = None
            writing.leave()

    def producer(self) -> ProducerId:
        """The identity of this writer for brokers, for others that write the same records.

        Raises:
            ClusterUnavailableError: No broker answered for too long.
            AuthorizationFailedError (IDEMPOTENT_WRITE).
        """
        deadline = unthrottled_time() + self.delivery_timeout_s
        while True:
            remaining_s = max(_LEAST_S, deadline - unthrottled_time())
            try:
                return self._producer_id(remaining_s)
            except ClusterUnavailableError:
                if unthrottled_time() + _RETRY_S >= deadline:
                    raise
                time.sleep(_RETRY_S)

    def _producer_id(self, timeout_s: float) -> ProducerId:
        """One id for all partitions of this writer."""
        if self._producer is None:
            request = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=0, max_version=4
            )
            response = self._wire.request(
                lambda: request, operation="init_producer_id", timeout_s=timeout_s
            )
            if response.error_code == _CLUSTER_NOT_ALLOWED:
                raise AuthorizationFailedError(
                    operation="produce", resource="the cluster", needed="IDEMPOTENT_WRITE"
                )
            if response.error_code:
                reason = client_errors.for_code(response.error_code)
                if reason.retriable:
                    raise self._wire.unavailable("init_producer_id", timeout_s, reason.__name__)
                raise KafkaRequestError(
                    operation="init_producer_id", resource="the cluster", reason=reason.__name__
                )
            self._producer = ProducerId(response.producer_id, response.producer_epoch)
        return self._producer


class _Sent(NamedTuple):
    """An unacknowledged batch: what was sent, and its source offsets."""

    data: list[bytes | memoryview]
    sources: Offsets
    times: Offsets
    sizes: Offsets
    target: int


class _Writing:
    """One partition during writing."""

    def __init__(self, writer: RecordWriter, partition: TopicPartitionId, first: int) -> None:
        self._writer, self._partition = writer, partition
        self._next = first
        self._sent: deque[_Sent] = deque()
        self._unsent = 0
        """How many of them, at the end, must be sent (again)."""
        self._node: int | None = None
        self._reason = "no acknowledgement"
        self._deadline = 0.0

    def write(self, records: pa.RecordBatch) -> Iterator[Acknowledged]:
        """Send records; return acknowledgements that arrived in the meantime."""
        limits = self._writer._limits  # noqa: SLF001 (its own module)
        producer = self._writer.producer()
        sources = records.column("offset").to_numpy()
        times = records.column("timestamp_ms").to_numpy()
        sizes = _sizes(records)
        most = min(_BATCH_BYTES, limits.max_message_bytes)
        for batch in batches_of(records, most_bytes=most):
            # Prepare this batch before there is room for it, while brokers write the earlier ones.
            sequence = ProducerSequence(*producer, self._next % _SEQUENCES)
            data = batch.framed(sequence, limits.compression)
            if len(self._sent) >= _IN_FLIGHT:
                yield self._acknowledged()
            part = slice(batch.first, batch.first + batch.count)
            self._sent.append(_Sent(data, sources[part], times[part], sizes[part], self._next))
            self._next += batch.count
            self._unsent += 1
            self._try_to_send()

    def rest(self) -> Iterator[Acknowledged]:
        """Wait until everything is acknowledged."""
        while self._sent:
            yield self._acknowledged()

    def leave(self) -> None:
        """Stop sending; unanswered batches are abandoned."""
        if self._node is not None and self._sent:
            self._writer._channels.drop(self._node)  # noqa: SLF001
        self._node = None

    def _try_to_send(self) -> None:
        """Send pending batches; failures appear when the answer is awaited."""
        try:
            self._send()
        except (OSError, ClusterUnavailableError) as error:
            self._fail(error)

    def _send(self) -> None:
        channel = self._channel()
        while self._unsent:
            batch = self._sent[-self._unsent]
            self._pay(sum(len(part) for part in batch.data))
            send_produce(channel, self._partition, batch.data, timeout_s=self._broker_s())
            self._unsent -= 1

    def _pay(self, size: int) -> None:
        """Wait for the rate limit; this does not count as a stall."""
        throttle = self._writer._limits.throttle  # noqa: SLF001
        if throttle is not None and self._node is not None:
            throttle.wait(size, self._node)

    def _channel(self) -> Channel:
        """The channel to the leader; kept while it answers."""
        writer, limit_s = self._writer, self._broker_s()
        if self._node is None:
            leaders = writer._leaders.of(  # noqa: SLF001
                [self._partition], operation="produce", timeout_s=limit_s
            )
            node = leaders.get(self._partition)
            if node is None:
                message = "the partition has no leader"
                raise ConnectionError(message)
            self._node = node
        channel = writer._channels.to(  # noqa: SLF001
            self._node, operation="produce", timeout_s=limit_s
        )
        channel.limit(limit_s + _BEHIND_S)
        return channel

    def _broker_s(self) -> float:
        """How long a broker may wait for its replicas."""
        return max(_LEAST_S, min(_BROKER_S, self._writer.delivery_timeout_s))

    def _fail(self, error: Exception) -> None:
        """Treat the unanswered batches as not sent."""
        reason = error.reason if isinstance(error, ClusterUnavailableError) else str(error)
        self._reason = reason or type(error).__name__
        writer = self._writer
        if self._node is not None:
            writer._channels.drop(self._node)  # noqa: SLF001
            self._node = None
        writer._leaders.forget(self._partition)  # noqa: SLF001
        self._unsent = len(self._sent)

    def _acknowledged(self) -> Acknowledged:
        """Wait for the answer to the oldest batch."""
        self._deadline = unthrottled_time() + self._writer.delivery_timeout_s
        batch = self._sent[0]
        while True:
            try:
                self._send()
                channel = self._channel()
                channel.limit(max(_LEAST_S, self._deadline - unthrottled_time()))
                answer = receive_produce(channel)
                if answer.error_code in (0, _KNOWN_ALREADY):
                    break
                if answer.error_code == _NOT_THE_NEXT:
                    raise OvertakenError(
                        partition=str(self._partition), source_offset=int(batch.sources[0])
                    )
                passing = client_errors.for_code(answer.error_code)
                if not (passing.retriable or answer.error_code in MOVED):
                    raise self._refusal(batch, answer.error_code, answer.refused, answer.message)
                self._fail(passing())
                self._reason = passing.__name__
            except (OSError, ClusterUnavailableError) as error:
                self._fail(error)
            if unthrottled_time() + _RETRY_S >= self._deadline:
                raise ClusterUnavailableError(
                    bootstrap_servers=self._writer._wire.bootstrap_servers,  # noqa: SLF001
                    operation=f"produce {self._partition} from source offset {batch.sources[0]}",
                    timeout_s=self._writer.delivery_timeout_s,
                    reason=self._reason.rstrip("."),
                )
            time.sleep(_RETRY_S)
        self._sent.popleft()
        # The answer about a batch that was sent twice may have no offset.
        if answer.base_offset not in (batch.target, _UNKNOWN):
            raise foreign_records(
                self._partition,
                f"the record with source offset {batch.sources[0]} got offset"
                f" {answer.base_offset} instead of {batch.target}",
            )
        if answer.throttle_time_ms:  # KIP-219: later requests wait at the broker
            wait_throttle_time(answer.throttle_time_ms)
        return Acknowledged(batch.sources, batch.target)

    def _refusal(self, batch: _Sent, code: int, index: int, message: str) -> KStreamsAssetsError:
        """The error for a batch that the broker refused."""
        if code == TOPIC_NOT_ALLOWED:
            resource = f"topic {self._partition.topic}"
            return AuthorizationFailedError(operation="produce", resource=resource, needed="WRITE")
        error = client_errors.for_code(code)
        if not 0 <= index < len(batch.sources):
            index = _culprit(code, batch)
        reason = str(getattr(error, "message", error.__name__))
        detail = message or str(getattr(error, "description", "no reason given"))
        return KStreamsAssetsError(
            f"{self._partition} refused the record with source offset {batch.sources[index]}:"
            f" {reason} ({detail.rstrip('.')}).",
            remedy="Change the topic's configs (max.message.bytes, message.timestamp.*, or"
            " cleanup.policy if a record has no key) or the rights of this user accordingly and"
            " run the restore again; it continues there.",
        )


def foreign_records(partition: TopicPartitionId, problem: str) -> KStreamsAssetsError:
    """The error for a partition that contains more than the records of this restore."""
    return KStreamsAssetsError(
        f"{partition} was not written by this restore alone: {problem}.",
        remedy="Stop the other writers of the topic, delete the target topics of this restore and"
        " run it again.",
    )


def _culprit(code: int, batch: _Sent) -> int:
    """The record of a refused batch that the broker rejects, if the broker does not name it."""
    if code == _INVALID_TIMESTAMP:
        now_ms = time.time_ns() // 1_000_000
        return int(np.abs(batch.times - now_ms).argmax())
    if code == _TOO_LARGE:
        return int(batch.sizes.argmax())
    return 0


def _sizes(records: pa.RecordBatch) -> Offsets:
    lengths = [
        pc.binary_length(records.column(name)).fill_null(0)  # pyright: ignore[reportAttributeAccessIssue]
        for name in ("key", "value")
    ]
    return lengths[0].to_numpy().astype(np.int64) + lengths[1].to_numpy().astype(np.int64)
