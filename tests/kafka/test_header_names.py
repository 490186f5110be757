"""Names of headers are bytes: those that are not UTF-8 are kept, compared and written as such."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kstreams_assets.kafka.raw_batch import (
    RawRecord,
    decode_records,
    header_name,
    header_name_bytes,
)
from kstreams_assets.kafka.record_columns import (
    COLUMNS,
    HEADERS,
    ProducerSequence,
    batches_of,
    columns_of,
)
from kstreams_assets.layout import LAYOUT_PROPERTY, LAYOUT_VERSION, Warehouse
from kstreams_assets.model.data_files import SpanFile
from kstreams_assets.model.restores import OriginalHeaders
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.points import SavedRecordsTable
from kstreams_assets.repository.records import (
    PARTITIONED_BY,
    RECORDS,
    batch_bytes,
    ensure_records,
    largest_batch,
    payload_bytes,
)
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.table import create_delta
from spark_resources.partition_records import PartitionWork, header_lists, work_records
from spark_resources.read_back import _equal
from tests.backup.samples import APPLICATION_ID, cut, point
from tests.kafka.batch_bytes import batch_bytes as written_bytes

NAMES = (b"trace", b"\xfftrac", b"", "größe".encode(), b"\xed\xa0\x80", b"\xc3", b"\x00", b"a\x80b")
PARTITION = TopicPartitionId("orders", 0)
OLD_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _records() -> list[RawRecord]:
    every = tuple((header_name(name), b"v") for name in NAMES)
    headers = [(), *((pair,) for pair in every), every, (every[1], (every[1][0], None), every[0])]
    return [RawRecord(n, 1_000 + n, 0, b"k", b"x", pairs) for n, pairs in enumerate(headers)]


def _columns(codec: str = "none") -> pa.RecordBatch:
    data = _checked(written_bytes(_records(), codec=codec))
    (columns,) = columns_of([data], partition="orders-0")
    return columns


def _checked(data: bytes) -> memoryview:
    """A batch with its checksum."""
    batch = bytearray(data)
    crc = google_crc32c.value(np.frombuffer(bytes(batch[21:]), np.uint8))
    batch[17:21] = crc.to_bytes(4, "big")
    return memoryview(bytes(batch))


def test_a_name_and_its_bytes() -> None:
    for name in NAMES:
        text = header_name(name)
        assert text.encode("utf-8", "surrogateescape") == name
    assert [header_name_bytes(header_name(name)) is None for name in NAMES] == [
        True, False, True, True, False, False, True, False
    ]  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_both_decoders_keep_every_name(codec: str) -> None:
    records = _records()
    data = _checked(written_bytes(records, codec=codec))
    assert decode_records(data, partition="orders-0") == records
    lists = header_lists(_columns(codec).column("headers"))
    assert lists == [[*record.headers] or None for record in records]


def test_text_stays_text() -> None:
    found = _columns().column("headers").to_pylist()
    assert found[1] == [{"key": "trace", "value": b"v", "key_bytes": None}]
    assert found[2] == [{"key": "\ufffdtrac", "value": b"v", "key_bytes": b"\xfftrac"}]


def test_what_is_written_again_is_the_same_bytes() -> None:
    columns = _columns()
    (batch,) = batches_of(columns, most_bytes=10**6)
    data = b"".join(map(bytes, batch.framed(ProducerSequence(-1, -1, -1), "none")))
    assert decode_records(memoryview(data), partition="orders-0") == _records()


def test_sizes_count_the_bytes_of_names(tmp_path: Path) -> None:
    columns = _columns()
    assert payload_bytes(columns).tolist() == [
        2 + sum(len(n.encode("utf-8", "surrogateescape")) + len(v or b"") for n, v in r.headers)
        for r in _records()
    ]
    path = tmp_path / "f.parquet"
    pq.write_table(pa.Table.from_batches([columns]), path)
    ranges = [OffsetRange(0, 100)]
    assert largest_batch([SpanFile(path, 1, 0, 0)], ranges, above=0) == batch_bytes(columns).max()


def test_names_with_the_same_text_differ() -> None:
    def one(name: bytes) -> pa.RecordBatch:
        record = RawRecord(0, 1, 0, None, None, ((header_name(name), None),))
        data = _checked(written_bytes([record]))
        (columns,) = columns_of([data], partition="orders-0")
        return columns

    assert _equal(one(b"\xff"), one(b"\xff"))
    assert not _equal(one(b"\xff"), one(b"\xfe"))
    assert not _equal(one(b"\xff"), one("\ufffd".encode()))


def test_original_headers_come_behind_them(tmp_path: Path) -> None:
    columns = _columns()
    path = tmp_path / "f.parquet"
    pq.write_table(pa.Table.from_batches([columns]), path)
    work = PartitionWork(
        PARTITION, PARTITION, (path,), None, (OffsetRange(0, 100),), 0, columns.num_rows,
        OriginalHeaders(offset=True),
    )  # fmt: skip
    (restored,) = work_records(work)
    assert header_lists(restored.column("headers")) == [
        [*record.headers, ("x-original-offset", b"%d" % record.offset)] for record in _records()
    ]


class TestStored:
    """Tables of both kinds, new ones and those of earlier releases."""

    def _append(self, table: SavedRecordsTable, point_id: str = "p1") -> None:
        table.append(point_id, [SavedTail(PARTITION, "life-1", _records())])

    def _saved(self, table: SavedRecordsTable) -> pa.Table:
        of_it = replace(cut(0, 100, topic=PARTITION.topic), saved_from=0)
        return table.of_point(point(1, of_it))

    def test_saved_records(self, tmp_path: Path) -> None:
        table = Repository(Warehouse(tmp_path), APPLICATION_ID).saved_records
        self._append(table)
        saved = self._saved(table).combine_chunks()
        lists = header_lists(saved["headers"].combine_chunks())
        assert lists == [[*record.headers] or None for record in _records()]
        assert list(table.changed()) == []

    def test_a_changed_name_does_not_match_its_digest(self, tmp_path: Path) -> None:
        table = Repository(Warehouse(tmp_path), APPLICATION_ID).saved_records
        self._append(table)

        def change(rows: pa.Table) -> pa.Table:
            stored = rows.to_pylist()
            for header in stored[2]["headers"]:
                header["key_bytes"] = b"\xfetrac"
            return pa.Table.from_pylist(stored, schema=rows.schema)

        table.table.rewrite("", "~", change)
        assert [offset for _, _, offset, _ in table.changed()] == [2]

    def test_a_records_table_of_an_earlier_release(self, tmp_path: Path) -> None:
        path = tmp_path / "records" / "shop"
        old = RECORDS.set(RECORDS.get_field_index("headers"), pa.field("headers", OLD_HEADERS))
        properties = {LAYOUT_PROPERTY: str(LAYOUT_VERSION)}
        made = create_delta(path, schema=old, partition_by=PARTITIONED_BY, configuration=properties)
        version = made.version()

        table = ensure_records(path)

        assert pa.schema(table.schema()).field("headers").type.value_type == HEADERS.value_type
        assert table.version() > version
        assert ensure_records(path).version() == table.version()

    def test_files_of_an_earlier_release(self, tmp_path: Path) -> None:
        path = tmp_path / "f.parquet"
        rows: list[dict[str, Any]] = [
            {"offset": n, "timestamp_ms": 1, "timestamp_type": 0, "key": b"k", "value": b"v",
             "headers": [{"key": "h", "value": b"1"}] if n else None}
            for n in range(3)
        ]  # fmt: skip
        old = COLUMNS.set(COLUMNS.get_field_index("headers"), pa.field("headers", OLD_HEADERS))
        pq.write_table(pa.Table.from_pylist(rows, schema=old), path)
        work = PartitionWork(PARTITION, PARTITION, (path,), None, (OffsetRange(0, 9),), 0, 3)
        (found,) = work_records(work)
        assert header_lists(found.column("headers")) == [None, [("h", b"1")], [("h", b"1")]]
        assert found.schema.field("headers").type == HEADERS
