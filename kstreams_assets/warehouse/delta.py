"""Opens Delta tables, and turns what disks and libraries raise into one error of this project."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from kstreams_assets.errors import WarehouseError
from kstreams_assets.warehouse.layout import check_layout

STORAGE_FAILURES: Final = (DeltaError, pa.ArrowException, OSError)
"""What may come out of a read or write below the warehouse."""

_REMEDIES: Final = (
    (
        (errno.ENOSPC, errno.EDQUOT),
        ("os error 28", "No space left", "os error 122", "quota exceeded"),
        "The disk is full: make room, then run the same command again. What was committed before"
        " stays.",
    ),
    (
        (errno.EROFS,),
        ("os error 30", "Read-only file system"),
        "The disk is mounted read-only: mount it for writing, or choose another folder"
        " (--warehouse).",
    ),
    (
        (errno.EACCES, errno.EPERM),
        ("os error 13", "os error 1)", "Permission denied", "Operation not permitted"),
        "Give this user the right to read and write there, or run as the user who owns it.",
    ),
    (
        (errno.ENOTDIR, errno.EEXIST, errno.EISDIR),
        ("os error 20", "Not a directory"),
        "A file is where a folder is needed: choose a folder as warehouse, or move the file away.",
    ),
    (
        (errno.ENOENT,),
        ("os error 2)", "No such file"),
        "A file of the table is gone. Bring it back from a copy of the warehouse, or look whether"
        " the disk is still mounted; until then what it held cannot be restored.",
    ),
    (
        (errno.EIO, errno.ESTALE, errno.ENODEV),
        ("os error 5)", "Input/output error", "Stale file handle"),
        "The disk or the mount does not work: look at the system's log, then try again.",
    ),
)
_DAMAGED: Final = (
    "The table is damaged, or was copied while it was written. Bring it back from a copy of the"
    " warehouse; do not delete what is there."
)


def open_delta(path: Path, name: str) -> DeltaTable | None:
    """The table at a path, None while nobody has written it; `name` is its name in messages.

    Raises:
        NewerLayoutError: A newer release wrote it.
        WarehouseError: It cannot be read, or has data files but no log.
    """
    with storage_failures(path):
        try:
            table = DeltaTable(path)
        except TableNotFoundError as error:
            # A table's log is written before its first file of data.
            if any(path.rglob("*.parquet")):
                raise WarehouseError(
                    path=path, reason="it has data files but no log (_delta_log)", remedy=_DAMAGED
                ) from error
            return None
    check_layout(name, table.metadata().configuration)
    return table


LogState = tuple[tuple[str, int, int], ...]
"""Name, size and time of change (nanoseconds) of each file of a table's log."""


def log_state(path: Path) -> LogState:
    """What changes with each commit to a table, and with damage to its log.

    Cheaper than to open the table; empty while nobody has written it.

    Raises:
        WarehouseError: The log cannot be looked at.
    """
    with storage_failures(path):
        try:
            files = list(os.scandir(path / "_delta_log"))
        except FileNotFoundError:
            return ()
        stats = [(file.name, file.stat()) for file in files]
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


@contextmanager
def storage_failures(path: Path) -> Iterator[None]:
    """Failures in the block as WarehouseError; `path` is the folder or table that is used."""
    try:
        yield
    except STORAGE_FAILURES as error:
        raise warehouse_error(error, path) from error


def warehouse_error(error: Exception, path: Path) -> WarehouseError:
    """The error that names what cannot be used, why, and what to do; `path` if it names none."""
    if isinstance(error, OSError) and error.filename is not None:
        path = Path(os.fsdecode(error.filename))
    return WarehouseError(path=path, reason=_reason(error), remedy=disk_remedy(error) or _DAMAGED)


def disk_remedy(error: Exception) -> str | None:
    """What to do about a failure of the disk; None for one of another kind."""
    text = str(error)
    for numbers, texts, remedy in _REMEDIES:
        if isinstance(error, OSError) and error.errno in numbers:
            return remedy
        if any(each in text for each in texts):
            return remedy
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # deltalake calls a log that lacks its last commit a bug of its own.
    return lines[0].replace("This is a kernel bug, please report", "").strip().rstrip(".: ")
