"""A small Delta table written with the deltalake package, straight from the controlling process."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError

from kstreams_assets.warehouse.compaction import FileRange, files_less, ranges_to_rewrite
from kstreams_assets.warehouse.delta import STORAGE_FAILURES, open_delta, storage_failures
from kstreams_assets.warehouse.layout import (
    CONTROL_TABLES,
    LAYOUT_PROPERTY,
    LAYOUT_VERSION,
    Warehouse,
)
from kstreams_assets.warehouse.lock import warehouse_lock
from kstreams_assets.warehouse.predicate import sql_string
from kstreams_assets.warehouse.presence import make_warehouse
from kstreams_assets.warehouse.rows import Rows, rows_of

Value = int | str
"""A value of the column that a table grows along."""

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)

_folded: dict[tuple[Any, ...], dict[str, Any]] = {}
"""What `Table.fold` remembers: of each file in use what was made of it."""

_ATTEMPTS = 5
_LOCK_WAIT_S = 30.0
_RETENTION_HOURS = 1
"""How long files that are no longer part of a table stay: readers hold a version for seconds."""
_RETENTION = f"interval {_RETENTION_HOURS} hours"
_PROPERTIES = {
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": _RETENTION,
    "delta.deletedFileRetentionDuration": _RETENTION,
}
"""Opening a table replays the log from the last checkpoint on: 7 ms instead of 30."""
_ROW_GROUP = WriterProperties(max_row_group_size=512, compression="ZSTD", compression_level=1)
_FULL_BYTES = 2 * 1024**2
_FULL_BULKY_BYTES = 16 * 1024**2
"""Files of this size are not written anew to be put together with others."""
_PUT_TOGETHER_S = 5.0
"""No further range is written anew after this time: others wait for the lock for 30 s."""
_LARGE_ROW_GROUP = WriterProperties(
    max_row_group_size=8192, compression="ZSTD", compression_level=1
)


def one_of(column: str, values: Iterable[str]) -> ds.Expression:
    """A filter for rows whose text column is one of the values; no row when there is none."""
    # An array without a type would be one of nulls when it is empty, which Arrow refuses.
    return pc.field(column).isin(pa.array(list(values), pa.string()))


def refuse_newer_tables(warehouse: Warehouse) -> None:
    """Look at every control table before anything is written.

    Raises:
        NewerLayoutError: A newer release wrote one of them.
    """
    for name in CONTROL_TABLES:
        open_delta(warehouse.control(name), name)


def table_version(path: Path) -> int:
    """The version of a table, which grows with each commit; -1 while nobody has written it.

    Of two looks, the one that saw the lower version came first: no clock tells that better.
    """
    table = open_delta(path, path.name)
    return -1 if table is None else table.version()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of an application: lowest and highest value of the column its table grows along."""

    path: str
    rows: int
    bytes: int
    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """One table below the warehouse; every application has a partition of its own in it.

    `row` is the class of its rows (see `warehouse/column.py`), with a field `application_id`.
    `grows_along` is a column without nulls whose values rise from one append to the next (a time,
    an id that sorts by time), so that files hold ranges of it and can be put together range by
    range. `statistics` are the columns by which readers skip files, `grows_along` among them.
    `bulky` tables have rows by the million, hence larger row groups.

    A reader opens every file of an application, so what writers add bit by bit is put together as
    it grows: when `small_files` files of an application can be spared, its small neighbours become
    one file each, under the lock that the writer holds. Rows whose `grows_along` lies further than
    `kept` behind the newest are dropped then. Files and log entries that are no longer part of the
    table stay for an hour, for readers that still use them.
    """

    path: Path
    row: type[R]
    grows_along: str
    statistics: tuple[str, ...] = ()
    bulky: bool = False
    small_files: int = 32
    kept: int | None = None

    @property
    def name(self) -> str:
        """The table's name in messages."""
        return self.path.name

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._made.schema

    @property
    def _made(self) -> Rows[R]:
        return rows_of(self.row)

    def open(self) -> DeltaTable | None:
        """The table as it stands, None while nobody has written it.

        Raises:
            NewerLayoutError: A newer release wrote it.
            WarehouseError: It cannot be read.
        """
        return open_delta(self.path, self.name)

    def version(self) -> int:
        """The version of the table (`table_version`)."""
        return table_version(self.path)

    def append(self, rows: Sequence[R]) -> None:
        """Add rows in one commit."""
        self._write(self._made.write(rows), predicate=None)

    def append_table(self, rows: pa.Table) -> None:
        """Add rows that are columns already, in one commit; columns as in the table's schema."""
        self._write(rows, predicate=None)

    def replace(self, rows: Sequence[R], *, where: str) -> None:
        """Put rows in place of those that match the predicate, in one commit."""
        self._write(self._made.write(rows), predicate=where)

    def rewrite(
        self, application_id: str, low: Value, high: Value, change: Callable[[pa.Table], pa.Table]
    ) -> None:
        """Put `change(rows)` in place of an application's rows in `[low, high]`, in one commit.

        `low` and `high` are values of the column `grows_along`; `change` gets the rows that are
        there when the commit is tried, and gives rows of the same range. Nothing that others add
        meanwhile is lost: a commit that would touch it is tried again with their rows.
        """
        with self._lock():
            self._rewrite(application_id, low, high, change)
            self._put_together({application_id})

    def _rewrite(
        self, application_id: str, low: Value, high: Value, change: Callable[[pa.Table], pa.Table]
    ) -> None:
        column = self.grows_along
        where = (pc.field(column) >= low) & (pc.field(column) <= high)
        predicate = (
            f"application_id = {sql_string(application_id)}"
            f" AND {column} >= {_literal(low)} AND {column} <= {_literal(high)}"
        )

        def commit(table: DeltaTable) -> None:
            # One batch: the writer spreads several over its threads and mixes up their order.
            rows = change(self._rows(table, application_id, None, where)).combine_chunks()
            self._commit(table, rows, predicate)

        self._attempted(commit)

    def tidy(self) -> None:
        """Drop what has not been part of the table for an hour, from the folder and the log.

        Also what writers left behind that were killed before their commit.
        """

        if self.open() is not None:
            with self._lock():
                self._attempted(_tidy)

    def files(self, application_id: str) -> list[StoredFile]:
        """The files of one application by their ranges of `grows_along`, lowest first."""
        table = self.open()
        return [] if table is None else self._files(table, application_id)

    def _files(self, table: DeltaTable, application_id: str) -> list[StoredFile]:
        added = pa.table(table.get_add_actions(flatten=True))
        if added.num_rows == 0:
            return []
        rows = added.filter(pc.field("partition.application_id") == application_id)
        files = [
            self._stored_file(row["path"], row["num_records"], row["size_bytes"], low, high)
            for row, low, high in zip(
                rows.select(["path", "num_records", "size_bytes"]).to_pylist(),
                *(_values(rows, f"{extreme}.{self.grows_along}") for extreme in ("min", "max")),
                strict=True,
            )
        ]
        return sorted((file for file in files if file), key=lambda f: f.low)

    def _stored_file(
        self, path: str, rows: int | None, size: int, low: Value | None, high: Value | None
    ) -> StoredFile | None:
        if rows is None or low is None or high is None:
            # Written by an earlier release, whose log says nothing of this column.
            values = self._column_of(path)
            known = [value for value in values if value is not None]
            rows, low, high = len(values), min(known, default=None), max(known, default=None)
        return None if low is None or high is None else StoredFile(path, rows, size, low, high)

    def _column_of(self, path: str) -> list[Value | None]:
        file = self.path / unquote(path)
        with storage_failures(file):
            return pq.ParquetFile(file).read(columns=[self.grows_along])[0].to_pylist()

    def rows(self, application_id: str | None, where: ds.Expression | None = None) -> list[R]:
        """The rows of one application, of all of them for None."""
        return self._made.read(self.read(application_id=application_id, where=where))

    def rows_as(
        self,
        part: type[P],
        application_id: str,
        where: ds.Expression | None = None,
        *,
        distinct: bool = False,
    ) -> list[P]:
        """The same, of each what a class with some of their fields has (see `Rows.read_part`).

        Only these columns are read. With `distinct` equal ones come once.
        """
        names = self._made.names(part)
        found = self.read(application_id=application_id, columns=names, where=where)
        if distinct:
            found = found.group_by(names).aggregate([])
        return self._made.read_part(part, found)

    def newest_rows(self, application_id: str, count: int) -> list[R]:
        """As `read_newest`."""
        return self._made.read(self.read_newest(application_id, count))

    def read(
        self,
        *,
        application_id: str | None,
        columns: Sequence[str] | None = None,
        where: ds.Expression | None = None,
    ) -> pa.Table:
        """The rows of one application, of all of them for None, as columns."""
        table = self.open()
        if table is None:
            schema = pa.schema([self.schema.field(c) for c in columns]) if columns else self.schema
            return schema.empty_table()
        return self._rows(table, application_id, columns, where)

    def fold(
        self,
        application_id: str,
        columns: Sequence[str],
        fold: Callable[[pa.Table], T],
        *,
        where: ds.Expression | None = None,
    ) -> list[T]:
        """`fold(rows)` of each file of an application.

        Files never change, so what `fold` made of one is remembered in this process for as long as
        the file is part of the table; `fold` has to be hashable, equal ones make the same of a
        file. A call costs what was added since the one before.
        """
        table = self.open()
        if table is None:
            return []
        key = (self.path, application_id, fold, tuple(columns), str(where))
        known = _folded.get(key, {})
        found: dict[str, Any] = {}
        with storage_failures(self.path):
            files = list(self._dataset(table, application_id).get_fragments())
        for file in files:
            if file.path in known:
                found[file.path] = known[file.path]
                continue
            with storage_failures(self.path):
                rows = file.to_table(schema=self.schema, columns=list(columns), filter=where)
            found[file.path] = fold(rows)
        _folded[key] = found
        return list(found.values())

    def read_newest(self, application_id: str, count: int) -> pa.Table:
        """The rows with the `count` highest values of `grows_along` (more where values repeat).

        Few files are opened, however many rows there are.
        """
        table = self.open()
        column = self.grows_along
        if table is None or count < 1:
            return self.schema.empty_table()
        files = sorted(self._files(table, application_id), key=lambda f: f.high, reverse=True)
        if not files:
            return self.schema.empty_table()
        lowest = files[0].high
        if count > 1:
            lowest = self._nth_highest(table, application_id, files, count)
        return self._rows(table, application_id, None, pc.field(column) >= lowest)

    def _nth_highest(
        self, table: DeltaTable, application_id: str, files: Sequence[StoredFile], count: int
    ) -> Value:
        column = self.grows_along
        rows, lowest = 0, files[0].low
        for file in files:
            lowest = min(lowest, file.low)
            rows += file.rows
            if rows >= count:
                break
        where = pc.field(column) >= lowest
        values = self._rows(table, application_id, [column], where)[column]
        return values.sort("descending")[min(count, len(values)) - 1].as_py()

    def _rows(
        self,
        table: DeltaTable,
        application_id: str | None,
        columns: Sequence[str] | None,
        where: ds.Expression | None,
    ) -> pa.Table:
        with storage_failures(self.path):
            dataset = self._dataset(table, application_id)
            return dataset.to_table(columns=list(columns) if columns else None, filter=where)

    def _dataset(self, table: DeltaTable, application_id: str | None) -> ds.Dataset:
        # Arrow's own file system: the bridge into deltalake's aborts at interpreter exit now and
        # then (deltalake 1.6.6 with pyarrow 26: 2 of 6 processes).
        local = pafs.SubTreeFileSystem(str(self.path), pafs.LocalFileSystem())
        return table.to_pyarrow_dataset(
            file_pruning_predicate=None
            if application_id is None
            else [("application_id", "=", application_id)],
            filesystem=local,
            schema=self.schema,
        )

    def _write(self, rows: pa.Table, *, predicate: str | None) -> None:
        with self._lock():
            self._attempted(lambda table: self._commit(table, rows, predicate))
            self._put_together(rows["application_id"].unique().to_pylist())

    def _put_together(self, application_ids: Iterable[str]) -> None:
        """Small files become one, if that spares enough; what was written before does not fail."""
        try:
            for application_id in application_ids:
                table = self.open()
                files = self._files(table, application_id) if table else []
                if self._rewrite_small(application_id, files):
                    self._attempted(_tidy)
        except STORAGE_FAILURES as error:
            _log.warning("Small files of %s were not put together: %s", self.name, error)

    def _rewrite_small(self, application_id: str, files: Sequence[StoredFile]) -> bool:
        """Whether small neighbours were put together; the rest waits when that takes long."""
        if len(files) <= self.small_files:
            return False
        enough = _FULL_BULKY_BYTES if self.bulky else _FULL_BYTES
        ranges = [FileRange(file.bytes, file.low, file.high) for file in files]
        if files_less(ranges, ranges_to_rewrite(ranges, _none, enough=enough)) < self.small_files:
            return False
        newest = max(file.high for file in files)
        oldest = newest - self.kept if self.kept is not None and isinstance(newest, int) else None

        def is_outdated(file: FileRange) -> bool:
            return oldest is not None and file.low < oldest

        def change(rows: pa.Table) -> pa.Table:
            if oldest is not None:
                rows = rows.filter(pc.field(self.grows_along) >= oldest)
            return rows.sort_by(self.grows_along)

        deadline = time.monotonic() + _PUT_TOGETHER_S
        for low, high in ranges_to_rewrite(ranges, is_outdated, enough=enough):
            if time.monotonic() >= deadline:
                break
            self._rewrite(application_id, low, high, change)
        return True

    @contextmanager
    def _lock(self) -> Iterator[None]:
        make_warehouse(self.path.parent)
        with (
            storage_failures(self.path),
            warehouse_lock(self._lock_file, purpose=f"write to {self.name}", wait_s=_LOCK_WAIT_S),
        ):
            yield

    def _attempted(self, commit: Callable[[DeltaTable], None]) -> None:
        """Commit, under the lock."""
        for attempt in range(_ATTEMPTS):
            table = self._opened_or_created()
            try:
                self._set_properties(table)
                commit(table)
            except CommitFailedError:
                # A writer on another machine, whom the lock does not reach, came first; its rows
                # do not touch ours, or lie in files that it has put together.
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    @property
    def _lock_file(self) -> Path:
        return self.path.parent / ".locks" / "tables" / f"{self.name}.lock"

    def _commit(self, table: DeltaTable, rows: pa.Table, predicate: str | None) -> None:
        properties = CommitProperties(max_commit_retries=20)
        # A table of an earlier release gets the columns it lacks; its rows have no value in them.
        if predicate is None:
            write_deltalake(
                table, rows, mode="append", schema_mode="merge", commit_properties=properties
            )
        else:
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                schema_mode="merge",
                predicate=predicate,
                commit_properties=properties,
                writer_properties=_LARGE_ROW_GROUP if self.bulky else _ROW_GROUP,
            )

    def _opened_or_created(self) -> DeltaTable:
        table = self.open()
        if table is not None:
            return table
        return DeltaTable.create(
            self.path,
            schema=self.schema,
            mode="ignore",
            partition_by=["application_id"],
            configuration={LAYOUT_PROPERTY: str(LAYOUT_VERSION), **self._properties},
            raise_if_key_not_exists=False,
        )

    @property
    def _properties(self) -> dict[str, str]:
        named = {"delta.dataSkippingStatsColumns": ",".join(self.statistics)}
        return _PROPERTIES | (named if self.statistics else {})

    def _set_properties(self, table: DeltaTable) -> None:
        """A table of an earlier release gets the properties that this one relies on."""
        here = table.metadata().configuration
        if self._properties.items() - here.items():
            table.alter.set_table_properties(self._properties, raise_if_not_exists=False)


def _tidy(table: DeltaTable) -> None:
    table.vacuum(_RETENTION_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
    table.create_checkpoint()
    table.cleanup_metadata()


def _none(_: FileRange) -> bool:
    return False


def _values(rows: pa.Table, column: str) -> list[Any]:
    return rows[column].to_pylist() if column in rows.column_names else [None] * rows.num_rows


def _literal(value: Value) -> str:
    return str(value) if isinstance(value, int) else sql_string(str(value))
