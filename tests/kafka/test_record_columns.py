"""Records of batches as columns of Arrow and back, against kafka-python's reading and writing."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kstreams_assets.errors import CorruptBatchError
from kstreams_assets.kafka.record_columns import (
    COLUMNS,
    NewBatch,
    ProducerSequence,
    batches_of,
    columns_of,
)

Header = tuple[str, bytes | None]
Row = tuple[int, bytes | None, bytes | None, list[Header]]
"""Timestamp, key, value, headers."""

payloads = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=140)
headers = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=4
) | st.just([("h", b"x" * 200)])
times = st.integers(-1, 2**62) | st.integers(1_700_000_000_000, 1_700_000_100_000)
rows = st.lists(st.tuples(times, payloads, payloads, headers), min_size=1, max_size=30)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def batch_by_kafka_python(base_offset: int, records: Sequence[Row]) -> bytes:
    """A batch as kafka-python writes it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**30,
    )
    for number, (time_ms, key, value, pairs) in enumerate(records):
        assert builder.append(number, time_ms, key, value, pairs) is not None
    data = bytearray(builder.build())
    data[0:8] = base_offset.to_bytes(8, "big")
    return bytes(data)


def columns_of_rows(records: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "offset": number,
                "timestamp_ms": time_ms,
                "timestamp_type": 0,
                "headers": [{"key": k, "value": v} for k, v in pairs] or None,
                "key": key,
                "value": value,
            }
            for number, (time_ms, key, value, pairs) in enumerate(records)
        ],
        schema=COLUMNS,
    )


def rows_of(columns: pa.RecordBatch) -> list[Row]:
    return [
        (
            row["timestamp_ms"],
            row["key"],
            row["value"],
            [(pair["key"], pair["value"]) for pair in row["headers"] or ()],
        )
        for row in columns.to_pylist()
    ]


def framed(batch: NewBatch, compression: str = "none") -> bytes:
    return b"".join(batch.framed(ProducerSequence(7, 3, 11), compression))


@given(st.lists(rows, min_size=1, max_size=4), st.integers(0, 2**40))
@settings(max_examples=150, deadline=None)
def test_batches_of_another_writer_are_read_as_they_were_written(
    batches: list[list[Row]], base_offset: int
) -> None:
    written = []
    for records in batches:
        written.append(memoryview(batch_by_kafka_python(base_offset, records)))
        base_offset += 1_000_000

    read = pa.Table.from_batches(columns_of(written, partition="t-0")).combine_chunks()

    (found,) = read.to_batches()
    assert rows_of(found) == [record for records in batches for record in records]
    offsets = found.column("offset").to_pylist()
    first = base_offset - 1_000_000 * len(batches)
    assert offsets == [
        first + 1_000_000 * number + index
        for number, records in enumerate(batches)
        for index in range(len(records))
    ]
    # A record without headers has none, not an empty list of them.
    assert [row["headers"] is None for row in found.to_pylist()] == [
        not r[3] for r in rows_of(found)
    ]


@given(rows, st.integers(100, 5_000), st.sampled_from(CODECS))
@settings(max_examples=300, deadline=None)
def test_another_reader_reads_what_was_written(
    records: list[Row], most_bytes: int, compression: str
) -> None:
    columns = columns_of_rows(records)

    batches = list(batches_of(columns, most_bytes=most_bytes))

    found: list[Row] = []
    for batch in batches:
        data = framed(batch, compression)
        header = memoryview(data)
        if compression in ("none", "gzip"):
            read = DefaultRecordBatch(data)
            assert read.validate_crc()
            assert (read.producer_id, read.producer_epoch, read.base_sequence) == (7, 3, 11)
            assert read.first_timestamp == batch.base_time
            assert read.max_timestamp == max(r.timestamp for r in DefaultRecordBatch(data))
            found += [
                (r.timestamp, r.key, r.value, [(str(k), v) for k, v in r.headers]) for r in read
            ]
        else:
            (read,) = columns_of([header], partition="t-0")
            found += rows_of(read)
        assert batch.count == 1 or len(framed(batch)) <= most_bytes
    assert found == records
    assert [batch.first for batch in batches] == [
        sum(batch.count for batch in batches[:number]) for number in range(len(batches))
    ]


@pytest.mark.parametrize("compression", CODECS)
def test_large_records_come_alone_and_compress(compression: str) -> None:
    records: list[Row] = [(number, b"k", bytes([number]) * 5_000_000, []) for number in range(3)]

    batches = list(batches_of(columns_of_rows(records), most_bytes=1_000_000))
    data = [framed(batch, compression) for batch in batches]

    assert [batch.count for batch in batches] == [1, 1, 1]
    assert compression == "none" or max(map(len, data)) < 300_000
    read = [
        row for one in columns_of(map(memoryview, data), partition="t-0") for row in rows_of(one)
    ]
    assert read == records


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_changed_bit_is_never_read(data: st.DataObject) -> None:
    records: list[Row] = [(5, b"key", b"value" * 9, [("h", b"1")]), (6, None, b"", [])]
    good = framed(next(iter(batches_of(columns_of_rows(records), most_bytes=10_000))))
    # Base offset, length, leader epoch and magic are not in the checksum, and read elsewhere.
    at = data.draw(st.integers(17, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(CorruptBatchError, match="t-0 cannot be read at offset 0"):
        list(columns_of([memoryview(bytes(bad))], partition="t-0"))


@given(st.binary(max_size=200), st.integers(0, 2**31 - 1))
@settings(max_examples=300, deadline=None)
def test_nonsense_with_a_right_checksum_is_an_error(body: bytes, count: int) -> None:
    nonsense = NewBatch(0, min(count, 300) + 1, 0, 0, memoryview(body))

    with pytest.raises(CorruptBatchError):
        for _ in columns_of([memoryview(framed(nonsense))], partition="t-0"):
            pass


def test_log_append_time_is_that_of_the_batch() -> None:
    data = bytearray(batch_by_kafka_python(0, [(5, b"k", b"v", []), (9, b"k", b"w", [])]))
    data[22] |= 0x08  # attributes
    data[35:43] = (77).to_bytes(8, "big")  # max timestamp
    (columns,) = columns_of([resealed(data)], partition="t-0")

    assert columns.column("timestamp_ms").to_pylist() == [77, 77]
    assert columns.column("timestamp_type").to_pylist() == [1, 1]


def resealed(data: bytearray) -> memoryview:
    import google_crc32c

    data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4, "big")
    return memoryview(bytes(data))


def test_an_emptied_batch_holds_nothing() -> None:
    data: Any = bytearray(batch_by_kafka_python(0, [(5, b"k", b"v", [])]))
    empty = bytearray(data[:61])
    empty[8:12] = (49).to_bytes(4, "big")
    empty[57:61] = bytes(4)

    assert list(columns_of([resealed(empty)], partition="t-0")) == []
