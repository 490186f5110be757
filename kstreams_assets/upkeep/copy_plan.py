"""Plan of a copy: find a consistent state of the source, without writing anything."""

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from kstreams_assets.copy_mark import CopyMark, copy_mark, reading_at
from kstreams_assets.errors import WarehouseError
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.damage import Damage, DamageKind
from kstreams_assets.model.data_files import ExpectedFile
from kstreams_assets.model.files import digest_in, path_in_table, table_name
from kstreams_assets.model.point import RecoveryPoint, no_point
from kstreams_assets.model.tables import CONTROL_TABLES
from kstreams_assets.repository.delta_log import delta_table, entry_versions
from kstreams_assets.repository.expected_files import expected_files
from kstreams_assets.repository.known import known_of
from kstreams_assets.repository.prefixes import Prefixes
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import expected_of_snapshot
from kstreams_assets.repository.table import LogState, log_state, open_delta
from kstreams_assets.store import StorePath, relative, store_at, subfolders
from kstreams_assets.store.failures import storage_failures

LOG: Final = "_delta_log"
HINT: Final = "_last_checkpoint"
COMMIT: Final = re.compile(r"(\d{20})\.json")
CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")
COPYING: Final = ".copying"
"""Folder of the copy for incomplete files; the next copy empties it."""
STORE_THREADS: Final = 8
_LOOKS: Final = 20
"""Maximum number of listings of the logs. Two equal listings mean that no writer committed."""
_BETWEEN_COMMITS_S: Final = 5.0
"""Maximum time between the commits of a backup to the records and to the ledger. If they do not
match for longer, the source is damaged."""
_PAUSE_S: Final = 0.2
_PATIENCE_S: Final = 60.0
"""Maximum time to find a consistent state of the tables."""
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
"""A table that refers to another one comes first. Records deleted from the saved records are in the
ledger by then."""


@dataclass(slots=True)
class TablePlan:
    """A table at the copied version: its files (path as in the log, bytes) and its log."""

    name: str
    version: int
    files: list[tuple[str, int]]
    log: list[str] = field(default_factory=list)
    hint: bytes | None = None

    @property
    def is_control(self) -> bool:
        return "/" not in self.name


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file to copy; `is_there`: the copy has a different file with this name."""

    expected: ExpectedFile
    is_there: bool


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """A state of the source, and the files that are missing in the copy.

    `staged` is a local folder with the logs of the tables, for the run that planned it. `there`
    files are already in the copy. `damaged` files are recorded in the source but in none of its
    tables.
    """

    tables: tuple[TablePlan, ...]
    missing: tuple[MissingFile, ...]
    there: int
    staged: Path
    damaged: tuple[Damage, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of the files to copy (bytes)."""
        return sum(file.expected.size for file in self.missing)

    @property
    def versions(self) -> dict[str, int]:
        """The copied version of each table."""
        return {table.name: table.version for table in self.tables}


@dataclass(frozen=True, slots=True)
class _Disagreement:
    """Two inconsistent tables; `damage` describes the file that a copy of them would miss."""

    what: str
    files: tuple[str, ...] = ()
    damage: Damage | None = None

    def __str__(self) -> str:
        return self.what


