"""Records of raw batches as columns of Arrow, and back: a whole batch at a time, never one by one.

The layout is that of `org.apache.kafka.common.record.DefaultRecordBatch` and `DefaultRecord`
(message format 2). A million records of 1 KB are decoded in about a second, encoded in less.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.errors import CorruptBatchError
from kstreams_assets.kafka.raw_batch import (
    CODEC,
    HEADER,
    LOG_APPEND_TIME,
    UNREADABLE,
    decompress,
    header_name,
    header_name_bytes,
    header_text,
)

HEADERS: Final = pa.list_(
    pa.struct([("key", pa.string()), ("value", pa.binary()), ("key_bytes", pa.binary())])
)
"""Headers in order. `key_bytes` is a name that is not UTF-8, else null; `key` is then its text with
replacement characters, as in Java's consumers."""
COLUMNS: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("headers", HEADERS),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""A record: epoch milliseconds as stored (-1 for none), type 0 for CreateTime and 1 for
LogAppendTime, headers in order and null if there are none."""

AT_ONCE_BYTES: Final = 8 * 1024**2
"""Approximate size of data that is decoded together; a larger batch is decoded alone."""

_CRC_FROM: Final = 21
_LARGEST: Final = 2**31 - 1
_LONGEST_VARINT: Final = 10
_FIELDS_AT_MOST: Final = 1 + 2 * _LONGEST_VARINT + 4 * 5
"""Size of a record without key, value and headers."""

_Bytes = npt.NDArray[np.uint8]
_Numbers = npt.NDArray[np.int64]


def columns_of(
    batches: Iterable[memoryview], *, partition: str, at_once_bytes: int = AT_ONCE_BYTES
) -> Iterator[pa.RecordBatch]:
    """The records of whole batches of one partition, in order, with the columns `COLUMNS`.

    The checksum of each batch is verified. If a batch cannot be read, the error names the offset,
    after all records before it were returned. The results are copies: the batches may be freed.

    Raises:
        CorruptBatchError: A batch does not match its checksum or is malformed; names `partition`.
    """
    gathered = _Gathered(partition)
    for batch in batches:
        try:
            gathered.add(batch)
        except CorruptBatchError:
            if gathered.counts:
                yield gathered.decoded()  # earlier records are intact
            raise
        if gathered.size >= at_once_bytes:
            yield gathered.decoded()
            gathered = _Gathered(partition)
    if gathered.counts:
        yield gathered.decoded()


class _Gathered:
    """Batches that are decoded together."""

    def __init__(self, partition: str) -> None:
        self.size = 0
        self.counts: list[int] = []
        self._partition = partition
        self._parts: list[bytes | memoryview] = []
        self._headers: list[tuple[Any, ...]] = []

    def add(self, batch: memoryview) -> None:
        header = HEADER.unpack_from(batch)
        crc, attributes, count = header[4], header[5], header[12]
        if google_crc32c.value(np.frombuffer(batch[_CRC_FROM:], np.uint8)) != crc & 0xFFFFFFFF:
            raise self._corrupt(header[0], "the records do not match their checksum")
        if not count:
            return  # compaction keeps an emptied batch because of its producer
        part: bytes | memoryview = batch[HEADER.size :]
        if attributes & CODEC:
            try:
                part = decompress(bytes(part), attributes & CODEC)
            except UNREADABLE as error:
                raise self._corrupt(header[0], f"unreadable records ({error})") from error
        if self.size + len(part) > _LARGEST:
            raise self._corrupt(header[0], "its records are larger than 2 GiB")
        self._parts.append(part)
        self._headers.append(header)
        self.counts.append(count)
        self.size += len(part)

    def decoded(self) -> pa.RecordBatch:
        data = b"".join(self._parts)
        first = self._headers[0][0]
        try:
            return _decoded(data, self._headers, self.counts, [len(part) for part in self._parts])
        except (*UNREADABLE, ValueError) as error:
            raise self._corrupt(first, f"unreadable records ({error})") from error

    def _corrupt(self, offset: int, reason: str) -> CorruptBatchError:
        return CorruptBatchError(partition=self._partition, offset=offset, reason=reason)


def _decoded(
    data: bytes, headers: Sequence[tuple[Any, ...]], counts: Sequence[int], sizes: Sequence[int]
) -> pa.RecordBatch:
    raw = np.frombuffer(data, np.uint8)
    starts, ends = _records(data, counts, sizes)
    of_batch = np.repeat(np.arange(len(headers)), counts)
    base_offset = np.array([header[0] for header in headers], np.int64)[of_batch]
    base_time = np.array([header[7] for header in headers], np.int64)[of_batch]
    appended = np.array([bool(header[5] & LOG_APPEND_TIME) for header in headers])[of_batch]
    time_delta, at = _varints(raw, starts + 1)  # behind the attributes, which no record uses
    offset_delta, at = _varints(raw, at)
    key_length, key_at = _varints(raw, at)
    value_length, value_at = _varints(raw, _behind(key_at, key_length))
    count, at = _varints(raw, _behind(value_at, value_length))
    times = base_time + time_delta
    if appended.any():
        # The broker writes LogAppendTime only into the header, and leaves the records unchanged.
        max_time = np.array([header[8] for header in headers], np.int64)[of_batch]
        times = np.where(appended, max_time, times)
    buffer = pa.py_buffer(data)
    record_headers, at = _headers_of(raw, buffer, count, at)
    if (at != ends).any():
        message = "a record does not end where its length says"
        raise IndexError(message)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(base_offset + offset_delta),
            pa.array(times),
            pa.array(appended.astype(np.int32)),
            record_headers,
            _binary(buffer, key_at, key_length),
            _binary(buffer, value_at, value_length),
        ],
        schema=COLUMNS,
    )


def _records(data: bytes, counts: Sequence[int], sizes: Sequence[int]) -> tuple[_Numbers, _Numbers]:
    """The start of each record (after its length) and its end.

    Only this loop handles single records: the start of each follows from the length of the previous
    one.
    """
    starts: list[int] = []
    ends: list[int] = []
    begins, ended = starts.append, ends.append
    position = behind = 0
    for count, size in zip(counts, sizes, strict=True):
        behind += size
        for _ in range(count):
            length = data[position]
            position += 1
            if length >= 0x80:
                byte = data[position]
                position += 1
                length = length & 0x7F | (byte & 0x7F) << 7
                shift = 14
                while byte >= 0x80:
                    byte = data[position]
                    position += 1
                    length |= (byte & 0x7F) << shift
                    shift += 7
            begins(position)
            position += length >> 1  # lengths are zigzag, and never negative
            ended(position)
        if position != behind:
            message = f"records end {position - behind} bytes beside their batch"
            raise IndexError(message)
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _varints(raw: _Bytes, at: _Numbers) -> tuple[_Numbers, _Numbers]:
    """The zigzag varints at these positions, and the positions behind them."""
    first = raw[at]
    value = (first & 0x7F).astype(np.uint64)
    at = at + 1
    more = np.flatnonzero(first >= 0x80)
    for shift in range(7, 7 * _LONGEST_VARINT, 7):
        if not len(more):
            break
        byte = raw[at[more]]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[more] += 1
        more = more[byte >= 0x80]
    if len(more):
        message = "a number of more than 64 bits"
        raise IndexError(message)
    negative = (value & np.uint64(1)).astype(np.int64)
    return (value >> np.uint64(1)).astype(np.int64) ^ -negative, at


def _behind(at: _Numbers, lengths: _Numbers) -> _Numbers:
    """The positions behind texts of these lengths; -1 means null."""
    if (lengths < -1).any():
        message = "a negative length"
        raise IndexError(message)
    return at + np.maximum(lengths, 0)


def _headers_of(
    raw: _Bytes, buffer: pa.Buffer, counts: _Numbers, at: _Numbers
) -> tuple[pa.Array, _Numbers]:
    """The headers of each record from these positions on, and the positions behind them."""
    if (counts < 0).any():
        message = "a negative number of headers"
        raise IndexError(message)
    total = int(counts.sum())
    if not total:
        return pa.nulls(len(counts), HEADERS), at
    if total > len(raw):
        message = "more headers than bytes"
        raise IndexError(message)
    ends = np.cumsum(counts)
    name_at, name_length, value_at, value_length = (np.zeros(total, np.int64) for _ in range(4))
    at = at.copy()
    for number in range(int(counts.max())):
        which = np.flatnonzero(counts > number)
        to = ends[which] - counts[which] + number
        name_length[to], name_at[to] = _varints(raw, at[which])
        value_length[to], value_at[to] = _varints(raw, _behind(name_at[to], name_length[to]))
        at[which] = _behind(value_at[to], value_length[to])
    if (name_length < 0).any():
        message = "a header without a name"
        raise IndexError(message)
    if (at > len(raw)).any():
        message = "a header ends beyond its batch"
        raise IndexError(message)
    names, name_bytes = _header_names(_binary(buffer, name_at, name_length))
    pairs = pa.StructArray.from_arrays(
        [names, _binary(buffer, value_at, value_length), name_bytes],
        fields=list(HEADERS.value_type),
    )
    edges = pa.array(np.concatenate(([0], ends)).astype(np.int32))
    return pa.ListArray.from_arrays(edges, pairs, type=HEADERS, mask=pa.array(counts == 0)), at


def _header_names(raw: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Names of headers as text, and the bytes of those that are not UTF-8, else null."""
    try:
        return raw.cast(pa.string()), pa.nulls(len(raw), pa.binary())
    except pa.ArrowInvalid:
        names = [header_name(name) for name in raw.to_pylist()]
    texts = [header_text(name) for name in names]
    return pa.array(texts, pa.string()), pa.array(map(header_name_bytes, names), pa.binary())


