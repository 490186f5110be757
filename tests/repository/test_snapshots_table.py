"""The ledger of snapshots."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.snapshot import RowProblem, Snapshot, SnapshotPartition
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import SnapshotsTable
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
    return Repository(warehouse, "shop").snapshots


def _of(index: int, store: str = "totals", application_id: str = "shop") -> Snapshot:
    return replace(FULL, window=window(index), store=store, application_id=application_id)


def test_a_snapshot_made_again_takes_the_place_of_the_earlier_one(table: SnapshotsTable) -> None:
    others = [_of(0), _of(1, store="counts")]
    table.record([FULL, *others])
    again = replace(FULL, run_id="second")
    table.record([again])
    assert table.of() == [others[1], others[0], again]


def test_stores_and_windows_are_chosen(table: SnapshotsTable) -> None:
    table.record([_of(2), _of(0), _of(0, store="counts")])
    assert table.of(stores=["totals"]) == [_of(0), _of(2)]
    assert table.of(windows=[window(0).key]) == [_of(0, store="counts"), _of(0)]
    assert table.of(stores=[]) == []
    assert Repository(table._warehouse, "another").snapshots.of() == []


def test_a_table_whose_folder_was_removed_has_no_snapshots(table: SnapshotsTable) -> None:
    table.record([replace(FULL, store="gone")])
    assert table.of() == []
