"""Connections to brokers for large data: records that are fetched or produced.

kafka-python connects and logs in; then its socket is taken over. Its network loop copies each byte
five times, which took six times as much CPU as receiving here [measured].
"""

import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from kafka.protocol.consumer import FetchRequest

from kstreams_assets.closing import Closing
from kstreams_assets.kafka.leaders import Isolation
from kstreams_assets.kafka.throttle import CLIENT_ID
from kstreams_assets.kafka.wire import LARGEST_RESPONSE, WireClient
from kstreams_assets.offsets import TopicPartitionId

_FRAME: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">hhi")
_SMALL: Final = 65_536
"""Up to this size one more copy costs less than another system call."""


class Channel(Closing):
    """A logged-in connection to one broker, with answers in the order of requests.

    Every method raises OSError if the connection fails or nothing arrives for `timeout_s`; the
    channel is then unusable.
    """

    def __init__(self, connected: socket.socket, *, timeout_s: float) -> None:
        self._socket = connected
        self.limit(timeout_s)
        self._asked: deque[tuple[int, TopicPartitionId]] = deque()
        self._number = 0
        self._buffers = [bytearray(), bytearray()]
        self._head = bytearray(_FRAME.size)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def limit(self, timeout_s: float) -> None:
        """From now on fail if nothing arrives for this time."""
        self._socket.settimeout(timeout_s)

    def send(
        self,
        api_key: int,
        version: int,
        body: Sequence[bytes | bytearray | memoryview],
        *,
        about: TopicPartitionId,
    ) -> None:
        """Send a request in a non-flexible version: header and body without tags."""
        self._number += 1
        header = _REQUEST.pack(api_key, version, self._number) + _string(CLIENT_ID)
        size = len(header) + sum(len(part) for part in body)
        waiting = _FRAME.pack(size) + header
        for part in body:
            if len(part) <= _SMALL:
                waiting += bytes(part)
                continue
            self._socket.sendall(waiting)
            self._socket.sendall(part)
            waiting = b""
        if waiting:
            self._socket.sendall(waiting)
        self._asked.append((self._number, about))

    def receive(self) -> tuple[memoryview, TopicPartitionId]:
        """The body of the next answer (overwritten after the following one), and its partition."""
        self._fill(memoryview(self._head))
        (size,) = _FRAME.unpack(self._head)
        if not _FRAME.size <= size <= LARGEST_RESPONSE:
            message = f"an answer of {size} bytes"
            raise ConnectionError(message)
        self._buffers.reverse()
        if len(self._buffers[0]) < size:
            self._buffers[0] = bytearray(size)
        answer = memoryview(self._buffers[0])[:size]
        self._fill(answer)
        number, about = self._asked.popleft() if self._asked else (None, None)
        if about is None or _FRAME.unpack_from(answer)[0] != number:
            message = "an answer to something else"
            raise ConnectionError(message)
        return answer[_FRAME.size :], about

    def _fill(self, view: memoryview) -> None:
        position = 0
        while position < len(view):
            received = self._socket.recv_into(view[position:])
            if not received:
                message = "the broker closed the connection"
                raise ConnectionError(message)
            position += received


class Channels(Closing):
    """Channels to the brokers of one cluster, each opened at its first use; for one thread."""

    def __init__(self, wire: WireClient, *, timeout_s: float) -> None:
        self._wire, self._timeout_s = wire, timeout_s
        self._channels: dict[int, Channel] = {}

    def to(self, node: int, *, operation: str, timeout_s: float) -> Channel:
        """The channel to a broker.

        Raises ClusterUnavailableError, AuthenticationFailedError, SecretNotFoundError.
        """
        if node not in self._channels:
            connected = self._wire.connected_socket(node, operation=operation, timeout_s=timeout_s)
            self._channels[node] = Channel(connected, timeout_s=self._timeout_s)
        return self._channels[node]

    def drop(self, node: int) -> None:
        """Close the channel to a broker: after an error, or to discard its answers."""
        channel = self._channels.pop(node, None)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Close all channels."""
        for node in [*self._channels]:
            self.drop(node)


class Aborted(NamedTuple):
    """An aborted transaction, from its first offset in the partition."""

    producer_id: int
    first_offset: int


class FetchAnswer(NamedTuple):
    """A broker's answer about one partition; `records` are whole batches except perhaps the last.

    An answer that a quota has emptied (`is_throttled`, KIP-219) contains no information.
    """

    throttle_time_ms: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted_transactions: tuple[Aborted, ...]
    records: memoryview

    @property
    def is_throttled(self) -> bool:
        """Whether a quota has emptied the answer."""
        return self.throttle_time_ms > 0 and not (self.error_code or self.records)


_FETCH_VERSION: Final = 12
"""Supported by every broker from 2.7 to 4.x; from version 13 on topics are named by id."""
_INFLEXIBLE_FETCH_VERSION: Final = 11
_FETCH_ANSWER: Final = struct.Struct(">ihii")
_FETCHED_PARTITION: Final = struct.Struct(">iihqqqi")
_ABORTED: Final = struct.Struct(">qq")
_BEHIND_ABORTED: Final = struct.Struct(">ii")
_UNKNOWN: Final = -1


class Wanted(NamedTuple):
    """The request for one partition."""

    partition: TopicPartitionId
    position: int
    max_bytes: int


def fetch_request(
    wanted: Iterable[Wanted], *, max_bytes: int, isolation: Isolation
) -> FetchRequest:
    """A request that is answered at once, and whose answer is filled in the order of `wanted`.

    The first partition with data returns at least one batch, however large it is.
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