def header_name_column(pairs: pa.Array) -> pa.Array:
    """The names of headers (`HEADERS.value_type`) as bytes, as they are in the log."""
    text = pairs.field("key").cast(pa.binary())
    # Files of earlier releases do not have this field.
    index = pairs.type.get_field_index("key_bytes")
    if index < 0 or pairs.field(index).null_count == len(pairs):
        return text
    return pc.coalesce(pairs.field(index), text)  # pyright: ignore[reportAttributeAccessIssue]


def _binary(buffer: pa.Buffer, at: _Numbers, lengths: _Numbers) -> pa.Array:
    """Copies of these parts of a buffer, which are in order and do not overlap; -1 is null."""
    edges = np.empty(2 * len(at), np.int32)
    edges[0::2] = at
    edges[1::2] = _behind(at, lengths)
    # The parts and the bytes between them, as one array: `take` copies in C.
    pieces = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), buffer])
    wanted = pa.array(np.arange(0, len(edges), 2, dtype=np.int32), mask=lengths < 0)
    return pieces.take(wanted)


_HEAD: Final = struct.Struct(">qiibI")
_TAIL: Final = struct.Struct(">hiqqqhii")
_BEHIND_LENGTH: Final = 9  # leader epoch, magic, checksum
_NO_EPOCH: Final = -1
_MAGIC: Final = 2
_CODES: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_LZ4_FRAME: Final = b"\x04\x22\x4d\x18\x60\x70\x73"
"""Version 1, independent blocks (brokers reject others) of at most 4 MiB; its checksum."""
_LZ4_BLOCK: Final = 4 * 1024**2
_LZ4_PLAIN: Final = 0x80000000


