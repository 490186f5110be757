"""Failures below a warehouse, with their reasons and remedies as users understand them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kstreams_assets.errors import WarehouseError
from kstreams_assets.store import StorePath, storage_reason, store_at

DAMAGED: Final = (
    "The table is damaged, or was copied while it was written. Restore it from a copy of the"
    " warehouse; do not delete the existing files."
)


def storage_errors() -> tuple[type[Exception], ...]:
    """The errors that reads and writes below the warehouse may raise."""
    import pyarrow as pa  # loaded after a failure: most of the program opens no table
    from deltalake.exceptions import DeltaError

    return DeltaError, pa.ArrowException, OSError


@contextmanager
def storage_failures(path: StorePath) -> Iterator[None]:
    """Convert failures in the block to WarehouseError; `path` is the folder or table in use."""
    try:
        yield
    except storage_errors() as error:
        raise warehouse_error(error, path) from error


def warehouse_error(error: Exception, path: StorePath) -> WarehouseError:
    """The error with path, reason and remedy; it names `path` if the error names none."""
    named: object = path
    if isinstance(error, OSError) and error.filename is not None:
        named = os.fsdecode(error.filename)
    reason = _reason(error)
    remedy = store_at(path).remedy(error, reason)
    return WarehouseError(path=named, reason=reason, remedy=remedy or DAMAGED)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return error.strerror
    reason = storage_reason(str(error))
    if reason is not None:
        return reason
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # deltalake reports a log without its last commit as a bug of its own.
    return lines[0].replace("This is a kernel bug, please report", "").strip().rstrip(".: ")
