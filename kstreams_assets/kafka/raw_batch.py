"""Record batches (message format 2) in the log, and the records that a consumer sees of them."""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from kstreams_assets.errors import CorruptBatchError
from kstreams_assets.offsets import OffsetRange

ControlType = Literal["commit", "abort"]

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, crc, attributes, last offset delta, first timestamp,
max timestamp, producer id, producer epoch, base sequence, record count."""
CODEC: Final = 0x07
"""The attribute bits of the compression type."""
LOG_APPEND_TIME: Final = 0x08
"""The attribute bit that says that the broker has set the time."""

_LOG_OVERHEAD: Final = 12  # base offset and length, which the length does not count
_SIZE: Final = struct.Struct(">qi")
_MAGIC_AT: Final = 16
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_CONTROL_KEY: Final = struct.Struct(">hh")
_CONTROL_TYPES: Final[dict[int, ControlType]] = {0: "abort", 1: "commit"}
_CODECS: Final = {2: "snappy", 3: "lz4", 4: "zstd"}
_GZIP: Final = 1
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16
_INT: Final = struct.Struct(">i")
_LEAST_RECORD: Final = 7
"""Bytes of the smallest record: length, attributes, two deltas, and three lengths or counts."""
_LARGEST: Final = 2**31 - 1
UNREADABLE: Final = (
    struct.error, IndexError, zlib.error, pa.ArrowException, OSError, OverflowError, MemoryError
)  # fmt: skip
"""The exceptions that malformed records cause."""


class RawBatch(NamedTuple):
    """One batch of the log.

    `record_offsets` is None unless records are missing between `base_offset` and `last_offset`
    (compaction). `aborted` is None if the transaction was undecided at the time of reading.
    `control_type` is None for data, and for a control batch that compaction has emptied.
    `max_timestamp` in ms.
    """

    base_offset: int
    last_offset: int
    record_count: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    is_control: bool
    control_type: ControlType | None
    max_timestamp: int
    record_offsets: tuple[int, ...] | None = None
    aborted: bool | None = False


def parse_batches(data: memoryview, *, partition: str) -> Iterator[RawBatch]:
    """The whole batches at the start of `data`; a last one cut off by the fetch limit is omitted.

    `aborted` is unknown here and stays False. Raises CorruptBatchError, naming `partition`.
    """
    return (header for header, _ in parse_with_bytes(data, partition=partition))


def parse_with_bytes(data: memoryview, *, partition: str) -> Iterator[tuple[RawBatch, memoryview]]:
    """The same batches, each with its bytes, as views of `data`."""
    position, size = 0, len(data)
    while size - position >= HEADER.size:
        base, length = _SIZE.unpack_from(data, position)
        end = position + _LOG_OVERHEAD + length
        if data[position + _MAGIC_AT] != 2:
            reason = f"message format {data[position + _MAGIC_AT]}"
            raise CorruptBatchError(partition=partition, offset=base, reason=reason)
        if end > size:
            return
        if end - position < HEADER.size:
            raise CorruptBatchError(
                partition=partition, offset=base, reason=f"a batch of {length} bytes"
            )
        batch = data[position:end]
        try:
            header = _parse(batch)
        except UNREADABLE as error:
            raise CorruptBatchError(
                partition=partition, offset=base, reason=f"unreadable records ({error})"
            ) from error
        yield header, batch
        position = end


def _parse(batch: memoryview) -> RawBatch:
    (
        base, _, _, _, _, attributes, delta, _, max_timestamp, producer_id, producer_epoch, _, count
    ) = HEADER.unpack_from(batch)  # fmt: skip
    if base < 0 or not 0 <= count <= delta + 1:
        message = f"{count} records in {delta + 1} offsets from {base} on"
        raise IndexError(message)
    is_control = bool(attributes & _CONTROL)
    offsets = None
    if count != delta + 1:
        records = decompress(bytes(batch[HEADER.size :]), attributes & CODEC) if count else b""
        offsets = tuple(base + step for step in _offset_deltas(records, count, delta))
    return RawBatch(
        base,
        base + delta,
        count,
        producer_id,
        producer_epoch,
        bool(attributes & _TRANSACTIONAL),
        is_control,
        _control_type(batch) if is_control and count else None,
        max_timestamp,
        offsets,
    )


def _control_type(batch: memoryview) -> ControlType | None:
    # control batches hold one record and are never compressed
    position = _varint(batch, HEADER.size)[1] + 1  # length, attributes
    position = _varint(batch, position)[1]  # timestamp delta
    position = _varint(batch, position)[1]  # offset delta
    position = _varint(batch, position)[1]  # key length
    return _CONTROL_TYPES.get(_CONTROL_KEY.unpack_from(batch, position)[1])


def _offset_deltas(records: bytes, count: int, last: int) -> Iterator[int]:
    """The offsets of records within their batch; they increase up to the last."""
    view, position, before = memoryview(records), 0, -1
    for _ in range(count):
        length, start = _varint(view, position)
        after_timestamp = _varint(view, start + 1)[1]
        offset = _varint(view, after_timestamp)[0]
        if length < _LEAST_RECORD - 1 or not before < offset <= last:
            message = f"a record of {length} bytes with offset {offset} behind {before}"
            raise IndexError(message)
        yield offset
        position, before = start + length, offset


def _varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def decompress(data: bytes, codec: int) -> bytes:
    """The records of a batch; raises one of `UNREADABLE` if they cannot be decompressed."""
    if codec == 0:
        return data
    if codec == _GZIP:
        return zlib.decompress(data, wbits=31)
    name = _CODECS.get(codec)
    if name is None:
        message = f"compression {codec}"
        raise struct.error(message)
    if name == "snappy":
        return _decompress_snappy(data)
    with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
        return stream.read()


def _decompress_snappy(data: bytes) -> bytes:
    """Java writes blocks in its own frame (xerial), librdkafka one bare block."""
    if not data.startswith(_XERIAL):
        return _snappy_block(data)
    blocks, position = [], _XERIAL_HEADER
    while position < len(data):
        (length,) = _INT.unpack_from(data, position)
        position += _INT.size
        if not 0 < length <= len(data) - position:
            message = f"a block of {length} bytes"
            raise IndexError(message)
        blocks.append(_snappy_block(data[position : position + length]))
        position += length
    return b"".join(blocks)


def _snappy_block(block: bytes) -> bytes:
    size = shift = position = 0  # the block begins with its size as a plain varint
    while True:
        byte = block[position]
        size |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            break
    if size > _LARGEST:
        message = f"a block of {size} bytes"
        raise IndexError(message)
    return pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)


_Headers = tuple[tuple[str, bytes | None], ...]
_NO_HEADERS: Final[_Headers] = ()


def header_name(raw: bytes) -> str:
    """The name of a header as text; bytes that are not UTF-8 become surrogates (PEP 383).

    Kafka's Java clients write text. Other clients send any bytes; brokers and consumers accept
    them.
    """
    return raw.decode("utf-8", "surrogateescape")


def header_text(name: str) -> str:
    """A name from `header_name`, with replacement characters for bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def header_name_bytes(name: str) -> bytes | None:
    """The bytes of a name from `header_name` that is not UTF-8, None for one that is."""
    return None if _is_utf8(name) else name.encode("utf-8", "surrogateescape")


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class RawRecord(NamedTuple):
    """One record of the log.

    `timestamp_ms` -1 for none; `timestamp_type` 0 for CreateTime, 1 for LogAppendTime. `key` and
    `value` None for null. `headers` in order, duplicates and null values included; see
    `header_name` for their names.
    """

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: _Headers


