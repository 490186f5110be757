"""The lock of a warehouse, of which one process at a time is the holder; a copy has none."""

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
    """Hold the lock for the time of the block; `of_copy`: to bring a copy up to date.

    Without `has_epoch` the epoch of the holder means nothing, and need not survive a loss of power.

    Raises:
        WarehouseError: The place is the copy of a warehouse, which is only read.
        WarehouseLockedError: Another process holds it for longer than `wait_s` seconds.
        OSError: It cannot be read or written.
    """
    if not of_copy:
        refuse_copy(lock_root(path))
    with store_at(path).lock(purpose, wait_s, has_epoch=has_epoch) as held:
        yield held
