"""Keeps a second copy of a warehouse: in another folder, or in a store of another account.

Data files never change under their names, so what is there is not copied again. Of the source a
state is chosen in which its tables belong together; files are copied and compared with the digests
that the source has noted of them, then the logs that name them, and last the mark by which readers
of the copy see the new state (`copy_mark`). Nothing that was copied is overwritten or deleted.
"""

import hashlib
import json
import logging
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow as pa

from kstreams_assets.copy_mark import (
    MARK,
    CopyMark,
    CopyState,
    copy_mark,
    put_mark,
    read_mark,
    reading_at,
    table_name,
)
from kstreams_assets.errors import (
    ConfigurationError,
    RecoveryPointNotFoundError,
    WarehouseError,
)
from kstreams_assets.kafka.throttle import Throttle, throttle
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.layout import CONTROL_TABLES, Warehouse, path_in_table
from kstreams_assets.lease import keep_private, warehouse_lock
from kstreams_assets.store import (
    ConditionError,
    NewObject,
    ObjectPath,
    StorePath,
    file_digest,
    put_file,
    put_text,
    remove_tree,
    require_conditions,
    subfolders,
    sync_content,
)
from kstreams_assets.texts import bytes_text
from kstreams_assets.warehouse.delta_log import entry_versions
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.warehouse.point import RecoveryPoint
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.prefixes import Prefixes
from kstreams_assets.warehouse.table import (
    MARKER,
    LogState,
    delta_table,
    is_warehouse,
    log_state,
    open_delta,
    refuse_newer_tables,
    storage_failures,
)

_log = logging.getLogger(__name__)

LOG: Final = "_delta_log"
_HINT: Final = "_last_checkpoint"
COMMIT: Final = re.compile(r"(\d{20})\.json")
CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")
_DIGEST_IN_NAME: Final = re.compile(r"-([0-9a-f]{64})\.parquet$")
COPYING: Final = ".copying"
"""A folder of the copy for files that are not whole yet; what a killed copy left there is removed
by the next one."""
_PIECE: Final = 8 * 1024**2
_THREADS: Final = 4
_STORE_THREADS: Final = 8
_LOOKS: Final = 20
"""How often the logs are listed, until two lists are the same: nobody commits at that moment."""
_BETWEEN_COMMITS_S: Final = 5.0
"""A backup commits to the records first and to the ledger then: how long the ledger may not match
before it counts as damaged."""
_PAUSE_S: Final = 0.2
_PATIENCE_S: Final = 60.0
"""So long a state is looked for in which the tables belong together."""
_ROUNDS: Final = 4
_LOCK_WAIT_S: Final = 30.0
_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000
_ORDER: Final = (
    "recovery_points",
    "recovery_point_records",
    "windows",
    "increments",
    "records/",
    "ktable_snapshots",
    "ktables/",
    "restores",
    "offset_maps",
)
"""Who names something comes before what is named; but what is dropped from the saved records is in
the ledger by then."""


