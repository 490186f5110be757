"""Records saved with recovery points that a snapshot needs, as a Parquet file for Spark."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from kstreams_assets.ktables.plan import SnapshotPlan, saved_cuts
from kstreams_assets.recovery.saved_records import SavedRecordsTable
from kstreams_assets.warehouse.layout import Warehouse

_COLUMNS = ["partition", "offset", "timestamp_ms", "headers", "key", "value"]


@contextmanager
def staged_saved_records(
    warehouse: Warehouse, application_id: str, plan: SnapshotPlan
) -> Iterator[tuple[Path | None, int]]:
    """A file with the saved records of a plan and their number, while it lasts.

    None without any. What a killed run left behind is removed first: only the holder of the
    application's lock stages.
    """
    folder = warehouse.root / ".staging" / f"ktables-{application_id}"
    shutil.rmtree(folder, ignore_errors=True)
    cuts = saved_cuts(plan.partitions)
    if not cuts:
        yield None, 0
        return
    folder.mkdir(parents=True)
    try:
        yield _write(warehouse, plan, folder / "saved.parquet")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(warehouse: Warehouse, plan: SnapshotPlan, path: Path) -> tuple[Path | None, int]:
    rows = SavedRecordsTable(warehouse).of_cuts(plan.point, saved_cuts(plan.partitions))
    if rows.num_rows == 0:
        return None, 0
    pq.write_table(rows.select(_COLUMNS), path, use_dictionary=False)
    return path, rows.num_rows
