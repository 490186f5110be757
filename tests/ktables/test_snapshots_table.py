"""The ledger of snapshots."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.ktables.snapshot import RowProblem, Snapshot, SnapshotPartition
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.layout import CONTROL_TABLES, Warehouse
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.warehouse.spans import Window
from tests.backup.samples import window

FULL = Snapshot(
    application_id="shop",
    store="totals",
    topic="shop-totals-changelog",
    window=window(1),
    point_id="point-1",
    taken_at_ms=19,
    proved=False,
    reason="why",
    base_window="w0000",
    fingerprint="f",
    partitions=(
        SnapshotPartition(0, "life", 1, 9, (OffsetRange(3, 5), OffsetRange(7, 8)), 4, 400, 17),
        SnapshotPartition(1, "life", 0, 0),
    ),
    records=6,
    problem_rows=2,
    problems=(RowProblem(0, 2, "null key"), RowProblem(0, 6, "key: 7 bytes where a long has 8")),
    delta_version=3,
    took_ms=1200,
    run_id="run",
)


@pytest.fixture
def table(tmp_path: Path) -> SnapshotsTable:
    """With the folders of two stores."""
    warehouse = Warehouse(tmp_path)
    for store in ("totals", "counts"):
        (warehouse.ktable("shop", store) / "_delta_log").mkdir(parents=True)
    return SnapshotsTable(warehouse)


def _of(index: int, store: str = "totals", application_id: str = "shop") -> Snapshot:
    return replace(FULL, window=window(index), store=store, application_id=application_id)


def test_everything_comes_back(table: SnapshotsTable) -> None:
    table.record([FULL])
    assert table.of("shop") == [FULL]


def test_a_snapshot_made_again_takes_the_place_of_the_earlier_one(table: SnapshotsTable) -> None:
    others = [_of(0), _of(1, store="counts")]
    table.record([FULL, *others])
    again = replace(FULL, run_id="second")
    table.record([again])
    assert table.of("shop") == [others[1], others[0], again]


def test_stores_and_windows_are_chosen(table: SnapshotsTable) -> None:
    table.record([_of(2), _of(0), _of(0, store="counts")])
    assert table.of("shop", stores=["totals"]) == [_of(0), _of(2)]
    assert table.of("shop", windows=[window(0).key]) == [_of(0, store="counts"), _of(0)]
    assert table.of("shop", stores=[]) == []
    assert table.of("another") == []


def test_a_table_whose_folder_was_removed_has_no_snapshots(table: SnapshotsTable) -> None:
    table.record([replace(FULL, store="gone")])
    assert table.of("shop") == []


def test_names_with_quotes(table: SnapshotsTable, tmp_path: Path) -> None:
    odd = replace(FULL, window=Window(0, 1, "w'1"))
    table.record([odd])
    table.record([odd])
    assert table.of("shop") == [odd]


def test_a_newer_layout_is_refused_with_the_others() -> None:
    assert "ktable_snapshots" in CONTROL_TABLES
