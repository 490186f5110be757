"""The folder of a warehouse: where tables lie, locks, digests of what it holds."""

import hashlib
import json
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from kstreams_assets.errors import KStreamsAssetsError, StoredDataError, WarehouseError
from kstreams_assets.home import user_cache
from kstreams_assets.store import (
    ObjectPath,
    ObjectStoreSettings,
    StorePath,
    disk_name,
    file_digest,
    place_at,
)

LAYOUT_VERSION = 1
"""Of what Spark writes, and of the marker."""
CONTROL_LAYOUT_VERSION = 2
"""Of control tables: names of files hold their digests, and commits are a chain."""
LAYOUT_PROPERTY = "kstreams_assets.layout"

CONTROL_TABLES = (
    "recovery_points",
    "recovery_point_records",
    "pins",
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
    "verifications",
)
"""The small tables, which all applications of a warehouse share."""

NOTES: Final = frozenset(
    {
        "restores",
        "offset_maps",
        "completeness_results",
        "drills",
        "governance_findings",
        "verifications",
    }
)
"""Those of them that restores, drills and looks at a warehouse write."""


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
    """Whether each commit of a table is linked to the one before it (`warehouse/chain.py`)."""
    return int(properties.get(LAYOUT_PROPERTY) or "1") >= CONTROL_LAYOUT_VERSION


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A folder, or a place in an object store, with the tables of any number of applications.

    With `notes_in`, another place, what restores and drills write lies there (`NOTES`, locks), and
    the warehouse itself is only read: it may be a copy, or one that must not be written.
    """

    root: StorePath
    notes_in: StorePath | None = None

    @classmethod
    def at(
        cls,
        location: str | Path | ObjectPath,
        store: ObjectStoreSettings | None = None,
        *,
        notes_in: str | None = None,
    ) -> "Warehouse":
        """The warehouse at a path, a `file:` URI, or `s3://bucket/prefix`.

        `store` says how a store is reached, as far as the environment does not.

        Raises:
            ConfigurationError: The location is in another kind of store.
        """
        root = location if isinstance(location, ObjectPath) else place_at(str(location), store)
        return cls(root, None if notes_in is None else place_at(notes_in, store))

    @property
    def noted(self) -> StorePath:
        """Where restores, drills and locks are noted."""
        return self.root if self.notes_in is None else self.notes_in

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
        if isinstance(self.noted, Path):
            return self.noted
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
        return (self.noted if table in NOTES else self.root) / table

    def lock_file(self, name: str) -> StorePath:
        """What a holder of the named lock keeps locked (`lease.warehouse_lock`)."""
        folder, _, last = f".locks/{name}".rpartition("/")
        file = self.noted / folder / f"{disk_name(last)}.lock"
        return file.prompt() if isinstance(file, ObjectPath) else file

    def staging(self, name: str) -> StorePath:
        """A folder for files that Spark's tasks need for the time of a run."""
        return self.noted / ".staging" / disk_name(name)


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


_NO_PART: Final = frozenset({"", ".."})


def path_in_table(logged: str) -> str:
    """The path of a data file in its table, from the text in a Delta log or a ledger.

    Whoever writes a log must not name files beside the table: they would be read, copied over or
    removed with it.

    Raises:
        StoredDataError: It leads out of the table.
    """
    path = unquote(logged) if "%" in logged else logged
    # An empty part: it begins with a slash, or has a scheme.
    if "\0" in path or not _NO_PART.isdisjoint(path.split("/")):
        raise StoredDataError(
            subject=f"The log entry of the file {logged!r}",
            problem="it leads out of the folder of its table",
            remedy="Somebody changed the log, and nothing of it was used. Find out who can write"
            " there, and run kstreams-assets verify; bring the table back from a copy.",
        )
    return path


def written_files(table: StorePath, files: Sequence[tuple[str, int]]) -> list[WrittenFile]:
    """Read files of a table, given by their paths in Delta's log and records, and note them."""

    def note(file: tuple[str, int]) -> WrittenFile:
        path, records = file
        there = table / path_in_table(path)
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


CHANGED: Final = "does not match the SHA-256 that was noted when it was written"
_PIECE: Final = 1024**2


def content_problem(path: StorePath, digest: str, wait: Callable[[int], None] | None = None) -> str:
    """What keeps a file from being the one that was written, byte for byte; else empty.

    `wait` is called with a number of bytes before they are used: to read slowly.
    """
    try:
        there = file_digest(path) if wait is None else _slow_digest(path, wait)
    except FileNotFoundError:
        return f"file {path.name} is missing"
    except OSError as error:
        return f"file {path.name} cannot be read ({error.strerror or error})"
    return "" if there == digest else f"file {path.name} {CHANGED}"


def changed_files(files: Sequence[tuple[StorePath, WrittenFile]]) -> dict[StorePath, str]:
    """The files that are not the ones that were written, byte for byte, and what is wrong."""

    def problem(file: tuple[StorePath, WrittenFile]) -> str:
        path, written = file
        return content_problem(path, written.digest)

    with ThreadPoolExecutor(_THREADS) as pool:
        problems = pool.map(problem, files)
        return {path: found for (path, _), found in zip(files, problems, strict=True) if found}


def _slow_digest(path: StorePath, wait: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    for piece in path.pieces() if isinstance(path, ObjectPath) else _pieces(path):
        wait(len(piece))
        digest.update(piece)
    return digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


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
