"""One process at a time: a lock in the warehouse that a killed process cannot leave behind."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.warehouse.layout import keep_private

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

    def note_writer(self, pid: int | None) -> None:
        """Name a child process that writes under the lock.

        Such a child (Spark's JVM) may outlive its killed owner by a moment; the next holder
        waits until it is gone.
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
        _await_orphan(path, deadline, wait_s)
        handle = LockHandle(file, purpose)
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