class CopyPlanner:
    """Plans a copy, several times if files of the source are deleted meanwhile."""

    def __init__(self, source: Warehouse, to: StorePath, mark: CopyMark) -> None:
        self._source, self._to, self._mark = Warehouse(source.root), to, mark
        self._first_seen: dict[_Disagreement, float] = {}

    def plan(self, staged: Path) -> CopyPlan:
        """Find a consistent state of the tables and copy their logs to a folder below `staged`.

        Raises:
            WarehouseError: No consistent state was found for a minute, or the source lost a table
                or rewrote a log.
        """
        deadline = time.monotonic() + _PATIENCE_S
        attempts, problem = 0, "its logs change faster than they can be read"
        while attempts == 0 or time.monotonic() < deadline:
            attempts += 1
            seen_at = time.monotonic()
            versions, is_quiescent = self._versions()
            self._refuse_vanished(versions)
            with reading_at(self._source.root, versions):
                found = self._disagreements(versions, is_quiescent=is_quiescent)
                passing = self._passing(found, seen_at)
                if passing:
                    problem = f"its tables were inconsistent in {attempts} attempts: {passing[0]}"
                    time.sleep(_PAUSE_S)
                    continue
                try:
                    opened = self._opened(versions)
                    expected = self._expected(versions)
                    excluded = self._excluded(expected)
                    tables = [
                        self._table_plan(path, table, staged / str(attempts))
                        for path, table in opened.items()
                    ]
                except FileNotFoundError:
                    continue  # entries of the log expired in the source
            missing, there = self._missing(tables, expected, excluded)
            return CopyPlan(
                tables=tuple(tables),
                missing=tuple(missing),
                there=there,
                staged=staged / str(attempts),
                damaged=tuple(one.damage for one in found if one.damage is not None),
            )
        raise WarehouseError(
            path=self._source.root,
            reason=f"{problem}. Nothing was copied",
            remedy="Run the copy again.",
        )

    def _versions(self) -> tuple[dict[str, int], bool]:
        """Return the newest version of each table, and whether no writer committed meanwhile.

        Only listings of the logs are compared, because opening all tables takes long. If writers
        keep committing, the tables are listed in the order in which they refer to each other.
        """
        paths = self._tables()
        with ThreadPoolExecutor(STORE_THREADS) as pool:
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
            elif open_delta(path, name) is not None:  # raises for files without a log
                raise WarehouseError(
                    path=path,
                    reason="its log (_delta_log) has no entry",
                    remedy="Restore the table from the copy. Nothing was copied.",
                )
        return versions

    def _refuse_vanished(self, versions: Collection[str]) -> None:
        """Raise if the source lost a table: no command removes tables."""
        seen = () if self._mark.newest is None else self._mark.newest.versions
        with storage_failures(self._to):
            there = {*seen, *(name for name in tables_in(self._to) if self._has_entries(name))}
        gone = sorted(name for name in there - {*versions} if self._is_copied(name))
        if not gone:
            return
        raise WarehouseError(
            path=self._source.root,
            reason=f"it no longer has {', '.join(gone)}, but the copy in {self._to} does."
            " Nothing was copied, and the copy was not changed",
            remedy="Find out what removed them. Restore each of these folders from the copy, or"
            " restore the application from the copy (--warehouse, --state-in FOLDER). If they were"
            " removed on purpose, copy to a new place and keep this copy.",
        )

    def _has_entries(self, name: str) -> bool:
        return any(COMMIT.fullmatch(file) for file in log_files(self._to / name))

    def _passing(self, found: Collection["_Disagreement"], seen_at: float) -> list["_Disagreement"]:
        """Return disagreements that may be temporary, as between two commits of a backup.

        A disagreement that lasts longer than a backup between two commits is damage.
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
        applications, parts = self._mark.applications, name.split("/")
        return applications is None or len(parts) == 1 or parts[1] in applications

    def _opened(self, versions: Mapping[str, int]) -> dict[StorePath, Any]:
        """Open the tables at these versions; raise FileNotFoundError if a log has expired."""
        opened: dict[StorePath, Any] = {}
        for name in versions:
            path = self._source.root / name
            try:
                table = open_delta(path, name, known=known_of(self._source))
            except WarehouseError:
                if f"{versions[name]:020d}.json" in log_files(path):
                    raise
                raise FileNotFoundError(name) from None
            if table is None:
                raise FileNotFoundError(name)
            opened[path] = table
        return opened

    def _applications(self) -> list[str]:
        """Return the applications whose records are copied."""
        paths = self._tables()
        return [path.name for path in paths if table_name(path).startswith("records/")]

    def _disagreements(
        self, versions: Mapping[str, int], *, is_quiescent: bool
    ) -> frozenset["_Disagreement"]:
        """Return the inconsistencies between tables at these versions.

        Records and snapshots are checked in any case: a backup may have committed its files but not
        yet its ledger rows. Points are checked only if writers committed meanwhile.
        """
        found: set[_Disagreement] = set()
        for application in self._applications():
            found.update(self._unmatched_records(application))
            found.update(self._unmatched_snapshots(application))
            if not is_quiescent:
                found.update(self._unmatched_points(application, versions))
        return frozenset(found)

    def _unmatched_records(self, application: str) -> Iterable["_Disagreement"]:
        """Yield spans whose files are missing in the records table."""
        ledger, name = Repository.of(self._source, application).ledger, f"records/{application}"
        spans = list(ledger.damaged(inspect_timeout_s=0))
        if not spans:
            return
        files: dict[tuple[object, ...], list[ExpectedFile]] = {}
        for file in expected_files(self._source, name):
            files.setdefault(file.span, []).append(file)
        table = open_delta(self._source.root / name, name, known=known_of(self._source))
        active = (
            set() if table is None else {path_in_table(path) for path, _ in active_files(table)}
        )
        for span in spans:
            gone = [file for file in files.get(span.span, ()) if file.path not in active]
            problem = "is in the ledger, but not in the table"
            damage = gone[0].damage(problem) if gone else None
            yield _Disagreement(f"{name}, {span}", tuple(file.path for file in gone), damage)

    def _unmatched_snapshots(self, application: str) -> Iterable["_Disagreement"]:
        """Yield snapshots whose files are missing in their table."""
        active: dict[str, set[str]] = {}
        for snapshot in Repository.of(self._source, application).snapshots.of():
            name = f"ktables/{application}/{snapshot.store}"
            if name not in active:
                table = open_delta(self._source.root / name, name, known=known_of(self._source))
                files = [] if table is None else active_files(table)
                active[name] = {path_in_table(path) for path, _ in files}
            files = expected_of_snapshot(self._source.root / name, snapshot)
            gone = [file for file in files if file.path not in active[name]]
            if gone:
                damage = gone[0].damage("is in ktable_snapshots, but not in the table")
                text = f"{name}, window {snapshot.window.key}"
                yield _Disagreement(text, tuple(file.path for file in gone), damage)

    def _unmatched_points(
        self, application: str, versions: Mapping[str, int]
    ) -> Iterable["_Disagreement"]:
        """Yield points newer than tables to which they refer, and points only in the ledger."""
        known: set[str] = set()
        repo = Repository.of(self._source, application)
        for point in repo.points.versions():
            known.add(point.id)
            saved = versions.get("recovery_point_records", -1)
            if (point.saved_version or -1) > saved:
                yield _Disagreement(f"recovery_point_records, older than point {point.id}")
        for point_id in repo.ledger.closing_point_ids() - known:
            yield _Disagreement(f"recovery_points, without {point_id} of the ledger")

    def _expected(self, versions: Mapping[str, int]) -> dict[str, dict[str, ExpectedFile]]:
        """Return the files that the source has recorded, by table and path."""
        expected = {name: expected_files(self._source, name) for name in versions}
        return {name: {file.path: file for file in files} for name, files in expected.items()}

    def _excluded(
        self, expected: Mapping[str, Mapping[str, ExpectedFile]]
    ) -> dict[str, frozenset[str]]:
        """Return files that the selected points do not need.

        A point needs the spans that start before its cuts, and the newest snapshot of each store.
        """
        if self._mark.points is None:
            return {}
        needed: dict[str, set[str]] = {}
        for point in _with_restored(self._source, loaded_points(self._source, self._mark.points)):
            ends: dict[tuple[str | None, int | None, str | None], int] = {
                (cut.topic, cut.partition, cut.topic_id): cut.end for cut in point.partitions
            }
            of_records = f"records/{point.application_id}"
            needed.setdefault(of_records, set()).update(
                file
                for file, about in expected.get(of_records, {}).items()
                if (about.start or 0) < ends.get((about.topic, about.partition, about.topic_id), 0)
            )
            newest = {
                snapshot.store: snapshot
                for snapshot in sorted(
                    Repository.of(self._source, point.application_id).snapshots.of(),
                    key=lambda snapshot: snapshot.taken_at_ms,
                )
                if snapshot.taken_at_ms <= point.effective_at_ms
            }
            for store, snapshot in newest.items():
                table = f"ktables/{point.application_id}/{store}"
                files = expected_of_snapshot(self._source.root / table, snapshot)
                needed.setdefault(table, set()).update(file.path for file in files)
        return {
            table: frozenset(files.keys() - needed.get(table, set()))
            for table, files in expected.items()
        }

    def _table_plan(self, path: StorePath, table: Any, staged: Path) -> TablePlan:  # noqa: ANN401
        """Plan one table; raise FileNotFoundError if entries of its log expired meanwhile."""
        name = table_name(path)
        plan = TablePlan(name, table.version(), active_files(table))
        with storage_failures(path):
            there, here = log_files(path), log_files(self._to / name)
        self._refuse_rewritten(path, there, here, table)
        plan.log = _to_fetch(there, here, plan.version)
        folder = staged / name
        folder.mkdir(parents=True)
        with ThreadPoolExecutor(STORE_THREADS) as pool:
            list(pool.map(lambda file: _fetch(path / LOG / file, folder / file), plan.log))
        with suppress(FileNotFoundError):
            plan.hint = (path / LOG / HINT).read_bytes()
        if not _is_readable({*plan.log, *here}, plan.version):
            raise FileNotFoundError(name)
        return plan

    def _refuse_rewritten(
        self,
        path: StorePath,
        there: Mapping[str, int],
        here: Mapping[str, int],
        table: Any,  # noqa: ANN401 (a DeltaTable)
    ) -> None:
        """Raise if committed entries changed: a log only grows."""
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
        if not both and seen >= 0:  # all common entries have expired in one of them
            with storage_failures(copied.parent):
                is_other_table = delta_table(copied.parent, seen).metadata().id != (
                    table.metadata().id
                )
        if other or is_other_table or (version < seen and version < newest):
            what = f"{other[0]} differs" if other else f"it has version {version}"
            raise WarehouseError(
                path=path,
                reason=f"its log differs from the copied log ({what}; the copy in {copied} has"
                f" version {newest}): the table was rewritten or replaced by an older one",
                remedy="Nothing was copied. Find out what changed the table. To continue anyway,"
                " copy to a new place and keep this copy.",
            )

    def _missing(
        self,
        tables: Iterable[TablePlan],
        expected: Mapping[str, Mapping[str, ExpectedFile]],
        excluded: Mapping[str, frozenset[str]],
    ) -> tuple[list[MissingFile], int]:
        """Return the files that are missing in the copy, and the number of existing ones."""
        missing: list[MissingFile] = []
        there = 0
        for table in tables:
            with storage_failures(self._to):
                here = _sizes(self._to / table.name)
            for path, size in table.files:
                file = path_in_table(path)
                if file in excluded.get(table.name, ()):
                    continue
                found = here.get(file)
                if found == size:
                    there += 1
                    continue
                source = expected.get(table.name, {}).get(file) or self._of_log(table, file, size)
                missing.append(MissingFile(source, found is not None))
        return missing, there

    def _of_log(self, table: TablePlan, file: str, size: int) -> ExpectedFile:
        """Describe a file that only a log lists; names of control table files contain a digest."""
        digest = digest_in(file) if table.is_control else None
        kind = DamageKind.TABLE if table.is_control else DamageKind.FILE
        return ExpectedFile(self._source.root / table.name, file, size, digest, kind=kind)


def loaded_points(source: Warehouse, ids: Collection[str]) -> list[RecoveryPoint]:
    """Load the points with these ids, of any application."""
    with storage_failures(source.root):
        applications = [path.name for path in subfolders(source.root / "records")]
    found = [point for app in applications for point in Repository.of(source, app).points.load(ids)]
    missing = {*ids} - {point.id for point in found}
    if missing:
        raise no_point(", ".join(applications), sorted(missing)[0])
    return found


def _with_restored(source: Warehouse, points: Sequence[RecoveryPoint]) -> list[RecoveryPoint]:
    """Add the points from which the logs were restored: they contain the first records."""
    found: dict[str, RecoveryPoint] = {}
    for point in points:
        prefixes = Prefixes(Repository.of(source, point.application_id))
        found |= {one.id: one for one in (point, *prefixes.restored_points(point))}
    return list(found.values())


def _place(name: str) -> tuple[int, str]:
    for place, known in enumerate(_ORDER):
        if name == known or (known.endswith("/") and name.startswith(known)):
            return place, name
    return len(_ORDER), name


def tables_in(place: StorePath) -> list[str]:
    """Return the paths of all tables with a folder in a warehouse or copy.

    Raises:
        OSError: The place cannot be read.
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
    """Return the files of a version: path as in the log, size (bytes)."""
    added = pa.table(table.get_add_actions(flatten=True))
    if added.num_rows == 0:
        return []
    return list(zip(added["path"].to_pylist(), added["size_bytes"].to_pylist(), strict=True))


