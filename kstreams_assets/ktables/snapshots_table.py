"""The table `ktable_snapshots`: which snapshots there are, one row for each store and window."""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.backup.windows import Window
from kstreams_assets.ktables.content import (
    WindowFiles,
    open_table,
    snapshot_problem,
    window_files,
)
from kstreams_assets.ktables.snapshot import RowProblem, Snapshot, SnapshotPartition
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.warehouse.control_table import ControlTable, one_of
from kstreams_assets.warehouse.digest import WRITTEN_FILES, files_in
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.predicate import sql_string

_RANGE = pa.struct([("start", pa.int64()), ("end", pa.int64())])
_PARTITION = pa.struct(
    [
        ("partition", pa.int32()),
        ("topic_id", pa.string()),
        ("log_start", pa.int64()),
        ("end", pa.int64()),
        ("excluded", pa.list_(_RANGE)),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("stream_time_ms", pa.int64()),
    ]
)
_PROBLEM = pa.struct(
    [("partition", pa.int32()), ("offset", pa.int64()), ("problem", pa.string())],
)

SCHEMA = pa.schema(
    [
        pa.field("application_id", pa.string(), nullable=False),
        pa.field("store", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("window", pa.string(), nullable=False),
        pa.field("window_start_ms", pa.int64(), nullable=False),
        pa.field("window_end_ms", pa.int64(), nullable=False),
        pa.field("point_id", pa.string(), nullable=False),
        pa.field("taken_at_ms", pa.int64(), nullable=False),
        pa.field("proved", pa.bool_(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("base_window", pa.string()),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("partitions", pa.list_(_PARTITION)),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("problem_rows", pa.int64(), nullable=False),
        pa.field("problems", pa.list_(_PROBLEM)),
        pa.field("delta_version", pa.int64()),
        pa.field("took_ms", pa.int64(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("recorded_at_ms", pa.int64(), nullable=False),
        pa.field("written", WRITTEN_FILES),
    ]
)


class SnapshotsTable:
    """The snapshots of all applications.

    A row follows the data: a snapshot whose data is there without a row is simply made again.
    """

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._table = ControlTable(
            warehouse.control("ktable_snapshots"),
            SCHEMA,
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
        rows = self._table.read(application_id=application_id, where=where).to_pylist()
        newest: dict[tuple[str, str], Mapping[str, Any]] = {}
        for row in sorted(rows, key=lambda r: r["recorded_at_ms"]):
            newest[row["store"], row["window"]] = row
        present = {
            store
            for store in {store for store, _ in newest}
            if (self._warehouse.ktable(application_id, store) / "_delta_log").exists()
        }
        found = [_snapshot(row) for (store, _), row in newest.items() if store in present]
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
        self._table.replace([_row(s, now_ms) for s in snapshots], where=same)


def _row(snapshot: Snapshot, recorded_at_ms: int) -> dict[str, Any]:
    return {
        "application_id": snapshot.application_id,
        "store": snapshot.store,
        "topic": snapshot.topic,
        "window": snapshot.window.key,
        "window_start_ms": snapshot.window.start_ms,
        "window_end_ms": snapshot.window.end_ms,
        "point_id": snapshot.point_id,
        "taken_at_ms": snapshot.taken_at_ms,
        "proved": snapshot.proved,
        "reason": snapshot.reason,
        "base_window": snapshot.base_window,
        "fingerprint": snapshot.fingerprint,
        "partitions": [
            {
                "partition": part.partition,
                "topic_id": part.topic_id,
                "log_start": part.log_start,
                "end": part.end,
                "excluded": [{"start": bad.start, "end": bad.end} for bad in part.excluded],
                "rows": part.rows,
                "bytes": part.bytes,
                "stream_time_ms": part.stream_time_ms,
            }
            for part in snapshot.partitions
        ],
        "records": snapshot.records,
        "problem_rows": snapshot.problem_rows,
        "problems": [
            {"partition": each.partition, "offset": each.offset, "problem": each.problem}
            for each in snapshot.problems
        ],
        "delta_version": snapshot.delta_version,
        "took_ms": snapshot.took_ms,
        "run_id": snapshot.run_id,
        "recorded_at_ms": recorded_at_ms,
        "written": [file.row() for file in snapshot.written] or None,
    }


def _snapshot(row: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        application_id=row["application_id"],
        store=row["store"],
        topic=row["topic"],
        window=Window(row["window_start_ms"], row["window_end_ms"], row["window"]),
        point_id=row["point_id"],
        taken_at_ms=row["taken_at_ms"],
        proved=row["proved"],
        reason=row["reason"],
        base_window=row["base_window"],
        fingerprint=row["fingerprint"],
        partitions=tuple(_partition(part) for part in row["partitions"] or ()),
        records=row["records"],
        problem_rows=row["problem_rows"],
        problems=tuple(RowProblem(**each) for each in row["problems"] or ()),
        delta_version=row["delta_version"],
        took_ms=row["took_ms"],
        run_id=row["run_id"],
        written=files_in(row["written"]),
    )


def _partition(row: Mapping[str, Any]) -> SnapshotPartition:
    excluded = tuple(OffsetRange(bad["start"], bad["end"]) for bad in row["excluded"] or ())
    return SnapshotPartition(**{**row, "excluded": excluded})
