"""Delta tables that the controlling process writes with the deltalake package."""

import errno
import json
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from kstreams_assets.copy_mark import (
    MARK,
    copy_mark,
    refuse_copy,
    root_of,
    state_for,
    table_name,
)
from kstreams_assets.errors import WarehouseError
from kstreams_assets.layout import (
    CONTROL_LAYOUT_VERSION,
    CONTROL_TABLES,
    LAYOUT_PROPERTY,
    LAYOUT_VERSION,
    Warehouse,
    check_layout,
    is_linked,
    path_in_table,
)
from kstreams_assets.lease import LeaseLostError, LockHandle, keep_private, warehouse_lock
from kstreams_assets.store import (
    ObjectPath,
    StorePath,
    arrow_place,
    below,
    local_hours,
    put_file,
    put_text,
    readable,
    require_conditions,
    storage_options,
    storage_reason,
    store_time,
)
from kstreams_assets.warehouse.chain import (
    Verified,
    active_paths,
    expired_entries,
    file_name,
    link_after,
    partition_folder,
    require_content,
    require_linked,
    stored_data_error,
)
from kstreams_assets.warehouse.delta_log import (
    CHECKPOINT_INTERVAL,
    commit_hooks,
    committing,
    delta_table,
    make_checkpoint,
    remove_torn,
)
from kstreams_assets.warehouse.rows import Rows, rows_of


@dataclass(frozen=True, slots=True)
class FileRange:
    """A file of a table: what it weighs (rows, or bytes) and the range of its growing column.

    `low` and `high` are numbers in all files of a table, or texts in all of them.
    """

    weight: int
    low: Any
    high: Any


def ranges_to_rewrite(
    files: Sequence[FileRange], touched: Callable[[FileRange], bool], *, enough: int
) -> list[tuple[Any, Any]]:
    """Ranges whose files become one each: small neighbours, and those that have rows to drop.

    A file of the weight `enough` is left alone unless it is `touched`; a range is closed when its
    files weigh that much, so that the work per range is bounded. Files whose ranges overlap go
    together. Oldest first, `[low, high]`.
    """
    runs = _runs(sorted(files, key=lambda f: f.low), touched, enough)
    return [(run.low, run.high) for run in runs if run.files > 1 or run.is_touched]


def files_less(files: Sequence[FileRange], ranges: Sequence[tuple[Any, Any]]) -> int:
    """How many files there would be less if the files of each of these ranges became one."""
    return sum(
        sum(low <= file.low and file.high <= high for file in files) - 1 for low, high in ranges
    )


@dataclass(slots=True)
class _Run:
    """Neighbouring files that become one."""

    low: Any
    high: Any
    weight: int
    is_touched: bool
    takes_more: bool
    files: int = 1

    def add(self, file: FileRange, *, is_touched: bool) -> None:
        self.high = max(self.high, file.high)
        self.weight += file.weight
        self.is_touched |= is_touched
        self.files += 1


def _runs(
    files: Sequence[FileRange], touched: Callable[[FileRange], bool], enough: int
) -> list[_Run]:
    runs: list[_Run] = []
    for file in files:
        is_touched = touched(file)
        joins = is_touched or file.weight < enough
        if runs and (file.low <= runs[-1].high or (runs[-1].takes_more and joins)):
            runs[-1].add(file, is_touched=is_touched)
            runs[-1].takes_more = joins and runs[-1].weight < enough
        else:
            takes_more = joins and file.weight < enough
            runs.append(_Run(file.low, file.high, file.weight, is_touched, takes_more))
    return runs


@dataclass(frozen=True, slots=True)
class WindowTopic:
    """A topic's part of one window: what a backup replaces as a whole."""

    window: str
    topic: str


def windows_and_topics(pairs: Iterable[WindowTopic]) -> pc.Expression:
    """A filter over the columns `window` and `topic` that holds for exactly these pairs.

    Windows with the same topics share one clause, so that hundreds of windows stay a short one.
    """
    topics_of: dict[str, set[str]] = {}
    for pair in pairs:
        topics_of.setdefault(pair.window, set()).add(pair.topic)
    windows_of: dict[tuple[str, ...], list[str]] = {}
    for window, topics in topics_of.items():
        windows_of.setdefault(tuple(sorted(topics)), []).append(window)
    clauses = [
        one_of("window", sorted(windows)) & one_of("topic", topics)
        for topics, windows in sorted(windows_of.items())
    ]
    return reduce(or_, clauses) if clauses else pc.scalar(False)


STORAGE_FAILURES: Final = (DeltaError, pa.ArrowException, OSError)
"""What may come out of a read or write below the warehouse."""

_REMEDIES: Final = (
    (
        (errno.ENOSPC, errno.EDQUOT),
        ("os error 28", "No space left", "os error 122", "quota exceeded"),
        "The disk is full: make room, then run the same command again. What was committed before"
        " stays.",
    ),
    (
        (errno.EROFS,),
        ("os error 30", "Read-only file system"),
        "The disk is mounted read-only: mount it for writing, or choose another folder"
        " (--warehouse).",
    ),
    (
        (errno.EACCES, errno.EPERM),
        ("os error 13", "os error 1)", "Permission denied", "Operation not permitted"),
        "Give this user the right to read and write there, or run as the user who owns it.",
    ),
    (
        (errno.ENOTDIR, errno.EEXIST, errno.EISDIR),
        ("os error 20", "Not a directory"),
        "A file is where a folder is needed: choose a folder as warehouse, or move the file away.",
    ),
    (
        (errno.ENOENT,),
        ("os error 2)", "No such file"),
        "A file of the table is gone. Bring it back from a copy of the warehouse, or look whether"
        " the disk is still mounted; until then what it held cannot be restored.",
    ),
    (
        (errno.EIO, errno.ESTALE, errno.ENODEV),
        ("os error 5)", "Input/output error", "Stale file handle"),
        "The disk or the mount does not work: look at the system's log, then try again.",
    ),
)
_DAMAGED: Final = (
    "The table is damaged, or was copied while it was written. Bring it back from a copy of the"
    " warehouse; do not delete what is there."
)


