"""Where tests keep their warehouses: in a folder, or all of them in an object store."""

import hashlib
import os
from pathlib import Path

from kstreams_assets.layout import Warehouse
from tests.store.seaweed import STORE_VARIABLE


def warehouse_at(folder: Path) -> Warehouse:
    """The warehouse of a folder; in a run of tests on a store, a place of its own there."""
    url = os.environ.get(STORE_VARIABLE)
    if not url:
        return Warehouse(folder)
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    return Warehouse.at(f"{url}/{folder.name}-{name}")