@dataclass(frozen=True, slots=True)
class LackingFile:
    """A file that the source could not give: missing there, or not the one that was written.

    `table` and `file` are paths below the warehouse and the table; `window`, `topic` and
    `partition` say what it holds, as far as it holds records or a snapshot.
    """

    table: str
    file: str
    problem: str
    window: str | None = None
    topic: str | None = None
    partition: int | None = None

    def __str__(self) -> str:
        what = [] if self.window is None else [f"window {self.window}"]
        if self.topic is not None:
            what.append(self.topic if self.partition is None else f"{self.topic}-{self.partition}")
        told = ", ".join(what)
        return f"{told + ': ' if told else ''}file {self.table}/{self.file} {self.problem}"


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What a run has copied.

    `files` and `bytes` came over now, `there` files were there already, `lacking` are those that
    the source could not give. `finished_at_ms` is None when readers of the copy still see what they
    saw before, because a control table is among what is lacking.
    """

    source: str
    to: str
    tables: int
    files: int
    bytes: int
    there: int
    lacking: tuple[LackingFile, ...]
    finished_at_ms: int | None
    took_s: float


def copy_warehouse(
    source: Warehouse,
    to: StorePath,
    *,
    applications: Collection[str] | None = None,
    points: Collection[str] | None = None,
    bytes_per_s: int | None = None,
    log: Callable[[str], None] = _log.info,
) -> CopyResult:
    """Bring the copy of a warehouse up to date, or begin one.

    Run it again when it was interrupted: it goes on where it stopped. Files that the source cannot
    give are in the result; all else is copied.

    Args:
        source: The warehouse; it is only read, and no lock of it is held.
        to: Where the copy is, or an empty place.
        applications: Those whose records and snapshots are copied; None: all. Once an application
            is copied, it goes on being copied.
        points: Recovery points (ids); of records and snapshots only what is needed to restore
            one of them is copied, of their applications alone: all up to the point. Points of
            earlier runs go on being copied; None: everything.
        bytes_per_s: No more is copied per second.
        log: Gets what is going on.

    Raises:
        ConfigurationError: `to` is no place for a copy of this warehouse.
        NewerLayoutError: A newer release wrote the source.
        WarehouseError: One of both places cannot be read or written.
        WarehouseLockedError: Another run writes the copy.
    """
    began = time.monotonic()
    _refuse_place(source, to)
    keep_private()
    with storage_failures(to):
        require_conditions(to)
        to.mkdir(parents=True, exist_ok=True)
    with _alone(to):
        if points is not None:
            applications = {point.application_id for point in _loaded(source, points)}
        mark = _begun(source, to, applications, points)
        run = _Run(source, to, mark, throttle("copy", bytes_per_s, None, tasks=1), log)
        return run.copy(began)


def _refuse_place(source: Warehouse, to: StorePath) -> None:
    if not is_warehouse(source.root):
        raise WarehouseError(
            path=source.root,
            reason="there is no warehouse, so there is nothing to copy",
            remedy="Check the path (warehouse in the YAML, --warehouse) and whether it is mounted.",
        )
    copy_mark(source.root)  # refuses one that is unfinished
    if str(to) == str(source.root) or _is_inside(to, source.root) or _is_inside(source.root, to):
        raise ConfigurationError(
            f"{to} is no place for a copy of {source.root}: one lies in the other.",
            remedy="Give another folder, best on another disk, or another bucket.",
        )


def _is_inside(path: StorePath, other: StorePath) -> bool:
    one, two = PurePosixPath(str(path)), PurePosixPath(str(other))
    return one.is_relative_to(two)


def _alone(to: StorePath) -> Any:  # noqa: ANN401 (a context)
    """Two runs are kept apart: by a lock on a disk, in a store by the version of the mark."""
    if isinstance(to, ObjectPath):
        return nullcontext()
    lock = to / ".locks" / "copy.lock"
    return warehouse_lock(lock, purpose="copy", wait_s=_LOCK_WAIT_S, of_copy=True)


def _loaded(source: Warehouse, ids: Collection[str]) -> list[RecoveryPoint]:
    """The points with these ids, of whatever application."""
    table = RecoveryPointTable(source)
    with storage_failures(source.root):
        applications = [path.name for path in subfolders(source.root / "records")]
    found = [point for app in applications for point in table.load(app, ids)]
    missing = {*ids} - {point.id for point in found}
    if missing:
        raise RecoveryPointNotFoundError(
            point_id=sorted(missing)[0], application_id=", ".join(applications)
        )
    return found


def _with_restored(source: Warehouse, points: Sequence[RecoveryPoint]) -> list[RecoveryPoint]:
    """The points, and those from which their logs were restored: they hold the first records."""
    found: dict[str, RecoveryPoint] = {}
    for point in points:
        prefixes = Prefixes(source, point.application_id)
        found |= {one.id: one for one in (point, *prefixes.restored_points(point))}
    return list(found.values())


def _begun(
    source: Warehouse,
    to: StorePath,
    applications: Collection[str] | None,
    points: Collection[str] | None,
) -> CopyMark:
    """The mark of the copy, which is put there before anything else."""
    with storage_failures(to):
        mark = read_mark(to)
    made_at = _made_at(source.root)
    if mark is None:
        if is_warehouse(to):
            raise ConfigurationError(
                f"{to} is a warehouse of its own, no copy.",
                remedy="Give an empty place. (A copy that was promoted stays a warehouse.)",
            )
        chosen = None if applications is None else tuple(sorted(applications))
        mark = CopyMark(
            str(source.root),
            made_at,
            time.time_ns() // 1_000_000,
            applications=chosen,
            points=None if points is None else tuple(sorted(points)),
        )
        with storage_failures(to):
            put_mark(to, mark)
        return _read_again(to)
    if None not in (made_at, mark.made_at) and made_at != mark.made_at:
        raise ConfigurationError(
            f"{source.root} is another warehouse than the one that was copied to {to}: it was made"
            f" at {made_at}, the copied one at {mark.made_at}. Nothing was copied over.",
            remedy="Look whether the right disk is mounted there. If the first warehouse is lost,"
            " restore from the copy, or promote it; copy the new one to another place.",
        )
    if None in (made_at, mark.made_at) and mark.source != str(source.root):
        raise ConfigurationError(
            f"{to} is a copy of {mark.source}, not of {source.root}.",
            remedy="Give another place.",
        )
    chosen = mark.applications
    if chosen is not None:
        chosen = None if applications is None else tuple(sorted({*chosen, *applications}))
    wanted = mark.points
    if wanted is not None:
        wanted = None if points is None else tuple(sorted({*wanted, *points}))
    return replace(mark, source=str(source.root), applications=chosen, points=wanted)


def _read_again(to: StorePath) -> CopyMark:
    with storage_failures(to):
        mark = read_mark(to)
    if mark is None:
        raise WarehouseError(
            path=to / MARK, reason="it is gone again", remedy="Look who else writes there."
        )
    return mark


def _made_at(root: StorePath) -> str | None:
    with storage_failures(root):
        try:
            told = json.loads((root / MARKER).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            return None
    return told.get("created_at") if isinstance(told, dict) else None


@dataclass(frozen=True, slots=True)
class _Noted:
    """What the source has noted of a file when it was written."""

    digest: str
    size: int
    window: str | None = None
    topic: str | None = None
    partition: int | None = None
    topic_id: str | None = None
    start: int = 0


@dataclass(slots=True)
class _TablePlan:
    """A table at the version that is copied: its files (path as in the log, bytes), its log."""

    name: str
    version: int
    files: list[tuple[str, int]]
    log: list[str] = field(default_factory=list)
    hint: bytes | None = None

    @property
    def is_control(self) -> bool:
        return "/" not in self.name


@dataclass(slots=True)
class _Plan:
    """A state of the source; `staged` is a folder of this machine with the logs of its tables."""

    tables: list[_TablePlan]
    noted: Mapping[str, Mapping[str, _Noted]]
    staged: Path
    left_out: Mapping[str, frozenset[str]]
    """By table, files that none of the points needs that are copied."""
    damaged: tuple[LackingFile, ...] = ()
    """Files that the source has noted, and no table of it has."""

    @property
    def versions(self) -> dict[str, int]:
        return {table.name: table.version for table in self.tables}


@dataclass(frozen=True, slots=True)
class _Disagreement:
    """Two tables that do not belong together; `lacking` is what a copy of them does not have."""

    what: str
    files: tuple[str, ...] = ()
    lacking: LackingFile | None = None

    def __str__(self) -> str:
        return self.what


class SourceFileError(Exception):
    """The source cannot give a file."""


class _Run:
    """What one run knows while it lasts."""

    def __init__(
        self,
        source: Warehouse,
        to: StorePath,
        mark: CopyMark,
        limit: Throttle | None,
        log: Callable[[str], None],
    ) -> None:
        self._source, self._to, self._mark, self._log = Warehouse(source.root), to, mark, log
        self._limit = limit
        self._files = self._bytes = self._there = 0
        self._counting = threading.Lock()
        self._first_seen: dict[_Disagreement, float] = {}

    def copy(self, began: float) -> CopyResult:
        refuse_newer_tables(self._source)
        self._sweep()
        with tempfile.TemporaryDirectory(prefix="kstreams-assets-copy-") as folder:
            plan = self._plan(Path(folder) / "0")
            lacking, gone = self._copy_files(plan)
            for again in range(1, _ROUNDS):
                if not gone:
                    break
                # What was deleted meanwhile is no longer part of a table that is planned again.
                plan = self._plan(Path(folder) / str(again))
                before = set(lacking)
                lacking, gone = self._copy_files(plan)
                if gone <= before:
                    break
            for file in plan.damaged:
                lacking.setdefault((file.table, file.file), file)
            finished = self._publish(plan, tuple(lacking.values()))
        return CopyResult(
            source=str(self._source.root),
            to=str(self._to),
            tables=len(plan.tables),
            files=self._files,
            bytes=self._bytes,
            there=self._there,
            lacking=tuple(lacking[key] for key in sorted(lacking)),
            finished_at_ms=finished,
            took_s=time.monotonic() - began,
        )

    def _sweep(self) -> None:
        if isinstance(self._to, Path):
            remove_tree(self._to / COPYING)

    # --- What is to be copied ---------------------------------------------------------------------

    def _plan(self, staged: Path) -> _Plan:
        """A state of the source in which its tables belong together, with their logs at hand."""
        deadline = time.monotonic() + _PATIENCE_S
        looks, trouble = 0, "its logs change faster than they can be read"
        while looks == 0 or time.monotonic() < deadline:
            looks += 1
            seen_at = time.monotonic()
            versions, is_at_rest = self._versions()
            self._refuse_vanished(versions)
            with reading_at(self._source.root, versions):
                found = self._disagreements(versions, is_at_rest=is_at_rest)
                passing = self._passing(found, seen_at)
                if passing:
                    trouble = f"its tables did not belong together at {looks} looks: {passing[0]}"
                    time.sleep(_PAUSE_S)
                    continue
                try:
                    opened = self._opened(versions)
                    noted = self._noted(versions)
                    left_out = self._left_out(noted)
                    tables = [
                        self._table_plan(path, table, staged / str(looks))
                        for path, table in opened.items()
                    ]
                except FileNotFoundError:
                    continue  # the source has tidied the log up
            damaged = tuple(one.lacking for one in found if one.lacking is not None)
            return _Plan(tables, noted, staged / str(looks), left_out, damaged)
        raise WarehouseError(
            path=self._source.root,
            reason=f"{trouble}. Nothing was copied over",
            remedy="Run the copy again.",
        )

    def _versions(self) -> tuple[dict[str, int], bool]:
        """The newest version of each table, and whether they were the newest at one moment.

        Only lists of the logs are compared: to open the tables takes as long as it does, and what
        is committed meanwhile is not seen. Without such a moment, tables come in the order in which
        they name each other.
        """
        paths = self._tables()
        with ThreadPoolExecutor(_STORE_THREADS) as pool:
            state = list(pool.map(log_state, paths))
            for _ in range(_LOOKS):
                before, state = state, list(pool.map(log_state, paths))
                if before == state:
                    return self._newest(paths, state), True
        return self._newest(paths, [log_state(path) for path in paths]), False

    def _newest(self, paths: Sequence[StorePath], states: Sequence[LogState]) -> dict[str, int]:
        mark = copy_mark(self._source.root)
        versions: dict[str, int] = {}
        for path, state in zip(paths, states, strict=True):
            name = table_name(path)
            with storage_failures(path):
                entries = entry_versions(path, [n for n, _, _ in state]) if mark is None else []
            if mark is not None:
                if name in mark.state.versions:
                    versions[name] = mark.state.versions[name]
            elif entries:
                versions[name] = entries[-1]
            elif open_delta(path, name) is not None:  # fails where there are files without a log
                raise WarehouseError(
                    path=path,
                    reason="its log (_delta_log) has no entry",
                    remedy="Bring the table back from the copy; nothing was copied over.",
                )
        return versions

    def _refuse_vanished(self, versions: Collection[str]) -> None:
        """What the copy has and the source no longer has was lost there: nothing removes tables."""
        seen = () if self._mark.newest is None else self._mark.newest.versions
        with storage_failures(self._to):
            there = {*seen, *(name for name in tables_in(self._to) if self._has_entries(name))}
        gone = sorted(name for name in there - {*versions} if self._is_copied(name))
        if not gone:
            return
        raise WarehouseError(
            path=self._source.root,
            reason=f"it no longer has {', '.join(gone)}, which the copy in {self._to} has: nothing"
            " was copied over, and nothing is removed from the copy",
            remedy="Find out what removed them. Bring each of these folders back from the copy, or"
            " restore from the copy as it is (--warehouse, --notes-in FOLDER). If they were removed"
            " on purpose, copy to a new place and keep this one.",
        )

    def _has_entries(self, name: str) -> bool:
        return any(COMMIT.fullmatch(file) for file in self._log_files(self._to / name))

    def _passing(self, found: Collection["_Disagreement"], seen_at: float) -> list["_Disagreement"]:
        """Those that may be gone at the next look, as between two commits of a backup.

        What is the same for as long as that never takes is damage of the source.
        """
        self._first_seen = {one: self._first_seen.get(one, seen_at) for one in found}
        return [one for one, at in self._first_seen.items() if seen_at - at < _BETWEEN_COMMITS_S]

    def _tables(self) -> list[StorePath]:
        root = self._source.root
        mark = copy_mark(root)
        if mark is not None:
            names = list(mark.state.versions)
        else:
            with storage_failures(root):
                apps = [path for path in subfolders(root / "records")]
                stores = [s for app in subfolders(root / "ktables") for s in subfolders(app)]
            names = [*CONTROL_TABLES, *map(table_name, apps), *map(table_name, stores)]
        return [root / name for name in sorted(names, key=_place) if self._is_copied(name)]

    def _is_copied(self, name: str) -> bool:
        wanted, parts = self._mark.applications, name.split("/")
        return wanted is None or len(parts) == 1 or parts[1] in wanted

    def _opened(self, versions: Mapping[str, int]) -> dict[StorePath, Any]:
        """The tables at these versions, at which the caller reads. Raises FileNotFoundError."""
        opened: dict[StorePath, Any] = {}
        for name in versions:
            path = self._source.root / name
            try:
                table = open_delta(path, name)
            except WarehouseError:
                if f"{versions[name]:020d}.json" in self._log_files(path):
                    raise
                raise FileNotFoundError(name) from None
            if table is None:
                raise FileNotFoundError(name)
            opened[path] = table
        return opened

    def _applications(self) -> list[str]:
        """Those whose records are copied."""
        paths = self._tables()
        return [path.name for path in paths if table_name(path).startswith("records/")]

    def _disagreements(
        self, versions: Mapping[str, int], *, is_at_rest: bool
    ) -> frozenset["_Disagreement"]:
        """Where tables at these versions do not belong together, as between two commits.

        Most can be seen in a state that was never there alone (not `is_at_rest`); the rest also
        while a backup has committed its files, and not yet what it notes of them.
        """
        found: set[_Disagreement] = set()
        for application in self._applications():
            found.update(self._unmatched_records(application))
            found.update(self._unmatched_snapshots(application))
            if not is_at_rest:
                found.update(self._unmatched_points(application, versions))
        return frozenset(found)

    def _unmatched_records(self, application: str) -> Iterable["_Disagreement"]:
        """Spans whose files the records table does not have."""
        ledger, name = Ledger(self._source, application), f"records/{application}"
        spans = list(ledger.damaged(look_s=0))
        if not spans:
            return
        files: dict[tuple[object, ...], list[str]] = {}
        for row in ledger.noted_files().to_pylist():
            key = (row["window"], row["topic"], row["partition"], row["topic_id"], row["start"])
            files.setdefault(key, []).append(path_in_table(row["path"]))
        table = open_delta(self._source.root / name, name)
        active = (
            set() if table is None else {path_in_table(path) for path, _ in active_files(table)}
        )
        for span in spans:
            key = (span.window, span.topic, span.partition, span.topic_id, span.start)
            gone = [file for file in files.get(key, ()) if file not in active]
            lacking = None
            if gone:
                told = "is in the ledger, and is no part of the table"
                about = (span.window, span.topic, span.partition)
                lacking = LackingFile(name, gone[0], told, *about)
            yield _Disagreement(f"{name}, {span}", tuple(gone), lacking)

    def _unmatched_snapshots(self, application: str) -> Iterable["_Disagreement"]:
        """Snapshots whose files their table does not have."""
        active: dict[str, set[str]] = {}
        for snapshot in SnapshotsTable(self._source).of(application):
            name = f"ktables/{application}/{snapshot.store}"
            if name not in active:
                table = open_delta(self._source.root / name, name)
                files = [] if table is None else active_files(table)
                active[name] = {path_in_table(path) for path, _ in files}
            gone = [
                f for one in snapshot.written if (f := path_in_table(one.path)) not in active[name]
            ]
            if gone:
                told = "is in ktable_snapshots, and is no part of the table"
                about = (snapshot.window.key, snapshot.topic)
                lacking = LackingFile(name, gone[0], told, *about)
                text = f"{name}, window {snapshot.window.key}"
                yield _Disagreement(text, tuple(gone), lacking)

    def _unmatched_points(
        self, application: str, versions: Mapping[str, int]
    ) -> Iterable["_Disagreement"]:
        """Points that are newer than what they refer to, and those that only the ledger has."""
        known: set[str] = set()
        for point in RecoveryPointTable(self._source).versions(application):
            known.add(point.id)
            saved = versions.get("recovery_point_records", -1)
            if (point.saved_version or -1) > saved:
                yield _Disagreement(f"recovery_point_records, older than point {point.id}")
        for point_id in Ledger(self._source, application).closing_point_ids() - known:
            yield _Disagreement(f"recovery_points, without {point_id} of the ledger")

    def _noted(self, versions: Mapping[str, int]) -> dict[str, dict[str, _Noted]]:
        """By table, what was noted of its files."""
        noted: dict[str, dict[str, _Noted]] = {}
        for name in versions:
            kind, *rest = name.split("/")
            if kind == "records":
                noted[name] = _of_ledger(Ledger(self._source, rest[0]).noted_files())
        applications = {name.split("/")[1] for name in versions if name.startswith("ktables/")}
        for application in applications:
            for snapshot in SnapshotsTable(self._source).of(application):
                of_table = noted.setdefault(f"ktables/{application}/{snapshot.store}", {})
                for file in snapshot.written:
                    about = (snapshot.window.key, snapshot.topic)
                    of_table[path_in_table(file.path)] = _Noted(file.digest, file.size, *about)
        return noted

    def _left_out(self, noted: Mapping[str, Mapping[str, _Noted]]) -> dict[str, frozenset[str]]:
        """What no point needs: spans that begin behind its cuts, snapshots but the newest of it."""
        if self._mark.points is None:
            return {}
        needed: dict[str, set[str]] = {}
        for point in _with_restored(self._source, _loaded(self._source, self._mark.points)):
            ends: dict[tuple[str | None, int | None, str | None], int] = {
                (cut.topic, cut.partition, cut.topic_id): cut.end for cut in point.partitions
            }
            of_records = f"records/{point.application_id}"
            needed.setdefault(of_records, set()).update(
                file
                for file, about in noted.get(of_records, {}).items()
                if about.start < ends.get((about.topic, about.partition, about.topic_id), 0)
            )
            newest = {
                snapshot.store: snapshot
                for snapshot in sorted(
                    SnapshotsTable(self._source).of(point.application_id),
                    key=lambda snapshot: snapshot.taken_at_ms,
                )
                if snapshot.taken_at_ms <= point.effective_at_ms
            }
            for store, snapshot in newest.items():
                files = (path_in_table(file.path) for file in snapshot.written)
                table = f"ktables/{point.application_id}/{store}"
                needed.setdefault(table, set()).update(files)
        return {
            table: frozenset(files.keys() - needed.get(table, set()))
            for table, files in noted.items()
        }

    def _table_plan(self, path: StorePath, table: Any, staged: Path) -> _TablePlan:  # noqa: ANN401
        """Raises FileNotFoundError when the log was tidied up meanwhile."""
        name = table_name(path)
        plan = _TablePlan(name, table.version(), active_files(table))
        with storage_failures(path):
            there, here = self._log_files(path), self._log_files(self._to / name)
        self._refuse_rewritten(path, there, here, table)
        plan.log = _to_fetch(there, here, plan.version)
        folder = staged / name
        folder.mkdir(parents=True)
        with ThreadPoolExecutor(_STORE_THREADS) as pool:
            list(pool.map(lambda file: _fetch(path / LOG / file, folder / file), plan.log))
        with suppress(FileNotFoundError):
            plan.hint = (path / LOG / _HINT).read_bytes()
        if not _is_readable({*plan.log, *here}, plan.version):
            raise FileNotFoundError(name)
        return plan

    def _log_files(self, table: StorePath) -> dict[str, int]:
        """Commits and checkpoints, and how many bytes they have."""
        found = _sizes(table / LOG)
        return {n: s for n, s in found.items() if COMMIT.fullmatch(n) or CHECKPOINT.fullmatch(n)}

    def _refuse_rewritten(
        self,
        path: StorePath,
        there: Mapping[str, int],
        here: Mapping[str, int],
        table: Any,  # noqa: ANN401 (a DeltaTable)
    ) -> None:
        """A log only grows: who has changed what was committed has changed the past."""
        version = table.version()
        both = sorted(n for n in there.keys() & here.keys() if COMMIT.fullmatch(n))
        both = [name for name in both if version_of(name) <= version]
        other = [name for name in both if there[name] != here[name]]
        copied = self._to / table_name(path) / LOG
        if both and not other:
            last = both[-1]
            if (path / LOG / last).read_bytes() != (copied / last).read_bytes():
                other = [last]
        newest = max((version_of(n) for n in here if COMMIT.fullmatch(n)), default=-1)
        marked = self._mark.newest
        seen = -1 if marked is None else marked.versions.get(table_name(path), -1)
        is_other_table = False
        if not both and seen >= 0:  # all entries that both had have expired in one of them
            with storage_failures(copied.parent):
                is_other_table = delta_table(copied.parent, seen).metadata().id != (
                    table.metadata().id
                )
        if other or is_other_table or (version < seen and version < newest):
            what = f"{other[0]} is another one" if other else f"it has {version}"
            raise WarehouseError(
                path=path,
                reason=f"its log is not the one that was copied ({what}; the copy in {copied} has"
                f" {newest} versions): the table was rewritten, or put back",
                remedy="Nothing was copied over. Find out who changed it; to go on all the same,"
                " copy to a new place and keep this one.",
            )

    # --- Files ------------------------------------------------------------------------------------

    def _copy_files(
        self, plan: _Plan
    ) -> tuple[dict[tuple[str, str], LackingFile], set[tuple[str, str]]]:
        """Copy what is not there; what the source could not give, and what of it was deleted."""
        lacking: dict[tuple[str, str], LackingFile] = {}
        gone: set[tuple[str, str]] = set()
        jobs: list[tuple[_TablePlan, str, int, bool]] = []
        self._there = 0
        for table in plan.tables:
            with storage_failures(self._to):
                here = _sizes(self._to / table.name)
            for path, size in table.files:
                file = path_in_table(path)
                if file in plan.left_out.get(table.name, ()):
                    continue
                found = here.get(file)
                if found == size:
                    self._there += 1
                else:
                    jobs.append((table, file, size, found is not None))
        total = sum(size for _, _, size, _ in jobs)
        if jobs:
            self._log(f"{len(jobs):,} files, {bytes_text(total)}, are to be copied.")
            Warehouse(self._to).require_space(total)
        with ThreadPoolExecutor(self._threads) as pool:
            running = {pool.submit(self._copy_one, plan, *job): job for job in jobs}
            try:
                for done in as_completed(running):
                    table, file, *_ = running[done]
                    with storage_failures(self._to):
                        problem = done.result()
                    if problem is not None:
                        key = (table.name, file)
                        lacking[key] = problem
                        if problem.problem == _MISSING:
                            gone.add(key)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return lacking, gone

    @property
    def _threads(self) -> int:
        is_store = isinstance(self._to, ObjectPath) or isinstance(self._source.root, ObjectPath)
        return _STORE_THREADS if is_store else _THREADS

    def _copy_one(
        self, plan: _Plan, table: _TablePlan, file: str, size: int, is_there: bool
    ) -> LackingFile | None:
        noted = plan.noted.get(table.name, {}).get(file)
        digest = noted.digest if noted is not None else _named_digest(table, file)
        source, target = self._source.root / table.name / file, self._to / table.name / file
        try:
            copy_file(
                source,
                target,
                size=size,
                digest=digest,
                scratch=self._to / COPYING,
                limit=self._limit,
                replaces=is_there,
            )
        except SourceFileError as error:
            about = (None, None, None)
            if noted is not None:
                about = (noted.window, noted.topic, noted.partition)
            return LackingFile(table.name, file, str(error), *about)
        with self._counting:
            self._files += 1
            self._bytes += size
        return None

    # --- What readers see -------------------------------------------------------------------------

    def _publish(self, plan: _Plan, lacking: Sequence[LackingFile]) -> int | None:
        """Put the logs, then the mark; what readers see from now on, None if that is as before."""
        control = {file.table for file in lacking if "/" not in file.table}
        if control:
            return None
        with storage_failures(self._to):
            self._require_same_mark()
            for table in plan.tables:
                for name in table.log:
                    self._put(plan.staged / table.name / name, table.name, name)
            self._put_marker()
            now_ms = time.time_ns() // 1_000_000
            mark = self._mark
            seen = None if mark.newest is None else mark.newest.versions
            if isinstance(self._to, Path) and (self._files or seen != plan.versions):
                # The names of the files, among them those that a killed run has put there.
                os.sync()
            state = CopyState(now_ms, plan.versions)
            told = tuple(f"{file.table}/{file.file}" for file in lacking)
            earlier = mark.earlier if mark.newest is None else _kept(mark.newest, mark.earlier)
            mark = replace(mark, newest=state, earlier=earlier, lacking=told)
            try:
                put_mark(self._to, mark)
            except ConditionError:
                raise WarehouseError(
                    path=self._to,
                    reason="another run of kstreams-assets copy has finished meanwhile",
                    remedy="Nothing is lost; run it again, one at a time.",
                ) from None
            for table in plan.tables:
                self._put_hint(table)
        return now_ms

    def _require_same_mark(self) -> None:
        """Another run may have finished, or have promoted the copy, while files were copied."""
        found = read_mark(self._to)
        if found is None:
            raise WarehouseError(
                path=self._to,
                reason="it was promoted meanwhile, and is a warehouse of its own",
                remedy="Nothing of it was changed. Copy to another place.",
            )

    def _put(self, staged: Path, table: str, name: str) -> None:
        """Put a file of a log there. Checkpoints hold no digest: the store's answer must do."""
        copy_file(
            staged,
            self._to / table / LOG / name,
            size=staged.stat().st_size,
            digest=None,
            scratch=self._to / COPYING,
            limit=self._limit,
            replaces=False,
        )
        with self._counting:
            self._bytes += staged.stat().st_size

    def _put_marker(self) -> None:
        marker = self._to / MARKER
        if marker.exists():
            return
        try:
            text = (self._source.root / MARKER).read_text(encoding="utf-8")
        except FileNotFoundError:
            return  # of a release that made none
        put_text(marker, text)

    def _put_hint(self, table: _TablePlan) -> None:
        """Where readers begin: only once the mark says that they may."""
        if table.hint is None:
            return
        hint = self._to / table.name / LOG / _HINT
        version = json.loads(table.hint).get("version", 0)
        names = self._log_files(self._to / table.name)
        is_there = any(CHECKPOINT.fullmatch(n) and version_of(n) == version for n in names)
        if version > table.version or not is_there:
            return
        with suppress(FileNotFoundError):
            if hint.read_bytes() == table.hint:
                return
        put_file(hint, table.hint)


