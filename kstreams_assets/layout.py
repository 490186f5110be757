"""The folder of a warehouse: where its tables and locks are, and digests of its contents."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kstreams_assets.copy_mark import refuse_copy
from kstreams_assets.errors import KStreamsAssetsError, WarehouseError
from kstreams_assets.home import user_cache
from kstreams_assets.model.files import WrittenFile, path_in_table
from kstreams_assets.model.tables import CONTROL_TABLES, STATE_TABLES
from kstreams_assets.private import keep_private
from kstreams_assets.store import (
    ObjectPath,
    ObjectStoreSettings,
    StorePath,
    disk_name,
    file_digest,
    place_at,
    store_at,
)
from kstreams_assets.store.failures import storage_failures

LAYOUT_VERSION = 1
"""Of Spark's files and of the marker."""
CONTROL_LAYOUT_VERSION = 3
"""Of control tables: each row of the ledger has the kind of its span."""
_LINKED_SINCE: Final = 2
"""File names contain their digests, and commits form a chain."""
LAYOUT_PROPERTY = "kstreams_assets.layout"


class NewerLayoutError(KStreamsAssetsError):
    """A table was written by a newer release than this one."""

    def __init__(self, *, table: str, found: str, known: int) -> None:
        super().__init__(
            f"The table {table} has layout version {found}; this release knows up to {known}.",
            remedy="Install the release that wrote the table, or a newer one; nothing was changed.",
        )
        self.table = table
        self.found = found


def check_layout(
    table: str,
    properties: dict[str, str | None] | dict[str, str],
    known: int = LAYOUT_VERSION,
) -> None:
    """Refuse a table whose layout is newer than this release.

    Raises:
        NewerLayoutError: The version is higher, or is not a number.
    """
    found = properties.get(LAYOUT_PROPERTY) or "1"
    if not found.isdigit() or int(found) > known:
        raise NewerLayoutError(table=table, found=found, known=known)


def is_linked(properties: dict[str, str | None] | dict[str, str]) -> bool:
    """Whether each commit of a table is linked to the one before it (`repository/chain.py`)."""
    return int(properties.get(LAYOUT_PROPERTY) or "1") >= _LINKED_SINCE


MARKER: Final = "kstreams-assets-warehouse.json"
"""The marker file: its layout, and when the warehouse was made (null: by an older release)."""


MARKER_REMEDY: Final = (
    "Restore it from a copy of the warehouse, or delete it: the next backup creates it again."
)