def open_delta(
    path: StorePath,
    name: str,
    *,
    to_write: bool = False,
    keep: bool = True,
    layout: int = CONTROL_LAYOUT_VERSION,
) -> DeltaTable | None:
    """The table at a path, None while nobody has written it.

    `name` is its name in messages, `layout` the newest that this release knows of it.

    What this process has opened before is used for as long as the table's log is the same: a list
    of its files instead of a replay of what they say. Who writes through the table asks for one of
    his own (`to_write`), so that nobody who reads sees it move. With `keep` false this process does
    not keep it.

    Raises:
        NewerLayoutError: A newer release wrote it.
        StoredDataError: It does not have the files of its newest commit (control tables).
        WarehouseError: It cannot be read, or has data files but no log.
    """
    with storage_failures(path):
        chosen = state_for(path)
    version = None if chosen is None else chosen.versions.get(table_name(path))
    if chosen is not None:
        if to_write:
            with storage_failures(path):
                refuse_copy(root_of(path))
        if version is None:
            return None
    if to_write:
        with storage_failures(path):
            remove_torn(path)
    state = log_state(path)
    with storage_failures(path):
        key = (path, version, tuple((storage_options(path) or {}).items()))
        seen = _opened.get(key)
        if keep and seen is not None and seen[0] == state and not to_write:
            return seen[1]
        table = _opened_at(path, name, layout, version) if state else None
        # A table's log is written before its first file of data.
        if table is None and any(path.rglob("*.parquet")):
            raise WarehouseError(
                path=path, reason="it has data files but no log (_delta_log)", remedy=_DAMAGED
            )
    if table is None:
        return None
    if keep and not to_write:
        _opened.pop(key, None)
        _opened[key] = (state, table)
        if len(_opened) > _MOST_OPENED:
            _opened.pop(next(iter(_opened)), None)
    return table


def _opened_at(path: StorePath, name: str, layout: int, version: int | None) -> DeltaTable | None:
    """The newest version of a table, or this one, if its files are those of its last commit."""
    for _ in range(_LOOKS):
        try:
            table = delta_table(path, version)
        except TableNotFoundError:
            return None
        configuration = table.metadata().configuration
        check_layout(name, configuration, layout)
        if not is_linked(configuration):
            return table
        try:
            require_linked(path, name, table)
        except FileNotFoundError:
            continue  # Others have committed, and tidied the log up, since it was opened.
        return table
    raise stored_data_error(name, "the newest entry of its log (_delta_log) is missing")


_LOOKS: Final = 3
_MOST_OPENED: Final = 64
_opened: dict[
    tuple[StorePath, int | None, tuple[tuple[str, str], ...]], tuple["LogState", DeltaTable]
] = {}
"""Tables as this process has opened them last, with the log as it was just before."""


def create_delta(
    path: StorePath,
    *,
    schema: pa.Schema | Schema,
    partition_by: Sequence[str],
    configuration: Mapping[str, str],
    commit_properties: CommitProperties | None = None,
) -> DeltaTable:
    """The table at a path, created unless it is there; raises what deltalake raises."""
    path.mkdir(parents=True, exist_ok=True)
    with committing(path):
        return DeltaTable.create(
            str(path),
            schema=schema,
            mode="ignore",
            partition_by=[*partition_by],
            configuration={**configuration},
            storage_options=storage_options(path),
            commit_properties=commit_properties,
            raise_if_key_not_exists=False,
        )


WRITER: Final = "kstreams-assets-writer"
"""The name under which Delta's log has the epoch of who has committed."""


@dataclass(frozen=True, slots=True)
class Writer:
    """An application, with the lock under which it is written.

    `scope` is what the lock is of, where several locks of an application write the same table.
    """

    application_id: str
    lock: LockHandle
    scope: str = ""

    @property
    def name(self) -> str:
        """Under which name tables of several applications have its epoch."""
        return f"{WRITER}/{self.scope or self.application_id}"


def require_newest(path: StorePath, table: DeltaTable, name: str, writer: LockHandle) -> None:
    """Refuse a commit of a writer that others have followed.

    Raises:
        LeaseLostError: It does not hold the lock any more.
    """
    writer.require_held()
    committed = table.transaction_version(name)
    if committed is not None and committed > writer.epoch:
        reason = f"a later writer has committed (epoch {committed}, this one has {writer.epoch})"
        raise LeaseLostError(path=path, what="right to write", reason=reason)


def fence_tables(tables: "Sequence[Table[Any]]", writer: Writer) -> None:
    """Let no earlier holder of the writer's lock commit to these tables any more.

    The lock is new; where it does not know of holders that only the tables tell of (a copied
    warehouse), it becomes later than they.

    Raises:
        LeaseLostError: A later writer has the lock.
        WarehouseError: A table cannot be read or written.
    """
    writer.lock.raise_epoch(max(table.epoch_of(writer) for table in tables))
    if writer.lock.is_taken_over:
        for table in tables:
            table.fence(writer)


LogState = tuple[tuple[str, int, int], ...]
"""Name, size and time of change (nanoseconds) of each file of a table's log."""


def log_state(path: StorePath) -> LogState:
    """What changes with each commit to a table, and with damage to its log.

    Cheaper than to open the table; empty while nobody has written it. Of a copy, what its readers
    see: all of it changes at once.

    Raises:
        WarehouseError: The log cannot be looked at.
    """
    with storage_failures(path):
        chosen = state_for(path)
    if chosen is not None:
        version = chosen.versions.get(table_name(path))
        return () if version is None else ((MARK, version, chosen.finished_at_ms),)
    with storage_failures(path):
        try:
            files = below(path / "_delta_log")
        except FileNotFoundError:
            return ()
    return tuple(sorted((name, size, changed) for name, (size, changed) in files.items()))


