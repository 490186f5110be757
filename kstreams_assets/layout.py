"""The folder of a warehouse: where tables lie, locks, digests of what it holds."""

import hashlib
import json
import shutil
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from kstreams_assets.errors import KStreamsAssetsError, WarehouseError
from kstreams_assets.store import (
    ObjectPath,
    ObjectStoreSettings,
    StorePath,
    file_digest,
    place_at,
)

LAYOUT_VERSION = 1
LAYOUT_PROPERTY = "kstreams_assets.layout"

CONTROL_TABLES = (
    "recovery_points",
    "recovery_point_records",
    "windows",
    "increments",
    "topics",
    "restores",
    "offset_maps",
    "ktable_snapshots",
    "schemas",
    "governance_findings",
    "completeness_results",
    "drills",
)
"""The small tables, which all applications of a warehouse share."""


def open_to_others(folder: StorePath) -> str | None:
    """The mode of a folder that others than its owner may enter or read, such as `0755`."""
    if isinstance(folder, ObjectPath):
        return None
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except FileNotFoundError:
        return None
    return f"{mode:04o}" if mode & 0o077 else None


class NewerLayoutError(KStreamsAssetsError):
    """A table was written by a newer release than this one."""

    def __init__(self, *, table: str, found: str) -> None:
        super().__init__(
            f"The table {table} has layout version {found}; this release knows up to"
            f" {LAYOUT_VERSION}.",
            remedy="Install the release that wrote the table, or a newer one; nothing was changed.",
        )
        self.table = table
        self.found = found


def check_layout(table: str, properties: dict[str, str | None] | dict[str, str]) -> None:
    """Refuse a table whose layout is newer than this release.

    Raises:
        NewerLayoutError: The version is higher, or is not a number.
    """
    found = properties.get(LAYOUT_PROPERTY) or str(LAYOUT_VERSION)
    if not found.isdigit() or int(found) > LAYOUT_VERSION:
        raise NewerLayoutError(table=table, found=found)


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A folder, or a place in an object store, with the tables of any number of applications."""

    root: StorePath

    @classmethod
    def at(
        cls, location: str | Path | ObjectPath, store: ObjectStoreSettings | None = None
    ) -> "Warehouse":
        """The warehouse at a path, a `file:` URI, or `s3://bucket/prefix`.

        `store` says how a store is reached, as far as the environment does not.

        Raises:
            ConfigurationError: The location is in another kind of store.
        """
        return cls(location if isinstance(location, ObjectPath) else place_at(str(location), store))

    def require_space(self, least_bytes: int) -> None:
        """Refuse to begin where the disk is all but full.

        Raises:
            WarehouseError: Less than this is free.
        """
        folder = self.root
        if isinstance(folder, ObjectPath):
            return
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        if free < least_bytes:
            raise WarehouseError(
                path=self.root,
                reason=f"its disk has {free // 1024**2} MiB left",
                remedy="Make room on it, then run the same command again.",
            )

    @property
    def on_disk(self) -> Path:
        """Where what only a disk can hold is kept (clusters of this machine): the folder itself,
        or one of this user's cache."""
        if isinstance(self.root, Path):
            return self.root
        name = f"{self.root.name}-{hashlib.sha256(str(self.root).encode()).hexdigest()[:12]}"
        return Path.home() / ".cache/kstreams-assets/warehouses" / name

    def records(self, application_id: str) -> StorePath:
        """The records of one application's backups."""
        return self.root / "records" / application_id

    def ktable(self, application_id: str, store: str) -> StorePath:
        """The snapshots of one store."""
        return self.root / "ktables" / application_id / store

    def control(self, table: str) -> StorePath:
        """A small table written with the deltalake package."""
        return self.root / table

    def lock_file(self, name: str) -> StorePath:
        """What a holder of the named lock keeps locked (`lease.warehouse_lock`)."""
        return self.root / ".locks" / f"{name}.lock"


_THREADS: Final = 4
"""Files that are read at a time: hashing leaves the interpreter to others."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file as it was when it was written.

    `path` is as in Delta's log (relative to the table, URL-encoded), `size` in bytes, `digest` the
    SHA-256 of the whole file in hex, as `sha256sum` prints it.
    """

    path: str
    size: int
    records: int
    digest: str


def written_files(table: StorePath, files: Sequence[tuple[str, int]]) -> list[WrittenFile]:
    """Read files of a table, given by their paths in Delta's log and records, and note them."""

    def note(file: tuple[str, int]) -> WrittenFile:
        path, records = file
        there = table / unquote(path)
        return WrittenFile(path, there.stat().st_size, records, file_digest(there))

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(note, files))


def first_changed(files: Sequence[tuple[StorePath, WrittenFile]]) -> StorePath | None:
    """The first of some files that is not the one that was written, byte for byte.

    Raises:
        OSError: One cannot be read.
    """

    def changed(file: tuple[StorePath, WrittenFile]) -> StorePath | None:
        path, written = file
        return None if file_digest(path) == written.digest else path

    with ThreadPoolExecutor(_THREADS) as pool:
        return next((path for path in pool.map(changed, files) if path), None)


def file_problem(path: StorePath, size: int | None) -> str:
    """What keeps a file from being the one that was written, by existence and size; else empty."""
    try:
        there = path.stat().st_size
    except FileNotFoundError:
        return f"file {path.name} is missing"
    except OSError as error:
        return f"file {path.name} cannot be looked at ({error.strerror})"
    if size is not None and there != size:
        return f"file {path.name} has {there:,} bytes, {size:,} were written"
    return ""


_PLAIN: Final = (str, int, float, type(None))


def value_digest(value: object) -> str:
    """SHA-256 of a value made of dicts, lists, texts, numbers and nulls, in hex.

    Keys of dicts play no part in order, and a key without a value none at all: a row keeps its
    digest when its table gets another column.
    """
    text = json.dumps(_without_nulls(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _without_nulls(value: object) -> object:
    if isinstance(value, _PLAIN):  # most are, and to ask for a mapping takes long
        return value
    if isinstance(value, Mapping):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(one) for one in value]
    return value
