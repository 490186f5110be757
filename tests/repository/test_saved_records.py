"""Saved records: written by the column, found again by point, dropped when nobody needs them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import PartitionCut
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.points import SCHEMA, OffsetRanges, SavedRecordsTable
from kstreams_assets.repository.repository import Repository
from tests.backup.samples import APPLICATION_ID, cut, point
from tests.timing import processor_time

NEVER_FRESH = "~"
"""No point id sorts after it."""


def record(offset: int, value: bytes | None = b"v") -> RawRecord:
    """A record without a header."""
    return RawRecord(offset, 1000 + offset, 0, b"k", value, ())


def tail(
    offsets: Iterable[int], *, partition: int = 0, topic: str = "t", topic_id: str = "life-1"
) -> SavedTail:
    """Records of one partition."""
    return SavedTail(TopicPartitionId(topic, partition), topic_id, [record(o) for o in offsets])


def saved_cut(
    saved_from: int, end: int, *excluded: OffsetRange, partition: int = 0
) -> PartitionCut:
    """A cut that has saved its records."""
    return replace(cut(partition, end), saved_from=saved_from, excluded=excluded)


@pytest.fixture
def table(tmp_path: Path) -> SavedRecordsTable:
    """The table in an empty warehouse."""
    return Repository(Warehouse(tmp_path), APPLICATION_ID).saved_records


def another(table: SavedRecordsTable) -> SavedRecordsTable:
    """The same of another application."""
    return Repository(table._warehouse, "other").saved_records


def stored(table: SavedRecordsTable) -> list[tuple[str, int, int]]:
    """Every row: point id, partition, offset."""
    rows = table._table.read().to_pylist()
    return sorted((row["recovery_point_id"], row["partition"], row["offset"]) for row in rows)


def offsets_of(table: SavedRecordsTable, *cuts: PartitionCut) -> list[tuple[int, int]]:
    """Partition and offset of the records of a point, in the order in which they come."""
    found = table.of_point(point(1, *cuts))
    return list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


def test_nothing_saved(table: SavedRecordsTable, tmp_path: Path) -> None:
    assert table.append("p1", []) == 0
    assert table.append("p1", [tail([])]) == 0
    assert not (tmp_path / "recovery_point_records").exists()
    assert table.of_point(point(1, cut(0, 5))).num_rows == 0
    assert table.of_point(point(1, saved_cut(0, 5))).schema == SCHEMA
    assert table.files() == []


def test_records_come_back_as_they_were(table: SavedRecordsTable) -> None:
    headers = (("a", b"1"), ("a", None), ("", b""))
    records = [
        RawRecord(3, -1, 1, None, None, headers),
        RawRecord(5, 2**60, 0, b"", b"\x00\xff", ()),
        RawRecord(6, 0, 0, b"k", b"v", (("é", b"2"),)),
    ]
    saved = SavedTail(TopicPartitionId("t", 7), "life-1", records)
    assert table.append("p1", [saved, tail([3, 4])]) == 5
    found = table.of_point(point(1, saved_cut(3, 7, partition=7))).to_pylist()
    assert [
        RawRecord(
            row["offset"],
            row["timestamp_ms"],
            row["timestamp_type"],
            row["key"],
            row["value"],
            tuple((h["key"], h["value"]) for h in row["headers"]),
        )
        for row in found
    ] == records
    assert {(row["topic"], row["topic_id"], row["partition"]) for row in found} == {
        ("t", "life-1", 7)
    }


def test_a_point_gets_its_own_and_earlier_points_records(table: SavedRecordsTable) -> None:
    table.append("p1", [tail(range(5)), tail(range(3), partition=1)])
    table.append("p2", [tail(range(5, 9)), tail([6], topic_id="life-2")])
    another(table).append("p1", [tail(range(20))])
    assert offsets_of(table, saved_cut(3, 7)) == [(0, 3), (0, 4), (0, 5), (0, 6)]
    assert offsets_of(table, saved_cut(8, 20), saved_cut(1, 2, partition=1)) == [(0, 8), (1, 1)]
    assert offsets_of(table, cut(0, 7)) == []


def test_excluded_ranges_and_records_that_were_read_twice(table: SavedRecordsTable) -> None:
    table.append("p1", [tail([1, 2, 5])])
    table.append("p2", [tail([3, 4, 5, 6])])  # 3 and 4 were decided meanwhile
    first = saved_cut(1, 6, OffsetRange(3, 5))
    assert offsets_of(table, first) == [(0, 1), (0, 2), (0, 5)]
    assert offsets_of(table, saved_cut(1, 7)) == [(0, o) for o in range(1, 7)]


class TestDropUnneeded:
    """What stays when files are put together."""

    def test_rows_that_no_point_refers_to(self, table: SavedRecordsTable) -> None:
        table.append("p1", [tail(range(5)), tail(range(5), partition=1)])
        table.append("p2", [tail(range(4, 9))])
        table.append("p3", [tail(range(9, 12))])
        another(table).append("p1", [tail(range(2))])
        needed = OffsetRanges.of_cuts([saved_cut(3, 6, OffsetRange(5, 6))])
        files = table.files()
        left = [table.needed_rows(f, needed, NEVER_FRESH) for f in files]
        assert left == [2, 1, 0]
        assert table.drop_unneeded("p1", "p2", needed, NEVER_FRESH) == 13
        assert stored(table) == [
            ("p1", 0, 3),
            ("p1", 0, 4),
            *(("p3", 0, offset) for offset in (9, 10, 11)),
        ]
        assert len(table.files()) == 2
        assert another(table).files()[0].rows == 2

    def test_rows_whose_point_may_be_about_to_be_stored(self, table: SavedRecordsTable) -> None:
        for point_id in ("p1", "p2"):
            table.append(point_id, [tail([1])])
        assert table.drop_unneeded("p1", "p2", OffsetRanges(), "p2") == 1
        assert stored(table) == [("p2", 0, 1)]

    def test_nothing_is_left(self, table: SavedRecordsTable) -> None:
        table.append("p1", [tail(range(5))])
        table.drop_unneeded("p1", "p1", OffsetRanges(), NEVER_FRESH)
        assert (stored(table), table.files()) == ([], [])

    def test_large_files_are_ordered_by_partition_and_offset(
        self, table: SavedRecordsTable, tmp_path: Path
    ) -> None:
        """So that row groups hold few partitions, and readers skip the rest."""
        for number in range(4):
            offsets = range(number * 4000, (number + 1) * 4000)
            tails = [tail(offsets, partition=p) for p in range(3)]
            table.append(f"p{number}", tails)
        needed = OffsetRanges.of_cuts([saved_cut(0, 16_000, partition=p) for p in range(3)])
        table.drop_unneeded("p0", "p3", needed, NEVER_FRESH)
        [file] = table.files()
        rows = table._table.read(columns=["partition", "offset"])
        keys = list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        assert len(keys) == file.rows == 48_000
        assert keys == sorted(keys)


def _seconds(records: Sequence[RawRecord], table: SavedRecordsTable) -> float:
    tails = [SavedTail(TopicPartitionId("t", p), "life-1", records[p::10]) for p in range(10)]
    with processor_time() as took:
        table.append("p1", tails)
    return took.seconds


def test_fifty_thousand_records(table: SavedRecordsTable) -> None:
    """A point of a busy application; 0.11 s of processor time, and as much for the digests."""
    records = [
        RawRecord(o, o, 0, b"key-%d" % o, b"v" * 100, (("h", b"1"),) if o % 2 else ())
        for o in range(50_000)
    ]
    table.append("p0", [tail([1])])
    # 0.4 to 0.7 s on a busy machine, half of it the digests.
    assert min(_seconds(records, table) for _ in range(3)) < 1.5
