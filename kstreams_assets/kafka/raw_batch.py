"""Record batches as they lie in the log (message format 2), read from their headers alone.

The layout is that of Kafka's DefaultRecordBatch: 61 bytes of header, then the records, compressed
as one block. Records are decompressed only where compaction has removed some of them.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from kstreams_assets.errors import CorruptBatchError

ControlType = Literal["commit", "abort"]

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, crc, attributes, last offset delta, first timestamp,
max timestamp, producer id, producer epoch, base sequence, record count."""
CODEC: Final = 0x07
"""The bits of the attributes that name the compression."""

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
UNREADABLE: Final = (
    struct.error, IndexError, UnicodeDecodeError, zlib.error, pa.ArrowException, OSError
)  # fmt: skip
"""What bytes that are no records raise when they are read."""


class RawBatch(NamedTuple):
    """One batch of the log.

    `record_offsets` only where records are missing between `base_offset` and `last_offset`
    (compaction), else None. `aborted` None when the transaction was undecided at the time of
    reading. `control_type` None for data, and for a control batch that compaction has emptied.
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
    """The whole batches at the start of `data`; a last one cut off by the fetch limit is left out.

    `aborted` is not known here and stays False. Raises CorruptBatchError, naming `partition`.
    """
    return (header for header, _ in parse_with_bytes(data, partition=partition))


def parse_with_bytes(data: memoryview, *, partition: str) -> Iterator[tuple[RawBatch, memoryview]]:
    """The same batches, each with its bytes, which are a part of `data` and not copied."""
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
    is_control = bool(attributes & _CONTROL)
    offsets = None
    if count != delta + 1:
        records = decompress(bytes(batch[HEADER.size :]), attributes & CODEC) if count else b""
        offsets = tuple(base + step for step in _offset_deltas(records, count))
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


def _offset_deltas(records: bytes, count: int) -> Iterator[int]:
    view, position = memoryview(records), 0
    for _ in range(count):
        length, start = _varint(view, position)
        after_timestamp = _varint(view, start + 1)[1]
        yield _varint(view, after_timestamp)[0]
        position = start + length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
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
    """The records of a batch; raises one of `UNREADABLE` when they cannot be unpacked."""
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
    """Java writes blocks in a frame of its own (xerial), librdkafka one bare block."""
    if not data.startswith(_XERIAL):
        return _snappy_block(data)
    blocks, position = [], _XERIAL_HEADER
    while position < len(data):
        (length,) = _INT.unpack_from(data, position)
        position += _INT.size
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
    return pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
