"""Limits of a rate: one's own in bytes per second, and the quotas of a cluster.

All tasks of a job pay into one account, a file that they lock for a moment: so the rate holds
however many of them run, and whenever they end.

Brokers answer a client beyond its quota at once, with the time for which they read nothing more
from its connection (KIP-219). Such time is neither a stall nor a failure: deadlines are measured
with `unthrottled_time`, which stands still meanwhile.
"""

import atexit
import fcntl
import logging
import os
import shutil
import struct
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CLIENT_ID: Final = "kstreams-assets"
"""What brokers call us, in their logs and quotas."""
_FREE_AT: Final = struct.Struct("d")
_CREDIT_S: Final = 1.0
"""So much of the time in which nothing was moved may be made up for."""
_SHARE_S: Final = 0.25
_LEAST_BYTES: Final = 65_536
QUOTA_PATIENCE_S: Final = 600.0
"""So long a quota may leave a reader without one record; no longer is waited at once."""
QUOTA_REASON: Final = (
    "a quota of the cluster throttled every answer; raise consumer_byte_rate or"
    " request_percentage for this user or client"
)
_TOLD_EVERY_S: Final = 60.0
_TOLD_S: Final = 1.0
"""A quota that costs less in a minute is not worth a line."""
_log = logging.getLogger(__name__)
_waited = threading.local()
_elsewhere: dict[str, float] = {}
"""The accounts of this process where it has no folder with the others: on another machine."""


def unthrottled_time() -> float:
    """Seconds of a monotonic clock that stands still while this thread waits for a limit."""
    return time.monotonic() - throttled_s()


def wait_throttled(seconds: float) -> None:
    """Wait until a limit allows more; `unthrottled_time` stands still meanwhile."""
    if seconds > 0:
        began = time.monotonic()
        time.sleep(seconds)
        count_throttled(time.monotonic() - began)


def wait_throttle_time(throttle_time_ms: int) -> None:
    """Wait until a broker reads again from a connection, after an answer with this time."""
    report_quota(throttle_time_ms)
    wait_throttled(min(throttle_time_ms / 1000, QUOTA_PATIENCE_S))


def count_throttled(seconds: float) -> None:
    """Hold the clock of this thread back, for time that was waited on its behalf."""
    set_throttled(throttled_s() + seconds)


def set_throttled(seconds: float) -> None:
    """Let the clock of this thread continue another thread's, which has waited so long."""
    _waited.seconds = seconds


def throttled_s() -> float:
    """How many seconds this thread has waited for limits so far."""
    return getattr(_waited, "seconds", 0.0)


class _QuotaReport:
    """What quotas have cost this process since the last line about it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since, self._delayed_s, self._is_logged = float("-inf"), 0.0, False

    def is_due(self, delay_s: float) -> bool:
        """Take a delay; whether a line is due, as one is in each minute that quotas cost much."""
        with self._lock:
            now = time.monotonic()
            if now - self._since >= _TOLD_EVERY_S:
                self._since, self._delayed_s, self._is_logged = now, 0.0, False
            self._delayed_s += delay_s
            if self._is_logged or self._delayed_s < _TOLD_S:
                return False
            self._is_logged = True
            return True


_report = _QuotaReport()


def report_quota(throttle_time_ms: int) -> None:
    """Log, once a minute, that brokers delay answers because of a quota."""
    if throttle_time_ms > 0 and _report.is_due(throttle_time_ms / 1000):
        _log.warning(
            "A quota of the cluster delays answers to client %s, now by %.1f s. Backups and"
            " restores wait meanwhile. To make them faster, raise consumer_byte_rate,"
            " producer_byte_rate or request_percentage for this client or its user.",
            CLIENT_ID,
            throttle_time_ms / 1000,
        )


class QuotaPatience:
    """For how long a quota has left a reader without one record."""

    def __init__(self) -> None:
        self._since: float | None = None

    def served(self) -> None:
        """There was an answer that no quota had emptied."""
        self._since = None

    def is_exhausted(self) -> bool:
        """Take an answer that a quota has emptied; whether it has been the last for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since > QUOTA_PATIENCE_S


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
        wait_throttled(until - time.monotonic())

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