class ProducerSequence(NamedTuple):
    """The producer fields of a batch of an idempotent producer (KIP-98)."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


@dataclass(frozen=True, slots=True)
class NewBatch:
    """Records for one batch: `count` of them from index `first` on.

    `data` are their uncompressed bytes; times in epoch milliseconds.
    """

    first: int
    count: int
    base_time: int
    max_time: int
    data: memoryview

    def framed(self, sequence: ProducerSequence, compression: str) -> list[bytes | memoryview]:
        """The whole batch in the protocol's format, in pieces; the broker assigns its offsets."""
        data = _compressed(self.data, compression)
        tail = _TAIL.pack(
            _CODES[compression],
            self.count - 1,
            self.base_time,
            self.max_time,
            *sequence,
            self.count,
        )
        crc = google_crc32c.extend(google_crc32c.value(tail), np.frombuffer(data, np.uint8))
        length = _BEHIND_LENGTH + len(tail) + len(data)
        return [_HEAD.pack(0, length, _NO_EPOCH, _MAGIC, crc), tail, data]


def batches_of(records: pa.RecordBatch, *, most_bytes: int) -> Iterator[NewBatch]:
    """Divide records with the columns `COLUMNS` into batches (offsets and timestamp types are
    ignored).

    In their order, of at most `most_bytes` each before compression; a larger record gets its own
    batch.
    """
    if not records.num_rows:
        return
    times = records.column("timestamp_ms").to_numpy()
    key, value = records.column("key"), records.column("value")
    key_length, value_length = _lengths(key), _lengths(value)
    headers = _encoded_headers(records.column("headers"))
    header_length = _lengths(headers)
    payload = np.maximum(key_length, 0) + np.maximum(value_length, 0) + header_length
    firsts = _firsts(payload + _FIELDS_AT_MOST, most_bytes - HEADER.size)
    counts = np.diff(np.append(firsts, records.num_rows))
    number_in_batch = np.arange(records.num_rows) - np.repeat(firsts, counts)
    fields = [
        _encoded(times - np.repeat(times[firsts], counts)),
        _encoded(number_in_batch),
        _encoded(key_length),
    ]
    of_value = _encoded(value_length)
    size = 1 + payload + of_value.lengths + sum(field.lengths for field in fields)
    attributes = _Varints(np.zeros((records.num_rows, 1), np.uint8), np.ones_like(size))
    joined = pc.binary_join_element_wise(  # pyright: ignore[reportAttributeAccessIssue]
        _side_by_side([_encoded(size), attributes, *fields]),
        _filled(key),
        _side_by_side([of_value]),
        _filled(value),
        headers,
        pa.scalar(b"", pa.binary()),
    )
    edges = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset :]
    data = memoryview(joined.buffers()[2])
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        of_it = times[first : first + count]
        yield NewBatch(
            first,
            count,
            int(of_it[0]),
            int(of_it.max()),
            data[int(edges[first]) : int(edges[first + count])],
        )