def _place(name: str) -> tuple[int, str]:
    for place, known in enumerate(_ORDER):
        if name == known or (known.endswith("/") and name.startswith(known)):
            return place, name
    return len(_ORDER), name


def _of_ledger(rows: pa.Table) -> dict[str, _Noted]:
    columns = (rows[name].to_pylist() for name in rows.column_names)
    return {
        path_in_table(path): _Noted(digest, size, window, topic, partition, topic_id, start or 0)
        for window, topic, partition, topic_id, start, path, size, digest in zip(
            *columns, strict=True
        )
    }


def _named_digest(table: _TablePlan, file: str) -> str | None:
    """Files of control tables carry the digest of their bytes in their names."""
    found = _DIGEST_IN_NAME.search(file) if table.is_control else None
    return None if found is None else found[1]


def tables_in(place: StorePath) -> list[str]:
    """Every table that has a folder in a place, by its path; `place` may be a copy.

    Raises:
        OSError: It cannot be read.
    """
    found: list[str] = []
    for one in subfolders(place):
        inside = [one]
        if one.name in ("records", "ktables"):
            inside = subfolders(one)
        elif one.name not in CONTROL_TABLES:
            continue
        if one.name == "ktables":
            inside = [store for application in inside for store in subfolders(application)]
        found += [table_name(table) for table in inside]
    return found


