"""The table `ktable_snapshots`: which snapshots there are, one row for each store and window."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow.compute as pc

from kstreams_assets.ktables.content import (
    WindowFiles,
    open_table,
    snapshot_problem,
    window_files,
)
from kstreams_assets.ktables.snapshot import Snapshot
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.predicate import sql_string
from kstreams_assets.warehouse.table import Table, one_of


class SnapshotsTable:
    """The snapshots of all applications.

    A row follows the data: a snapshot whose data is there without a row is simply made again.
    """

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._table = Table(
            warehouse.control("ktable_snapshots"),
            Snapshot,
            grows_along="recorded_at_ms",
            statistics=("store", "window", "recorded_at_ms"),
        )

    def of(
        self,
        application_id: str,
        *,
        stores: Collection[str] | None = None,
        windows: Collection[str] | None = None,
    ) -> list[Snapshot]:
        """The snapshots of these stores and windows (keys), by store and time of the window.

        Rows of a table whose folder was removed do not count.

        Raises:
            NewerLayoutError: A newer release wrote the table.
        """
        where = pc.scalar(True)
        if stores is not None:
            where &= one_of("store", stores)
        if windows is not None:
            where &= one_of("window", windows)
        rows = self._table.rows(application_id, where)
        newest = {
            (row.store, row.window.key): row for row in sorted(rows, key=lambda r: r.recorded_at_ms)
        }
        present = {
            store
            for store in {store for store, _ in newest}
            if (self._warehouse.ktable(application_id, store) / "_delta_log").exists()
        }
        found = [row for (store, _), row in newest.items() if store in present]
        return sorted(found, key=lambda s: (s.store, s.window))

    def damaged(self, application_id: str) -> list[tuple[Snapshot, str]]:
        """Snapshots with files that are missing or have another size, and what is wrong.

        Raises:
            NewerLayoutError: A newer release wrote the table, or one of a store.
            WarehouseError: One of the tables cannot be read.
        """
        found: list[tuple[Snapshot, str]] = []
        files: dict[str, WindowFiles] = {}
        for snapshot in self.of(application_id):
            path = self._warehouse.ktable(application_id, snapshot.store)
            if snapshot.store not in files:
                files[snapshot.store] = window_files(open_table(path), path)
            problem = snapshot_problem(path, snapshot, read=False, files=files[snapshot.store])
            if problem:
                found.append((snapshot, problem))
        return found

    def record(self, snapshots: Sequence[Snapshot]) -> None:
        """Put the rows of these snapshots in place of earlier ones, in one commit."""
        if not snapshots:
            return
        now_ms = time.time_ns() // 1_000_000
        same = " OR ".join(
            f"(application_id = {sql_string(s.application_id)} AND store = {sql_string(s.store)}"
            f" AND window = {sql_string(s.window.key)})"
            for s in snapshots
        )
        self._table.replace([replace(s, recorded_at_ms=now_ms) for s in snapshots], where=same)