def version_of(name: str) -> int:
    return int(name[:20])


def _to_fetch(there: Collection[str], here: Collection[str], version: int) -> list[str]:
    """Return the newest checkpoint and the commits missing in the copy, in the order to copy."""
    up_to = [name for name in there if version_of(name) <= version]
    checkpoints = [name for name in up_to if CHECKPOINT.fullmatch(name)]
    newest = max(map(version_of, checkpoints), default=-1)
    needed = [name for name in checkpoints if version_of(name) == newest]
    needed += sorted(name for name in up_to if COMMIT.fullmatch(name))
    return [name for name in needed if name not in here]


def _is_readable(names: Collection[str], version: int) -> bool:
    """Whether these files are enough to read a version: a checkpoint and all commits after it.

    Readers need the commit of the version itself in any case.
    """
    checkpoints = [version_of(n) for n in names if CHECKPOINT.fullmatch(n)]
    start = max((v for v in checkpoints if v <= version), default=-1)
    commits = {version_of(name) for name in names if COMMIT.fullmatch(name)}
    return all(number in commits for number in range(min(start + 1, version), version + 1))


def _fetch(path: StorePath, local: Path) -> None:
    """Copy a file to this machine; raise FileNotFoundError if it is missing."""
    local.write_bytes(path.read_bytes())


def log_files(table: StorePath) -> dict[str, int]:
    """Return commits and checkpoints of a table with their sizes (bytes)."""
    found = _sizes(table / LOG)
    return {n: s for n, s in found.items() if COMMIT.fullmatch(n) or CHECKPOINT.fullmatch(n)}


def _sizes(folder: StorePath) -> dict[str, int]:
    """Return the size (bytes) of all files below a folder, by path; empty if it is missing."""
    return {str(relative(path, folder)): size for path, size, _ in store_at(folder).files()}
