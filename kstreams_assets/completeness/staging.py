"""Files with saved records that an evaluation reads besides backups."""

import shutil
import time
import uuid
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.closing import Closing
from kstreams_assets.warehouse.layout import Warehouse

_COLUMNS: Final = ["partition", "offset", "timestamp_ms", "headers", "key", "value"]
_STALE_S: Final = 86_400


class Staging(Closing):
    """A folder of one evaluation in the warehouse, where Spark's workers see it.

    It is gone when closed; what a killed evaluation has left is removed a day later.
    """

    def __init__(self, warehouse: Warehouse, application_id: str) -> None:
        self._parent = warehouse.root / ".staging" / f"completeness-{application_id}"
        self._folder = self._parent / uuid.uuid4().hex
        self._count = 0

    def write(self, rows: pa.Table) -> str:
        """Store saved records as a file and return its path."""
        if not self._count:
            self._sweep()
            self._folder.mkdir(parents=True)
        self._count += 1
        path = self._folder / f"{self._count:06d}.parquet"
        pq.write_table(rows.select(_COLUMNS), path, use_dictionary=False)
        return str(path)

    def empty(self) -> None:
        """Remove the files that were written."""
        for path in self._folder.glob("*.parquet"):
            path.unlink()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _sweep(self) -> None:
        stale = time.time() - _STALE_S
        for folder in self._parent.glob("*"):
            if _age_of(folder) < stale:
                shutil.rmtree(folder, ignore_errors=True)


def _age_of(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:  # another evaluation has removed it
        return time.time()
