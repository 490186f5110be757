"""File integrity: whether data files are intact. All checks of files use this module."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from kstreams_assets.model.damage import Damage, DamageKind
from kstreams_assets.model.data_files import CHANGED, MISSING, By, ExpectedFile, ExpectedFiles
from kstreams_assets.store import StorePath, file_digest, store_at

_THREADS: Final = 4
"""Number of files read at a time: hashing releases the interpreter lock."""
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result: `damages` in the order of the files, and the number of inspected files."""

    damages: tuple[Damage, ...]
    files: int

    def __iter__(self) -> Iterator[Damage]:
        return iter(self.damages)

    def __bool__(self) -> bool:
        return bool(self.damages)

    def require_intact(self) -> None:
        """Check, before a record of the files is used, that all of them are intact.

        Raises:
            StoredDataError: A file is damaged.
        """
        for damage in self.damages:
            raise damage.as_error()


def inspect(
    files: Sequence[ExpectedFile],
    by: By,
    *,
    until: float = math.inf,
    pay: Callable[[int], None] | None = None,
    threads: int = _THREADS,
    progress: Callable[[int], None] | None = None,
) -> Inspection:
    """Compare files with their recorded original state.

    Args:
        files: The files to inspect, in this order.
        by: The compared property.
        until: Start no further files after this time (`time.monotonic`); by size only.
        pay: Called with numbers of bytes before they are used, to limit the rate; by digest only.
        threads: Number of files read at a time; by digest only.
        progress: Called with the size of each file that was read; by digest only.
    """
    if by is By.DIGEST:
        return Inspection(tuple(_by_digest(files, pay, threads, progress)), len(files))
    if by is By.LISTING:
        return Inspection(tuple(_wrong_size(files, _not_listed(files))), len(files))
    found: list[Damage] = []
    inspected = 0
    while inspected < len(files) and time.monotonic() < until:
        lot = files[inspected : inspected + _AT_ONCE]
        found += _wrong_size(lot, _of_another_size(lot))
        inspected += len(lot)
    return Inspection(tuple(found), inspected)


def _damage(file: ExpectedFile, problem: str, *, by_reading: bool = False) -> Damage:
    if file.kind is not DamageKind.TABLE:  # there the place names the file
        problem = f"file {file.location.name} {problem}"
    return file.damage(problem, by_reading=by_reading)


def _by_digest(
    files: Sequence[ExpectedFile],
    pay: Callable[[int], None] | None,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Iterator[Damage]:
    if not files:
        return
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(files), _AT_ONCE):
            lot = [*files[begin : begin + _AT_ONCE]]
            problems = pool.map(partial(_content_problem, pay=pay), lot)
            for file, problem in zip(lot, problems, strict=True):
                if progress is not None:
                    progress(file.size)
                if problem:
                    yield _damage(file, problem, by_reading=True)


def _content_problem(file: ExpectedFile, pay: Callable[[int], None] | None) -> str:
    try:
        digest = file_digest(file.location, pay)
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "" if digest == file.digest else CHANGED


def _wrong_size(files: Sequence[ExpectedFile], suspects: Sequence[int]) -> Iterator[Damage]:
    for number in suspects:
        file = files[number]
        problem = _size_problem(file)
        if problem:
            yield _damage(file, problem)


def _size_problem(file: ExpectedFile) -> str:
    try:
        there = file.location.stat().st_size
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be inspected ({error.strerror})"
    if there != file.size:
        return f"has {there:,} bytes instead of {file.size:,}"
    return ""


def _of_another_size(files: Sequence[ExpectedFile]) -> list[int]:
    """Numbers of files that are not on disk with their size."""
    return [
        number
        for number, (table, path, size) in enumerate(_named(files))
        if _size(f"{table}/{path}") != size
    ]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _not_listed(files: Sequence[ExpectedFile]) -> list[int]:
    """Numbers of files that are not listed in their folders with their size."""
    folders: dict[StorePath, set[str]] = {}
    for table, path, _ in _named(files):
        folders.setdefault(table, set()).add(path.rpartition("/")[0])
    listed = {table: store_at(table).sizes_in(of_it) for table, of_it in folders.items()}
    nothing: dict[str, int] = {}
    suspects: list[int] = []
    for number, (table, path, size) in enumerate(_named(files)):
        folder, _, name = path.rpartition("/")
        if listed[table].get(folder, nothing).get(name) != size:
            suspects.append(number)
    return suspects


def _named(files: Sequence[ExpectedFile]) -> Iterator[tuple[StorePath, str, int]]:
    """Table, path and size of each, without creating objects from columns."""
    if isinstance(files, ExpectedFiles):
        return ((files.table, path, size) for path, size in files.names_and_sizes())
    return ((file.table, file.path, file.size) for file in files)
