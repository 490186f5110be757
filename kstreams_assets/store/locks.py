"""Exclusive access: a lock of a file, a lease in an object store.

In a folder the kernel's file lock is used, so a lock ends with its process, even after SIGKILL. An
object store has no such lock. There a holder renews its lease, and a waiting process takes it over
if it has not changed for its whole duration, measured by the waiting process: clocks of different
machines are not compared. Each holder has an epoch, higher than all earlier ones, which its commits
contain. Commits of a holder that has lost its lease are refused.
"""

import fcntl
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeVar

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.home import NoHomeError, user_cache
from kstreams_assets.private import keep_private, private_folder
from kstreams_assets.store.access import RENEWALS
from kstreams_assets.store.object_path import ConditionError, ObjectPath

_POLL_S: Final = 0.2


_AGAIN_S: Final = 1.0


_SAFE: Final = 0.75
"""The part of a lease's duration after which its holder considers it lost."""


class WarehouseLockedError(KStreamsAssetsError):
    """Another process holds the lock."""

    def __init__(self, *, path: Path | ObjectPath, holder: str, waited_s: float) -> None:
        super().__init__(
            f"{path} is held by {holder} (waited {waited_s:g} s).",
            remedy="Wait until that run has ended, or stop it; the lock ends with its process.",
        )
        self.path = path
        self.holder = holder
        self.waited_s = waited_s


class LeaseLostError(KStreamsAssetsError):
    """This process no longer holds its lock; it wrote nothing more."""

    def __init__(self, *, path: Path | ObjectPath, reason: str, what: str = "lease") -> None:
        super().__init__(
            f"The {what} of {path} is lost: {reason}.",
            remedy="Committed data is kept. Run the same command again: it continues there.",
        )


class LockHandle(Protocol):
    """A lock while it is held."""

    tasks: Path
    """A file that tasks of the holder lock, shared, while they write. They may outlive a killed
    holder by some seconds, and the next holder on this machine waits for them."""
    epoch: int
    """Higher than that of each earlier holder."""
    is_taken_over: bool
    """Whether the previous holder did not release it."""

    @property
    def is_lost(self) -> bool:
        """Whether another process has or had it in the meantime; this is final."""
        ...

    def require_held(self) -> None:
        """Raise LeaseLostError unless the lock is still held.

        A lease that was not renewed in time is held again after a renewal, if no other process had
        it.
        """
        ...

    def raise_epoch(self, above: int) -> None:
        """Get a higher epoch than a holder that only commits mention (in a copied warehouse)."""
        ...

    def note_writer(self, pid: int | None) -> None:
        """Record a JVM that the holder has started.

        It may briefly outlive its killed owner; the next holder waits for its end.
        """
        ...


@contextmanager
def file_lock(path: Path, purpose: str, wait_s: float, *, is_durable: bool) -> Iterator["FileLock"]:
    """Hold the lock of this file. Raises WarehouseLockedError, OSError."""
    keep_private()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        deadline = time.monotonic() + wait_s
        _await(lambda: try_to_lock(file), lambda: _holder(_facts(path)), path, deadline, wait_s)
        tasks = path.with_suffix(".tasks")
        facts = _facts(path)
        _await_orphan(path, facts, deadline, wait_s)
        _await_tasks(path, tasks, deadline, wait_s)
        handle = FileLock(file, purpose, tasks, _epoch_of(facts) + 1, is_durable=is_durable)
        handle.note_writer(None)
        handle.is_first = facts is None
        try:
            yield handle
        finally:
            if handle.writer_pid is not None:
                handle.note_writer(None)


def _epoch_of(facts: Mapping[str, Any] | None) -> int:
    epoch = (facts or {}).get("epoch")
    return epoch if isinstance(epoch, int) else 0