_FOLDERS: Final = ("records", "ktables", *CONTROL_TABLES)
_FSTAB: Final = Path("/etc/fstab")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A folder, or a place in an object store, with the tables of any number of applications.

    With `state_in`, another place, the locks and the tables that restores and drills write
    (`STATE_TABLES`) are there. The warehouse itself is then only read: it may be a copy or
    read-only.
    """

    root: StorePath
    state_in: StorePath | None = None
    opened: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Repositories opened through this object (`Repository.of`), by application, and the state that
    they share (`known_of`)."""

    def __reduce__(self) -> tuple[type["Warehouse"], tuple[StorePath, StorePath | None]]:
        """Another process opens its own repositories."""
        return Warehouse, (self.root, self.state_in)

    @classmethod
    def at(
        cls,
        location: str | Path | ObjectPath,
        store: ObjectStoreSettings | None = None,
        *,
        state_in: str | None = None,
    ) -> "Warehouse":
        """The warehouse at a path, a `file:` URI, or `s3://bucket/prefix`.

        `store` contains the connection settings of the object store; the environment fills gaps.

        Raises:
            ConfigurationError: The location is in another kind of store.
        """
        return cls(
            place_at(location, store), None if state_in is None else place_at(state_in, store)
        )

    @property
    def noted(self) -> StorePath:
        """The place of the state of restores and drills, and of locks."""
        return self.root if self.state_in is None else self.state_in

    @property
    def exists(self) -> bool:
        """Whether the folder has a marker, or tables of a release that wrote no markers.

        Raises:
            WarehouseError: The path, or a folder above it, is a file or cannot be read.
        """
        with storage_failures(self.root):
            try:
                found = {entry.name for entry in self.root.iterdir()}
            except FileNotFoundError:
                return False
        return MARKER in found or not found.isdisjoint(_FOLDERS)

    def marker_problem(self) -> str:
        """The problem with the marker; empty if the marker is intact.

        Raises:
            NewerLayoutError: A newer release wrote it.
            OSError: The marker cannot be read.
        """
        try:
            said = json.loads((self.root / MARKER).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return "it is missing"
        except ValueError:  # neither UTF-8 nor JSON
            said = None
        if not isinstance(said, dict) or LAYOUT_PROPERTY not in said:
            return "it does not name the release that wrote it"
        check_layout("warehouse", said)
        return ""

    def make(self, *, fstab: Path = _FSTAB) -> None:
        """Create the folder with its marker if needed; log a new one as a warning.

        Raises:
            ConfigurationError: The object store ignores conditions.
            NewerLayoutError: A newer release made it.
            WarehouseError: The folder cannot be created, or belongs on a disk that is not mounted.
        """
        keep_private()
        root, marker = self.root, self.root / MARKER
        with storage_failures(root):
            refuse_copy(root)
            store_at(root).require_conditions()
            if marker.exists():
                problem = self.marker_problem()
                if problem:
                    raise WarehouseError(path=marker, reason=problem, remedy=MARKER_REMEDY)
                return
            is_new = not self.exists
            folder = store_at(root).on_disk
            if is_new and folder is not None:
                _refuse_unmounted(folder, fstab)
            root.mkdir(parents=True, exist_ok=True)
            made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) if is_new else None
            facts = {LAYOUT_PROPERTY: str(LAYOUT_VERSION), "created_at": made_at}
            store_at(marker).put_text(json.dumps(facts) + "\n")
        if is_new:
            _log.warning(
                "New warehouse: %s. It contains no backups yet. If this application was backed up"
                " before, check that the %s.",
                root,
                "right disk is mounted and the path is right"
                if store_at(root).on_disk
                else "bucket and the prefix are right",
            )

    def require_space(self, least_bytes: int) -> None:
        """Refuse to start when the disk is almost full.

        Raises:
            WarehouseError: Less than this is free.
        """
        free = store_at(self.root).free_bytes()
        if free is not None and free < least_bytes:
            raise WarehouseError(
                path=self.root,
                reason=f"its disk has {free // 1024**2} MiB left",
                remedy="Make room on it, then run the same command again.",
            )

    @property
    def on_disk(self) -> Path:
        """The folder of data that only a disk can store (clusters of this machine): the warehouse's
        own, or one in this user's cache."""
        if (folder := store_at(self.noted).on_disk) is not None:
            return folder
        digest = hashlib.sha256(str(self.root).encode()).hexdigest()[:12]
        return user_cache("warehouses") / f"{disk_name(self.root.name)}-{digest}"

    def records(self, application_id: str) -> StorePath:
        """The records of one application's backups."""
        return self.root / "records" / application_id

    def ktable(self, application_id: str, store: str) -> StorePath:
        """The snapshots of one store."""
        return self.root / "ktables" / application_id / store

    def control(self, table: str) -> StorePath:
        """A small table written with the deltalake package."""
        return (self.noted if table in STATE_TABLES else self.root) / table

    def lock_file(self, name: str) -> StorePath:
        """The file that the holder of the named lock keeps locked (`lease.warehouse_lock`)."""
        folder, _, last = f".locks/{name}".rpartition("/")
        return store_at(self.noted / folder / f"{disk_name(last)}.lock").prompt()

    def staging(self, name: str) -> StorePath:
        """A folder for files that Spark's tasks need during a run."""
        return self.noted / ".staging" / disk_name(name)


_THREADS: Final = 4
"""Number of files read at a time: hashing releases the interpreter lock."""


def written_files(table: StorePath, files: Sequence[tuple[str, int]]) -> list[WrittenFile]:
    """Read files of a table, given by their paths in Delta's log and records, and describe them."""

    def note(file: tuple[str, int]) -> WrittenFile:
        path, records = file
        there = table / path_in_table(path)
        return WrittenFile(path, there.stat().st_size, records, file_digest(there))

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(note, files))


_PLAIN: Final = (str, int, float, type(None))


def value_digest(value: object) -> str:
    """SHA-256 of a value made of dicts, lists, texts, numbers and nulls, in hex.

    The order of a dict's keys does not matter, and keys without a value are ignored: a row keeps
    its digest when its table gets another column.
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


def _refuse_unmounted(root: Path, fstab: Path) -> None:
    """An unmounted share looks like an empty warehouse, and later hides what is written below
    it."""
    for point in _mount_points(fstab):
        if root.is_relative_to(point) and not os.path.ismount(point):
            raise WarehouseError(
                path=root,
                reason=f"{point} should be mounted ({fstab}), but is not",
                remedy=f"Mount it (mount {point}), then run the same command again.",
            )


def _mount_points(fstab: Path) -> list[Path]:
    try:
        lines = fstab.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    entries = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    # Spaces in a path are written as \040.
    points = [entry[1].replace("\\040", " ") for entry in entries if len(entry) > 1]
    return [Path(point) for point in points if point.startswith("/") and point != "/"]
