"""What the records table holds, read without a JVM from a table of the same shape."""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from kstreams_assets.backup.content import (
    SpanId,
    open_records,
    span_contents,
    span_files,
    windows_with_data,
)
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.warehouse.layout import LAYOUT_PROPERTY, NewerLayoutError

SCHEMA = pa.schema(
    [
        pa.field("window", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("timestamp_type", pa.int32()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)

KEY_WITH_COLON = "2026-11-21-13:30"


def _record(offset: int, **columns: Any) -> dict[str, Any]:
    return {
        "window": "w",
        "topic": "t",
        "partition": 0,
        "offset": offset,
        "timestamp_ms": 1000 + offset,
        "timestamp_type": 0,
        "headers": None,
        "key": b"k",
        "value": b"v" * 10,
    } | columns


def _write(path: Path, *files: Sequence[dict[str, Any]]) -> None:
    """Each sequence becomes a file for each of its windows and topics, as a task of Spark does."""
    if not DeltaTable.is_deltatable(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(path, schema=SCHEMA, partition_by=["window", "topic"])
    actions: list[AddAction] = []
    for records in files:
        of_file: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for record in records:
            of_file.setdefault((record["window"], record["topic"]), []).append(record)
        actions += [_add(path, key, rows) for key, rows in of_file.items()]
    table = DeltaTable(path)
    table.create_write_transaction([*actions], "append", table.schema(), ["window", "topic"])


def _add(path: Path, key: tuple[str, str], rows: list[dict[str, Any]]) -> AddAction:
    """A file with the statistics that Spark keeps; deltalake itself keeps none of binaries."""
    window, topic = key
    folder = f"window={quote(window)}/topic={quote(topic)}"
    file = path / folder / f"part-{uuid.uuid4()}.zstd.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    data = pa.Table.from_pylist(rows, schema=SCHEMA).drop_columns(["window", "topic"])
    pq.write_table(data, file, compression="zstd", use_dictionary=False)
    numbers = ("partition", "offset", "timestamp_ms", "timestamp_type")
    stats = {
        "numRecords": len(rows),
        "minValues": {name: min(row[name] for row in rows) for name in numbers},
        "maxValues": {name: max(row[name] for row in rows) for name in numbers},
        "nullCount": {name: data[name].null_count for name in data.column_names},
    }
    return AddAction(
        f"{folder}/{file.name}",
        file.stat().st_size,
        {"window": window, "topic": topic},
        0,
        True,
        json.dumps(stats),
    )


def _span(window: str = "w", topic: str = "t", partition: int = 0) -> SpanId:
    return SpanId(window, TopicPartitionId(topic, partition))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a records table may lie."""
    return tmp_path / "records" / "shop"


class TestNothing:
    """Before the first backup."""

    def test_no_table(self, path: Path) -> None:
        assert open_records(path) is None
        assert windows_with_data(path, {"w"}) == set()
        assert span_contents(path, {"w"}, {"t"}) == {}
        assert span_files(path, _span()) == []

    def test_a_table_without_records(self, path: Path) -> None:
        path.parent.mkdir(parents=True)
        DeltaTable.create(path, schema=SCHEMA, partition_by=["window", "topic"])
        assert open_records(path) is not None
        assert windows_with_data(path, {"w"}) == set()
        assert span_contents(path, {"w"}, {"t"}) == {}


class TestContents:
    """Counts and bounds of each span."""

    def test_one_span(self, path: Path) -> None:
        records = [
            _record(5, value=None),
            _record(6, key=None, timestamp_ms=-1),
            _record(9, value=b"", timestamp_ms=0),
            _record(10, timestamp_ms=1),
        ]
        _write(path, records)
        content = span_contents(path, {"w"}, {"t"})[_span()]
        assert (content.records, content.files) == (4, 1)
        assert (content.tombstones, content.null_keys, content.odd_timestamps) == (1, 1, 2)
        assert (content.first_offset, content.last_offset) == (5, 10)
        assert (content.min_timestamp_ms, content.max_timestamp_ms) == (-1, 1005)
        (file,) = path.rglob("*.parquet")
        assert content.stored_bytes == file.stat().st_size

    def test_a_span_of_two_files(self, path: Path) -> None:
        _write(path, [_record(7), _record(8, value=None)], [_record(5), _record(6, value=None)])
        content = span_contents(path, {"w"}, {"t"})[_span()]
        assert (content.records, content.files, content.tombstones) == (4, 2, 2)
        assert (content.first_offset, content.last_offset) == (5, 8)
        assert (content.min_timestamp_ms, content.max_timestamp_ms) == (1005, 1008)
        files = span_files(path, _span())
        assert [(f.records, f.first_offset, f.last_offset) for f in files] == [
            (2, 5, 6),
            (2, 7, 8),
        ]
        assert all(f.path.is_file() for f in files)

    def test_spans_are_told_apart(self, path: Path) -> None:
        _write(
            path,
            [_record(0), _record(1, topic="u"), _record(2, window="x")],
            [_record(3, partition=1)],
        )
        assert {k: v.records for k, v in span_contents(path, {"w", "x"}, {"t", "u"}).items()} == {
            _span(): 1,
            _span(topic="u"): 1,
            _span(window="x"): 1,
            _span(partition=1): 1,
        }
        assert span_contents(path, {"x"}, {"u"}) == {}
        assert windows_with_data(path, {"w"}) == {("w", "t"), ("w", "u")}

    def test_only_the_newest_version_counts(self, path: Path) -> None:
        _write(path, [_record(0), _record(1)])
        DeltaTable(path).delete("window = 'w' AND topic = 't'")
        assert span_contents(path, {"w"}, {"t"}) == {}
        _write(path, [_record(0)])
        assert span_contents(path, {"w"}, {"t"})[_span()].records == 1

    def test_names_that_are_escaped_in_paths(self, path: Path) -> None:
        topic = "a.b_c-1"
        _write(path, [_record(0, window=KEY_WITH_COLON, topic=topic)])
        content = span_contents(path, {KEY_WITH_COLON}, {topic})
        assert content[_span(KEY_WITH_COLON, topic)].bytes > 0
        (file,) = span_files(path, _span(KEY_WITH_COLON, topic))
        assert file.path.is_file()

    def test_odd_timestamps_are_counted_in_every_file(self, path: Path) -> None:
        _write(path, [_record(0, timestamp_ms=0)], [_record(1)], [_record(2, timestamp_ms=0)])
        _write(path, [_record(0, topic="u", timestamp_ms=-1), _record(1, topic="u")])
        content = span_contents(path, {"w"}, {"t", "u"})
        assert content[_span()].odd_timestamps == 2
        assert content[_span(topic="u")].odd_timestamps == 1

    def test_bytes_are_those_of_keys_values_and_headers(self, path: Path) -> None:
        headers = [{"key": "h", "value": b"x" * 500}]
        _write(
            path,
            [_record(i, value=bytes([i]) * 2000) for i in range(50)],
            [_record(i, topic="u", headers=headers) for i in range(50)],
        )
        content = span_contents(path, {"w"}, {"t", "u"})
        assert 50 * 2000 < content[_span()].bytes < 50 * 2000 * 1.1


def test_a_newer_layout_is_refused(path: Path) -> None:
    _write(path, [_record(0)])
    DeltaTable(path).alter.set_table_properties({LAYOUT_PROPERTY: "2"}, raise_if_not_exists=False)
    with pytest.raises(NewerLayoutError, match=r"records/shop has layout version 2"):
        span_contents(path, {"w"}, {"t"})
