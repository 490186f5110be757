"""The lock of a warehouse, which one process at a time holds; a copy has none."""

from collections.abc import Iterator
from contextlib import contextmanager

from kstreams_assets.copy_mark import refuse_copy
from kstreams_assets.store import StorePath, store_at
from kstreams_assets.store.locks import LockHandle, lock_root


@contextmanager
def warehouse_lock(
    path: StorePath,
    *,
    purpose: str,
    wait_s: float,
    of_copy: bool = False,
    has_epoch: bool = True,
) -> Iterator[LockHandle]:
    """Hold the lock for the time of the block; `of_copy`: to update a copy.

    Without `has_epoch` the epoch of the holder has no meaning and may be lost in a power failure.

    Raises:
        WarehouseError: The place is a read-only copy of a warehouse.
        WarehouseLockedError: Another process holds it for longer than `wait_s` seconds.
        OSError: The lock cannot be read or written.
    """
    if not of_copy:
        refuse_copy(lock_root(path))
    with store_at(path).lock(purpose, wait_s, has_epoch=has_epoch) as held:
        yield held
