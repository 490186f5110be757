"""The table of snapshots, and the files that hold them."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from urllib.parse import quote

import pyarrow.compute as pc

from kstreams_assets.errors import StoredDataError
from kstreams_assets.ktables.snapshot import Snapshot
from kstreams_assets.ktables.table import WindowFiles, open_table, window_files
from kstreams_assets.layout import (
    Warehouse,
    WrittenFile,
    file_problem,
    path_in_table,
    written_files,
)
from kstreams_assets.lease import LockHandle
from kstreams_assets.store import StorePath, file_digest, relative
from kstreams_assets.warehouse.table import Table, Writer, fence_tables, one_of


def snapshot_written(path: StorePath, window: str) -> tuple[WrittenFile, ...]:
    """The files of a window's snapshot as they are now, read whole."""
    files = window_files(open_table(path), path).get(window, [])
    paths = [(quote(str(relative(file, path))), rows) for file, rows in files]
    return tuple(written_files(path, paths))


def snapshot_problem(
    path: StorePath, snapshot: Snapshot, *, read: bool, files: WindowFiles | None = None
) -> str:
    """How the files of a snapshot differ from those that were written; else empty.

    By name, existence and size; with `read` by their digests, too. Of snapshots of earlier releases
    nothing is known. `files` is what `window_files` gives; looked up when left out.
    """
    if not snapshot.written:
        return ""
    files = window_files(open_table(path), path) if files is None else files
    there = {file for file, _ in files.get(snapshot.window.key, [])}
    noted = {path / path_in_table(file.path): file for file in snapshot.written}
    if there != noted.keys():
        return "the table has other files than were written"
    for file, written in noted.items():
        problem = file_problem(file, written.size)
        if not problem and read and file_digest(file) != written.digest:
            problem = f"file {file.name} does not match the SHA-256 that was noted"
        if problem:
            return problem
    return ""


def require_snapshot(path: StorePath, snapshot: Snapshot, files: WindowFiles | None = None) -> None:
    """Before a row of a snapshot is used: its files are those that were written, byte for byte.

    `files` is what `window_files` gives; looked up when left out.

    Raises:
        StoredDataError: They are not.
    """
    problem = snapshot_problem(path, snapshot, read=True, files=files)
    if problem:
        raise snapshot_error(snapshot.store, snapshot.window.key, problem)


def snapshot_error(store: str, window: str, problem: str) -> StoredDataError:
    """That a snapshot cannot be used, and what to do."""
    return StoredDataError(
        subject=f"The KTable snapshot of store {store}, window {window},",
        problem=problem,
        remedy=f"Make it again from the backups (kstreams-assets ktables make --window {window}),"
        " or bring the file back from a copy of the warehouse.",
    )


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

    def fence(self, application_id: str, lock: LockHandle) -> None:
        """Let no earlier holder of the application's lock commit any more."""
        fence_tables((self._table,), Writer(application_id, lock))

    def record(self, snapshots: Sequence[Snapshot], *, writer: LockHandle | None = None) -> None:
        """Put the rows of these snapshots in place of earlier ones: a commit per application.

        `writer` is the application's lock, see `fence`.

        Raises:
            LeaseLostError: Another writer has the lock by now; nothing was written.
        """
        if not snapshots:
            return
        now_ms = time.time_ns() // 1_000_000
        self._replace([replace(s, recorded_at_ms=now_ms) for s in snapshots], snapshots, writer)

    def drop(self, snapshots: Sequence[Snapshot], *, writer: LockHandle | None = None) -> None:
        """Take the rows of these snapshots away, in one commit; their files stay.

        `writer` as in `record`.
        """
        self._replace([], snapshots, writer)

    def _replace(
        self, rows: Sequence[Snapshot], same: Sequence[Snapshot], lock: LockHandle | None
    ) -> None:
        """Put rows in place of those of the same stores and windows."""
        for application_id in sorted({snapshot.application_id for snapshot in same}):
            of_it = [
                (pc.field("store") == s.store) & (pc.field("window") == s.window.key)
                for s in same
                if s.application_id == application_id
            ]
            self._table.replace(
                [row for row in rows if row.application_id == application_id],
                application_id=application_id,
                where=reduce(or_, of_it),
                writer=None if lock is None else Writer(application_id, lock),
            )
