"""Rate limits: our own in bytes per second, and the quotas of a cluster.

All tasks of a job share one account, a file that they lock briefly. The rate therefore holds
regardless of how many of them run and when they end.

If a client exceeds its quota, brokers answer at once with the time during which they read nothing
more from its connection (KIP-219). This time is neither a stall nor a failure: deadlines use
`unthrottled_time`, which stops in the meantime.
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
"""Our client id in the brokers' logs and quotas."""
_FREE_AT: Final = struct.Struct("d")
_CREDIT_S: Final = 1.0
"""At most this much idle time may be made up for."""
_SHARE_S: Final = 0.25
_LEAST_BYTES: Final = 65_536
QUOTA_PATIENCE_S: Final = 600.0
"""A quota may block a reader for at most this time without one record; also the longest wait."""
QUOTA_REASON: Final = (
    "a quota of the cluster throttled every answer; raise consumer_byte_rate or"
    " request_percentage for this user or client"
)
_TOLD_EVERY_S: Final = 60.0
_TOLD_S: Final = 1.0
"""A quota that costs less per minute is not reported."""
_log = logging.getLogger(__name__)
_waited = threading.local()
_elsewhere: dict[str, float] = {}
"""The accounts of this process on a machine without the shared folder."""


def unthrottled_time() -> float:
    """Seconds of a monotonic clock that stops while this thread waits for a limit."""
    return time.monotonic() - throttled_s()


def wait_throttled(seconds: float) -> None:
    """Wait until a limit allows more; `unthrottled_time` stops in the meantime."""
    if seconds > 0:
        began = time.monotonic()
        time.sleep(seconds)
        count_throttled(time.monotonic() - began)


def wait_throttle_time(throttle_time_ms: int) -> None:
    """Wait until a broker reads again from a connection, after an answer with this time."""
    report_quota(throttle_time_ms)
    wait_throttled(min(throttle_time_ms / 1000, QUOTA_PATIENCE_S))


def count_throttled(seconds: float) -> None:
    """Stop the clock of this thread for time that another thread waited for it."""
    set_throttled(throttled_s() + seconds)


def set_throttled(seconds: float) -> None:
    """Continue the clock of another thread, which has waited for this time."""
    _waited.seconds = seconds


def throttled_s() -> float:
    """Seconds that this thread has waited for limits so far."""
    return getattr(_waited, "seconds", 0.0)


class _QuotaReport:
    """The cost of quotas for this process since the last log line about them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since, self._delayed_s, self._is_logged = float("-inf"), 0.0, False

    def is_due(self, delay_s: float) -> bool:
        """Add a delay; return whether a line is due: at most one per minute, if the cost is
        high."""
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
    """Log, at most once a minute, that a quota delays the brokers' answers."""
    if throttle_time_ms > 0 and _report.is_due(throttle_time_ms / 1000):
        _log.warning(
            "A quota of the cluster delays answers to client %s, now by %.1f s. Backups and"
            " restores wait in the meantime. To make them faster, raise consumer_byte_rate,"
            " producer_byte_rate or request_percentage for this client or its user.",
            CLIENT_ID,
            throttle_time_ms / 1000,
        )


class QuotaPatience:
    """How long a quota has left a reader without any record."""

    def __init__(self) -> None:
        self._since: float | None = None

    def served(self) -> None:
        """Record an answer that no quota has emptied."""
        self._since = None

    def is_exhausted(self) -> bool:
        """Record an answer that a quota has emptied; return whether this has lasted for too
        long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since > QUOTA_PATIENCE_S


@dataclass(frozen=True, slots=True)
class Throttle:
    """Limits in bytes per second, for all brokers together and for each; can be pickled for tasks.

    Tasks of one machine share the accounts in `folder`. A task on another machine, which does not
    see the folder, uses a `tasks`-th of the limits.
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
        """Account for bytes to or from a broker; return when the next ones may move."""
        until = 0.0
        if self.bytes_per_s:
            until = self._paid("all", size / self.bytes_per_s)
        if self.broker_bytes_per_s:
            until = max(until, self._paid(f"broker-{node}", size / self.broker_bytes_per_s))
        wait_throttled(until - time.monotonic())

    def _paid(self, account: str, takes_s: float) -> float:
        """The time at which everything accounted for so far is paid."""
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
            # The system-wide clock, the same in all processes.
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
    """The throttle of this process with a name, None without a limit.

    Everything in the process with the same name shares it: a follower's increments and the windows
    that it closes at the same time.
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