def newest_commit(path: StorePath) -> float | None:
    """When a table's log changed last, epoch seconds; None while nobody has written it.

    Raises:
        WarehouseError: The log cannot be looked at.
    """
    return max((changed / 1e9 for _, _, changed in log_state(path)), default=None)


@contextmanager
def storage_failures(path: StorePath) -> Iterator[None]:
    """Failures in the block as WarehouseError; `path` is the folder or table that is used."""
    try:
        yield
    except STORAGE_FAILURES as error:
        raise warehouse_error(error, path) from error


def warehouse_error(error: Exception, path: StorePath) -> WarehouseError:
    """The error that names what cannot be used, why, and what to do; `path` if it names none."""
    named: object = path
    if isinstance(error, OSError) and error.filename is not None:
        named = os.fsdecode(error.filename)
    remedy = _store_remedy(error) if isinstance(path, ObjectPath) else disk_remedy(error)
    return WarehouseError(path=named, reason=_reason(error), remedy=remedy or _DAMAGED)


def disk_remedy(error: Exception) -> str | None:
    """What to do about a failure of the disk; None for one of another kind."""
    text = str(error)
    for numbers, texts, remedy in _REMEDIES:
        if isinstance(error, OSError) and error.errno in numbers:
            return remedy
        if any(each in text for each in texts):
            return remedy
    return None


_IN_STORE: Final = (
    (
        ("secret key", "access key", "expired"),
        "Look at the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the"
        " role of this machine).",
    ),
    (
        ("no such bucket",),
        "Create the bucket, or look at the name of the warehouse and the endpoint.",
    ),
    (
        ("denies",),
        "Give these credentials the right to list the bucket, and to read, write and delete"
        " objects below the prefix.",
    ),
    (
        ("does not answer", "DNS", "timed out", "Timeout"),
        "Look whether the store runs and its endpoint is right (AWS_ENDPOINT_URL, or"
        " `object_store.endpoint` in the YAML), then run the same again.",
    ),
    (
        (os.strerror(errno.ENOENT), "not found"),
        "An object of the table is gone. Bring it back from a copy of the warehouse; until then"
        " what it held cannot be restored.",
    ),
)


def _store_remedy(error: Exception) -> str | None:
    reason = _reason(error)
    return next((remedy for texts, remedy in _IN_STORE if any(t in reason for t in texts)), None)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return error.strerror
    told = storage_reason(str(error))
    if told is not None:
        return told
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # deltalake calls a log that lacks its last commit a bug of its own.
    return lines[0].replace("This is a kernel bug, please report", "").strip().rstrip(".: ")


MARKER: Final = "kstreams-assets-warehouse.json"
"""A file in the folder: which layout it has, and when it was made (null: by an older release)."""

_FOLDERS: Final = ("records", "ktables", *CONTROL_TABLES)
_FSTAB: Final = Path("/etc/fstab")

_log = logging.getLogger(__name__)


def is_warehouse(root: StorePath) -> bool:
    """Whether the folder has a marker, or tables of a release that made none.

    Raises:
        WarehouseError: The path, or a folder above it, is a file or cannot be read.
    """
    with storage_failures(root):
        try:
            found = {entry.name for entry in root.iterdir()}
        except FileNotFoundError:
            return False
    return MARKER in found or not found.isdisjoint(_FOLDERS)


MARKER_REMEDY: Final = (
    "Bring it back from a copy of the warehouse; or delete it: the next backup makes it anew."
)