def active_files(table: Any) -> list[tuple[str, int]]:  # noqa: ANN401 (a DeltaTable)
    """The files of a version: path as in the log, bytes."""
    added = pa.table(table.get_add_actions(flatten=True))
    if added.num_rows == 0:
        return []
    return list(zip(added["path"].to_pylist(), added["size_bytes"].to_pylist(), strict=True))


def version_of(name: str) -> int:
    return int(name[:20])


def _to_fetch(there: Collection[str], here: Collection[str], version: int) -> list[str]:
    """The commits that the copy lacks, and the newest checkpoint, in the order to put them."""
    up_to = [name for name in there if version_of(name) <= version]
    checkpoints = [name for name in up_to if CHECKPOINT.fullmatch(name)]
    newest = max(map(version_of, checkpoints), default=-1)
    wanted = [name for name in checkpoints if version_of(name) == newest]
    wanted += sorted(name for name in up_to if COMMIT.fullmatch(name))
    return [name for name in wanted if name not in here]


def _is_readable(names: Collection[str], version: int) -> bool:
    """Whether these files of a log tell this version: a checkpoint, and every commit after it.

    The commit of the version itself is looked at by readers in any case.
    """
    checkpoints = [version_of(n) for n in names if CHECKPOINT.fullmatch(n)]
    begin = max((v for v in checkpoints if v <= version), default=-1)
    commits = {version_of(name) for name in names if COMMIT.fullmatch(name)}
    return all(wanted in commits for wanted in range(min(begin + 1, version), version + 1))


