"""Delta tables that the controlling process writes with the deltalake package."""

import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from kstreams_assets.copy_mark import MARK, refuse_copy, state_for
from kstreams_assets.errors import WarehouseError
from kstreams_assets.layout import (
    CONTROL_LAYOUT_VERSION,
    LAYOUT_PROPERTY,
    LAYOUT_VERSION,
    Warehouse,
    check_layout,
    is_linked,
)
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.file_ranges import FileRange, files_less, ranges_to_rewrite
from kstreams_assets.model.files import path_in_table, root_of, table_name
from kstreams_assets.model.tables import TABLES, Derived, TableSpec
from kstreams_assets.repository.chain import (
    active_paths,
    expired_entries,
    file_name,
    link_after,
    partition_folder,
    require_content,
    require_linked,
    stored_data_error,
)
from kstreams_assets.repository.delta_log import (
    CHECKPOINT_INTERVAL,
    commit_hooks,
    committing,
    delta_table,
    make_checkpoint,
    remove_torn,
)
from kstreams_assets.repository.known import Known
from kstreams_assets.repository.rows import Rows, rows_of
from kstreams_assets.store import StorePath, local_hours, store_at
from kstreams_assets.store.failures import DAMAGED, storage_errors, storage_failures
from kstreams_assets.store.locks import LeaseLostError, LockHandle


@dataclass(frozen=True, slots=True)
class WindowTopic:
    """A topic's part of one window: the unit that a backup replaces."""

    window: str
    topic: str


def windows_and_topics(pairs: Iterable[WindowTopic]) -> pc.Expression:
    """A filter over the columns `window` and `topic` that matches exactly these pairs.

    Windows with the same topics share one clause, so hundreds of windows make a short filter.
    """
    topics_of: dict[str, set[str]] = {}
    for pair in pairs:
        topics_of.setdefault(pair.window, set()).add(pair.topic)
    windows_of: dict[tuple[str, ...], list[str]] = {}
    for window, topics in topics_of.items():
        windows_of.setdefault(tuple(sorted(topics)), []).append(window)
    clauses = [
        one_of("window", sorted(windows)) & one_of("topic", topics)
        for topics, windows in sorted(windows_of.items())
    ]
    return reduce(or_, clauses) if clauses else pc.scalar(False)


def open_delta(
    path: StorePath,
    name: str,
    *,
    to_write: bool = False,
    known: Known | None = None,
    layout: int = CONTROL_LAYOUT_VERSION,
    version: int | None = None,
) -> DeltaTable | None:
    """The table at a path, None if it was never written.

    `name` is its name in messages, `layout` the newest supported layout; `version` is the version
    to open, by default the newest.

    Cached data in `known` is used while the table's log is unchanged: a list of its files instead
    of a replay of the log. A view opens each table once. A writer gets its own table object
    (`to_write`), so that no reader sees it change.

    Raises:
        NewerLayoutError: A newer release wrote the table.
        StoredDataError: It does not have the files of its newest commit (control tables).
        WarehouseError: It cannot be read, or has data files but no log.
    """
    pinned = None if known is None or to_write else known.pinned
    if pinned is not None and path in pinned:
        return pinned[path]
    with storage_failures(path):
        chosen = state_for(path)
    if chosen is not None:
        version = chosen.versions.get(table_name(path))
    if chosen is not None:
        if to_write:
            with storage_failures(path):
                refuse_copy(root_of(path))
        if version is None:
            return None
    if to_write:
        with storage_failures(path):
            remove_torn(path)
    state = log_state(path)
    with storage_failures(path):
        key = (path, version, tuple((store_at(path).delta_options() or {}).items()))
        seen = None if known is None or to_write else known.opened.get(key)
        is_known = seen is not None and seen[0] == state
        table = None
        if is_known and seen is not None:
            table = seen[1]
        elif state:
            table = _opened_at(path, name, layout, version)
        # A table's log is written before its first data file.
        if table is None and any(path.rglob("*.parquet")):
            raise WarehouseError(
                path=path, reason="it has data files but no log (_delta_log)", remedy=DAMAGED
            )
    if known is not None and not to_write:
        if pinned is not None:
            pinned[path] = table
        if table is not None and not is_known:
            known.opened.put(key, (state, table))
    return table


def _opened_at(path: StorePath, name: str, layout: int, version: int | None) -> DeltaTable | None:
    """The newest version of a table, or this one, if its files are those of its last commit."""
    for _ in range(_LOOKS):
        try:
            table = delta_table(path, version)
        except TableNotFoundError:
            return None
        configuration = table.metadata().configuration
        check_layout(name, configuration, layout)
        if not is_linked(configuration):
            return table
        try:
            require_linked(path, name, table)
        except FileNotFoundError:
            continue  # Others have committed and tidied up the log since it was opened.
        return table
    raise stored_data_error(name, "the newest entry of its log (_delta_log) is missing")


