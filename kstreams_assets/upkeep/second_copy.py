"""Operations on a second copy: promote it, prune it, and read its age."""

import json
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final

import pyarrow as pa

from kstreams_assets.copy_mark import (
    MARK,
    CopyMark,
    CopyState,
    copy_mark,
    forget,
    read_mark,
    reading_at,
)
from kstreams_assets.errors import ConfigurationError, WarehouseError
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.data_files import By, ExpectedFile
from kstreams_assets.model.files import path_in_table
from kstreams_assets.repository.delta_log import delta_table
from kstreams_assets.repository.expected_files import expected_files
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.table import open_delta
from kstreams_assets.store import StorePath, store_at, subfolders
from kstreams_assets.store.failures import storage_failures
from kstreams_assets.upkeep.copy_plan import (
    CHECKPOINT,
    COMMIT,
    COPYING,
    LOG,
    active_files,
    tables_in,
    version_of,
)

_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000
PROMOTED: Final = "kstreams-assets-promoted.json"
"""File in a promoted copy that describes its former source and state."""
UNPUBLISHED: Final = ".unpublished"
"""Folder for tables that were incomplete when the copy was promoted."""


def state_at_ms(to: StorePath) -> int | None:
    """Return the end of the run whose state readers of a copy see (epoch milliseconds).

    None if `to` is not a copy or has no complete state.

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
            f"{place} is not a copy of a warehouse.",
            remedy="Check the path. A copy contains a file " + MARK + ".",
        )
    return mark


@dataclass(frozen=True, slots=True)
class Promoted(CopyState):
    """The state of a copy when it became a warehouse.

    `missing` are applications with recovery points and a ledger but without records. `regained` are
    tables that the source had lost before the last copy, with their previous version.
    """

    missing: tuple[str, ...] = ()
    regained: Mapping[str, int] = field(default_factory=dict)


def promote(place: StorePath, *, applications: Collection[str] | None = None) -> Promoted:
    """Turn a copy into an independent warehouse for backups, and return its state.

    Everything after the state that readers see is removed first. A table that readers never saw is
    moved to `.unpublished` (in a store it is deleted). Files that could not be copied do not
    prevent the promotion. An interrupted promotion continues with the next call; a completed one is
    not repeated.

    Args:
        place: The copy.
        applications: Applications in a partial copy; the warehouse contains only these.

    Raises:
        ConfigurationError: The place is not a copy, or the copy is partial.
        WarehouseError: The copy is incomplete, or cannot be written.
        WarehouseLockedError: Another run writes the copy.
    """
    with storage_failures(place):
        done = None if read_mark(place) is not None else _promoted(place)
    if done is not None:
        return done
    mark = _marked(place)
    if mark.points is not None:
        raise ConfigurationError(
            f"{place} contains only data for recovery points {', '.join(mark.points)}, so it cannot"
            " become a warehouse.",
            remedy="Restore from the copy with --warehouse and --state-in.",
        )
    lock = place / ".locks" / "copy.lock"
    with warehouse_lock(lock, purpose="promote", wait_s=0, of_copy=True), storage_failures(place):
        mark = _marked(place)  # a run may have ended meanwhile
        missing = _missing_applications(place, mark)
        _refuse_partial(place, mark, missing, applications)
        regained = _regained(place, mark)
        state = Promoted(
            mark.state.finished_at_ms, {**regained, **mark.state.versions}, missing, regained
        )
        _require_complete(place, state.versions, {*mark.lacking})
        for table in tables_in(place):
            if table in state.versions:
                _forget_beyond(place / table / LOG, state.versions[table])
                store_at(place / table / LOG).sync_content()
            else:
                _set_aside(place, table)
        store_at(place / COPYING).remove_tree()
        facts = {"source": mark.source, "kind": "what a copy was promoted from", **asdict(state)}
        store_at(place / PROMOTED).put_text(json.dumps(facts, indent=1) + "\n")
        (place / MARK).unlink()
        store_at(place).sync_content()
        forget(place)
    return state


def _promoted(place: StorePath) -> Promoted | None:
    """Return the state of a promoted copy; None if the copy was not promoted."""
    try:
        facts = json.loads((place / PROMOTED).read_text(encoding="utf-8"))
        return Promoted(
            facts["finished_at_ms"], facts["versions"], tuple(facts["missing"]), facts["regained"]
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise WarehouseError(
            path=place / PROMOTED,
            reason="it is damaged",
            remedy="Delete the file. It only describes the origin of this warehouse.",
        ) from error


def _missing_applications(place: StorePath, mark: CopyMark) -> tuple[str, ...]:
    """Return applications with a ledger but without records in the copy."""
    found: set[str] = set()
    for name in ("windows", "increments", "recovery_points"):
        table = open_delta(place / name, name)
        if table is not None:
            actions = pa.table(table.get_add_actions(flatten=True))
            if actions.num_rows:
                found |= {*actions["partition.application_id"].to_pylist()}
    absent = sorted(app for app in found if f"records/{app}" not in mark.state.versions)
    return tuple(
        app
        for app in absent
        if mark.applications is not None or expected_files(Warehouse(place), f"records/{app}")
    )


def _refuse_partial(
    place: StorePath,
    mark: CopyMark,
    missing: Collection[str],
    accepted: Collection[str] | None,
) -> None:
    """Require the applications of a partial copy to be named."""
    held = sorted(
        name.removeprefix("records/") for name in mark.state.versions if name.startswith("records/")
    )
    if accepted is not None and {*accepted} != {*held}:
        raise ConfigurationError(
            f"{place} contains the records of {', '.join(held) or 'no application'}, but"
            f" --application names {', '.join(sorted(accepted))}.",
            remedy="Give --application for each application in the copy, or omit it.",
        )
    if missing and accepted is None:
        names = " ".join(f"--application {name}" for name in held)
        raise ConfigurationError(
            f"{place} is a partial copy: it contains recovery points and ledger of"
            f" {', '.join(missing)}, but no records.",
            remedy="Promote a copy of the whole warehouse, or copy these applications while the"
            " source exists. To promote the copy without them, run kstreams-assets copy --promote"
            f" {names}.",
        )


def _regained(place: StorePath, mark: CopyMark) -> dict[str, int]:
    """Return tables (with version) that earlier states of the copy have but not the newest one.

    An earlier release copied a source after it had lost these tables.
    """
    found: dict[str, int] = {}
    for table in tables_in(place):
        if table in mark.state.versions:
            continue
        seen = [one.versions[table] for one in mark.earlier if table in one.versions]
        before_ms = mark.state.finished_at_ms - _HOUR_MS
        old = [
            version_of(path.name)
            for path, _, changed_ms in _below(place / table / LOG)
            if COMMIT.fullmatch(path.name) and changed_ms < before_ms
        ]
        if seen or old:
            found[table] = seen[0] if seen else max(old)
    return found


def _require_complete(
    place: StorePath, versions: Mapping[str, int], lacking: Collection[str]
) -> None:
    for table, version in versions.items():
        files = [
            ExpectedFile(place / table, path, size)
            for path, size in _files_at(place, table, version).items()
            if f"{table}/{path}" not in lacking
        ]
        for damage in inspect(files, By.LISTING):
            raise WarehouseError(
                path=place,
                reason=f"the copy is incomplete: in {table}, {damage.problem}",
                remedy="Run kstreams-assets copy again while the source exists. If the source is"
                " lost, restore from the copy with --warehouse and --state-in. Only restores that"
                " need this file fail.",
            )


def _set_aside(place: StorePath, table: str) -> None:
    """Move or delete an incomplete table that readers never saw."""
    folder = store_at(place).on_disk
    if folder is not None:
        aside = folder / UNPUBLISHED / str(time.time_ns()) / table
        aside.parent.mkdir(parents=True, exist_ok=True)
        (folder / table).rename(aside)
        return
    for path, _, _ in _below(place / table):
        path.unlink()


def _forget_beyond(log: StorePath, version: int) -> None:
    """Delete entries after a version, newest first, and incomplete ones before it, oldest first.

    In this order the remaining files form a valid log at all times.
    """
    there = [p for p in subfolders(log) if COMMIT.fullmatch(p.name) or CHECKPOINT.fullmatch(p.name)]
    there.sort(key=lambda p: p.name)
    for path in reversed(there):
        if version_of(path.name) > version:
            path.unlink()
    hint = log / "_last_checkpoint"
    with suppress(FileNotFoundError):
        hinted = json.loads(hint.read_bytes()).get("version", version + 1)
        if hinted > version or not any(
            CHECKPOINT.fullmatch(path.name) and version_of(path.name) == hinted for path in there
        ):
            hint.unlink()
    commits = {version_of(path.name) for path in there if COMMIT.fullmatch(path.name)}
    missing = set(range(min(commits, default=0), version)) - commits
    for path in there:
        # Entries that expired in the source between two copies were never copied.
        if version_of(path.name) < max(missing, default=-1):
            path.unlink()


def _files_at(place: StorePath, table: str, version: int | None) -> dict[str, int]:
    if version is None:
        return {}
    return {path_in_table(path): n for path, n in active_files(delta_table(place / table, version))}


@dataclass(frozen=True, slots=True)
class Pruned:
    """Number and size of files that were deleted from a copy."""

    files: int
    bytes: int


def prune(place: StorePath, *, now_ms: int | None = None) -> Pruned:
    """Delete files that the source deleted over a day ago.

    Only files that the logs of the source removed are deleted. Tables that the newest state does
    not contain, and files that a ledger lists, are kept.

    Raises:
        ConfigurationError: The place is not a copy.
        WarehouseError: The copy cannot be read or written; a store may deny deletion.
        WarehouseLockedError: Another run writes the copy.
    """
    mark = _marked(place)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    old = [s for s in (mark.state, *mark.earlier) if s.finished_at_ms <= now_ms - _DAY_MS]
    if not old:
        return Pruned(0, 0)
    base = max(old, key=lambda state: state.finished_at_ms)
    # Newer files may belong to a state after the base; one hour allows for different clocks.
    before_ms = base.finished_at_ms - _HOUR_MS
    files = size = 0
    lock = place / ".locks" / "copy.lock"
    with warehouse_lock(lock, purpose="prune", wait_s=0, of_copy=True), storage_failures(place):
        # No command removes tables: a table that readers do not see was lost by the source.
        for table in (name for name in tables_in(place) if name in mark.state.versions):
            kept = _files_at(place, table, base.versions.get(table)).keys()
            kept |= _files_at(place, table, mark.state.versions[table]).keys()
            kept |= _named_files(place, table, (base, mark.state))
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


def _named_files(place: StorePath, table: str, states: Iterable[CopyState]) -> set[str]:
    """Return files that the ledgers of these states list; they are still needed."""
    found: set[str] = set()
    for state in states:
        with reading_at(place, state.versions):
            found |= {file.path for file in expected_files(Warehouse(place), table)}
    return found


def _first_log(log: StorePath, version: int | None) -> int:
    """Return the version of the checkpoint from which readers start."""
    names = [path.name for path in subfolders(log) if CHECKPOINT.fullmatch(path.name)]
    if version is None:
        return 0
    return max((version_of(name) for name in names if version_of(name) <= version), default=0)


def _below(folder: StorePath) -> list[tuple[StorePath, int, int]]:
    """Return all files with size (bytes) and modification time (epoch milliseconds)."""
    return [
        (path, size, changed_ns // 1_000_000)
        for path, size, changed_ns in store_at(folder).files()
        if COPYING not in path.parts
    ]
