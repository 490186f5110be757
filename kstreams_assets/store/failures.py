"""Failures below a warehouse, with their reasons and remedies as users understand them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kstreams_assets.errors import WarehouseError
from kstreams_assets.store import StorePath, storage_reason, store_at

DAMAGED: Final = (
    "The table is damaged, or was copied while it was written. Bring it back from a copy of the"
    " warehouse; do not delete what is there."
)


def storage_errors() -> tuple[type[Exception], ...]:
    """What may come out of a read or write below the warehouse."""
    import pyarrow as pa  # loaded where something has failed: most of the program opens no table
    from deltalake.exceptions import DeltaError

    return DeltaError, pa.ArrowException, OSError


@contextmanager
def storage_failures(path: StorePath) -> Iterator[None]:
    """Failures in the block as WarehouseError; `path` is the folder or table that is used."""
    try:
        yield
    except storage_errors() as error:
        raise warehouse_error(error, path) from error


def warehouse_error(error: Exception, path: StorePath) -> WarehouseError:
    """The error that names what cannot be used, why, and what to do; `path` if it names none."""
    named: object = path
    if isinstance(error, OSError) and error.filename is not None:
        named = os.fsdecode(error.filename)
    reason = _reason(error)
    remedy = store_at(path).remedy(error, reason)
    return WarehouseError(path=named, reason=reason, remedy=remedy or DAMAGED)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return error.strerror
    told = storage_reason(str(error))
    if told is not None:
        return told
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # deltalake calls a log that lacks its last commit a bug of its own.
    return lines[0].replace("This is a kernel bug, please report", "").strip().rstrip(".: ")
