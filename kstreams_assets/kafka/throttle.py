"""Keeps what is fetched from or produced to a cluster below a number of bytes per second.

All tasks of a job pay into one account, a file that they lock for a moment: so the rate holds
however many of them run, and whenever they end.
"""

import atexit
import fcntl
import os
import shutil
import struct
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FREE_AT: Final = struct.Struct("d")
_CREDIT_S: Final = 1.0
"""So much of the time in which nothing was moved may be made up for."""
_SHARE_S: Final = 0.25
_LEAST_BYTES: Final = 65_536
_elsewhere: dict[str, float] = {}
"""The accounts of this process where it has no folder with the others: on another machine."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """Limits in bytes per second, of all brokers together and of each; goes into pickled tasks.

    Tasks of one machine share the accounts in `folder`. One on another machine, which does not see
    the folder, has a `tasks`-th of the limits for itself.
    """

    folder: str
    bytes_per_s: int | None
    broker_bytes_per_s: int | None
    tasks: int

    @property
    def most_at_once(self) -> int:
        """How many bytes may move between two waits, so that the rate is even."""
        limits = [limit for limit in (self.bytes_per_s, self.broker_bytes_per_s) if limit]
        return max(_LEAST_BYTES, round(min(limits) * _SHARE_S))

    def wait(self, size: int, node: int) -> None:
        """Account for bytes that go to or came from a broker; returns when the next ones may."""
        until = 0.0
        if self.bytes_per_s:
            until = self._paid("all", size / self.bytes_per_s)
        if self.broker_bytes_per_s:
            until = max(until, self._paid(f"broker-{node}", size / self.broker_bytes_per_s))
        time.sleep(max(0.0, until - time.monotonic()))

    def _paid(self, account: str, takes_s: float) -> float:
        """When what was accounted for so far has had its time."""
        path = f"{self.folder}/{account}"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            now = time.monotonic()
            _elsewhere[path] = _free_at(_elsewhere.get(path), now) + takes_s * self.tasks
            return _elsewhere[path]
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            said = os.pread(file, _FREE_AT.size, 0)
            # The clock of the machine, the same in all its processes.
            before = _FREE_AT.unpack(said)[0] if len(said) == _FREE_AT.size else None
            free_at = _free_at(before, time.monotonic()) + takes_s
            os.pwrite(file, _FREE_AT.pack(free_at), 0)
        finally:
            os.close(file)
        return free_at


def _free_at(before: float | None, now: float) -> float:
    return now if before is None else max(before, now - _CREDIT_S)


_throttles: dict[tuple[str, int | None, int | None], Throttle] = {}
_making = threading.Lock()


def throttle(
    name: str, bytes_per_s: int | None, broker_bytes_per_s: int | None, *, tasks: int | None
) -> Throttle | None:
    """The throttle of this process under a name, None without a limit.

    All that runs in the process under the same name shares it: a follower's increments and the
    windows that it closes beside them.
    """
    if bytes_per_s is None and broker_bytes_per_s is None:
        return None
    with _making:
        key = (name, bytes_per_s, broker_bytes_per_s)
        if key not in _throttles:
            folder = Path(tempfile.mkdtemp(prefix="kstreams-assets-throttle-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            _throttles[key] = Throttle(str(folder), bytes_per_s, broker_bytes_per_s, tasks or 1)
        return _throttles[key]
