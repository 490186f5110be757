"""What the files of a KTable snapshot hold, from hand-written tables."""

from pathlib import Path

from kstreams_assets.restore.snapshots import (
    keyless_rows,
    odd_timestamps,
    snapshot_files,
)
from kstreams_assets.warehouse.records import largest_batch
from tests.restore.snapshot_tables import Row, write_snapshot


def test_the_files_of_one_window(tmp_path: Path) -> None:
    table = tmp_path / "sums"
    write_snapshot(table, [Row(0, 5), Row(1, 2), Row(0, 7, window="2026-11-21-10:00")])
    write_snapshot(table, [Row(0, 9)])
    files = snapshot_files(table, "w1")
    assert sorted((f.records, f.first_offset, f.last_offset) for f in files) == [
        (1, 9, 9),
        (2, 2, 5),
    ]
    (other,) = snapshot_files(table, "2026-11-21-10:00")
    assert other.path.exists()
    assert largest_batch([other], (), above=1) is None
    assert snapshot_files(table, "w2") == []


def test_no_table(tmp_path: Path) -> None:
    assert snapshot_files(tmp_path / "sums", "w1") == []


def test_rows_without_a_key_are_counted_by_partition(tmp_path: Path) -> None:
    rows = [
        Row(0, 1),
        Row(0, 2, key=None, value=b"12345", headers=[("h", b"678")]),
        Row(2, 1, key=None, value=b""),
        Row(2, 3, key=b""),
        Row(2, 4, key=None, window="w2"),
    ]
    write_snapshot(tmp_path / "sums", rows)
    found = keyless_rows(snapshot_files(tmp_path / "sums", "w1"))
    assert found == {0: 1, 2: 1}


def test_timestamps_that_a_producer_replaces(tmp_path: Path) -> None:
    rows = [
        Row(0, 1, timestamp_ms=0),
        Row(0, 2, timestamp_ms=-1),
        Row(0, 3, timestamp_ms=1),
        Row(1, 1, timestamp_ms=0, key=None),
    ]
    write_snapshot(tmp_path / "sums", rows)
    assert odd_timestamps(snapshot_files(tmp_path / "sums", "w1")) == {0: 2}