def _fetch(path: StorePath, local: Path) -> None:
    """Raises FileNotFoundError when it is gone."""
    local.write_bytes(path.read_bytes())


def _sizes(folder: StorePath) -> dict[str, int]:
    """Bytes of every file below a folder, by path; nothing where it is not there."""
    if isinstance(folder, ObjectPath):
        return {str(path.relative_to(folder)): stat.st_size for path, stat in folder.below()}
    found: dict[str, int] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where) / name
            with suppress(FileNotFoundError):
                found[path.relative_to(folder).as_posix()] = path.stat().st_size
    return found


def _kept(newest: CopyState, earlier: Sequence[CopyState]) -> tuple[CopyState, ...]:
    """States of which files are kept, one of each hour; the last one is a day old."""
    kept: list[CopyState] = []
    for state in (newest, *earlier):
        if kept and kept[-1].finished_at_ms - state.finished_at_ms < _HOUR_MS:
            continue
        kept.append(state)
        if state.finished_at_ms < newest.finished_at_ms - _DAY_MS:
            break
    return tuple(kept)


# --- One file -------------------------------------------------------------------------------------

_MISSING: Final = "is missing"


def copy_file(
    source: StorePath,
    target: StorePath,
    *,
    size: int,
    digest: str | None,
    scratch: StorePath,
    limit: Throttle | None = None,
    replaces: bool,
) -> None:
    """Copy a file and compare it: what is read with its digest, what arrived with what was read.

    Nothing is there under the target's name before it was compared. `digest` is the SHA-256 in hex
    that was noted, None where none was; `replaces`: something is there that is to be replaced;
    `scratch` a folder on the disk of the target.

    Raises:
        SourceFileError: It is missing, cannot be read, or is not the file that was written.
        OSError: It cannot be written.
    """
    if isinstance(target, ObjectPath):
        _to_store(source, target, size, digest, limit, replaces=replaces)
        return
    assert isinstance(scratch, Path)  # noqa: S101 - beside the target
    scratch.mkdir(parents=True, exist_ok=True)
    part = scratch / uuid.uuid4().hex
    try:
        read = hashlib.sha256()
        with part.open("wb") as file:
            for piece in _read(source, size, digest, limit):
                read.update(piece)
                file.write(piece)
        sync_content(part)
        if file_digest(part) != read.hexdigest():
            raise OSError(5, "what arrived is not what was written", str(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _to_store(
    source: StorePath,
    target: ObjectPath,
    size: int,
    digest: str | None,
    limit: Throttle | None,
    *,
    replaces: bool,
) -> None:
    """The store compares what arrives with the digest that each request is signed with."""
    if size <= _PIECE:
        data = b"".join(_read(source, size, digest, limit))
        if replaces:
            target.write_bytes(data)
        else:
            with suppress(ConditionError):  # it is there already
                target.create(data)
    else:
        written = NewObject(target)
        for piece in _read(source, size, digest, limit):
            written.write(piece)
        written.finish()
    there = target.stat().st_size
    if there != size:
        raise OSError(5, f"{there:,} bytes have arrived of {size:,}", str(target))


def _read(
    source: StorePath, size: int, digest: str | None, limit: Throttle | None
) -> Iterator[bytes]:
    """The file piece by piece; fails at its end when it is not the one that was written."""
    read, count = hashlib.sha256(), 0
    for piece in _pieces(source, _PIECE if limit is None else min(_PIECE, limit.most_at_once)):
        if limit is not None:
            limit.wait(len(piece), 0)
        read.update(piece)
        count += len(piece)
        yield piece
    if count != size:
        raise SourceFileError(f"has {count:,} bytes, {size:,} were written")
    if digest is not None and read.hexdigest() != digest:
        raise SourceFileError("does not match the SHA-256 that was noted when it was written")


def _pieces(source: StorePath, size: int) -> Iterator[bytes]:
    try:
        if isinstance(source, ObjectPath):
            yield from source.pieces()
            return
        with source.open("rb") as file:
            while piece := file.read(size):
                yield piece
    except FileNotFoundError:
        raise SourceFileError(_MISSING) from None
    except OSError as error:
        raise SourceFileError(f"cannot be read ({error.strerror or error})") from None
