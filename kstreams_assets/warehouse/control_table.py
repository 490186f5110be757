"""A small Delta table written with the deltalake package, straight from the controlling process."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from kstreams_assets.warehouse.layout import (
    CONTROL_TABLES,
    LAYOUT_PROPERTY,
    LAYOUT_VERSION,
    Warehouse,
    check_layout,
)
from kstreams_assets.warehouse.lock import warehouse_lock

_ATTEMPTS = 5
_LOCK_WAIT_S = 30.0


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
        _open(warehouse.control(name))


def _open(path: Path) -> DeltaTable | None:
    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        return None
    check_layout(path.name, table.metadata().configuration)
    return table


@dataclass(frozen=True, slots=True)
class ControlTable:
    """One table below the warehouse; every application has a partition of its own in it."""

    path: Path
    schema: pa.Schema

    @property
    def name(self) -> str:
        """The table's name in messages."""
        return self.path.name

    def open(self) -> DeltaTable | None:
        """The table as it stands, None while nobody has written it.

        Raises:
            NewerLayoutError: A newer release wrote it.
        """
        return _open(self.path)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows in one commit."""
        self._write(rows, predicate=None)

    def replace(self, rows: Sequence[Mapping[str, Any]], *, where: str) -> None:
        """Put rows in place of those that match the predicate, in one commit."""
        self._write(rows, predicate=where)

    def read(
        self,
        *,
        application_id: str,
        columns: Sequence[str] | None = None,
        where: ds.Expression | None = None,
    ) -> pa.Table:
        """The rows of one application."""
        table = self.open()
        if table is None:
            schema = pa.schema([self.schema.field(c) for c in columns]) if columns else self.schema
            return schema.empty_table()
        # Arrow's own file system: the bridge into deltalake's aborts at interpreter exit now and
        # then (deltalake 1.6.6 with pyarrow 26: 2 of 6 processes).
        local = pafs.SubTreeFileSystem(str(self.path), pafs.LocalFileSystem())
        dataset = table.to_pyarrow_dataset(
            file_pruning_predicate=[("application_id", "=", application_id)],
            filesystem=local,
            schema=self.schema,
        )
        return dataset.to_table(columns=list(columns) if columns else None, filter=where)

    def _write(self, rows: Sequence[Mapping[str, Any]], *, predicate: str | None) -> None:
        data = pa.Table.from_pylist(list(rows), schema=self.schema)
        with warehouse_lock(self._lock_file, purpose=f"write to {self.name}", wait_s=_LOCK_WAIT_S):
            self._create_if_missing()
            for attempt in range(_ATTEMPTS):
                try:
                    self._commit(data, predicate)
                except CommitFailedError:
                    # A writer on another machine, whom the lock does not reach, came first; its
                    # rows do not touch ours.
                    if attempt == _ATTEMPTS - 1:
                        raise
                else:
                    return

    @property
    def _lock_file(self) -> Path:
        return self.path.parent / ".locks" / "tables" / f"{self.name}.lock"

    def _commit(self, data: pa.Table, predicate: str | None) -> None:
        properties = CommitProperties(max_commit_retries=20)
        if predicate is None:
            write_deltalake(self.path, data, mode="append", commit_properties=properties)
        else:
            write_deltalake(
                self.path,
                data,
                mode="overwrite",
                predicate=predicate,
                commit_properties=properties,
            )

    def _create_if_missing(self) -> None:
        if self.open() is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            self.path,
            schema=self.schema,
            mode="ignore",
            partition_by=["application_id"],
            configuration={LAYOUT_PROPERTY: str(LAYOUT_VERSION)},
            raise_if_key_not_exists=False,
        )
