"""The folder of a warehouse: where tables lie, locks, digests of what it holds."""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote

from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError, WarehouseError

LAYOUT_VERSION = 1
LAYOUT_PROPERTY = "kstreams_assets.layout"

CONTROL_TABLES = (
    "recovery_points",
    "recovery_point_records",
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
)
"""The small tables, which all applications of a warehouse share."""


def keep_private() -> None:
    """From now on only the owner may read what this process writes.

    A warehouse holds production records. Folders are made with mode 0700, files with 0600; what is
    there already is not changed.
    """
    os.umask(0o077)


def open_to_others(folder: Path) -> str | None:
    """The mode of a folder that others than its owner may enter or read, such as `0755`."""
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except FileNotFoundError:
        return None
    return f"{mode:04o}" if mode & 0o077 else None


class NewerLayoutError(KStreamsAssetsError):
    """A table was written by a newer release than this one."""

    def __init__(self, *, table: str, found: str) -> None:
        super().__init__(
            f"The table {table} has layout version {found}; this release knows up to"
            f" {LAYOUT_VERSION}.",
            remedy="Install the release that wrote the table, or a newer one; nothing was changed.",
        )
        self.table = table
        self.found = found


def check_layout(table: str, properties: dict[str, str | None] | dict[str, str]) -> None:
    """Refuse a table whose layout is newer than this release.

    Raises:
        NewerLayoutError: The version is higher, or is not a number.
    """
    found = properties.get(LAYOUT_PROPERTY) or str(LAYOUT_VERSION)
    if not found.isdigit() or int(found) > LAYOUT_VERSION:
        raise NewerLayoutError(table=table, found=found)


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A folder on a local or mounted disk that holds the tables of any number of applications."""

    root: Path

    @classmethod
    def at(cls, location: str | Path) -> "Warehouse":
        """The warehouse at a path; `file:` URIs are understood.

        Raises:
            ConfigurationError: The location is an object store. One writer per table cannot be
                guaranteed there yet, and two lose each other's commits without an error.
        """
        text = str(location)
        if text.startswith("file:"):
            text = "/" + text.removeprefix("file:").lstrip("/")
        if "://" in text or text.startswith(("s3:", "s3a:", "gs:", "abfs:")):
            raise ConfigurationError(
                f"The warehouse {text!r} is not on a local or mounted disk.",
                remedy="Give a folder; object stores are not supported by this release.",
            )
        return cls(Path(text).expanduser().absolute())

    def require_space(self, least_bytes: int) -> None:
        """Refuse to begin where the disk is all but full.

        Raises:
            WarehouseError: Less than this is free.
        """
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        if free < least_bytes:
            raise WarehouseError(
                path=self.root,
                reason=f"its disk has {free // 1024**2} MiB left",
                remedy="Make room on it, then run the same command again.",
            )

    def records(self, application_id: str) -> Path:
        """The records of one application's backups."""
        return self.root / "records" / application_id

    def ktable(self, application_id: str, store: str) -> Path:
        """The snapshots of one store."""
        return self.root / "ktables" / application_id / store

    def control(self, table: str) -> Path:
        """A small table written with the deltalake package."""
        return self.root / table

    def lock_file(self, name: str) -> Path:
        """The file that a holder of the named lock keeps locked."""
        return self.root / ".locks" / f"{name}.lock"


_POLL_S = 0.2


class WarehouseLockedError(KStreamsAssetsError):
    """Another process holds the lock."""

    def __init__(self, *, path: Path, holder: str, waited_s: float) -> None:
        super().__init__(
            f"{path} is held by {holder} (waited {waited_s:g} s).",
            remedy="Wait until that run has ended, or stop it; the lock goes with its process.",
        )
        self.path = path
        self.holder = holder
        self.waited_s = waited_s


@dataclass(slots=True)
class LockHandle:
    """The lock while it is held."""

    _file: IO[str]
    _purpose: str
    tasks: Path
    """A file that tasks of the holder lock, shared, while they write: they may outlive a killed
    holder by some seconds, and the next one waits for them."""

    def note_writer(self, pid: int | None) -> None:
        """Name a JVM that the holder has started.

        It may outlive its killed owner by a moment; the next holder waits until it is gone.
        """
        facts = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "purpose": self._purpose,
            "since": datetime.now(tz=UTC).isoformat(timespec="seconds"),
            "writer_pid": pid,
        }
        self._file.seek(0)
        self._file.truncate(0)
        json.dump(facts, self._file)
        self._file.flush()


@contextmanager
def warehouse_lock(path: Path, *, purpose: str, wait_s: float) -> Iterator[LockHandle]:
    """Hold the lock for the time of the block.

    The kernel's file lock is used, so the lock ends with its process, also by SIGKILL. Delta's
    log on a local disk loses commits when two drivers write one table, hence the lock.

    Raises:
        WarehouseLockedError: Another process holds it for longer than `wait_s` seconds.
    """
    keep_private()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        deadline = time.monotonic() + wait_s
        _acquire(file.fileno(), path, deadline, wait_s)
        tasks = path.with_suffix(".tasks")
        _await_orphan(path, deadline, wait_s)
        _await_tasks(tasks, deadline, wait_s)
        handle = LockHandle(file, purpose, tasks)
        handle.note_writer(None)
        try:
            yield handle
        finally:
            handle.note_writer(None)


def _acquire(descriptor: int, path: Path, deadline: float, wait_s: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise WarehouseLockedError(
                    path=path, holder=_holder(path), waited_s=wait_s
                ) from None
            time.sleep(_POLL_S)
        else:
            return


def _await_orphan(path: Path, deadline: float, wait_s: float) -> None:
    """Wait until the writer that a killed holder left behind has ended."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return
    pid = facts.get("writer_pid")
    if pid is None or facts.get("host") != socket.gethostname():
        return
    while _is_alive(pid):
        if time.monotonic() >= deadline:
            raise WarehouseLockedError(
                path=path, holder=f"{_holder(path)}, whose JVM {pid} still runs", waited_s=wait_s
            )
        time.sleep(_POLL_S)


def _await_tasks(path: Path, deadline: float, wait_s: float) -> None:
    """Wait until the tasks that a killed holder left behind have ended."""
    if not path.exists():
        return
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = "tasks that a run which was killed has left behind"
                    raise WarehouseLockedError(path=path, holder=holder, waited_s=wait_s) from None
                time.sleep(_POLL_S)
            else:
                return


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _is_java(pid)


def _is_java(pid: int) -> bool:
    """Whether the process is (still) a JVM; where there is no /proc, it is taken for one."""
    status = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        return True
    try:
        text = status.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    name = text[text.index("(") + 1 : text.rindex(")")]
    return name == "java" and text.rpartition(")")[2].split()[0] != "Z"


def _holder(path: Path) -> str:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return f"process {facts['pid']} on {facts['host']} ({facts['purpose']}, {facts['since']})"
    except (OSError, ValueError, KeyError):
        return "another process"


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
