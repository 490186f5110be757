"""Files below a folder or below a URL of an object store: one interface for both.

A folder is a `Path`. Below `s3://bucket/prefix` an `ObjectPath` offers the needed part of a `Path`.
Operations that a `Path` does not have for both (atomic replacement, versions, sync) are in the
`Store` that `store_at` opens at a path.
"""

import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.home import expanded
from kstreams_assets.store.access import ObjectStoreSettings, forget_keys
from kstreams_assets.store.folders import FolderStore
from kstreams_assets.store.interface import FileIdentity, Store, StorePath, disk_name, relative
from kstreams_assets.store.object_path import (
    ConditionError,
    ObjectPath,
    ended_keys_reason,
    is_unanswered,
    storage_reason,
)
from kstreams_assets.store.objects import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ConditionError",
    "FileIdentity",
    "NewObject",
    "ObjectPath",
    "ObjectStoreSettings",
    "Store",
    "StorePath",
    "disk_name",
    "duplicate",
    "ended_keys_reason",
    "file_digest",
    "forget_keys",
    "is_unanswered",
    "local_hours",
    "make_durable",
    "place_at",
    "relative",
    "storage_reason",
    "store_at",
    "subfolders",
    "sync_names",
    "write_parquet",
]

_SCHEMES: Final = ("s3://", "s3a://")


def store_at(path: StorePath) -> Store:
    """The store of a path, opened there: its methods apply to this file or folder."""
    return FolderStore(path) if isinstance(path, Path) else ObjectStore(path)


def place_at(place: str | StorePath, settings: ObjectStoreSettings | None = None) -> StorePath:
    """The place with this name: a path, a `file:` URI, or `s3://bucket/prefix`.

    Raises:
        ConfigurationError: It is another kind of store, or contains characters that libraries
            interpret differently.
    """
    if isinstance(place, ObjectPath):
        return place
    text = str(place)
    if text.startswith(_SCHEMES):
        _require_plain(text)
        return ObjectPath.at(text, settings)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if "://" in text or text.startswith(("s3:", "s3a:", "gs:", "abfs:", "abfss:")):
        raise ConfigurationError(
            f"The warehouse {text!r} is neither on a local or mounted disk nor in an S3 object"
            " store.",
            remedy="Use a folder, or s3://bucket/prefix.",
        )
    path = expanded(text).absolute()
    _require_plain(str(path))
    _require_plain(os.path.realpath(path))  # libraries follow links before they decode
    return path


_AMBIGUOUS: Final = re.compile(r"%[0-9A-Fa-f]{2}|\\|[\0-\x1f\x7f]")


def _require_plain(place: str) -> None:
    """Refuse a path that Delta's libraries resolve to different folders."""
    found = _AMBIGUOUS.search(place)
    if found is not None:
        raise ConfigurationError(
            f"The path {place!r} contains {found[0]!r}. Delta's libraries do not agree on the"
            " folder with this name: some decode these characters, others do not or reject them.",
            remedy="Choose a path without backslashes, control characters, and percent signs"
            " before two hexadecimal digits. Rename the folder, or write the decoded character (a"
            " blank instead of %20).",
        )


def duplicate(path: StorePath, new: StorePath) -> None:
    """Create another file with the same bytes: a hard link if the disk supports it, else a copy.

    An object store copies by itself; larger objects are copied through this process.
    """
    if not store_at(path).copy(new):
        copied = NewObject(new)
        for piece in store_at(path).pieces():
            copied.write(piece)
        copied.finish()


def file_digest(path: StorePath, wait: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file, in hex.

    `wait` is called with a number of bytes before they are used, to limit the rate.
    """
    digest = hashlib.sha256()
    for piece in store_at(path).pieces():
        if wait is not None:
            wait(len(piece))
        digest.update(piece)
    return digest.hexdigest()


class NewObject:
    """A file that is written from start to end, for pyarrow's writers.

    It exists once it is closed; an abandoned upload to an object store is removed.
    """

    def __init__(self, path: StorePath) -> None:
        self.size, self.closed = 0, False
        self._digest, self._store = hashlib.sha256(), store_at(path)
        self._file = self._store.open_new()

    def write(self, data: Any) -> int:  # noqa: ANN401 (a buffer)
        """Append bytes."""
        view = memoryview(data)
        self._digest.update(view)
        with self._store.failures():
            self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Does nothing: the file does not exist before the end."""

    def tell(self) -> int:
        """The number of written bytes."""
        return self.size

    def close(self) -> None:
        """Does nothing: pyarrow closes its target even after a failure."""

    def readable(self) -> bool:
        """Always false."""
        return False

    def writable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always false."""
        return False

    def finish(self, *, durable: bool = False) -> str:
        """Close the file; return its SHA-256 in hex. With `durable` its content is on disk then."""
        with self._store.failures():
            self._file.close()
        if durable:
            self._store.sync_content()
        self.closed = True
        return self._digest.hexdigest()


def write_parquet(rows: "pa.Table", path: StorePath, **options: Any) -> None:  # noqa: ANN401
    """Write a small file; options as of pyarrow's `write_table`."""
    import pyarrow.parquet as pq

    file = NewObject(path)
    pq.write_table(rows, file, **options)
    file.finish()


def subfolders(path: StorePath) -> list[StorePath]:
    """The direct children of a folder; nothing if it does not exist."""
    return list(path.iterdir()) if path.is_dir() else []


_HOUR_S: Final = 3600.0
_NO_SKEW_H: Final = 0.05
"""Stores have timestamps in whole seconds."""


def local_hours(folder: StorePath, hours: int) -> int:
    """The age (whole hours) by this machine's clock of files that are `hours` old.

    For libraries that compare times of a store with this clock.
    """
    ahead_h = (time.time() - store_at(folder).now()) / _HOUR_S
    return hours if abs(ahead_h) < _NO_SKEW_H else max(0, math.ceil(hours + ahead_h))


def make_durable(paths: Iterable[StorePath]) -> None:
    """Wait until a power failure can no longer remove files and folders.

    Then their content is on disk, as well as their names and the folders above. An object store has
    made confirmed data durable.
    """
    paths = list(paths)
    for path in paths:
        store_at(path).sync_content()
    sync_names(paths)


def sync_names(paths: Iterable[StorePath]) -> None:
    """Wait until names of files and folders, and of the folders above, are on disk."""
    for folder in {path.parent for path in paths}:
        store_at(folder).sync_names()
