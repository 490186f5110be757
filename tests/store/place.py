"""Where tests keep their warehouses: in a folder, or all of them in an object store."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kstreams_assets.layout import Warehouse
from kstreams_assets.store import StorePath
from tests.store.seaweed import STORE_VARIABLE


def warehouse_at(folder: Path) -> Warehouse:
    """The warehouse of a folder; in a run of tests on a store, a place of its own there."""
    url = os.environ.get(STORE_VARIABLE)
    if not url:
        return Warehouse(folder)
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    return Warehouse.at(f"{url}/{folder.name}-{name}")


@contextmanager
def edited(place: StorePath) -> Iterator[Path]:
    """A folder to change by hand; one of a store is fetched, and its changes put back."""
    if isinstance(place, Path):
        yield place
        return
    with TemporaryDirectory() as folder:
        copy = Path(folder) / place.name
        copy.mkdir()
        for path in place.rglob("*"):
            local = copy / path.relative_to(place)
            local.parent.mkdir(parents=True, exist_ok=True)
            local.write_bytes(path.read_bytes())
        before = _contents(copy)
        yield copy
        after = _contents(copy)
        for local in before.keys() - after.keys():
            (place / local).unlink()
        for local, content in after.items():
            if before.get(local) != content:
                (place / local).write_bytes(content)


def _contents(place: Path) -> dict[str, bytes]:
    files = [path for path in place.rglob("*") if path.is_file()]
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in files}
