"""Puts data files into a Delta table: a folder of their own, a look, then one commit (no JVM).

Nothing refers to the files of a folder until one commit does: what fails before leaves a folder
that the next run deletes. So there is nothing to undo.
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

    The folder of the table is there. Commit after the block: what a commit may refer to is never
    deleted. The caller holds the lock when the block ends, at the latest: until then no sweep
    takes the folder away.

    Raises:
        WarehouseError: It cannot be made.
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
    """Delete files that are not committed, as far as they can be deleted.

    A task of a killed run may still write: the mark goes last, so that the next run looks again.
    """
    with suppress(OSError):
        for file in folder.glob("*.parquet"):
            with suppress(OSError):
                file.unlink()
    with suppress(OSError):
        store_at(folder).remove_unfinished()


def sweep(path: StorePath, table: DeltaTable | None) -> None:
    """Delete what runs left that were killed before their commit; the caller holds the lock.

    In an object store nobody can tell whether a folder is still written to: there it is deleted a
    day later.

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
    """The folder of a file, as its path in Delta's log says."""
    return PurePosixPath(path).parts[0]


def require_written(path: StorePath, files: Iterable[NewFile]) -> None:
    """Look whether each new file is there.

    Raises:
        WarehouseError: A file is missing or has another size than its task wrote.
    """
    expected = [ExpectedFile(path, file.path, file.size) for file in files]
    for damage in inspect(expected, By.SIZE):
        raise WarehouseError(
            path=path,
            reason=f"{damage.problem}, although Spark has just written it",
            remedy="Let Spark's executors and this process use the same folder as warehouse.",
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
    """Put new files in place of what the table holds of these parts, in one commit.

    A part is what has the same values in the columns by which the table is partitioned; of its
    files those with the paths `keeps` stay. `writer` is the lock under which `table` was opened.

    Returns:
        The version that holds them; None when there is nothing to put and nothing to replace.

    Raises:
        LeaseLostError: Another writer has the lock by now.
        WarehouseError: The table cannot be written, or somebody else has written it meanwhile.
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
    # By the clock that dates the files: both say when they may be deleted.
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
    told = {"userMetadata": json.dumps(provenance, sort_keys=True)}
    with storage_failures(path):
        # Tasks have made the content durable; the names are, once for all of them, before anything
        # refers to them.
        make_durable({path / file_folder(file.path) for file in files})
        with committing(path):
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                columns,
                commit_properties=_by(writer, told),
                post_commithook_properties=commit_hooks(path),
            )
        for folder in {file_folder(file.path) for file in files}:
            with suppress(OSError):  # The next run's sweep takes it away.
                store_at(path / folder).finish()
        return delta_table(path).version()


def _by(writer: LockHandle, metadata: dict[str, str]) -> CommitProperties:
    """A commit that fails when anything was committed since the table was opened."""
    return CommitProperties(
        custom_metadata=metadata,
        max_commit_retries=0,
        app_transactions=[Transaction(WRITER, writer.epoch)],
    )


def fence(path: StorePath, table: DeltaTable | None, writer: LockHandle) -> DeltaTable | None:
    """Keep writers that held the lock before from committing; the table as it is then.

    Where the last one has not let the lock go, it may still be about to commit: a commit of our
    epoch comes first, and that one fails.

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
    """Columns by which the table is partitioned, as they are called in what the log says."""
    return [f"partition.{column}" for column in columns]


def _committed(
    path: StorePath,
    table: DeltaTable | None,
    columns: Sequence[str],
    parts: Collection[Sequence[str]] | None = None,
) -> list[dict[str, Any]]:
    """What the log says of each file; with `parts` perhaps only of those that may be of them."""
    if table is None:
        return []
    with storage_failures(path):
        files = pa.table(table.get_add_actions(flatten=True))
    if files.num_rows == 0:
        return []
    if parts is not None:
        # There may be hundreds of thousands, and few of them are of parts that are replaced.
        for name, values in zip(
            [name for name in columns if name.startswith("partition.")],
            zip(*parts, strict=True),
            strict=False,
        ):
            files = files.filter(pc.field(name).isin(pa.array(set(values), pa.string())))
    return files.select(list(columns)).to_pylist()
