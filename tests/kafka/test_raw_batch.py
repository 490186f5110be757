"""Record batches read from their bytes."""

import gzip
import struct

import pyarrow as pa
import pytest
from kafka.record.memory_records import MemoryRecordsBuilder

from kstreams_assets.errors import CorruptBatchError
from kstreams_assets.kafka.raw_batch import RawBatch, parse_batches

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def _built(offsets: list[int], *, last: int | None = None, codec: str = "none") -> bytes:
    """A batch with exactly these records, as compaction leaves it: base and last offset stay."""
    builder = MemoryRecordsBuilder(
        magic=2, compression_type=0, batch_size=10**6, offset=0, producer_id=7,
        producer_epoch=3, base_sequence=0, transactional=True,
    )  # fmt: skip
    for position, offset in enumerate(offsets):
        builder.skip(offset - position if position == 0 else offset - offsets[position - 1] - 1)
        builder.append(1_000 + offset, b"k%d" % offset, b"v" * 300, [("h", b"x")])
    builder.close()
    plain = bytearray(builder.buffer())
    header, records = plain[:61], bytes(plain[61:])
    compressed = _compress(records, codec)
    struct.pack_into(">i", header, 8, 49 + len(compressed))
    (attributes,) = struct.unpack_from(">h", header, 21)
    struct.pack_into(">h", header, 21, attributes | CODECS[codec])
    struct.pack_into(">i", header, 23, offsets[-1] if last is None else last)
    struct.pack_into(">i", header, 57, len(offsets))
    return bytes(header) + compressed


def _compress(records: bytes, codec: str) -> bytes:
    if codec == "none":
        return records
    if codec == "gzip":
        return gzip.compress(records)
    if codec == "snappy":
        return _snappy(records)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(records)
    return sink.getvalue().to_pybytes()


def _snappy(data: bytes) -> bytes:
    return pa.Codec("snappy").compress(data, asbytes=True)


def _parse(data: bytes) -> list[RawBatch]:
    return list(parse_batches(memoryview(data), partition="t-0"))


def _at(data: bytes, base: int) -> bytes:
    return struct.pack(">q", base) + data[8:]


def test_complete_batch_is_not_decompressed() -> None:
    data = bytearray(_at(_built([0, 1, 2], codec="zstd"), 100))
    data[61:] = b"\xff" * len(data[61:])  # nobody looks at these
    (batch,) = _parse(bytes(data))
    assert batch == RawBatch(100, 102, 3, 7, 3, True, False, None, 1_002)


@pytest.mark.parametrize("codec", CODECS)
def test_compacted_batch_tells_its_offsets(codec: str) -> None:
    (batch,) = _parse(_at(_built([1, 4, 200], last=250, codec=codec), 1_000))
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (1_000, 1_250, 3)
    assert batch.record_offsets == (1_001, 1_004, 1_200)


def test_snappy_in_the_frame_of_java() -> None:
    plain = _built([0, 2], last=3)
    header, records = bytearray(plain[:61]), plain[61:]
    blocks = [records[:50], records[50:]]
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    framed += b"".join(struct.pack(">i", len(_snappy(b))) + _snappy(b) for b in blocks)
    struct.pack_into(">i", header, 8, 49 + len(framed))
    struct.pack_into(">h", header, 21, 0x10 | 2)
    (batch,) = _parse(bytes(header) + framed)
    assert batch.record_offsets == (0, 2)


def test_emptied_batch() -> None:
    header = bytearray(_built([0], last=4)[:61])
    struct.pack_into(">i", header, 8, 49)
    struct.pack_into(">i", header, 57, 0)
    (batch,) = _parse(bytes(header))
    assert (batch.record_count, batch.record_offsets, batch.last_offset) == (0, (), 4)


def _control(kind: int, *, emptied: bool = False) -> bytes:
    key = struct.pack(">hh", 0, kind)
    value = struct.pack(">hi", 0, 5)
    body = b"\x00\x00\x00" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\x00"
    record = bytes([2 * len(body)]) + body
    header = bytearray(_built([0])[:61])
    struct.pack_into(">i", header, 8, 49 + (0 if emptied else len(record)))
    struct.pack_into(">h", header, 21, 0x30)
    struct.pack_into(">i", header, 57, 0 if emptied else 1)
    return bytes(header) + (b"" if emptied else record)


def test_control_batches() -> None:
    abort, commit = _parse(_control(0) + _at(_control(1), 1))
    assert (abort.control_type, commit.control_type) == ("abort", "commit")
    assert abort.is_control
    (emptied,) = _parse(_control(1, emptied=True))
    assert emptied.is_control
    assert (emptied.control_type, emptied.record_offsets) == (None, ())


def test_a_batch_cut_off_is_left_out() -> None:
    first, second = _built([0, 1]), _at(_built([0, 1]), 2)
    for cut in (1, 20, 61, len(second) - 1):
        batches = _parse(first + second[:cut])
        assert [batch.base_offset for batch in batches] == [0]


def test_old_format_is_named() -> None:
    data = bytearray(_built([0]))
    data[16] = 1
    with pytest.raises(CorruptBatchError, match="t-0 cannot be read at offset 0: message format 1"):
        _parse(bytes(data))


def test_rubbish_in_a_compacted_batch_is_named() -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        data = bytearray(_built([0, 2], last=9, codec=codec))
        data[61:] = b"\xff" * len(data[61:])
        with pytest.raises(CorruptBatchError, match="unreadable records"):
            _parse(bytes(data))