def marker_problem(root: StorePath) -> str:
    """What is wrong with the marker of a warehouse; empty where it is as it was written.

    Raises:
        NewerLayoutError: A newer release wrote it.
        OSError: It cannot be read.
    """
    try:
        said = json.loads((root / MARKER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "it is missing"
    except ValueError:  # neither UTF-8 nor JSON
        said = None
    if not isinstance(said, dict) or LAYOUT_PROPERTY not in said:
        return "it does not say what it was written with"
    check_layout("warehouse", said)
    return ""


def make_warehouse(root: StorePath, *, fstab: Path = _FSTAB) -> None:
    """Make the folder with its marker, unless it is there; a new one is logged as a warning.

    Raises:
        ConfigurationError: The object store ignores conditions.
        NewerLayoutError: A newer release made it.
        WarehouseError: It cannot be made, or belongs on a disk that is not mounted.
    """
    keep_private()
    marker = root / MARKER
    with storage_failures(root):
        refuse_copy(root)
        require_conditions(root)
        if marker.exists():
            problem = marker_problem(root)
            if problem:
                raise WarehouseError(path=marker, reason=problem, remedy=MARKER_REMEDY)
            return
        is_new = not is_warehouse(root)
        if is_new and isinstance(root, Path):
            _refuse_unmounted(root, fstab)
        root.mkdir(parents=True, exist_ok=True)
        made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) if is_new else None
        facts = {LAYOUT_PROPERTY: str(LAYOUT_VERSION), "created_at": made_at}
        put_text(marker, json.dumps(facts) + "\n")
    if is_new:
        _log.warning(
            "New warehouse: %s. Nothing is backed up there yet. If this application was backed up"
            " before, look whether the %s.",
            root,
            "right disk is mounted and the path is right"
            if isinstance(root, Path)
            else "bucket and the prefix are right",
        )


def absence(warehouse: Warehouse, application_id: str) -> WarehouseError | None:
    """What is not there although a reader expects it, as an error to be shown or raised.

    Raises:
        WarehouseError: The path is a file or cannot be read.
    """
    if not is_warehouse(warehouse.root):
        return WarehouseError(
            path=warehouse.root,
            reason="there is no warehouse, so nothing is backed up there",
            remedy="Check the path (warehouse in the YAML, --warehouse) and whether its disk is"
            " mounted."
            if isinstance(warehouse.root, Path)
            else "Check bucket and prefix (warehouse in the YAML, --warehouse).",
        )
    mark = copy_mark(warehouse.root)
    if mark is not None and application_id not in (mark.applications or (application_id,)):
        return WarehouseError(
            path=warehouse.root,
            reason=f"it is a copy of {mark.source} that holds"
            f" {', '.join(mark.applications or ())}, and not {application_id}",
            remedy="Use another copy, or add the application (kstreams-assets copy"
            f" --application {application_id}).",
        )
    # Until the first window is closed, a follower has increments alone.
    ledger = (warehouse.control(name) for name in ("windows", "increments"))
    if not any(path.exists() for path in ledger) and _holds_files(
        warehouse.records(application_id)
    ):
        return WarehouseError(
            path=warehouse.root,
            reason=f"it holds records of {application_id}, but the ledger of what is backed up"
            f" ({warehouse.control('windows').name}) is gone",
            remedy="Bring it back from a copy of the warehouse; a backup would begin anew.",
        )
    return None


def _holds_files(records: StorePath) -> bool:
    """Whether a table of records holds a file; a first backup creates the table before its files.

    A table that cannot be read counts as one that does.
    """
    try:
        table = open_delta(records, f"records/{records.name}", layout=LAYOUT_VERSION)
    except WarehouseError:
        return True
    return table is not None and pa.table(table.get_add_actions()).num_rows > 0


def require_backup(warehouse: Warehouse, application_id: str) -> None:
    """Refuse to go on where there is no warehouse or no ledger, before anything is made there.

    Raises:
        WarehouseError: See `absence`.
    """
    missing = absence(warehouse, application_id)
    if missing is not None:
        raise missing


def _refuse_unmounted(root: Path, fstab: Path) -> None:
    """An unmounted share looks like the first day, and hides what is written below it later."""
    for point in _mount_points(fstab):
        if root.is_relative_to(point) and not os.path.ismount(point):
            raise WarehouseError(
                path=root,
                reason=f"{point} is to be mounted ({fstab}), and is not",
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


Value = int | str
"""A value of the column that a table grows along."""

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")


_folded: dict[tuple[Any, ...], dict[str, Any]] = {}
"""What `Table.fold` remembers: of each file in use what was made of it."""

_verified = Verified()
"""What this process has read of files on a disk."""

_ATTEMPTS = 20
_WAIT_S = 0.05
"""Until the next attempt at most, times the number of those that failed."""
_LOCK_WAIT_S = 30.0
_RETENTION_HOURS = 1
"""How long files that are no longer part of a table stay: readers hold a version for seconds."""
_RETENTION = f"interval {_RETENTION_HOURS} hours"
_PROPERTIES = {
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.logRetentionDuration": _RETENTION,
    "delta.deletedFileRetentionDuration": _RETENTION,
}
"""Opening a table replays the log from the last checkpoint on: 7 ms instead of 30."""
_ROW_GROUP: Final = 512
_LARGE_ROW_GROUP: Final = 8192
_LONGEST: Final = 64
"""Characters of a text in the log's statistics, but for the column that a table grows along."""
_FETCHES: Final = 8
"""Files of a store that are asked for at a time."""
_FORMAT: Final = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True)
)
_RETENTION_NS = _RETENTION_HOURS * 3600 * 10**9
_FULL_BYTES = 2 * 1024**2
_FULL_BULKY_BYTES = 16 * 1024**2
"""Files of this size are not written anew to be put together with others."""
_PUT_TOGETHER_S = 5.0
"""No further range is written anew after this time: others wait for the lock for 30 s."""


def one_of(column: str, values: Iterable[str]) -> ds.Expression:
    """A filter for rows whose text column is one of the values; no row when there is none."""
    # An array without a type would be one of nulls when it is empty, which Arrow refuses.
    return pc.field(column).isin(pa.array(list(values), pa.string()))


def refuse_newer_tables(warehouse: Warehouse) -> None:
    """Look at every control table before anything is written.

    Raises:
        NewerLayoutError: A newer release wrote one of them.
    """

    def look(name: str) -> None:
        open_delta(warehouse.control(name), name)

    # A store answers each question late, and many at once.
    with ThreadPoolExecutor(len(CONTROL_TABLES)) as pool:
        list(pool.map(look, CONTROL_TABLES))