class FileLock:
    """A file that the kernel keeps locked."""

    is_taken_over = False  # the kernel has ended the previous holder
    is_lost = False

    def __init__(
        self, file: IO[str], purpose: str, tasks: Path, epoch: int, *, is_durable: bool
    ) -> None:
        self._file, self._purpose, self.tasks, self.epoch = file, purpose, tasks, epoch
        self._is_durable = is_durable
        self.writer_pid: int | None = None
        self.is_first = False

    def require_held(self) -> None:
        """Always true while the process lives."""

    def raise_epoch(self, above: int) -> None:
        if above >= self.epoch:
            self.epoch = above + 1
            self.note_writer(self.writer_pid)

    def note_writer(self, pid: int | None) -> None:
        self.writer_pid = pid
        facts = {**_who(self._purpose), "epoch": self.epoch, "writer_pid": pid}
        self._file.seek(0)
        self._file.truncate(0)
        self._file.write(json.dumps(facts))
        self._file.flush()
        if self._is_durable:
            os.fsync(self._file.fileno())


def _who(purpose: str) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "purpose": purpose,
        "since": datetime.now(tz=UTC).isoformat(timespec="seconds"),
    }


def try_to_lock(file: IO[Any], how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file in the kernel; false if another process holds it."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def locked(path: Path, how: int = fcntl.LOCK_EX) -> IO[bytes] | None:
    """The file, locked until it is closed; None if another process holds it."""
    file = path.open("ab")
    if try_to_lock(file, how):
        return file
    file.close()
    return None


def _await(
    is_free: Callable[[], bool],
    holder: Callable[[], str],
    path: Path | ObjectPath,
    deadline: float,
    wait_s: float,
) -> None:
    """Wait until a lock is free. Raises WarehouseLockedError, which names its holder."""
    while not is_free():
        if time.monotonic() >= deadline:
            raise WarehouseLockedError(path=path, holder=holder(), waited_s=wait_s)
        time.sleep(_POLL_S)


def _facts(path: Path) -> dict[str, Any] | None:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def _await_orphan(
    path: Path | ObjectPath, facts: Mapping[str, Any] | None, deadline: float, wait_s: float
) -> None:
    """Wait until the writer of a killed holder has ended."""
    pid = (facts or {}).get("writer_pid")
    if facts is None or pid is None or facts.get("host") != socket.gethostname():
        return
    holder = f"{_holder(facts)}, whose JVM {pid} still runs"
    _await(lambda: not _is_alive(pid), lambda: holder, path, deadline, wait_s)


def _await_tasks(path: Path | ObjectPath, tasks: Path, deadline: float, wait_s: float) -> None:
    """Wait until the tasks of a killed holder have ended."""
    if tasks.exists():
        holder = "tasks of a run that was killed"
        with tasks.open("ab") as file:
            _await(lambda: try_to_lock(file), lambda: holder, path, deadline, wait_s)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _is_java(pid)


def _is_java(pid: int) -> bool:
    """Whether the process is (still) a JVM; without /proc, true is assumed."""
    if not Path("/proc/self/stat").exists():
        return True
    process = _process(pid)
    return process is not None and process[0] == "java" and process[1] != "Z"


def _process(pid: int) -> tuple[str, str, str] | None:
    """Name, state and start time (ticks since boot) of a process; None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    rest = text.rpartition(")")[2].split()
    return name, rest[0], rest[19]


def _holder(facts: Mapping[str, Any] | None) -> str:
    try:
        assert facts is not None  # noqa: S101 (raised below, caught here)
        return f"process {facts['pid']} on {facts['host']} ({facts['purpose']}, {facts['since']})"
    except (AssertionError, KeyError):
        return "another process"


_tokens: set[str] = set()
"""The leases that this process holds, or is about to take."""


class _Lease:
    """An object that its holder renews; a thread makes the renewals."""

    def __init__(
        self, path: ObjectPath, purpose: str, duration_s: float, epoch: int, tasks: Path
    ) -> None:
        self._path, self._purpose, self._duration_s = path, purpose, duration_s
        self.epoch, self.tasks, self.is_taken_over = epoch, tasks, False
        self._token, self._count = secrets.token_hex(8), 0
        self._writer_pid: int | None = None
        self._e_tag = ""
        self._renewed = time.monotonic()
        self._lost: str | None = None
        self._failure = ""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease {path.name}", daemon=True)

    def take(self, e_tag: str | None) -> bool:
        """Take the lease; return whether it was unchanged since it was inspected.

        A failed request may be executed later; its sender has then given the lease up.
        """
        is_held = False
        _tokens.add(self._token)
        try:
            is_held = self._take(e_tag)
        finally:
            if not is_held:
                _tokens.discard(self._token)
        return is_held

    def _take(self, e_tag: str | None) -> bool:
        began = time.monotonic()
        try:
            if e_tag is None:
                self._e_tag = self._path.create(self._data())
            else:
                self._e_tag = self._path.replace_version(self._data(), e_tag)
        except ConditionError:
            # The first answer may have been lost, and the client has repeated the request.
            found = _look(self._path)
            if found is None or found[0].get("token") != self._token:
                return False
            self._e_tag = found[1]
        self._renewed = began
        return True

    def begin(self) -> None:
        """Start renewing it."""
        self._thread.start()

    def _data(self) -> bytes:
        facts = {
            **_who(self._purpose),
            **_this_process(),
            "epoch": self.epoch,
            "token": self._token,
            "duration_s": self._duration_s,
            "renewals": self._count,
            "writer_pid": self._writer_pid,
        }
        return json.dumps(facts).encode()

    def _renew(self) -> None:
        while not self._ended.wait(self._next_s()):
            try:
                self._write()
            except OSError as error:
                # The next attempt follows: until another process takes it over, it can be renewed.
                self._failure = f" ({error.strerror or error})"
            except LeaseLostError:
                return

    def _next_s(self) -> float:
        """At once after a failure: when the store is back, its holder waits for this."""
        every_s = self._duration_s / RENEWALS
        return min(every_s, _AGAIN_S) if self._failure else every_s

    def _write(self) -> None:
        """Renew it. Raises LeaseLostError, OSError."""
        with self._lock:
            if self._ended.is_set():
                return
            self._count += 1
            began = time.monotonic()
            while not self._replace():
                pass
            self._renewed, self._failure = began, ""

    def _replace(self) -> bool:
        """Whether this renewal was stored; else an earlier one was, whose answer was lost."""
        try:
            self._e_tag = self._path.replace_version(self._data(), self._e_tag)
        except ConditionError:
            found = _look(self._path)
            if found is None or found[0].get("token") != self._token:
                holder = "nobody" if found is None else _holder(found[0])
                self._lost = f"{holder} has taken it over"
                raise LeaseLostError(path=self._path, reason=self._lost) from None
            self._e_tag = found[1]
            return found[0].get("renewals") == self._count
        return True

    def _left_s(self) -> float:
        return self._renewed + self._duration_s * _SAFE - time.monotonic()

    def require_held(self) -> None:
        if self._lost is not None:
            raise LeaseLostError(path=self._path, reason=self._lost)
        if self._left_s() <= 0:
            since_s = time.monotonic() - self._renewed
            reason = f"it was not renewed for {since_s:.0f} s{self._failure}"
            raise LeaseLostError(path=self._path, reason=reason)

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def raise_epoch(self, above: int) -> None:
        if above >= self.epoch:
            self.epoch = above + 1
            self._write()

    def note_writer(self, pid: int | None) -> None:
        self._writer_pid = pid
        self._write()

    def release(self) -> None:
        """Let others take it at once; the epoch stays."""
        self._ended.set()
        with self._lock:
            if self._lost is None:
                free = json.dumps({"epoch": self.epoch, "free": True}).encode()
                with suppress(OSError, ConditionError):
                    self._path.replace_version(free, self._e_tag)
            _tokens.discard(self._token)


@contextmanager
def leased(path: ObjectPath, purpose: str, wait_s: float) -> Iterator[LockHandle]:
    """Hold the lease in this object. Raises WarehouseLockedError, OSError."""
    duration_s = path.access.settings.lease_s
    deadline = time.monotonic() + wait_s
    seen: tuple[str, float] = ("", 0.0)
    renewals = -1
    tasks = _tasks_file(path)
    while True:
        found = _look(path)
        facts, e_tag = found or ({}, None)
        if e_tag is not None and e_tag != seen[0]:
            seen = (e_tag, time.monotonic())
            renewals += 1
        is_free = e_tag is None or facts.get("free") is True
        held_for_s = float(facts.get("duration_s") or duration_s)
        is_over = time.monotonic() - seen[1] >= held_for_s or _has_ended(facts)
        if is_free or is_over:
            lease = _Lease(path, purpose, duration_s, _epoch_of(facts) + 1, tasks)
            if lease.take(e_tag):
                lease.is_taken_over = not is_free
                break
            continue
        # A holder that does not renew it may have stopped: wait for the duration of its lease.
        if time.monotonic() >= deadline and (renewals > 0 or _is_here(facts)):
            raise WarehouseLockedError(path=path, holder=_holder(facts), waited_s=wait_s)
        time.sleep(_POLL_S)
    lease.begin()
    try:
        if lease.is_taken_over:
            _await_orphan(path, facts, deadline, wait_s)
        _await_tasks(path, tasks, deadline, wait_s)
        yield lease
    finally:
        lease.release()


def _look(path: ObjectPath) -> tuple[dict[str, Any], str] | None:
    """The content of a lease, and the mark of this version; None if there is none."""
    try:
        data, e_tag = path.read()
    except FileNotFoundError:
        return None
    try:
        facts = json.loads(data)
    except ValueError:
        facts = {}
    return facts if isinstance(facts, dict) else {}, e_tag


def _tasks_file(path: ObjectPath) -> Path:
    """The file of this machine that shows leftover tasks of a killed holder.

    Another user who created its folder first could lock the file and block every run.
    """
    keep_private()
    folder = private_folder(_task_folders(), purpose="the locks of tasks")
    return folder / f"{sha256(str(path).encode()).hexdigest()[:24]}.tasks"


def _task_folders() -> Iterator[Path]:
    """The folders that all processes of this user check, in this order."""
    name = f"kstreams-assets-{os.getuid()}"
    yield Path(tempfile.gettempdir()) / name
    of_session = Path("/run/user") / str(os.getuid())
    if of_session.is_dir():
        yield of_session / name
    with suppress(NoHomeError):
        yield user_cache("locks")


def _this_process() -> dict[str, Any]:
    """Facts by which another process of this machine recognises whether this one has ended."""
    process = _process(os.getpid())
    machine = _machine()
    return {} if process is None or machine is None else {"machine": machine, "began": process[2]}


def _machine() -> str | None:
    """Machine, boot and process namespace, in which a process id is unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _is_here(facts: Mapping[str, Any]) -> bool:
    """Whether the holder is a live process of this machine."""
    return facts.get("machine") == _machine() and not _has_ended(facts)


def _has_ended(facts: Mapping[str, Any]) -> bool:
    """Whether the holder is a process of this machine that has ended, so that waiting is useless.

    Also true for this process, if it has released the lease but the store missed that.
    """
    if not facts.get("machine") or facts["machine"] != _machine():
        return False
    process = _process(facts["pid"])
    if process is None or process[1] == "Z" or process[2] != facts.get("began"):
        return True
    return facts["pid"] == os.getpid() and facts.get("token") not in _tokens


P = TypeVar("P", bound=Path | ObjectPath)


def lock_root(path: P) -> P:
    """The warehouse of a lock: locks are below `.locks`."""
    while path.name != ".locks" and path != path.parent:
        path = path.parent
    return path.parent
