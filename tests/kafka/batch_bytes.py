"""Bytes of record batches made by hand, by Kafka's description of the format."""

import gzip
import struct
from collections.abc import Sequence

import pyarrow as pa

from kstreams_assets.kafka.raw_batch import RawRecord

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def batch_bytes(
    records: Sequence[RawRecord],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    base_timestamp: int | None = None,
    append_time: int | None = None,
    codec: str = "none",
    attributes: int = 0,
    producer: tuple[int, int] = (7, 3),
) -> bytes:
    """One batch. `append_time` makes it LogAppendTime, as a broker does: in the header only."""
    first = records[0].timestamp_ms if records and base_timestamp is None else base_timestamp or 0
    body = b"".join(record_bytes(record, base_offset, first) for record in records)
    if last_offset is None:
        last_offset = records[-1].offset if records else base_offset
    header = struct.pack(
        ">qiibIhiqqqhii",
        base_offset,
        49 + len(compressed := compress(body, codec)),
        0,
        2,
        0,
        attributes | CODECS[codec] | (0x08 if append_time is not None else 0),
        last_offset - base_offset,
        first,
        append_time or max((r.timestamp_ms for r in records), default=0),
        *producer,
        -1,
        len(records),
    )
    return header + compressed


def record_bytes(record: RawRecord, base_offset: int, base_timestamp: int) -> bytes:
    """One record of a batch."""
    body = b"\x00" + varint(record.timestamp_ms - base_timestamp)
    body += varint(record.offset - base_offset)
    body += _nullable(record.key) + _nullable(record.value)
    body += varint(len(record.headers))
    body += b"".join(
        _nullable(k.encode("utf-8", "surrogateescape")) + _nullable(v) for k, v in record.headers
    )
    return varint(len(body)) + body


def varint(value: int) -> bytes:
    """Zigzag, seven bits per byte, the lowest first."""
    value = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compress(data: bytes, codec: str) -> bytes:
    """The records of a batch as producers compress them (snappy as librdkafka does)."""
    if codec == "none":
        return data
    if codec == "gzip":
        return gzip.compress(data)
    if codec == "snappy":
        return pa.Codec("snappy").compress(data, asbytes=True)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def _nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data
