"""What else is done with a second copy: promote it, remove what is no longer needed, its age."""

import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from kstreams_assets.copy_mark import (
    MARK,
    CopyMark,
    CopyState,
    copy_mark,
    forget,
    read_mark,
)
from kstreams_assets.errors import ConfigurationError, WarehouseError
from kstreams_assets.layout import file_problem
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.store import ObjectPath, StorePath, subfolders, sync_content
from kstreams_assets.upkeep.copy import (
    CHECKPOINT,
    COMMIT,
    COPYING,
    LOG,
    active_files,
    version_of,
)
from kstreams_assets.warehouse.table import delta_table, storage_failures

_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000


def state_at_ms(to: StorePath) -> int | None:
    """When the run ended whose state readers of a copy see, epoch milliseconds; None without one.

    Raises:
        WarehouseError: The place cannot be read.
    """
    with storage_failures(to):
        mark = read_mark(to)
    return None if mark is None or mark.newest is None else mark.newest.finished_at_ms


def _marked(place: StorePath) -> CopyMark:
    mark = copy_mark(place)
    if mark is None:
        raise ConfigurationError(
            f"{place} is no copy of a warehouse.",
            remedy="Look at the path. A copy has a file " + MARK + ".",
        )
    return mark


def promote(place: StorePath) -> CopyState:
    """Make a copy a warehouse of its own, which is written like any other; what it holds.

    What an unfinished run has put beyond the state that readers saw is removed first. Files that
    the source could not give are no hindrance.

    Raises:
        ConfigurationError: It is no copy.
        WarehouseError: It is not complete, or cannot be written.
        WarehouseLockedError: A run writes the copy.
    """
    mark = _marked(place)
    state, lacking = mark.state, {*mark.lacking}
    if mark.points is not None:
        raise ConfigurationError(
            f"{place} holds only what recovery points {', '.join(mark.points)} need.",
            remedy="Restore from it (--notes-in FOLDER); it cannot become a warehouse.",
        )
    lock = place / ".locks" / "copy.lock"
    with warehouse_lock(lock, purpose="promote", wait_s=0, of_copy=True), storage_failures(place):
        for table, version in state.versions.items():
            for path, size in _files_at(place, table, version).items():
                problem = file_problem(place / table / path, size)
                if problem and f"{table}/{path}" not in lacking:
                    raise WarehouseError(
                        path=place,
                        reason=f"the copy is not complete: in {table}, {problem}",
                        remedy="Run kstreams-assets copy again while the source is there. If it is"
                        " lost, restore from the copy as it is (--notes-in FOLDER): only what"
                        " needs this file is refused.",
                    )
        for table in _tables(place):
            _forget_beyond(place / table / LOG, state.versions.get(table, -1))
            sync_content(place / table / LOG)
        (place / MARK).unlink()
        sync_content(place)
        forget(place)
    return state


def _forget_beyond(log: StorePath, version: int) -> None:
    """Remove what comes after a version, the last first, and what expired before it, the oldest
    first: so what is left is a log at any moment."""
    there = [p for p in subfolders(log) if COMMIT.fullmatch(p.name) or CHECKPOINT.fullmatch(p.name)]
    there.sort(key=lambda p: p.name)
    for path in reversed(there):
        if version_of(path.name) > version:
            path.unlink()
    commits = {version_of(path.name) for path in there if COMMIT.fullmatch(path.name)}
    missing = set(range(min(commits, default=0), version)) - commits
    for path in there:
        # Some entries expired between two runs of the copy, and were never copied.
        if version_of(path.name) < max(missing, default=-1):
            path.unlink()


def _tables(place: StorePath) -> list[str]:
    """Every table that is there, by its path."""
    found: list[str] = []
    for one in subfolders(place):
        inside = [one]
        if one.name in ("records", "ktables"):
            inside = subfolders(one)
        if one.name == "ktables":
            inside = [store for application in inside for store in subfolders(application)]
        found += [
            "/".join(table.parts[len(place.parts) :]) for table in inside if (table / LOG).is_dir()
        ]
    return found


def _files_at(place: StorePath, table: str, version: int | None) -> dict[str, int]:
    if version is None:
        return {}
    return {unquote(path): n for path, n in active_files(delta_table(place / table, version))}


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed from a copy."""

    files: int
    bytes: int


def prune(place: StorePath, *, now_ms: int | None = None) -> Pruned:
    """Remove what the source has removed, and readers of the copy have not seen for a day.

    Raises:
        ConfigurationError: It is no copy.
        WarehouseError: It cannot be read or written; a store may refuse to delete.
        WarehouseLockedError: A run writes the copy.
    """
    mark = _marked(place)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    old = [s for s in (mark.state, *mark.earlier) if s.finished_at_ms <= now_ms - _DAY_MS]
    if not old:
        return Pruned(0, 0)
    base = max(old, key=lambda state: state.finished_at_ms)
    # What was copied since may be of a state that came after the base; clocks may differ.
    before_ms = base.finished_at_ms - _HOUR_MS
    files = size = 0
    lock = place / ".locks" / "copy.lock"
    with warehouse_lock(lock, purpose="prune", wait_s=0, of_copy=True), storage_failures(place):
        for table in _tables(place):
            kept = _files_at(place, table, base.versions.get(table)).keys()
            kept |= _files_at(place, table, mark.state.versions.get(table)).keys()
            first = _first_log(place / table / LOG, base.versions.get(table))
            for path, bytes_, changed_ms in _below(place / table):
                name = "/".join(path.parts[len((place / table).parts) :])
                if changed_ms >= before_ms or name in kept:
                    continue
                if name.startswith(f"{LOG}/"):
                    is_log = COMMIT.fullmatch(path.name) or CHECKPOINT.fullmatch(path.name)
                    if not is_log or version_of(path.name) >= first:
                        continue
                path.unlink()
                files, size = files + 1, size + bytes_
    return Pruned(files, size)


def _first_log(log: StorePath, version: int | None) -> int:
    """The version of the checkpoint from which the base is read."""
    names = [path.name for path in subfolders(log) if CHECKPOINT.fullmatch(path.name)]
    if version is None:
        return 0
    return max((version_of(name) for name in names if version_of(name) <= version), default=0)


def _below(folder: StorePath) -> list[tuple[StorePath, int, int]]:
    """Every file with bytes and time of change (epoch milliseconds)."""
    if isinstance(folder, ObjectPath):
        return [(p, stat.st_size, stat.st_mtime_ns // 1_000_000) for p, stat in folder.below()]
    found: list[tuple[StorePath, int, int]] = []
    for path in folder.rglob("*"):
        if path.is_file() and COPYING not in path.parts:
            stat = path.stat()
            found.append((path, stat.st_size, stat.st_mtime_ns // 1_000_000))
    return found
