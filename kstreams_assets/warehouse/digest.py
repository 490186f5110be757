"""Digests of what the warehouse holds: by them a change that nobody reported is noticed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

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


def written_files(table: Path, files: Sequence[tuple[str, int]]) -> list[WrittenFile]:
    """Read files of a table, given by their paths in Delta's log and records, and note them."""

    def note(file: tuple[str, int]) -> WrittenFile:
        path, records = file
        there = table / unquote(path)
        return WrittenFile(path, there.stat().st_size, records, file_digest(there))

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(note, files))


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_changed(files: Sequence[tuple[Path, WrittenFile]]) -> Path | None:
    """The first of some files that is not the one that was written, byte for byte.

    Raises:
        OSError: One cannot be read.
    """

    def changed(file: tuple[Path, WrittenFile]) -> Path | None:
        path, written = file
        return None if file_digest(path) == written.digest else path

    with ThreadPoolExecutor(_THREADS) as pool:
        return next((path for path in pool.map(changed, files) if path), None)


def file_problem(path: Path, size: int | None) -> str:
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


def value_digest(value: object) -> str:
    """SHA-256 of a value made of dicts, lists, texts, numbers and nulls, in hex.

    Keys of dicts play no part in order, and a key without a value none at all: a row keeps its
    digest when its table gets another column.
    """
    text = json.dumps(_without_nulls(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _without_nulls(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(one) for one in value]
    return value
