"""Commit data files to a Delta table: write to a new folder, check, commit once (no JVM).

No commit refers to the files of a folder before the one commit. A failure leaves a folder that the
next run deletes, so nothing has to be undone.
"""

import json
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from kstreams_assets.errors import WarehouseError
from kstreams_assets.model.data_files import By, ExpectedFile
from kstreams_assets.model.files import NewFile, path_in_table
from kstreams_assets.repository.delta_log import commit_hooks, committing, delta_table
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.table import WRITER, require_newest
from kstreams_assets.store import StorePath, make_durable, store_at
from kstreams_assets.store.failures import storage_failures
from kstreams_assets.store.locks import LockHandle


@contextmanager
def uncommitted(table: StorePath) -> Iterator[StorePath]:
    """A new folder for files of one commit; its files are deleted if the block fails.

    The folder of the table exists. Commit after the block: files of a possible commit are never
    deleted. The caller must hold the lock at the end of the block at the latest: until then no
    sweep removes the folder.

    Raises:
        WarehouseError: The folder cannot be created.
    """
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")  # for people who look at the folder
    folder = table / f"{now}-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        with storage_failures(table):
            stack.enter_context(store_at(folder).unfinished())
        try:
            yield folder
        except BaseException:
            _abandon(folder)
            raise


def _abandon(folder: StorePath) -> None:
    """Delete uncommitted files, as far as possible.

    A task of a killed run may still write: the mark is removed last, so that the next run checks
    again.
    """
    with suppress(OSError):
        for file in folder.glob("*.parquet"):
            with suppress(OSError):
                file.unlink()
    with suppress(OSError):
        store_at(folder).remove_unfinished()


def sweep(path: StorePath, table: DeltaTable | None) -> None:
    """Delete files of runs that were killed before their commit; the caller holds the lock.

    In an object store it is unknown whether a folder is still being written: it is deleted a day
    later.

    Raises:
        WarehouseError: The table or its folder cannot be read.
    """
    with storage_failures(path):
        left = store_at(path).unfinished_folders()
        if not left:
            return
        committed = {file_folder(row["path"]) for row in _committed(path, table, ["path"])}
        for folder in left:
            if folder.name in committed:
                store_at(folder).finish()
            elif not store_at(folder).is_being_written():
                _abandon(folder)


def file_folder(path: str) -> str:
    """The folder of a file, from its path in Delta's log."""
    return PurePosixPath(path).parts[0]


def require_written(path: StorePath, files: Iterable[NewFile]) -> None:
    """Check that each new file exists.

    Raises:
        WarehouseError: A file is missing or has another size than its task wrote.
    """
    expected = [ExpectedFile(path, file.path, file.size) for file in files]
    for damage in inspect(expected, By.SIZE):
        raise WarehouseError(
            path=path,
            reason=f"{damage.problem}, although Spark has just written it",
            remedy="Use the same folder as warehouse for Spark's executors and this process.",
        )


def commit(
    path: StorePath,
    table: DeltaTable,
    files: Sequence[NewFile],
    *,
    writer: LockHandle,
    replaces: Collection[Mapping[str, str]],
    keeps: Collection[str] = (),
    provenance: Mapping[str, object],
) -> int | None:
    """Replace these parts of the table with new files, in one commit.

    A part has the same values in the partition columns of the table; its files with the paths
    `keeps` stay. `writer` is the lock under which `table` was opened.

    Returns:
        The new version; None if there is nothing to write and nothing to replace.

    Raises:
        LeaseLostError: Another writer now holds the lock.
        WarehouseError: The table cannot be written, or another process has written it in the
            meantime.
    """
    with storage_failures(path):
        require_newest(path, table, WRITER, writer)
    columns = table.metadata().partition_columns
    parts = {tuple(part[column] for column in columns) for part in replaces}
    stale = [
        (row, values)
        for row in _committed(path, table, ["path", "size_bytes", *_named(columns)], parts)
        if (values := tuple(row[f"partition.{column}"] for column in columns)) in parts
        and path_in_table(row["path"]) not in keeps
    ]
    if not files and not stale:
        return None
    now_ms = time.time_ns() // 1_000_000
    # The clock that dates the files also decides when they may be deleted.
    removed_at_ms = round(1000 * store_at(path).now()) if stale else 0
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size, {**file.values}, now_ms, True, json.dumps(file.stats))
        for file in files
    ]
    actions += [
        RemoveAction(
            path_in_table(row["path"]),  # it is encoded again
            True,
            removed_at_ms,
            row["size_bytes"],
            dict(zip(columns, values, strict=True)),
        )
        for row, values in stale
    ]
    metadata = {"userMetadata": json.dumps(provenance, sort_keys=True)}
    with storage_failures(path):
        # Tasks have made the contents durable. The names become durable here, once for all of them,
        # before a commit refers to them.
        make_durable({path / file_folder(file.path) for file in files})
        with committing(path):
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                columns,
                commit_properties=_by(writer, metadata),
                post_commithook_properties=commit_hooks(path),
            )
        for folder in {file_folder(file.path) for file in files}:
            with suppress(OSError):  # The next run's sweep removes it.
                store_at(path / folder).finish()
        return delta_table(path).version()


def _by(writer: LockHandle, metadata: dict[str, str]) -> CommitProperties:
    """A commit that fails if anything was committed since the table was opened."""
    return CommitProperties(
        custom_metadata=metadata,
        max_commit_retries=0,
        app_transactions=[Transaction(WRITER, writer.epoch)],
    )


def fence(path: StorePath, table: DeltaTable | None, writer: LockHandle) -> DeltaTable | None:
    """Prevent earlier holders of the lock from committing; return the current table.

    If the last holder has not released the lock, it may still be about to commit: a commit with our
    epoch comes first and makes that one fail.

    Raises:
        WarehouseError: The table cannot be read or written.
    """
    while table is not None:
        with storage_failures(path):
            committed = table.transaction_version(WRITER) or 0
            writer.raise_epoch(committed)
            if not writer.is_taken_over:
                return table
            try:
                with committing(path):
                    table.create_write_transaction(
                        [],
                        "append",
                        table.schema(),
                        table.metadata().partition_columns,
                        commit_properties=_by(writer, {}),
                        post_commithook_properties=commit_hooks(path),
                    )
            except CommitFailedError:
                table = delta_table(path)
            else:
                return delta_table(path)
    return None


def _named(columns: Iterable[str]) -> list[str]:
    """Partition columns with their names in the log's actions."""
    return [f"partition.{column}" for column in columns]


def _committed(
    path: StorePath,
    table: DeltaTable | None,
    columns: Sequence[str],
    parts: Collection[Sequence[str]] | None = None,
) -> list[dict[str, Any]]:
    """The log's actions of each file; with `parts` perhaps only of files that may belong to
    them."""
    if table is None:
        return []
    with storage_failures(path):
        files = pa.table(table.get_add_actions(flatten=True))
    if files.num_rows == 0:
        return []
    if parts is not None:
        # There may be hundreds of thousands, of which few belong to replaced parts.
        for name, values in zip(
            [name for name in columns if name.startswith("partition.")],
            zip(*parts, strict=True),
            strict=False,
        ):
            files = files.filter(pc.field(name).isin(pa.array(set(values), pa.string())))
    return files.select(list(columns)).to_pylist()
