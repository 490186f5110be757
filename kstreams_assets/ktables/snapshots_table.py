"""The table of snapshots, and the files that hold them."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from kstreams_assets.errors import StoredDataError
from kstreams_assets.ktables.plan import PartitionContent
from kstreams_assets.ktables.snapshot import RowProblem, Snapshot
from kstreams_assets.warehouse.layout import Warehouse, file_digest, file_problem, written_files
from kstreams_assets.warehouse.spans import WrittenFile
from kstreams_assets.warehouse.table import Table, one_of, open_delta, sql_string, storage_failures

FEW_PROBLEMS = 20
"""How many of the rows with a problem are named."""

_PAYLOAD_COLUMNS = ("key", "value", "headers")


WindowFiles = dict[str, list[tuple[Path, int]]]
"""By window, the files of a KTable and how many rows they have."""


def open_table(path: Path) -> DeltaTable | None:
    """The table of a store as deltalake reads it, None while nothing was written.

    Raises:
        NewerLayoutError: A newer release wrote it.
        WarehouseError: It cannot be read.
    """
    return open_delta(path, f"ktables/{path.parent.name}/{path.name}")


def window_files(table: DeltaTable | None, path: Path) -> WindowFiles:
    """The files of each window, with how many rows they have."""
    if table is None:
        return {}
    added = pa.table(table.get_add_actions(flatten=True))
    found: WindowFiles = {}
    if added.num_rows == 0:
        return found
    columns = added.select(["partition.window", "path", "num_records"]).to_pylist()
    for row in sorted(columns, key=lambda r: r["path"]):
        file = (path / unquote(row["path"]), row["num_records"])
        found.setdefault(row["partition.window"], []).append(file)
    return found


def snapshot_written(path: Path, window: str) -> tuple[WrittenFile, ...]:
    """The files of a window's snapshot as they are now, read whole."""
    files = window_files(open_table(path), path).get(window, [])
    relative = [(quote(str(file.relative_to(path))), rows) for file, rows in files]
    return tuple(written_files(path, relative))


def snapshot_problem(
    path: Path, snapshot: Snapshot, *, read: bool, files: WindowFiles | None = None
) -> str:
    """How the files of a snapshot differ from those that were written; else empty.

    By name, existence and size; with `read` by their digests, too. Of snapshots of earlier releases
    nothing is known. `files` is what `window_files` gives; looked up when left out.
    """
    if not snapshot.written:
        return ""
    files = window_files(open_table(path), path) if files is None else files
    there = {file for file, _ in files.get(snapshot.window.key, [])}
    noted = {path / unquote(file.path): file for file in snapshot.written}
    if there != noted.keys():
        return "the table has other files than were written"
    for file, written in noted.items():
        problem = file_problem(file, written.size)
        if not problem and read and file_digest(file) != written.digest:
            problem = f"file {file.name} does not match the SHA-256 that was noted"
        if problem:
            return problem
    return ""


def require_snapshot(path: Path, snapshot: Snapshot, files: WindowFiles | None = None) -> None:
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


def rows_by_partition(files: list[Path]) -> Mapping[int, PartitionContent]:
    """How many rows of how many bytes some files hold; of the payload only footers are read.

    The bytes of a row group (keys, values, headers) are shared out by rows.
    """
    rows: dict[int, int] = {}
    sizes: dict[int, float] = {}
    for path in files:
        with storage_failures(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                partitions = file.read_row_group(number, columns=["partition"])["partition"]
                mean = _payload_bytes(group) / max(group.num_rows, 1)
                values, counts = np.unique(partitions.to_numpy(), return_counts=True)
                for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                    rows[value] = rows.get(value, 0) + count
                    sizes[value] = sizes.get(value, 0.0) + mean * count
    return {number: PartitionContent(rows[number], round(sizes[number])) for number in rows}


def problems_in(files: list[Path]) -> tuple[int, tuple[RowProblem, ...]]:
    """How many rows have a problem, and the first of them by partition and offset."""
    count = 0
    found: list[RowProblem] = []
    for path in files:
        with storage_failures(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups):
                errors = file.read_row_group(number, columns=["decode_error"])["decode_error"]
                if errors.null_count == len(errors):
                    continue
                bad = pc.is_valid(errors)  # pyright: ignore[reportAttributeAccessIssue]
                rows = file.read_row_group(number, columns=["partition", "offset", "decode_error"])
                rows = rows.filter(bad)
                count += rows.num_rows
                rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
                found += [
                    RowProblem(row["partition"], row["offset"], row["decode_error"])
                    for row in rows.slice(0, FEW_PROBLEMS).to_pylist()
                ]
    found.sort(key=lambda p: (p.partition, p.offset))
    return count, tuple(found[:FEW_PROBLEMS])


def _payload_bytes(group: pq.RowGroupMetaData) -> int:
    chunks = (group.column(index) for index in range(group.num_columns))
    return sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema.split(".")[0] in _PAYLOAD_COLUMNS
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