def decode_records(batch: memoryview, *, partition: str) -> list[RawRecord]:
    """All records of one whole batch, in offset order; including control records.

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
    """The timestamp type, and the common time of all records if the broker has set it."""
    # the broker writes LogAppendTime only into the header, and leaves the records unchanged
    return (1, max_timestamp) if attributes & LOG_APPEND_TIME else (0, None)


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
    if count < 0:
        message = "a negative number of headers"
        raise IndexError(message)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, start = _varint(data, position)
        if length < 0:
            message = "a header without a name"
            raise IndexError(message)
        position = start + length
        name = header_name(data[start:position])
        length, start = _varint(data, position)
        position = start + max(length, 0)
        headers.append((name, None if length < 0 else data[start:position]))
    return tuple(headers), position


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


@dataclass(slots=True)
class RangeTally:
    """Account for every offset in [start, end), batch by batch, in constant memory.

    Batches come in offset order, and may extend beyond the range. Each offset is counted once:
    `visible` committed data, `aborted` data, `undecided` data of transactions open when read,
    `markers` control records, `holes` that are empty (removed by compaction), `unseen` that were
    not inspected. `first_absent` is the lowest of the last two, None without any. `position` is the
    progress.
    """

    start: int
    end: int
    visible: int = 0
    aborted: int = 0
    undecided: int = 0
    markers: int = 0
    holes: int = 0
    unseen: int = 0
    first_absent: int | None = None
    position: int = field(init=False)

    def __post_init__(self) -> None:
        self.position = self.start

    def add(self, batch: RawBatch) -> None:
        """Account for the offsets up to the end of a batch."""
        for run in _runs(batch):
            first, last = max(run.start, self.position), min(run.end, self.end)
            if first >= last:
                continue
            self._hole(first)
            self.position, count = last, last - first
            if batch.is_control:
                self.markers += count
            elif batch.aborted is None:
                self.undecided += count
            elif batch.aborted:
                self.aborted += count
            else:
                self.visible += count

    def skip(self, to: int) -> None:
        """Mark unaccounted offsets below `to` as unseen."""
        to = min(to, self.end)
        if to > self.position:
            self._note_absent()
            self.unseen += to - self.position
            self.position = to

    def finish(self) -> None:
        """The rest of the range is empty."""
        self._hole(self.end)
        self.position = self.end

    def _hole(self, to: int) -> None:
        if to > self.position:
            self._note_absent()
            self.holes += to - self.position

    def _note_absent(self) -> None:
        if self.first_absent is None:
            self.first_absent = self.position


class Tallies:
    """Tallies of ranges of one partition, in order; each batch goes to its tallies."""

    def __init__(self, tallies: Sequence[RangeTally]) -> None:
        self._tallies, self._first = tallies, 0

    def add(self, batch: RawBatch) -> None:
        """Account for a batch; batches come in order of offsets."""
        tallies = self._tallies
        while self._first < len(tallies) and tallies[self._first].end <= batch.base_offset:
            tallies[self._first].finish()
            self._first += 1
        for index in range(self._first, len(tallies)):
            if tallies[index].start > batch.last_offset:
                break
            tallies[index].add(batch)

    def finish(self) -> None:
        """The ranges have no more batches."""
        for tally in self._tallies[self._first :]:
            tally.finish()


def content_of_range(batches: Iterable[RawBatch], start: int, end: int) -> RangeTally:
    """Account for every offset in [start, end), given all batches of the log in that range.

    Batches come in offset order, as from `RawLogReader.scan`, and may extend beyond the range.
    """
    tally = RangeTally(start, end)
    for batch in batches:
        tally.add(batch)
    tally.finish()
    return tally


def _runs(batch: RawBatch) -> Iterable[OffsetRange]:
    if batch.record_offsets is None:
        return (OffsetRange(batch.base_offset, batch.last_offset + 1),)
    return (OffsetRange(offset, offset + 1) for offset in batch.record_offsets)