def send_fetch(
    channel: Channel,
    partition: TopicPartitionId,
    position: int,
    *,
    max_bytes: int,
    isolation: Isolation,
) -> None:
    """Request batches from an offset on; the answer comes at once, with at least one batch."""
    wanted = [Wanted(partition, position, max_bytes)]
    request = fetch_request(wanted, max_bytes=max_bytes, isolation=isolation)
    version = _INFLEXIBLE_FETCH_VERSION
    channel.send(request.API_KEY, version, [request.encode(version)], about=partition)


def receive_fetch(channel: Channel) -> FetchAnswer:
    """The answer to the previous request; its records are overwritten after the following one.

    Raises OSError, also for an answer that cannot be parsed or is about another partition.
    """
    body, partition = channel.receive()
    try:
        throttle_ms, error_code, _, topics = _FETCH_ANSWER.unpack_from(body)
        if error_code or (not topics and throttle_ms > 0):
            return FetchAnswer(throttle_ms, error_code, _UNKNOWN, _UNKNOWN, (), body[:0])
        at = _behind_topic(body, _FETCH_ANSWER.size, topics, partition)
        partitions, number, error, high, stable, _, count = _FETCHED_PARTITION.unpack_from(body, at)
        _require_partition(partitions, number, partition)
        at += _FETCHED_PARTITION.size
        behind = at + _ABORTED.size * max(count, 0)
        aborted = tuple(
            Aborted(*pair) for pair in _ABORTED.iter_unpack(_part(body, at, behind - at))
        )
        _, size = _BEHIND_ABORTED.unpack_from(body, behind)
        records = _part(body, behind + _BEHIND_ABORTED.size, max(size, 0))
    except struct.error as error:
        raise _unreadable(error) from error
    return FetchAnswer(throttle_ms, error, high, stable, aborted, records)


class ProduceAnswer(NamedTuple):
    """A broker's answer about one batch; `refused` is the index of a refused record, or -1."""

    throttle_time_ms: int
    error_code: int
    base_offset: int
    refused: int
    message: str


_PRODUCE: Final = (0, 8)
_PRODUCE_HEAD: Final = struct.Struct(">hhii")
_PRODUCE_PARTITION: Final = struct.Struct(">iii")
_PRODUCED: Final = struct.Struct(">iihqqq")
_ALL: Final = -1


def send_produce(
    channel: Channel,
    partition: TopicPartitionId,
    batch: Sequence[bytes | memoryview],
    *,
    timeout_s: float,
) -> None:
    """Send one batch that all in-sync replicas must acknowledge."""
    no_transaction, topics, partitions = _UNKNOWN, 1, 1
    head = [
        _PRODUCE_HEAD.pack(no_transaction, _ALL, round(1000 * timeout_s), topics),
        _string(partition.topic),
        _PRODUCE_PARTITION.pack(partitions, partition.partition, sum(len(part) for part in batch)),
    ]
    channel.send(*_PRODUCE, [b"".join(head), *batch], about=partition)


def receive_produce(channel: Channel) -> ProduceAnswer:
    """The answer to the oldest unanswered batch.

    Raises OSError, also for an answer that cannot be parsed or is about another partition.
    """
    body, partition = channel.receive()
    try:
        (topics,) = _FRAME.unpack_from(body)
        at = _behind_topic(body, _FRAME.size, topics, partition)
        partitions, number, error, base_offset, _, _ = _PRODUCED.unpack_from(body, at)
        _require_partition(partitions, number, partition)
        at += _PRODUCED.size
        (count,) = _FRAME.unpack_from(body, at)
        at += _FRAME.size
        refused, texts = _UNKNOWN, [""]
        for _ in range(max(count, 0)):
            (index,) = _FRAME.unpack_from(body, at)
            text, at = _text(body, at + _FRAME.size)
            refused = index if refused == _UNKNOWN else refused
            texts.append(text)
        text, at = _text(body, at)
        (throttle_ms,) = _FRAME.unpack_from(body, at)
    except struct.error as unread:
        raise _unreadable(unread) from unread
    message = next((one for one in [*texts[1:], text] if one), "")
    return ProduceAnswer(throttle_ms, error, base_offset, refused, message)


_LENGTH: Final = struct.Struct(">h")


def _string(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _behind_string(body: memoryview, at: int) -> int:
    return at + _LENGTH.size + len(_string_at(body, at))


def _string_at(body: memoryview, at: int) -> memoryview:
    """The bytes of a string; empty for null."""
    return _part(body, at + _LENGTH.size, max(_LENGTH.unpack_from(body, at)[0], 0))


def _text(body: memoryview, at: int) -> tuple[str, int]:
    """A nullable text, and the position behind it."""
    text = bytes(_string_at(body, at)).decode("utf-8", "replace")
    return text, _behind_string(body, at)


def _part(body: memoryview, at: int, size: int) -> memoryview:
    """This many bytes; raises if the answer is shorter than announced."""
    if at + size > len(body):
        message = f"a field of {size} bytes at {at} of {len(body)}"
        raise struct.error(message)
    return body[at : at + size]


def _behind_topic(body: memoryview, at: int, topics: int, asked: TopicPartitionId) -> int:
    """The position behind the name of the only requested topic."""
    if topics != 1 or _string_at(body, at) != asked.topic.encode():
        message = f"an answer that does not mention {asked.topic}"
        raise ConnectionError(message)
    return _behind_string(body, at)


def _require_partition(partitions: int, number: int, asked: TopicPartitionId) -> None:
    if partitions != 1 or number != asked.partition:
        message = f"an answer that does not mention {asked}"
        raise ConnectionError(message)


def _unreadable(error: struct.error) -> ConnectionError:
    return ConnectionError(f"an answer that cannot be read ({error})")
