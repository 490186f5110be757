"""The folder of a run for saved records and other files that only Spark tasks read."""

import uuid
from typing import Final

import pyarrow as pa

from kstreams_assets.closing import Closing
from kstreams_assets.layout import Warehouse
from kstreams_assets.store import StorePath, store_at, subfolders, write_parquet

_COLUMNS: Final = ["partition", "offset", "timestamp_ms", "headers", "key", "value"]
_STALE_S: Final = 86_400


class Staging(Closing):
    """A folder of one run in the warehouse, visible to Spark's workers; all share `name`.

    Closing removes it; leftovers of killed runs are removed a day later.
    """

    def __init__(self, warehouse: Warehouse, name: str) -> None:
        self._parent = warehouse.staging(name)
        self._folder = self._parent / uuid.uuid4().hex
        self.root = self._folder
        self._count = 0

    def write(self, rows: pa.Table) -> StorePath:
        """Store saved records as a file and return its path."""
        self._count += 1
        path = self.folder() / f"{self._count:06d}.parquet"
        write_parquet(rows.select(_COLUMNS), path, use_dictionary=False)
        return path

    def folder(self) -> StorePath:
        """The folder, for other files of the run."""
        if not self._folder.exists():
            self._sweep()
            self._folder.mkdir(parents=True)
        return self._folder

    def empty(self) -> None:
        """Remove the written files."""
        for path in list(self._folder.glob("*.parquet")):
            path.unlink()

    def close(self) -> None:
        """Remove the folder."""
        store_at(self._folder).remove_tree()

    def _sweep(self) -> None:
        folders = subfolders(self._parent)
        stale = store_at(self._parent).now() - _STALE_S if folders else 0.0
        for folder in folders:
            changed = store_at(folder).newest_change()  # None: another run has removed it
            if changed is not None and changed < stale:
                store_at(folder).remove_tree()
