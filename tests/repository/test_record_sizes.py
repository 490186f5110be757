"""Sizes of records are those of Kafka's own batches."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecordsBuilder

from kstreams_assets.model.data_files import SpanFile
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.records import batch_bytes, largest_batch, payload_bytes

Headers = Sequence[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers | None]

_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


def _table(records: Sequence[Record]) -> pa.Table:
    rows = [
        {
            "offset": offset,
            "key": key,
            "value": value,
            "headers": None
            if headers is None
            else [{"key": name, "value": content} for name, content in headers],
        }
        for offset, (key, value, headers) in enumerate(records)
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _kafka_size(record: Record) -> int:
    key, value, headers = record
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=2**24)
    builder.append(timestamp=5, key=key, value=value, headers=list(headers or ()))
    builder.close()
    return len(builder.buffer())


_BYTES = st.one_of(st.none(), st.binary(max_size=300), st.just(b"x" * 9_000))
_HEADERS = st.one_of(
    st.none(),
    st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=90)))),
)


@given(st.lists(st.tuples(_BYTES, _BYTES, _HEADERS), max_size=6), st.integers(0, 3))
def test_a_batch_is_as_large_as_kafka_makes_it(records: list[Record], skipped: int) -> None:
    table = _table(records).slice(skipped)
    assert batch_bytes(table).tolist() == [_kafka_size(record) for record in records[skipped:]]


def test_large_values() -> None:
    record = (b"k", b"v" * 2_000_000, None)
    assert batch_bytes(_table([record])).tolist() == [_kafka_size(record)]


def test_payload_is_keys_values_and_headers() -> None:
    records: list[Record] = [
        (b"abc", None, None),
        (None, b"12", [("h", None), ("hh", b"123")]),
        (b"", b"", []),
    ]
    assert payload_bytes(_table(records)).tolist() == [3, 8, 0]


class TestLargest:
    @pytest.fixture
    def file(self, tmp_path: Path) -> SpanFile:
        """Values of 100, 5,000, 100 ... and 9,000 bytes, ten records in each row group."""
        sizes = [100] * 10 + [5_000] + [100] * 9 + [100] * 9 + [9_000]
        path = tmp_path / "part.parquet"
        # Different values, so that a dictionary cannot make the row group small.
        rows = [(b"k", bytes([number]) * size, None) for number, size in enumerate(sizes)]
        pq.write_table(_table(rows), path, row_group_size=10)
        return SpanFile(path, len(sizes), 0, len(sizes) - 1)

    def test_in_all(self, file: SpanFile) -> None:
        expected = _kafka_size((b"k", b"x" * 9_000, None))
        assert largest_batch([file], [OffsetRange(0, 100)], above=1_000) == expected
        assert largest_batch([file], [OffsetRange(0, 100)], above=expected - 1) == expected

    def test_none_above(self, file: SpanFile) -> None:
        limit = _kafka_size((b"k", b"x" * 9_000, None))
        assert largest_batch([file], [OffsetRange(0, 100)], above=limit) is None

    def test_in_the_ranges_only(self, file: SpanFile) -> None:
        expected = _kafka_size((b"k", b"x" * 5_000, None))
        ranges = [OffsetRange(0, 5), OffsetRange(10, 29)]
        assert largest_batch([file], ranges, above=1_000) == expected
        assert largest_batch([file], [OffsetRange(11, 29)], above=1_000) is None

    def test_files_without_large_records_are_not_read(
        self, file: SpanFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[int] = []
        original = pq.ParquetFile.iter_batches

        def noted(parquet, *args, row_groups, **kwargs):
            read.extend(row_groups)
            return original(parquet, *args, row_groups=row_groups, **kwargs)

        monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
        assert largest_batch([file], [OffsetRange(0, 100)], above=4_000) is not None
        assert read == [1, 2]