def table_version(path: StorePath) -> int:
    """The version of a table, which grows with each commit; -1 while nobody has written it.

    Of two looks, the one that saw the lower version came first: no clock tells that better.
    """
    table = open_delta(path, path.name)
    return -1 if table is None else table.version()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of an application: lowest and highest value of the column its table grows along."""

    path: str
    rows: int
    bytes: int
    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """One table below the warehouse; every application has a partition of its own in it.

    `row` is the class of its rows (see `warehouse/column.py`), with a field `application_id`.
    `grows_along` is a column without nulls whose values rise from one append to the next (a time,
    an id that sorts by time), so that files hold ranges of it and can be put together range by
    range. `statistics` are the columns by which readers skip files, `grows_along` among them.
    `bulky` tables have rows by the million, hence larger row groups and files; `narrow` ones, whose
    readers want most rows and few columns, have larger row groups alone.

    A reader opens every file of an application, so what writers add bit by bit is put together as
    it grows: when `small_files` files of an application can be spared, its small neighbours become
    one file each, under the lock that the writer holds. Rows whose `grows_along` lies further than
    `kept` behind the newest are dropped then. Files and log entries that are no longer part of the
    table stay for an hour, for readers that still use them.
    """

    path: StorePath
    row: type[R]
    grows_along: str
    statistics: tuple[str, ...] = ()
    bulky: bool = False
    narrow: bool = False
    small_files: int = 32
    kept: int | None = None

    @property
    def name(self) -> str:
        """The table's name in messages."""
        return self.path.name

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._made.schema

    @property
    def _made(self) -> Rows[R]:
        return rows_of(self.row)

    def open(self) -> DeltaTable | None:
        """The table as it stands, to be read; None while nobody has written it.

        Raises:
            NewerLayoutError: A newer release wrote it.
            WarehouseError: It cannot be read.
        """
        return open_delta(self.path, self.name)

    def ensure(self) -> None:
        """Create the table, empty, unless it exists."""
        if self.open() is None:
            with self._lock():
                self._attempted(lambda _: None)

    def version(self) -> int:
        """The version of the table (`table_version`)."""
        return table_version(self.path)

    def append(self, rows: Sequence[R], *, writer: Writer | None = None) -> None:
        """Add rows in one commit; `writer` as in `replace`."""
        self.append_table(self._made.write(rows), writer=writer)

    def append_table(self, rows: pa.Table, *, writer: Writer | None = None) -> None:
        """Add rows that are columns already, in one commit; columns as in the table's schema."""
        new: list[AddAction] = []

        def commit(table: DeltaTable) -> None:
            if not new:
                new.extend(self._new_files(rows))
            self._commit(table, new, writer=writer)

        with self._lock():
            self._attempted(commit)
            self._put_together(rows["application_id"].unique().to_pylist())

    def replace(
        self,
        rows: Sequence[R],
        *,
        application_id: str,
        where: pc.Expression,
        writer: Writer | None = None,
    ) -> None:
        """Put rows of an application in place of those that match, in one commit.

        `writer` is the application, with the lock under which the rows came about.

        Raises:
            LeaseLostError: Another writer has the lock by now; nothing was written.
        """
        new = self._made.write(rows)

        def commit(table: DeltaTable) -> None:
            found = self._parted(table, application_id, where)
            added = self._new_files(pa.concat_tables([found.others, new]))
            self._commit(table, added, found.files, writer)

        with self._lock():
            self._attempted(commit)
            self._put_together([application_id])

    def rewrite(
        self,
        application_id: str,
        low: Value,
        high: Value,
        change: Callable[[pa.Table], pa.Table],
        *,
        writer: Writer | None = None,
    ) -> None:
        """Put `change(rows)` in place of an application's rows in `[low, high]`, in one commit.

        `low` and `high` are values of the column `grows_along`; `change` gets the rows that are
        there when the commit is tried, and gives rows of the same range. Nothing that others add
        meanwhile is lost: a commit that would touch it is tried again with their rows. `writer` as
        in `replace`.
        """
        with self._lock():
            self._rewrite(application_id, low, high, change, writer)
            self._put_together({application_id})

    def _rewrite(
        self,
        application_id: str,
        low: Value,
        high: Value,
        change: Callable[[pa.Table], pa.Table],
        writer: Writer | None = None,
    ) -> None:
        column = self.grows_along
        where = (pc.field(column) >= low) & (pc.field(column) <= high)

        def commit(table: DeltaTable) -> None:
            found = self._parted(table, application_id, where)
            rows = self._of_schema(change(found.matching))
            added = self._new_files(pa.concat_tables([found.others, rows]))
            self._commit(table, added, found.files, writer)

        self._attempted(commit)

    def tidy(self) -> None:
        """Drop what has not been part of the table for an hour, from the folder and the log.

        Also what writers left behind that were killed before their commit.
        """

        if self.open() is not None:
            with self._lock():
                self._attempted(self._tidy)

    def files(self, application_id: str) -> list[StoredFile]:
        """The files of one application by their ranges of `grows_along`, lowest first."""
        table = self.open()
        return [] if table is None else self._files(table, application_id)

    def _files(self, table: DeltaTable, application_id: str) -> list[StoredFile]:
        added = pa.table(table.get_add_actions(flatten=True))
        if added.num_rows == 0:
            return []
        rows = added.filter(pc.field("partition.application_id") == application_id)
        files = [
            self._stored_file(row["path"], row["num_records"], row["size_bytes"], low, high)
            for row, low, high in zip(
                rows.select(["path", "num_records", "size_bytes"]).to_pylist(),
                *(_values(rows, f"{extreme}.{self.grows_along}") for extreme in ("min", "max")),
                strict=True,
            )
        ]
        return sorted((file for file in files if file), key=lambda f: f.low)

    def _stored_file(
        self, path: str, rows: int | None, size: int, low: Value | None, high: Value | None
    ) -> StoredFile | None:
        if rows is None or low is None or high is None:
            # Written by an earlier release, whose log says nothing of this column.
            values = self._column_of(path)
            known = [value for value in values if value is not None]
            rows, low, high = len(values), min(known, default=None), max(known, default=None)
        return None if low is None or high is None else StoredFile(path, rows, size, low, high)

    def _column_of(self, path: str) -> list[Value | None]:
        file = self.path / path_in_table(path)
        with storage_failures(file):
            rows = pq.ParquetFile(readable(file)).read(columns=[self.grows_along])
            return rows[0].to_pylist()

    def rows(self, application_id: str | None, where: ds.Expression | None = None) -> list[R]:
        """The rows of one application, of all of them for None."""
        return self._made.read(self.read(application_id=application_id, where=where))

    def rows_as(
        self,
        part: type[P],
        application_id: str,
        where: ds.Expression | None = None,
        *,
        distinct: bool = False,
    ) -> list[P]:
        """The same, of each what a class with some of their fields has (see `Rows.read_part`).

        Only these columns are read. With `distinct` equal ones come once.
        """
        names = self._made.names(part)
        found = self.read(application_id=application_id, columns=names, where=where)
        if distinct:
            found = found.group_by(names).aggregate([])
        return self._made.read_part(part, found)

    def newest_rows(self, application_id: str, count: int) -> list[R]:
        """As `read_newest`."""
        return self._made.read(self.read_newest(application_id, count))

    def read(
        self,
        *,
        application_id: str | None,
        columns: Sequence[str] | None = None,
        where: ds.Expression | None = None,
    ) -> pa.Table:
        """The rows of one application, of all of them for None, as columns."""
        table = self.open()
        if table is None:
            schema = pa.schema([self.schema.field(c) for c in columns]) if columns else self.schema
            return schema.empty_table()
        return self._rows(table, application_id, columns, where)

    def fold(
        self,
        application_id: str,
        columns: Sequence[str],
        fold: Callable[[pa.Table], T],
        *,
        where: ds.Expression | None = None,
    ) -> list[T]:
        """`fold(rows)` of each file of an application.

        Files never change, so what `fold` made of one is remembered in this process for as long as
        the file is part of the table; `fold` has to be hashable, equal ones make the same of a
        file. A call costs what was added since the one before.
        """
        table = self.open()
        if table is None:
            return []
        key = (self.path, application_id, fold, tuple(columns), str(where))
        known = _folded.get(key, {})
        with storage_failures(self.path):
            files = list(self._dataset(table, application_id).get_fragments())
            on_disk = isinstance(self.path, Path)
            whole = self._whole([f for f in files if on_disk or f.path not in known])
            new = {path: file for path, file in whole.items() if path not in known}
            found = {file.path: known[file.path] for file in files if file.path in known}
        for path, file in new.items():
            with storage_failures(self.path):
                rows = file.to_table(schema=self.schema, columns=list(columns), filter=where)
            found[path] = fold(rows)
        _folded[key] = found
        return list(found.values())

    def read_newest(self, application_id: str, count: int) -> pa.Table:
        """The rows with the `count` highest values of `grows_along` (more where values repeat).

        Few files are opened, however many rows there are.
        """
        table = self.open()
        column = self.grows_along
        if table is None or count < 1:
            return self.schema.empty_table()
        files = sorted(self._files(table, application_id), key=lambda f: f.high, reverse=True)
        if not files:
            return self.schema.empty_table()
        lowest = files[0].high
        if count > 1:
            lowest = self._nth_highest(table, application_id, files, count)
        return self._rows(table, application_id, None, pc.field(column) >= lowest)

    def _nth_highest(
        self, table: DeltaTable, application_id: str, files: Sequence[StoredFile], count: int
    ) -> Value:
        column = self.grows_along
        rows, lowest = 0, files[0].low
        for file in files:
            lowest = min(lowest, file.low)
            rows += file.rows
            if rows >= count:
                break
        where = pc.field(column) >= lowest
        values = self._rows(table, application_id, [column], where)[column]
        return values.sort("descending")[min(count, len(values)) - 1].as_py()

    def _rows(
        self,
        table: DeltaTable,
        application_id: str | None,
        columns: Sequence[str] | None,
        where: ds.Expression | None,
    ) -> pa.Table:
        with storage_failures(self.path):
            dataset = self._dataset(table, application_id)
            if not self.bulky:  # Rows of bulky tables have digests of their own.
                files = self._whole(dataset.get_fragments(filter=where))
                dataset = ds.FileSystemDataset(
                    list(files.values()), dataset.schema, dataset.format, dataset.filesystem
                )
            return dataset.to_table(columns=list(columns) if columns else None, filter=where)

    def _whole(self, files: Iterable[ds.Fragment]) -> dict[str, ds.Fragment]:
        """Files by path, once they were found to be those that were written.

        Raises:
            StoredDataError: One is not.
        """
        by_path = {file.path: file for file in files}
        if isinstance(self.path, ObjectPath):
            with ThreadPoolExecutor(_FETCHES) as pool:
                return dict(zip(by_path, pool.map(self._fetched, by_path.values()), strict=True))
        _verified.require(self.path, self.name, [*by_path])
        return by_path

    def _fetched(self, file: ds.Fragment) -> ds.Fragment:
        """What a file of a store holds: it is asked for once, to be looked at and to be read."""
        content = (self.path / file.path).read_bytes()
        require_content(self.name, file.path, content)
        # Memory of Arrow's: a thread of its pool that lets go of an object of Python while the
        # interpreter ends aborts the process (pyarrow 26: one process in four).
        copy = pa.BufferOutputStream()
        copy.write(content)
        return file.format.make_fragment(
            copy.getvalue(), partition_expression=file.partition_expression
        )

    def _parted(self, table: DeltaTable, application_id: str, where: pc.Expression) -> "_Parted":
        """The files of an application that have rows which match, and all of their rows."""
        found = _Parted([], [self.schema.empty_table()], [self.schema.empty_table()])
        is_other = ~where | where.is_null()
        dataset = self._dataset(table, application_id)
        for path, file in self._whole(dataset.get_fragments(filter=where)).items():
            if file.count_rows(filter=where):
                rows = file.to_table(schema=self.schema)
                found.add(path, rows.filter(where), rows.filter(is_other))
        return found

    def _dataset(self, table: DeltaTable, application_id: str | None) -> ds.FileSystemDataset:
        # Arrow's own file system: the bridge into deltalake's aborts at interpreter exit now and
        # then (deltalake 1.6.6 with pyarrow 26: 2 of 6 processes).
        files, place = arrow_place(self.path)
        files = pafs.SubTreeFileSystem(place, files)
        actions = pa.table(table.get_add_actions(flatten=True))
        if application_id is not None and actions.num_rows:
            actions = actions.filter(pc.field("partition.application_id") == application_id)
        fragments = [
            _FORMAT.make_fragment(
                path_in_table(action["path"]),
                files,
                self._guarantee(action),
                file_size=action["size_bytes"],
            )
            for action in actions.to_pylist()
        ]
        return ds.FileSystemDataset(fragments, self.schema, _FORMAT, files)

    def _guarantee(self, action: Mapping[str, Any]) -> pc.Expression:
        """What holds for every row of a file, as the log says.

        Not as deltalake makes it: there a file whose entry says nothing of a column, because an
        earlier release did not note it, has no row for any filter over that column.
        """
        holds = pc.field("application_id") == action["partition.application_id"]
        for name in self._noted:
            low, high = action.get(f"min.{name}"), action.get(f"max.{name}")
            if low is None or high is None:
                continue
            column = pc.field(name)
            inside = (column >= low) & (column <= high)
            holds &= inside if action[f"null_count.{name}"] == 0 else inside | column.is_null()
        return holds

    @property
    def _noted(self) -> tuple[str, ...]:
        """The columns of which the log notes the lowest and the highest value of each file."""
        return self.statistics or (self.grows_along,)

    def _put_together(self, application_ids: Iterable[str]) -> None:
        """Small files become one, if that spares enough; what was written before does not fail."""
        try:
            for application_id in application_ids:
                table = self.open()
                files = self._files(table, application_id) if table else []
                if self._rewrite_small(application_id, files):
                    self._attempted(self._tidy)
        except STORAGE_FAILURES as error:
            _log.warning("Small files of %s were not put together: %s", self.name, error)

    def _rewrite_small(self, application_id: str, files: Sequence[StoredFile]) -> bool:
        """Whether small neighbours were put together; the rest waits when that takes long."""
        if len(files) <= self.small_files:
            return False
        enough = _FULL_BULKY_BYTES if self.bulky else _FULL_BYTES
        ranges = [FileRange(file.bytes, file.low, file.high) for file in files]
        if files_less(ranges, ranges_to_rewrite(ranges, _none, enough=enough)) < self.small_files:
            return False
        newest = max(file.high for file in files)
        oldest = newest - self.kept if self.kept is not None and isinstance(newest, int) else None

        def is_outdated(file: FileRange) -> bool:
            return oldest is not None and file.low < oldest

        def change(rows: pa.Table) -> pa.Table:
            if oldest is not None:
                rows = rows.filter(pc.field(self.grows_along) >= oldest)
            return rows.sort_by(self.grows_along)

        deadline = time.monotonic() + _PUT_TOGETHER_S
        for low, high in ranges_to_rewrite(ranges, is_outdated, enough=enough):
            if time.monotonic() >= deadline:
                break
            self._rewrite(application_id, low, high, change)
        return True

    @contextmanager
    def _lock(self) -> Iterator[None]:
        make_warehouse(self.path.parent)
        if isinstance(self.path, ObjectPath):
            # Each commit is conditional; who comes second tries again with the rows of the first.
            with storage_failures(self.path):
                yield
            return
        with (
            storage_failures(self.path),
            warehouse_lock(
                self._lock_file,
                purpose=f"write to {self.name}",
                wait_s=_LOCK_WAIT_S,
                has_epoch=False,
            ),
        ):
            yield

    def _attempted(self, commit: Callable[[DeltaTable], None]) -> None:
        """Commit, under the lock."""
        for attempt in range(_ATTEMPTS):
            try:
                commit(self._to_write())
            except CommitFailedError:
                # Another writer came first, on another machine or to a store, where no lock
                # keeps others out. It is all done again, with what he left.
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(random.uniform(0, _WAIT_S * (attempt + 1)))  # noqa: S311
            else:
                return

    @property
    def _lock_file(self) -> StorePath:
        return self.path.parent / ".locks" / "tables" / f"{self.name}.lock"

    def _commit(
        self,
        table: DeltaTable,
        new: Sequence[AddAction],
        stale: Sequence[str] = (),
        writer: Writer | None = None,
    ) -> None:
        """Add files, and take others away (paths relative to the table).

        Raises:
            CommitFailedError: Somebody has committed since the table was opened.
        """
        marks = None
        if writer is not None:
            require_newest(self.path, table, writer.name, writer.lock)
            marks = [Transaction(writer.name, writer.lock.epoch)]
        elif not new and not stale:
            return
        actions = pa.table(table.get_add_actions(flatten=True))
        paths = [path_in_table(path) for path in actions["path"].to_pylist()]
        sizes = dict(zip(paths, actions["size_bytes"].to_pylist(), strict=True))
        owners = dict(zip(paths, actions["partition.application_id"].to_pylist(), strict=True))
        if any(file.path in sizes for file in new):
            return  # The attempt before has come through; what got lost is the store's answer.
        # By the clock that dates the files: both say when they may be deleted.
        now_ms = round(1000 * store_time(self.path)) if stale else 0
        removed = [
            RemoveAction(path, True, now_ms, sizes[path], {"application_id": owners[path]})
            for path in stale
        ]
        files = (sizes.keys() - set(stale)) | {file.path for file in new}
        with committing(self.path, keeps_log=True):
            table.create_write_transaction(
                [*new, *removed],
                "append",
                table.schema(),
                ["application_id"],
                commit_properties=self._linked(table.version(), files, marks),
                post_commithook_properties=commit_hooks(self.path, keeps_log=True),
            )

    def _linked(
        self, version: int, files: Iterable[str], marks: list[Transaction] | None = None
    ) -> CommitProperties:
        """Of the commit after a version, which fails when there is one already."""
        return CommitProperties(
            custom_metadata=dict(link_after(self.path, self.name, version, files)),
            max_commit_retries=0,
            app_transactions=marks,
        )

    def _new_files(self, rows: pa.Table) -> list[AddAction]:
        """Write rows, a file for each application; no commit refers to them yet."""
        rows = self._of_schema(rows)
        return [
            self._new_file(one, rows.filter(pc.field("application_id") == one))
            for one in rows["application_id"].unique().to_pylist()
        ]

    def _of_schema(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.schema.names).cast(self.schema)

    def _new_file(self, application_id: str, rows: pa.Table) -> AddAction:
        sink = pa.BufferOutputStream()
        pq.write_table(
            rows.drop_columns("application_id"),
            sink,
            row_group_size=_LARGE_ROW_GROUP if self.bulky or self.narrow else _ROW_GROUP,
            compression="zstd",
            compression_level=1,
            store_schema=False,
        )
        content = sink.getvalue().to_pybytes()
        name = file_name(content, uuid.uuid4().hex[:8])
        path = f"{partition_folder(application_id)}/{name}"
        put_file(self.path / path, content)
        now_ms = time.time_ns() // 1_000_000
        values = {"application_id": application_id}
        return AddAction(path, len(content), values, now_ms, True, json.dumps(self._stats(rows)))

    def _stats(self, rows: pa.Table) -> dict[str, Any]:
        """What the log says of a file, so that readers can pass over it."""
        lows: dict[str, Any] = {}
        highs: dict[str, Any] = {}
        nulls: dict[str, int] = {}
        for name in self._noted:
            column = rows[name]
            nulls[name] = column.null_count
            extremes = pc.min_max(column)  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
            low, high = extremes.as_py().values()
            if low is None:
                continue
            if isinstance(low, str) and name != self.grows_along:
                low = low[:_LONGEST]
                # Nothing with this beginning comes after it.
                high = high if len(high) <= _LONGEST else high[:_LONGEST] + "\U0010ffff"
            lows[name], highs[name] = low, high
        return {
            "numRecords": rows.num_rows,
            "minValues": lows,
            "maxValues": highs,
            "nullCount": nulls,
        }

    def epoch_of(self, writer: Writer) -> int:
        """The epoch of the last writer of this application's rows; 0 where none is known."""
        table = self.open()
        if table is None:
            return 0
        with storage_failures(self.path):
            return table.transaction_version(writer.name) or 0

    def fence(self, writer: Writer) -> None:
        """Refuse what earlier writers of an application still try to commit: nothing is changed.

        Raises:
            LeaseLostError: A later writer has the lock.
        """
        if self.open() is not None and self.epoch_of(writer) < writer.lock.epoch:
            with self._lock():
                self._attempted(lambda table: self._commit(table, [], (), writer))

    def _to_write(self) -> DeltaTable:
        """The table as it stands, made if it is not there, as this release writes it."""
        table = open_delta(self.path, self.name, to_write=True)
        if table is None:
            return create_delta(
                self.path,
                schema=self.schema,
                partition_by=["application_id"],
                configuration=self._properties,
                commit_properties=self._linked(-1, ()),
            )
        is_changed = False
        if self._properties.items() - table.metadata().configuration.items():
            with committing(self.path, keeps_log=True):
                table.alter.set_table_properties(
                    self._properties,
                    raise_if_not_exists=False,
                    commit_properties=self._linked(table.version(), active_paths(table)),
                    post_commithook_properties=commit_hooks(self.path, keeps_log=True),
                )
            is_changed = True
        if lacks_columns(pa.schema(table.schema()), self.schema):
            # It gets the columns that it lacks; its rows have no value in them.
            with committing(self.path, keeps_log=True):
                write_deltalake(
                    table,
                    self.schema.empty_table(),
                    mode="append",
                    schema_mode="merge",
                    commit_properties=self._linked(table.version(), active_paths(table)),
                    post_commithook_properties=commit_hooks(self.path, keeps_log=True),
                )
            is_changed = True
        return self._to_write() if is_changed else table

    @property
    def _properties(self) -> dict[str, str]:
        return _PROPERTIES | {
            LAYOUT_PROPERTY: str(CONTROL_LAYOUT_VERSION),
            "delta.dataSkippingStatsColumns": ",".join(self._noted),
        }

    def _tidy(self, table: DeltaTable) -> None:
        # Nothing but the list: deltalake's own vacuum makes commits, which are not linked.
        unused = table.vacuum(
            local_hours(self.path, _RETENTION_HOURS),
            dry_run=True,
            enforce_retention_duration=False,
            full=True,
        )
        for file in unused:
            (self.path / file).unlink(missing_ok=True)
        make_checkpoint(self.path)
        log = self.path / "_delta_log"
        entries = below(log)
        expired_ns = round(10**9 * store_time(self.path)) - _RETENTION_NS
        for name in expired_entries(entries, before=table.version()):
            if entries[name][1] < expired_ns:
                (log / name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Parted:
    """Files that have rows which match a filter, and their rows: those that match, and others."""

    files: list[str]
    _matching: list[pa.Table]
    _others: list[pa.Table]

    def add(self, path: str, matching: pa.Table, others: pa.Table) -> None:
        self.files.append(path)
        self._matching.append(matching)
        self._others.append(others)

    @property
    def matching(self) -> pa.Table:
        return pa.concat_tables(self._matching).combine_chunks()

    @property
    def others(self) -> pa.Table:
        return pa.concat_tables(self._others)


def lacks_columns(here: pa.Schema | pa.DataType, ours: pa.Schema | pa.DataType) -> bool:
    """Whether there are columns, or fields in columns, that a table does not have yet."""
    if isinstance(ours, pa.ListType | pa.LargeListType):
        return lacks_columns(here.value_type, ours.value_type)
    if not isinstance(ours, pa.Schema | pa.StructType):
        return False
    known = {field.name: field.type for field in here}
    return any(
        field.name not in known or lacks_columns(known[field.name], field.type) for field in ours
    )


def _none(_: FileRange) -> bool:
    return False


def _values(rows: pa.Table, column: str) -> list[Any]:
    return rows[column].to_pylist() if column in rows.column_names else [None] * rows.num_rows