_LOOKS: Final = 3


def create_delta(
    path: StorePath,
    *,
    schema: pa.Schema | Schema,
    partition_by: Sequence[str],
    configuration: Mapping[str, str],
    commit_properties: CommitProperties | None = None,
) -> DeltaTable:
    """The table at a path, created if needed; raises deltalake's errors."""
    path.mkdir(parents=True, exist_ok=True)
    with committing(path):
        return DeltaTable.create(
            str(path),
            schema=schema,
            mode="ignore",
            partition_by=[*partition_by],
            configuration={**configuration},
            storage_options=store_at(path).delta_options(),
            commit_properties=commit_properties,
            raise_if_key_not_exists=False,
        )


WRITER: Final = "kstreams-assets-writer"
"""The key of the last writer's epoch in Delta's log."""


@dataclass(frozen=True, slots=True)
class Writer:
    """An application, with the lock under which it writes.

    `scope` is the scope of the lock, if several locks of an application write the same table.
    """

    application_id: str
    lock: LockHandle
    scope: str = ""

    @property
    def name(self) -> str:
        """The key of its epoch in tables of several applications."""
        return f"{WRITER}/{self.scope or self.application_id}"


def require_newest(path: StorePath, table: DeltaTable, name: str, writer: LockHandle) -> None:
    """Refuse a commit of a writer with a successor.

    Raises:
        LeaseLostError: It no longer holds the lock.
    """
    writer.require_held()
    committed = table.transaction_version(name)
    if committed is not None and committed > writer.epoch:
        reason = f"a later writer has committed (epoch {committed}, this one has {writer.epoch})"
        raise LeaseLostError(path=path, what="right to write", reason=reason)


def fence_tables(tables: "Sequence[Table[Any]]", writer: Writer) -> None:
    """Prevent earlier holders of the writer's lock from committing to these tables.

    The lock is new. If it does not know of holders that only the tables mention (a copied
    warehouse), it gets a higher epoch than theirs.

    Raises:
        LeaseLostError: A later writer has the lock.
        WarehouseError: A table cannot be read or written.
    """
    writer.lock.raise_epoch(max(table.epoch_of(writer) for table in tables))
    if writer.lock.is_taken_over:
        for table in tables:
            table.fence(writer)


LogState = tuple[tuple[str, int, int], ...]
"""Name, size and time of change (nanoseconds) of each file of a table's log."""


def log_state(path: StorePath) -> LogState:
    """A value that changes with each commit to a table, and with damage to its log.

    It is cheaper than opening the table, and empty if the table was never written. For a copy it
    reflects what its readers see: all of it changes at once.

    Raises:
        WarehouseError: The log cannot be inspected.
    """
    with storage_failures(path):
        chosen = state_for(path)
    if chosen is not None:
        version = chosen.versions.get(table_name(path))
        return () if version is None else ((MARK, version, chosen.finished_at_ms),)
    with storage_failures(path):
        try:
            files = store_at(path / "_delta_log").entries()
        except FileNotFoundError:
            return ()
    return tuple(sorted((name, size, changed) for name, (size, changed) in files.items()))


def newest_commit(path: StorePath) -> float | None:
    """The last change of a table's log, epoch seconds; None if it was never written.

    Raises:
        WarehouseError: The log cannot be inspected.
    """
    return max((changed / 1e9 for _, _, changed in log_state(path)), default=None)


_log = logging.getLogger(__name__)


def holds_files(records: StorePath) -> bool:
    """Whether a table of records has a file; a first backup creates the table before its files.

    An unreadable table counts as one with files.
    """
    try:
        table = open_delta(records, f"records/{records.name}", layout=LAYOUT_VERSION)
    except WarehouseError:
        return True
    return table is not None and pa.table(table.get_add_actions()).num_rows > 0


Value = int | str
"""A value of the column along which a table grows."""

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")


_ATTEMPTS = 20
_WAIT_S = 0.05
"""Maximum wait before the next attempt, multiplied by the number of failed ones."""
_LOCK_WAIT_S = 30.0
_RETENTION_HOURS = 1
"""How long removed files are kept: readers use a version for seconds."""
_RETENTION = f"interval {_RETENTION_HOURS} hours"
_PROPERTIES = {
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.logRetentionDuration": _RETENTION,
    "delta.deletedFileRetentionDuration": _RETENTION,
}
"""Opening a table replays the log since the last checkpoint: 7 ms instead of 30."""
_ROW_GROUP: Final = 512
_LARGE_ROW_GROUP: Final = 8192
_LONGEST: Final = 64
"""Characters of a text in the log's statistics, except for the column along which a table grows."""
_FETCHES: Final = 8
"""Number of files requested from a store at a time."""
_FORMAT: Final = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True)
)
_RETENTION_NS = _RETENTION_HOURS * 3600 * 10**9
_FULL_BYTES = 2 * 1024**2
_FULL_BULKY_BYTES = 16 * 1024**2
"""Files of this size are not merged with others."""
_PUT_TOGETHER_S = 5.0
"""No further range is merged after this time: others wait for the lock for 30 s."""


