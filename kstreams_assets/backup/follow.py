"""Follows applications: a recovery point and an increment every few seconds, windows as they close.

A loss of the cluster costs what came after the newest covered point: seconds, however long a
window is. All that a follower knows stands in the warehouse; one that is killed goes on there.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.run import BackupRun, backup_run
from kstreams_assets.backup.verdicts import judge
from kstreams_assets.checks import problem_lines
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath, put_text
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.warehouse.lineage import OtherClusterError
from kstreams_assets.warehouse.schemas import try_to_save_schemas
from kstreams_assets.warehouse.spans import Window
from kstreams_assets.warehouse.table import make_warehouse
from spark_resources.work import Spark

_SHARE: Final = 0.5
"""Of one core; a step that takes more makes the next one wait."""
_LONGEST_PAUSE_S: Final = 60.0
_LONGEST_AGE_S: Final = 60
_WINDOWS_AT_ONCE: Final = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """What a follower tells of itself; times in epoch milliseconds.

    `covered_at_ms` is when the newest point was taken of those that are covered: a loss of the
    cluster costs what came after it. `failures` are those in a row, `problem` is the last one's.
    """

    application_id: str
    pid: int
    host: str
    started_at_ms: int
    stepped_at_ms: int | None = None
    ended_at_ms: int | None = None
    covered_point: str | None = None
    covered_at_ms: int | None = None
    guarantee: str | None = None
    steps: int = 0
    records: int = 0
    step_s: float = 0.0
    pause_s: float = 0.0
    failures: int = 0
    problem: str = ""

    def trouble(self, longest_s: float) -> str:
        """Why nobody should rely on it; empty if the newest covered point is young enough."""
        now_ms = _now_ms()
        if self.ended_at_ms is not None:
            return "It has ended."
        reason = f" {self.problem}" if self.problem else ""
        if self.covered_at_ms is None:
            waited_s = (now_ms - self.started_at_ms) / 1000
            return f"No point is covered yet.{reason}" if waited_s > longest_s or reason else ""
        age_s = (now_ms - self.covered_at_ms) / 1000
        if age_s <= longest_s:
            return ""
        return f"The newest covered point is {age_s:.0f} s old, over {longest_s:.0f} s.{reason}"


def status_of(warehouse: Warehouse, application_id: str) -> FollowerStatus | None:
    """What the follower of an application told last, None if there never was one."""
    try:
        return FollowerStatus(**json.loads(_status_file(warehouse, application_id).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def trouble_of(settings: ApplicationSettings) -> str:
    """What is wrong with the follower of an application; empty if it follows.

    Its newest covered point may be as old as the declared objective, or 60 s where there is none.
    """
    status = status_of(settings.warehouse, settings.application_id)
    if status is None:
        return "No follower has run here."
    return status.trouble(settings.recovery_points.objective_s or _LONGEST_AGE_S)


def follow(followers: Sequence["Follower"], ended: threading.Event) -> None:
    """Follow all of them until asked to end, each in a thread; one that cannot ends them all.

    Raises:
        WarehouseLockedError: Another follower of one of the applications runs.
    """
    with ThreadPoolExecutor(len(followers), "follow") as pool:
        running = [pool.submit(follower.follow, ended) for follower in followers]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            ended.set()
    for one in running:
        one.result()


def _status_file(warehouse: Warehouse, application_id: str) -> StorePath:
    return warehouse.lock_file(f"followers/{application_id}").with_suffix(".json")


class _Ended(Exception):
    """The follower was asked to end."""


@dataclass(slots=True)
class _Closing:
    """Backs up windows that have closed beside the steps: a long one would keep points waiting."""

    settings: ApplicationSettings
    spark: Spark
    run_id: str
    pool: ThreadPoolExecutor
    ended: threading.Event
    _open: Window | None = None
    _failures: int = 0
    _not_before: float = 0.0
    _running: "Future[None] | None" = None

    def look(self) -> None:
        """Begin when a window has closed, or what failed is to be tried again."""
        if self._running is not None:
            if not self._running.done():
                return
            self._look_back(self._running)
            self._running = None
        current = WindowCalendar(self.settings.windows).closes_next()
        if self._failures or current != self._open:
            if time.monotonic() < self._not_before:
                return
            self._open = current
            self._running = self.pool.submit(self._close)

    def _look_back(self, running: "Future[None]") -> None:
        try:
            running.result()
        except KStreamsAssetsError as error:
            self._failures += 1
            pause_s = _pause_s(1.0, self._failures)
            self._not_before = time.monotonic() + pause_s
            _log.warning(
                "%s: closed windows could not be backed up: %s Trying again in %.0f s.",
                self.settings.application_id,
                error,
                pause_s,
            )
        else:
            self._failures = 0

    def _close(self) -> None:
        """Back up what is due."""
        settings, name = self.settings, self.settings.application_id
        calendar = WindowCalendar(settings.windows)
        due = [status.window for status in window_statuses(settings) if status.is_due]
        if not due:
            return
        with KafkaCluster(settings.connection) as cluster:
            run = _run_of(settings, cluster, self.spark, self.run_id, self.ended)
            for first in range(0, len(due), _WINDOWS_AT_ONCE):
                group = due[first : first + _WINDOWS_AT_ONCE]
                for backup in run.execute(group, newest_closed=calendar.newest_closed()):
                    key = backup.window.key
                    _log.info("%s: window %s, %d records.", name, key, backup.records)
                    for line in problem_lines(judge(backup, settings.application)):
                        _log.warning("%s: window %s: %s", name, key, line)
        try_to_save_schemas(settings)


def _run_of(
    settings: ApplicationSettings,
    cluster: KafkaCluster,
    spark: Spark,
    run_id: str,
    ended: threading.Event,
) -> BackupRun:
    def check() -> None:
        if ended.is_set():
            raise _Ended

    return backup_run(settings, settings.topics, cluster, spark, run_id, check)


def _pause_s(first_s: float, failures: int) -> float:
    return min(first_s * 2 ** min(failures, 10), _LONGEST_PAUSE_S)


@dataclass(slots=True)
class Follower:
    """Follows one application; for one thread. At most one of an application runs."""

    settings: ApplicationSettings
    spark: Spark
    run_id: str
    every_s: float
    told: Callable[[FollowerStatus], None] = lambda _: None
    """Called after each step."""
    new_lineage: bool = False
    """Accept a cluster to which neither the backups nor a restore of them lead."""
    status: FollowerStatus = field(init=False)

    def __post_init__(self) -> None:
        self.status = FollowerStatus(
            self.settings.application_id,
            os.getpid(),
            socket.gethostname(),
            _now_ms(),
        )

    def follow(self, ended: threading.Event) -> None:
        """Step until asked to end; what a step has begun to commit is finished.

        Raises:
            WarehouseLockedError: Another follower of the application runs.
            OtherClusterError: The backups are of another cluster.
        """
        make_warehouse(self.settings.warehouse.root)
        lock = self.settings.warehouse.lock_file(f"followers/{self._name}")
        with (
            warehouse_lock(lock, purpose=f"follower {self.run_id}", wait_s=0),
            ThreadPoolExecutor(1, "close") as pool,
        ):
            closing = _Closing(self.settings, self.spark, self.run_id, pool, ended)
            self._tell()
            while not ended.is_set():
                try:
                    with KafkaCluster(self.settings.connection) as cluster:
                        while not ended.is_set():
                            closing.look()
                            ended.wait(self._paced(cluster, ended))
                except OtherClusterError as error:
                    self._tell(ended_at_ms=_now_ms(), problem=error.problem)
                    raise
                except KStreamsAssetsError as error:
                    ended.wait(self._failed(error))
                except _Ended:
                    break
            self._tell(ended_at_ms=_now_ms())

    def _paced(self, cluster: KafkaCluster, ended: threading.Event) -> float:
        """One step; how long to wait for the next (s)."""
        began, cpu = time.monotonic(), time.process_time()
        self.step(cluster, ended)
        took_s = time.monotonic() - began
        busy_s = (time.process_time() - cpu) / _SHARE
        pause_s = max(0.0, max(self.every_s, busy_s) - took_s)
        self._tell(step_s=round(took_s, 3), pause_s=round(pause_s, 3))
        return pause_s

    def _failed(self, error: KStreamsAssetsError) -> float:
        failures = self.status.failures + 1
        pause_s = _pause_s(self.every_s, failures)
        _log.warning("%s: %s Trying again in %.0f s.", self._name, error, pause_s)
        self._tell(failures=failures, problem=error.problem, pause_s=pause_s)
        return pause_s

    def step(self, cluster: KafkaCluster, ended: threading.Event) -> None:
        """Take a point, and back up what came before it.

        Raises:
            KStreamsAssetsError: Its subclasses say what stood in the way; the next step goes on.
        """
        settings = self.settings
        held = Ledger(settings.warehouse, self._name).held_positions(settings.application)
        recorder = recorder_of(settings, cluster, new_lineage=self.new_lineage)
        point = recorder.take(held=held)
        run = _run_of(settings, cluster, self.spark, self.run_id, ended)
        calendar = WindowCalendar(settings.windows)
        newest_closed = calendar.newest_closed()  # before the open one: it may close in between
        backup = run.increment(calendar.closes_next(), newest_closed=newest_closed)
        self.status = replace(
            self.status,
            stepped_at_ms=_now_ms(),
            steps=self.status.steps + 1,
            records=self.status.records + (0 if backup is None else backup.records),
            failures=0,
            problem=_unread(backup),
        )
        contents = Contents(settings.warehouse, settings.application)
        if contents.statuses([point])[0].covered:
            self.status = replace(
                self.status,
                covered_point=point.id,
                covered_at_ms=point.taken_at_ms,
                guarantee=point.guarantee.value,
            )

    @property
    def _name(self) -> str:
        return self.settings.application_id

    def _tell(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)
        path = _status_file(self.settings.warehouse, self._name)
        put_text(path, json.dumps(asdict(self.status)), durable=False)
        self.told(self.status)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _unread(backup: WindowBackup | None) -> str:
    return "" if backup is None else " ".join(one.reason for one in backup.unread)
