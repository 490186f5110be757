"""Records of raw batches, with what every consumer sees of them: keys, values, headers, times.

The layout is that of Kafka's DefaultRecord: numbers are zigzag varints, relative to the batch.
Recovery points decode thousands of records per second, so the varints of one byte, which nearly
all are, are read in place instead of by a call.
"""

from typing import Final, NamedTuple

from kstreams_assets.errors import CorruptBatchError
from kstreams_assets.kafka.raw_batch import CODEC, HEADER, UNREADABLE, decompress

_LOG_APPEND_TIME: Final = 0x08
_Headers = tuple[tuple[str, bytes | None], ...]
_NO_HEADERS: Final[_Headers] = ()


class RawRecord(NamedTuple):
    """One record of the log.

    `timestamp_ms` -1 for none; `timestamp_type` 0 for CreateTime, 1 for LogAppendTime. `key` and
    `value` None for null. `headers` in order, duplicates and null values included.
    """

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: _Headers


def decode_records(batch: memoryview, *, partition: str) -> list[RawRecord]:
    """All records of one whole batch, in offset order; control records too.

    Raises CorruptBatchError, naming `partition`.
    """
    header = HEADER.unpack_from(batch)
    data = uncompressed(batch, partition=partition)
    kind, append_time = _append_time(header[5], header[8])
    try:
        return _decode(data, header[12], header[0], header[7], kind, append_time)
    except UNREADABLE as error:
        raise _corrupt(partition, header[0], error) from error


def uncompressed(batch: memoryview, *, partition: str) -> bytes:
    """The bytes of all records of one whole batch. Raises CorruptBatchError."""
    header = HEADER.unpack_from(batch)
    try:
        return decompress(bytes(batch[HEADER.size :]), header[5] & CODEC) if header[12] else b""
    except UNREADABLE as error:
        raise _corrupt(partition, header[0], error) from error


def _corrupt(partition: str, offset: int, error: Exception) -> CorruptBatchError:
    reason = f"unreadable records ({error})"
    return CorruptBatchError(partition=partition, offset=offset, reason=reason)


def _append_time(attributes: int, max_timestamp: int) -> tuple[int, int | None]:
    """The timestamp type, and the time of all records where the broker has set it."""
    # the broker writes LogAppendTime into the header only, and leaves the records as they came
    return (1, max_timestamp) if attributes & _LOG_APPEND_TIME else (0, None)


def _decode(
    data: bytes,
    count: int,
    base_offset: int,
    base_timestamp: int,
    timestamp_type: int,
    append_time: int | None,
) -> list[RawRecord]:
    records: list[RawRecord] = []
    position = 0
    for _ in range(count):
        length = data[position]
        position += 1
        if length >= 0x80:
            length, position = _rest(data, position, length)
        end = position + (length >> 1)
        delta = data[position + 1]  # behind the attributes, which no record uses
        position += 2
        if delta >= 0x80:
            delta, position = _rest(data, position, delta)
        timestamp = base_timestamp + ((delta >> 1) ^ -(delta & 1))
        delta = data[position]
        position += 1
        if delta >= 0x80:
            delta, position = _rest(data, position, delta)
        offset = base_offset + ((delta >> 1) ^ -(delta & 1))
        # lengths: odd numbers are negative, and only -1 (null) is one
        length = data[position]
        position += 1
        if length >= 0x80:
            length, position = _rest(data, position, length)
        if length & 1:
            key = None
        else:
            start, position = position, position + (length >> 1)
            key = data[start:position]
        length = data[position]
        position += 1
        if length >= 0x80:
            length, position = _rest(data, position, length)
        if length & 1:
            value = None
        else:
            start, position = position, position + (length >> 1)
            value = data[start:position]
        headers = _NO_HEADERS
        if data[position]:
            headers, position = _decode_headers(data, position)
        else:
            position += 1
        if position != end:
            message = f"a record ends {position - end} bytes beside its length"
            raise IndexError(message)
        records.append(
            RawRecord(
                offset,
                timestamp if append_time is None else append_time,
                timestamp_type,
                key,
                value,
                headers,
            )
        )
    if position != len(data):
        message = f"{len(data) - position} bytes are left behind the last record"
        raise IndexError(message)
    return records


def _decode_headers(data: bytes, position: int) -> tuple[_Headers, int]:
    count, position = _varint(data, position)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, start = _varint(data, position)
        if length < 0:
            message = "a header without a name"
            raise IndexError(message)
        position = start + length
        name = data[start:position].decode()
        length, start = _varint(data, position)
        position = start + max(length, 0)
        headers.append((name, None if length < 0 else data[start:position]))
    return tuple(headers), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    value = data[position]
    position += 1
    if value >= 0x80:
        value, position = _rest(data, position, value)
    return (value >> 1) ^ -(value & 1), position


def _rest(data: bytes, position: int, first: int) -> tuple[int, int]:
    """The number that begins with the byte `first` before `position`, still zigzag."""
    value, shift = first & 0x7F, 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