def one_of(column: str, values: Iterable[str]) -> ds.Expression:
    """A filter for rows whose text column is one of the values; matches no row if there are
    none."""
    # An untyped empty array would have type null, which Arrow rejects.
    return pc.field(column).isin(pa.array(list(values), pa.string()))


def refuse_newer_tables(
    warehouse: Warehouse, application_id: str | None = None, known: Known | None = None
) -> "list[tuple[Table[Any], DeltaTable]]":
    """Check every control table before anything is written; return the existing ones.

    Raises:
        NewerLayoutError: A newer release wrote one of them.
    """
    tables = [Table.of(spec, warehouse, application_id, known) for spec in TABLES]
    # A store answers each request late, but many at once.
    with ThreadPoolExecutor(len(tables)) as pool:
        opened = pool.map(lambda table: table.open(), tables)
        return [(table, found) for table, found in zip(tables, opened, strict=True) if found]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a table: minimum and maximum of the column along which the table grows."""

    path: str
    rows: int
    bytes: int
    low: Value
    high: Value
    is_earlier: bool = False
    """Whether an earlier release wrote it: the log does not have statistics of all columns."""


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """The rows of one application in a table below the warehouse.

    Every application has its own partition. Without `application_id` the rows are those of all
    applications, and read-only.

    `row` is the class of its rows (see `model/column.py`), with a field `application_id`.
    `grows_along` is a column without nulls whose values increase from one append to the next (a
    time, an id that sorts by time), so that files contain ranges of it and can be merged range by
    range. `statistics` are the columns by which readers skip files, including `grows_along`.
    `bulky` tables have millions of rows, hence larger row groups and files; `narrow` ones, whose
    readers need most rows and few columns, have only larger row groups.

    A reader opens every file of an application, so small appends are merged as the table grows.
    When `small_files` files of an application can be saved, its small neighbours become one file
    each, under the writer's lock. Rows whose `grows_along` is more than `kept` behind the newest
    are dropped then. Removed files and log entries are kept for an hour, for readers that still use
    them. Rows of earlier releases have their `derived` columns for every reader.
    """

    path: StorePath
    row: type[R]
    grows_along: str
    application_id: str | None = None
    statistics: tuple[str, ...] = ()
    bulky: bool = False
    narrow: bool = False
    small_files: int = 32
    kept: int | None = None
    derived: Derived | None = None
    known: Known = field(default_factory=Known, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        spec: TableSpec[R],
        warehouse: Warehouse,
        application_id: str | None,
        known: Known | None = None,
    ) -> "Table[R]":
        """The rows of an application in this declared table of a warehouse."""
        return cls(
            warehouse.control(spec.name),
            spec.row,
            spec.grows_along,
            application_id,
            spec.statistics,
            bulky=spec.bulky,
            narrow=spec.narrow,
            small_files=spec.small_files,
            kept=spec.kept,
            derived=spec.derived,
            known=known or Known(),
        )

    @property
    def of_all(self) -> "Table[R]":
        """The rows of all applications."""
        return replace(self, application_id=None)

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
        """The current table for reading; None if it was never written.

        Raises:
            NewerLayoutError: A newer release wrote the table.
            WarehouseError: The table cannot be read.
        """
        return open_delta(self.path, self.name, known=self.known)

    def ensure(self) -> None:
        """Create the table, empty, unless it exists."""
        if self.open() is None:
            with self._lock():
                self._attempted(_nothing)

    def upgrade(self, found: DeltaTable) -> None:
        """Give the table the layout of this release, so that earlier ones refuse it."""
        if found.metadata().configuration.get(LAYOUT_PROPERTY) != str(CONTROL_LAYOUT_VERSION):
            with self._lock():
                self._attempted(_nothing)

    def migrate(self, found: DeltaTable, writer: Writer) -> None:
        """Rewrite the files that an earlier release wrote without `derived` columns.

        Each range of files is a separate commit: a killed writer leaves the rest to the next one,
        and readers see the same rows all the time.
        """
        key = self.path, self.application_id
        if self.derived is None or key in self.known.migrated:
            return
        files = self._files(found)
        ranges = [FileRange(file.bytes, file.low, file.high) for file in files]
        earlier = {one for one, file in zip(ranges, files, strict=True) if file.is_earlier}
        for low, high in ranges_to_rewrite(ranges, earlier.__contains__, enough=_FULL_BYTES):
            if any(low <= one.low and one.high <= high for one in earlier):
                with self._lock():
                    self._rewrite(low, high, self._in_order, writer)
        self.known.migrated.add(key)

    def _in_order(self, rows: pa.Table) -> pa.Table:
        return rows.sort_by(self.grows_along)

    def version(self) -> int:
        """The version of the table, which increases with each commit; -1 if it was never written.

        Of two reads, the one with the lower version came first, regardless of clocks.
        """
        table = self.open()
        return -1 if table is None else table.version()

    def append(self, rows: Sequence[R], *, writer: Writer | None = None) -> None:
        """Add rows in one commit; `writer` as in `replace`."""
        self.append_table(self._made.write(rows), writer=writer)

    def append_table(self, rows: pa.Table, *, writer: Writer | None = None) -> None:
        """Add rows that are already columns, in one commit; columns as in the table's schema."""
        new: list[AddAction] = []

        def commit(table: DeltaTable) -> None:
            if not new:
                new.extend(self._new_files(rows))
            self._commit(table, new, writer=writer)

        with self._lock():
            self._attempted(commit)
            self._put_together()

    def replace(
        self,
        rows: Sequence[R],
        *,
        where: pc.Expression,
        writer: Writer | None = None,
    ) -> None:
        """Replace matching rows, in one commit.

        `writer` is the application, with the lock under which the rows were made.

        Raises:
            LeaseLostError: Another writer now holds the lock; nothing was written.
        """
        new = self._made.write(rows)

        def commit(table: DeltaTable) -> None:
            found = self._parted(table, where)
            added = self._new_files(pa.concat_tables([found.others, new]))
            self._commit(table, added, found.files, writer)

        with self._lock():
            self._attempted(commit)
            self._put_together()

    def rewrite(
        self,
        low: Value,
        high: Value,
        change: Callable[[pa.Table], pa.Table],
        *,
        writer: Writer | None = None,
    ) -> None:
        """Replace the rows in `[low, high]` by `change(rows)`, in one commit.

        `low` and `high` are values of the column `grows_along`. `change` gets the rows that exist
        when the commit is tried, and returns rows of the same range. Rows that others add in the
        meantime are not lost: a conflicting commit is tried again with their rows. `writer` as in
        `replace`.
        """
        with self._lock():
            self._rewrite(low, high, change, writer)
            self._put_together()

    def _rewrite(
        self,
        low: Value,
        high: Value,
        change: Callable[[pa.Table], pa.Table],
        writer: Writer | None = None,
    ) -> None:
        column = self.grows_along
        where = (pc.field(column) >= low) & (pc.field(column) <= high)

        def commit(table: DeltaTable) -> None:
            found = self._parted(table, where)
            rows = self._of_schema(change(found.matching))
            added = self._new_files(pa.concat_tables([found.others, rows]))
            self._commit(table, added, found.files, writer)

        self._attempted(commit)

    def tidy(self) -> None:
        """Delete files and log entries that were removed from the table an hour ago.

        Also delete leftovers of writers that were killed before their commit.
        """

        if self.open() is not None:
            with self._lock():
                self._attempted(self._tidy)

    def files(self) -> list[StoredFile]:
        """Its files by their ranges of `grows_along`, lowest first."""
        table = self.open()
        return [] if table is None else self._files(table)

    def _files(self, table: DeltaTable) -> list[StoredFile]:
        rows = self._added(table)
        if rows.num_rows == 0:
            return []
        files = [
            self._stored_file(row["path"], row["num_records"], row["size_bytes"], low, high, nulls)
            for row, low, high, nulls in zip(
                rows.select(["path", "num_records", "size_bytes"]).to_pylist(),
                *(_values(rows, f"{extreme}.{self.grows_along}") for extreme in ("min", "max")),
                self._nulls(rows),
                strict=True,
            )
        ]
        return sorted((file for file in files if file), key=lambda f: f.low)

    def _added(self, table: DeltaTable) -> pa.Table:
        """The log's actions of its files."""
        added = pa.table(table.get_add_actions(flatten=True))
        if self.application_id is None or added.num_rows == 0:
            return added
        return added.filter(pc.field("partition.application_id") == self.application_id)

    def _nulls(self, actions: pa.Table) -> list[int | None]:
        """For each file, the number of nulls in the first derived column; None: not recorded."""
        if self.derived is None:
            return [0] * actions.num_rows
        return _values(actions, f"null_count.{self.derived.columns[0]}")

    def _stored_file(
        self,
        path: str,
        rows: int | None,
        size: int,
        low: Value | None,
        high: Value | None,
        nulls: int | None,
    ) -> StoredFile | None:
        if rows is None or low is None or high is None:
            # Written by an earlier release, whose log has no statistics of this column.
            values = self._column_of(path)
            known = [value for value in values if value is not None]
            rows, low, high = len(values), min(known, default=None), max(known, default=None)
        if low is None or high is None:
            return None
        return StoredFile(path, rows, size, low, high, is_earlier=nulls != 0)

    def _column_of(self, path: str) -> list[Value | None]:
        file = self.path / path_in_table(path)
        with storage_failures(file):
            rows = pq.ParquetFile(store_at(file).readable()).read(columns=[self.grows_along])
            return rows[0].to_pylist()

    def rows(self, where: ds.Expression | None = None) -> list[R]:
        """Its rows."""
        return self._made.read(self.read(where=where))

    def rows_as(
        self,
        part: type[P],
        where: ds.Expression | None = None,
        *,
        distinct: bool = False,
    ) -> list[P]:
        """Rows of a class with some of their fields (see `Rows.read_part`).

        Only these columns are read. With `distinct` equal rows are returned once.
        """
        names = self._made.names(part)
        found = self.read(columns=names, where=where)
        if distinct:
            found = found.group_by(names).aggregate([])
        return self._made.read_part(part, found)

    def newest_rows(self, count: int) -> list[R]:
        """As `read_newest`."""
        return self._made.read(self.read_newest(count))

    def read(
        self, *, columns: Sequence[str] | None = None, where: ds.Expression | None = None
    ) -> pa.Table:
        """Its rows as columns."""
        table = self.open()
        if table is None:
            schema = pa.schema([self.schema.field(c) for c in columns]) if columns else self.schema
            return schema.empty_table()
        return self._rows(table, columns, where)

    def reduce(
        self,
        columns: Sequence[str],
        reduce: Callable[[pa.Table], T],
        *,
        where: ds.Expression | None = None,
    ) -> list[T]:
        """`reduce(rows)` of each of its files.

        Files never change, so the result of `reduce` for a file is cached while the file is part of
        the table. `reduce` must be hashable; equal ones have equal results. A call costs only what
        was added since the last one.
        """
        table = self.open()
        if table is None:
            return []
        key = (self.path, self.application_id, reduce, tuple(columns), str(where))
        known = self.known.reduced.get(key) or {}
        with storage_failures(self.path):
            files = list(self._dataset(table).get_fragments())
            on_disk = store_at(self.path).on_disk
            whole = self._whole([f for f in files if on_disk or f.path not in known])
            new = {path: file for path, file in whole.items() if path not in known}
            found = {file.path: known[file.path] for file in files if file.path in known}
        for path, file in new.items():
            with storage_failures(self.path):
                rows = self._scan(partial(file.to_table, self.schema), columns, where)
            found[path] = reduce(rows)
        self.known.reduced.put(key, found)
        return list(found.values())

    def read_newest(self, count: int) -> pa.Table:
        """The rows with the `count` highest values of `grows_along` (more if values repeat).

        Few files are opened, however many rows there are.
        """
        table = self.open()
        column = self.grows_along
        if table is None or count < 1:
            return self.schema.empty_table()
        files = sorted(self._files(table), key=lambda f: f.high, reverse=True)
        if not files:
            return self.schema.empty_table()
        lowest = files[0].high
        if count > 1:
            lowest = self._nth_highest(table, files, count)
        return self._rows(table, None, pc.field(column) >= lowest)

    def _nth_highest(self, table: DeltaTable, files: Sequence[StoredFile], count: int) -> Value:
        column = self.grows_along
        rows, lowest = 0, files[0].low
        for file in files:
            lowest = min(lowest, file.low)
            rows += file.rows
            if rows >= count:
                break
        where = pc.field(column) >= lowest
        values = self._rows(table, [column], where)[column]
        return values.sort("descending")[min(count, len(values)) - 1].as_py()

    def _rows(
        self,
        table: DeltaTable,
        columns: Sequence[str] | None,
        where: ds.Expression | None,
    ) -> pa.Table:
        with storage_failures(self.path):
            dataset = self._dataset(table)
            if not self.bulky:  # Rows of bulky tables have digests of their own.
                files = self._whole(dataset.get_fragments(filter=where))
                dataset = ds.FileSystemDataset(
                    list(files.values()), dataset.schema, dataset.format, dataset.filesystem
                )
            return self._scan(dataset.to_table, columns, where)

    def _scan(
        self,
        read: Callable[..., pa.Table],
        columns: Sequence[str] | None = None,
        where: ds.Expression | None = None,
    ) -> pa.Table:
        """The rows of `read`, including derived columns in rows of earlier releases."""
        names = [*columns] if columns else self.schema.names
        derived = self.derived
        if derived is None or set(names).isdisjoint(derived.columns):
            return read(columns=names, filter=where)
        rows = read(columns=[*dict.fromkeys([*names, derived.source])], filter=where)
        lacking = [name for name in derived.columns if name in names and rows[name].null_count]
        if lacking:
            keys = rows[derived.source].combine_chunks().dictionary_encode()
            values = zip(*map(derived.of, keys.dictionary.to_pylist()), strict=True)
            for name, column in zip(derived.columns, values, strict=True):
                if name in lacking:
                    at = rows.schema.get_field_index(name)
                    filled = pa.array(column, rows.schema.field(at).type).take(keys.indices)
                    rows = rows.set_column(at, rows.schema.field(at), filled)
        return rows.select(names)

    def _whole(self, files: Iterable[ds.Fragment]) -> dict[str, ds.Fragment]:
        """Files by path, after a check that they are intact.

        Raises:
            StoredDataError: A file is damaged.
        """
        by_path = {file.path: file for file in files}
        folder = store_at(self.path).on_disk
        if folder is None:
            with ThreadPoolExecutor(_FETCHES) as pool:
                return dict(zip(by_path, pool.map(self._fetched, by_path.values()), strict=True))
        self.known.verified.require(folder, self.name, [*by_path])
        return by_path

    def _fetched(self, file: ds.Fragment) -> ds.Fragment:
        """The content of a file in a store, requested once for checking and reading."""
        content = (self.path / file.path).read_bytes()
        require_content(self.name, file.path, content)
        # Arrow's memory: if a thread of its pool releases a Python object while the interpreter
        # ends, the process aborts (pyarrow 26: one process in four).
        copy = pa.BufferOutputStream()
        copy.write(content)
        return file.format.make_fragment(
            copy.getvalue(), partition_expression=file.partition_expression
        )

    def _parted(self, table: DeltaTable, where: pc.Expression) -> "_Parted":
        """The files with matching rows, and all of their rows."""
        found = _Parted([], [self.schema.empty_table()], [self.schema.empty_table()])
        is_other = ~where | where.is_null()
        dataset = self._dataset(table)
        for path, file in self._whole(dataset.get_fragments(filter=where)).items():
            if file.count_rows(filter=where):
                rows = self._scan(partial(file.to_table, self.schema))
                found.add(path, rows.filter(where), rows.filter(is_other))
        return found

    def _dataset(self, table: DeltaTable) -> ds.FileSystemDataset:
        # Arrow's own file system: the bridge to deltalake's sometimes aborts at interpreter exit
        # (deltalake 1.6.6 with pyarrow 26: 2 of 6 processes).
        files, place = store_at(self.path).arrow_place()
        files = pafs.SubTreeFileSystem(place, files)
        fragments = [
            _FORMAT.make_fragment(
                path_in_table(action["path"]),
                files,
                self._guarantee(action),
                file_size=action["size_bytes"],
            )
            for action in self._added(table).to_pylist()
        ]
        return ds.FileSystemDataset(fragments, self.schema, _FORMAT, files)

    def _guarantee(self, action: Mapping[str, Any]) -> pc.Expression:
        """The condition that holds for every row of a file, according to the log.

        deltalake's own condition is wrong for a file whose entry has no statistics of a column,
        because an earlier release did not record them: no row then matches a filter over that
        column.
        """
        holds = pc.field("application_id") == action["partition.application_id"]
        for name in self._noted:
            low, high = action.get(f"min.{name}"), action.get(f"max.{name}")
            if low is None or high is None:
                continue
            column = pc.field(name)
            inside = (column >= low) & (column <= high)
            holds &= inside if action[f"null_count.{name}"] == 0 else inside | column.is_null()
        return holds

    @property
    def _noted(self) -> tuple[str, ...]:
        """The columns with a minimum and maximum in the log for each file."""
        return self.statistics or (self.grows_along,)

    def _put_together(self) -> None:
        """Merge small files if that saves enough; the preceding write does not fail."""
        try:
            if self._rewrite_small(self.files()):
                self._attempted(self._tidy)
        except storage_errors() as error:
            _log.warning("Small files of %s were not merged: %s", self.name, error)

    def _rewrite_small(self, files: Sequence[StoredFile]) -> bool:
        """Merge small neighbours; return whether all were merged: the rest waits if that takes
        long."""
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
            return self._in_order(rows)

        deadline = time.monotonic() + _PUT_TOGETHER_S
        for low, high in ranges_to_rewrite(ranges, is_outdated, enough=enough):
            if time.monotonic() >= deadline:
                break
            self._rewrite(low, high, change)
        return True

    @contextmanager
    def _lock(self) -> Iterator[None]:
        Warehouse(self.path.parent).make()
        if store_at(self.path).is_conditional:
            # Each commit is conditional; the later writer tries again with the rows of the earlier
            # one.
            with storage_failures(self.path):
                yield
            return
        with (
            storage_failures(self.path),
            warehouse_lock(
                self._lock_file,
                purpose=f"write to {self.name}",
                wait_s=_LOCK_WAIT_S,
                has_epoch=False,
            ),
        ):
            yield

    def _attempted(self, commit: Callable[[DeltaTable], None]) -> None:
        """Commit, under the lock."""
        for attempt in range(_ATTEMPTS):
            try:
                commit(self._to_write())
            except CommitFailedError:
                # Another writer came first, on another machine or to a store, where no lock
                # separates writers. Everything is repeated with its result.
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(random.uniform(0, _WAIT_S * (attempt + 1)))  # noqa: S311
            else:
                return

    @property
    def _lock_file(self) -> StorePath:
        return self.path.parent / ".locks" / "tables" / f"{self.name}.lock"

    def _commit(
        self,
        table: DeltaTable,
        new: Sequence[AddAction],
        stale: Sequence[str] = (),
        writer: Writer | None = None,
    ) -> None:
        """Add files, and remove others (paths relative to the table).

        Raises:
            CommitFailedError: Another process has committed since the table was opened.
        """
        marks = None
        if writer is not None:
            require_newest(self.path, table, writer.name, writer.lock)
            marks = [Transaction(writer.name, writer.lock.epoch)]
        elif not new and not stale:
            return
        actions = pa.table(table.get_add_actions(flatten=True))
        paths = [path_in_table(path) for path in actions["path"].to_pylist()]
        sizes = dict(zip(paths, actions["size_bytes"].to_pylist(), strict=True))
        owners = dict(zip(paths, actions["partition.application_id"].to_pylist(), strict=True))
        if any(file.path in sizes for file in new):
            return  # The previous attempt succeeded, but the store's answer was lost.
        # The clock that dates the files also decides when they may be deleted.
        now_ms = round(1000 * store_at(self.path).now()) if stale else 0
        removed = [
            RemoveAction(path, True, now_ms, sizes[path], {"application_id": owners[path]})
            for path in stale
        ]
        files = (sizes.keys() - set(stale)) | {file.path for file in new}
        with committing(self.path, keeps_log=True):
            table.create_write_transaction(
                [*new, *removed],
                "append",
                table.schema(),
                ["application_id"],
                commit_properties=self._linked(table.version(), files, marks),
                post_commithook_properties=commit_hooks(self.path, keeps_log=True),
            )

    def _linked(
        self, version: int, files: Iterable[str], marks: list[Transaction] | None = None
    ) -> CommitProperties:
        """For the commit after a version, which fails if that commit exists already."""
        return CommitProperties(
            custom_metadata=dict(link_after(self.path, self.name, version, files)),
            max_commit_retries=0,
            app_transactions=marks,
        )

    def _new_files(self, rows: pa.Table) -> list[AddAction]:
        """Write rows, one file for each application; no commit refers to them yet."""
        rows = self._of_schema(rows)
        return [
            self._new_file(one, rows.filter(pc.field("application_id") == one))
            for one in rows["application_id"].unique().to_pylist()
        ]

    def _of_schema(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.schema.names).cast(self.schema)

    def _new_file(self, application_id: str, rows: pa.Table) -> AddAction:
        sink = pa.BufferOutputStream()
        pq.write_table(
            rows.drop_columns("application_id"),
            sink,
            row_group_size=_LARGE_ROW_GROUP if self.bulky or self.narrow else _ROW_GROUP,
            compression="zstd",
            compression_level=1,
            store_schema=False,
        )
        content = sink.getvalue().to_pybytes()
        name = file_name(content, uuid.uuid4().hex[:8])
        path = f"{partition_folder(application_id)}/{name}"
        store_at(self.path / path).put_file(content)
        now_ms = time.time_ns() // 1_000_000
        values = {"application_id": application_id}
        return AddAction(path, len(content), values, now_ms, True, json.dumps(self._stats(rows)))

    def _stats(self, rows: pa.Table) -> dict[str, Any]:
        """The log's statistics of a file, so that readers can skip it."""
        lows: dict[str, Any] = {}
        highs: dict[str, Any] = {}
        nulls: dict[str, int] = {}
        for name in self._noted:
            column = rows[name]
            nulls[name] = column.null_count
            extremes = pc.min_max(column)  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
            low, high = extremes.as_py().values()
            if low is None:
                continue
            if isinstance(low, str) and name != self.grows_along:
                low = low[:_LONGEST]
                # No text with this prefix sorts after it.
                high = high if len(high) <= _LONGEST else high[:_LONGEST] + "\U0010ffff"
            lows[name], highs[name] = low, high
        return {
            "numRecords": rows.num_rows,
            "minValues": lows,
            "maxValues": highs,
            "nullCount": nulls,
        }

    def epoch_of(self, writer: Writer) -> int:
        """The epoch of the last writer of this application's rows; 0 if unknown."""
        table = self.open()
        if table is None:
            return 0
        with storage_failures(self.path):
            return table.transaction_version(writer.name) or 0

    def fence(self, writer: Writer) -> None:
        """Refuse pending commits of earlier writers of an application, with an empty commit.

        Raises:
            LeaseLostError: A later writer has the lock.
        """
        if self.open() is not None and self.epoch_of(writer) < writer.lock.epoch:
            with self._lock():
                self._attempted(lambda table: self._commit(table, [], (), writer))

    def _to_write(self) -> DeltaTable:
        """The current table, created or upgraded to this release if needed."""
        table = open_delta(self.path, self.name, to_write=True)
        if table is None:
            return create_delta(
                self.path,
                schema=self.schema,
                partition_by=["application_id"],
                configuration=self._properties,
                commit_properties=self._linked(-1, ()),
            )
        if not self._is_outdated(table):
            return table
        if self._properties.items() - table.metadata().configuration.items():
            with committing(self.path, keeps_log=True):
                table.alter.set_table_properties(
                    self._properties,
                    raise_if_not_exists=False,
                    commit_properties=self._linked(table.version(), active_paths(table)),
                    post_commithook_properties=commit_hooks(self.path, keeps_log=True),
                )
        if lacks_columns(pa.schema(table.schema()), self.schema):
            # It gets its missing columns; its rows have no values in them.
            with committing(self.path, keeps_log=True):
                write_deltalake(
                    table,
                    self.schema.empty_table(),
                    mode="append",
                    schema_mode="merge",
                    commit_properties=self._linked(table.version(), active_paths(table)),
                    post_commithook_properties=commit_hooks(self.path, keeps_log=True),
                )
        return self._to_write()

    def _is_outdated(self, table: DeltaTable) -> bool:
        """Whether it is missing columns or properties of this release."""
        is_same = self._properties.items() <= table.metadata().configuration.items()
        return not is_same or lacks_columns(pa.schema(table.schema()), self.schema)

    @property
    def _properties(self) -> dict[str, str]:
        return _PROPERTIES | {
            LAYOUT_PROPERTY: str(CONTROL_LAYOUT_VERSION),
            "delta.dataSkippingStatsColumns": ",".join(self._noted),
        }

    def _tidy(self, table: DeltaTable) -> None:
        # Only list the files: deltalake's own vacuum makes commits that are not linked.
        unused = table.vacuum(
            local_hours(self.path, _RETENTION_HOURS),
            dry_run=True,
            enforce_retention_duration=False,
            full=True,
        )
        for file in unused:
            (self.path / file).unlink(missing_ok=True)
        make_checkpoint(self.path)
        log = self.path / "_delta_log"
        entries = store_at(log).entries()
        expired_ns = round(10**9 * store_at(self.path).now()) - _RETENTION_NS
        for name in expired_entries(entries, before=table.version()):
            if entries[name][1] < expired_ns:
                (log / name).unlink(missing_ok=True)