class _Varints(NamedTuple):
    """One number of each record: its bytes in one row, of which `lengths` count."""

    matrix: _Bytes
    lengths: _Numbers


def _encoded(numbers: _Numbers) -> _Varints:
    """As zigzag varints."""
    numbers = numbers.astype(np.int64, copy=False)
    rest = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    columns: list[_Bytes] = []
    lengths = np.ones(len(rest), np.int64)
    while True:
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        more = rest > 0
        columns.append(low | more.astype(np.uint8) << np.uint8(7))
        if not more.any():
            return _Varints(np.stack(columns, axis=1), lengths)
        lengths += more


def _side_by_side(fields: Sequence[_Varints]) -> pa.Array:
    """Concatenate the numbers of each record."""
    matrix = np.concatenate([field.matrix for field in fields], axis=1)
    kept = [np.arange(field.matrix.shape[1]) < field.lengths[:, None] for field in fields]
    data = matrix[np.concatenate(kept, axis=1)]
    lengths = np.sum([field.lengths for field in fields], axis=0)
    return _sliced(pa.py_buffer(data), np.concatenate(([0], np.cumsum(lengths))))


def _sliced(buffer: pa.Buffer, edges: npt.NDArray[np.integer[Any]]) -> pa.Array:
    """A buffer, cut into binary values at its edges."""
    cut = pa.py_buffer(edges.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, cut, buffer])


def _encoded_headers(headers: pa.Array) -> pa.Array:
    """The headers of each record, preceded by their number."""
    counts = pc.list_value_length(headers)  # pyright: ignore[reportAttributeAccessIssue]
    counts = counts.fill_null(0).to_numpy().astype(np.int64)
    numbers = _encoded(counts)
    if not counts.any():
        return _side_by_side([numbers])
    flat = headers.flatten()
    name, value = header_name_column(flat), flat.field("value")
    empty = pa.scalar(b"", pa.binary())
    joined = pc.binary_join_element_wise(  # pyright: ignore[reportAttributeAccessIssue]
        _side_by_side([_encoded(_lengths(name))]),
        name,
        _side_by_side([_encoded(_lengths(value))]),
        _filled(value),
        empty,
    )
    edges = np.frombuffer(joined.buffers()[1], np.int32)
    ends = np.concatenate(([0], np.cumsum(counts)))
    of_record = _sliced(joined.buffers()[2], edges[ends])
    return pc.binary_join_element_wise(  # pyright: ignore[reportAttributeAccessIssue]
        _side_by_side([numbers]), of_record, empty
    )


def _lengths(values: pa.Array) -> _Numbers:
    """The length of each value, -1 for null."""
    lengths = pc.binary_length(values)  # pyright: ignore[reportAttributeAccessIssue]
    return lengths.fill_null(-1).to_numpy().astype(np.int64)


def _filled(values: pa.Array) -> pa.Array:
    return values.fill_null(b"") if values.null_count else values


def _firsts(sizes: _Numbers, most: int) -> _Numbers:
    """The index of the first record of each batch of at most this size in bytes."""
    ends = np.cumsum(sizes)
    firsts = [0]
    while True:
        before = int(ends[firsts[-1] - 1]) if firsts[-1] else 0
        following = int(np.searchsorted(ends, before + most, side="right"))
        following = max(following, firsts[-1] + 1)
        if following >= len(sizes):
            return np.array(firsts, np.int64)
        firsts.append(following)


def _compressed(data: memoryview, compression: str) -> bytes | memoryview:
    if compression == "none":
        return data
    if compression == "lz4":
        return _lz4_frame(data)
    return pa.compress(data, codec=compression, asbytes=True)


def _lz4_frame(data: memoryview) -> bytes:
    """Arrow chains the blocks of a frame, but Kafka's brokers reject chained ones."""
    parts = [_LZ4_FRAME]
    for start in range(0, len(data), _LZ4_BLOCK):
        plain = data[start : start + _LZ4_BLOCK]
        block: bytes = pa.compress(plain, codec="lz4_raw", asbytes=True)
        if len(block) < len(plain):
            parts += [struct.pack("<I", len(block)), block]
        else:
            parts += [struct.pack("<I", len(plain) | _LZ4_PLAIN), bytes(plain)]
    return b"".join([*parts, bytes(4)])