class ApplicationTable(Generic[R]):
    """One declared table of an application; subclasses add its queries.

    The rows of other applications are in the same table but are neither visible nor changed.
    """

    _spec: TableSpec[Any]

    def __init_subclass__(cls, *, spec: TableSpec[Any]) -> None:
        """Register the declaration of the table."""
        cls._spec = spec

    def __init__(
        self, warehouse: Warehouse, application_id: str, known: Known | None = None
    ) -> None:
        """`known` belongs to the table's Repository."""
        self._warehouse, self._application_id = warehouse, application_id
        self._table: Table[R] = Table.of(self._spec, warehouse, application_id, known)

    @property
    def table(self) -> Table[R]:
        """The table itself."""
        return self._table

    def version(self) -> int:
        """The version of the table (`Table.version`), which other applications change, too."""
        return self._table.version()

    def files(self) -> list[StoredFile]:
        """Its files of the application by their ranges of the column along which they grow."""
        return self._table.files()

    def tidy(self) -> None:
        """Delete files and log entries that were removed from the table."""
        self._table.tidy()

    def _writer(self, lock: LockHandle | None, scope: str = "") -> Writer | None:
        """The application as a writer under a lock, if there is one."""
        return None if lock is None else Writer(self._application_id, lock, scope)


@dataclass(frozen=True, slots=True)
class _Parted:
    """Files with rows that match a filter, and their rows: matching and other ones."""

    files: list[str]
    _matching: list[pa.Table]
    _others: list[pa.Table]

    def add(self, path: str, matching: pa.Table, others: pa.Table) -> None:
        self.files.append(path)
        self._matching.append(matching)
        self._others.append(others)

    @property
    def matching(self) -> pa.Table:
        return pa.concat_tables(self._matching).combine_chunks()

    @property
    def others(self) -> pa.Table:
        return pa.concat_tables(self._others)


def lacks_columns(here: pa.Schema | pa.DataType, ours: pa.Schema | pa.DataType) -> bool:
    """Whether there are columns, or fields in columns, that a table does not have yet."""
    if isinstance(ours, pa.ListType | pa.LargeListType):
        return lacks_columns(here.value_type, ours.value_type)
    if not isinstance(ours, pa.Schema | pa.StructType):
        return False
    known = {field.name: field.type for field in here}
    return any(
        field.name not in known or lacks_columns(known[field.name], field.type) for field in ours
    )


def _none(_: FileRange) -> bool:
    return False


def _nothing(_: DeltaTable) -> None:
    """An empty commit: the table is created or upgraded all the same."""


def _values(rows: pa.Table, column: str) -> list[Any]:
    return rows[column].to_pylist() if column in rows.column_names else [None] * rows.num_rows
