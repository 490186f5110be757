"""Follows applications: a recovery point and an increment every few seconds, windows on closing.

A loss of the cluster costs what came after the newest covered point: seconds, whatever the length
of the windows. All state of a follower is in the warehouse; a restarted follower continues there.

A follower survives outages of the brokers, of the warehouse and of its engine: it retries until it
had no success for ten minutes. Followers of other applications in the process are not affected.
"""

import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from kstreams_assets.backup.amounts import Pace, Phase, Progress
from kstreams_assets.backup.follower_status import FollowerStatus, longest_age_s, now_ms
from kstreams_assets.backup.follower_status import status_file as status_file
from kstreams_assets.backup.follower_status import status_of as status_of
from kstreams_assets.backup.follower_status import trouble_of as trouble_of
from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.run import BackupJob, BackupRun
from kstreams_assets.backup.verdicts import evaluate
from kstreams_assets.backup.watching import CommitWatch, longer_pause_s
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.checks import problem_lines
from kstreams_assets.closing import SIGNALS_S
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.model.lineage import OtherClusterError
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import store_at
from kstreams_assets.store.failures import storage_errors
from kstreams_assets.store.locks import LockHandle, WarehouseLockedError
from kstreams_assets.texts import bytes_text, duration
from spark_resources.work import Spark

_SHARE: Final = 0.5
"""Of one core. If a step takes more, the next one waits longer."""
_LONGEST_PAUSE_S: Final = 60.0
_LONGEST_TRY_S: Final = 2.0
"""The longest pause between failing steps, so that it continues soon after an outage."""
_GIVE_UP_S: Final = 600.0
_STUCK_S: Final = 1_800.0
"""Longer than all retries, and than one part of a long backup."""
_LEAST_FAILURES: Final = 3
"""A process that was suspended for a while has not retried: count failures, not only time."""
_SHORT_WAIT_S: Final = 2.0
"""How long increments wait for the lock while closed windows are backed up."""
_NUMBER: Final = re.compile(r"\d+")
_FIRST: Final = "First backup"
_LATER: Final = "Catching up"
_WINDOWS_AT_ONCE: Final = 20
_log = logging.getLogger(__name__)


def follow(followers: Sequence["Follower"], ended: threading.Event) -> None:
    """Follow all applications until asked to end, each in a thread; a failing one ends alone.

    Raises:
        KStreamsAssetsError: The error of the first follower that ended by itself, raised after all
            others have ended; each error is logged at once.
    """
    with ThreadPoolExecutor(len(followers), "follow") as pool:
        running = {pool.submit(follower.follow, ended): follower for follower in followers}
        going = set(running)
        while going:
            stopped, going = wait(going, timeout=SIGNALS_S, return_when=FIRST_COMPLETED)
            for one in stopped:
                error = one.exception()
                if error is not None and len(running) > 1:
                    name = running[one].settings.application_id
                    # For known errors the traceback adds nothing.
                    trace = None if isinstance(error, _outages()) else error
                    _log.error("%s: following has ended: %s", name, _line(error), exc_info=trace)
    for one in running:
        one.result()


class _Ended(Exception):
    """The follower was asked to end."""


@dataclass(slots=True)
class _Closing:
    """Backs up closed windows in parallel to the steps, so that long ones do not delay points."""

    job: BackupJob
    pool: ThreadPoolExecutor
    _open: Window | None = None
    _failures: int = 0
    _not_before: float = 0.0
    _running: "Future[None] | None" = None

    @property
    def is_running(self) -> bool:
        """Whether windows are being backed up."""
        return self._running is not None and not self._running.done()

    def start_if_due(self) -> None:
        """Start when a window has closed, or when a failed one is due again."""
        if self._running is not None:
            if not self._running.done():
                return
            self._collect(self._running)
            self._running = None
        current = WindowCalendar(self.job.settings.windows).closes_next()
        if self._failures or current != self._open:
            if time.monotonic() < self._not_before:
                return
            self._open = current
            self._running = self.pool.submit(self._close)

    def _collect(self, running: "Future[None]") -> None:
        try:
            running.result()
        except _outages() as error:
            self._failures += 1
            pause_s = longer_pause_s(1.0, self._failures, _LONGEST_PAUSE_S)
            self._not_before = time.monotonic() + pause_s
            _log.warning(
                "%s: closed windows could not be backed up: %s Trying again in %.0f s.",
                self.job.settings.application_id,
                _line(error),
                pause_s,
            )
        else:
            self._failures = 0

    def _close(self) -> None:
        """Back up the windows that are due."""
        settings, name = self.job.settings, self.job.settings.application_id
        due = [status.window for status in window_statuses(settings) if status.is_due]
        if not due:
            return
        with self.job.opened() as ctx:
            run = BackupRun(ctx)
            for first in range(0, len(due), _WINDOWS_AT_ONCE):
                group = due[first : first + _WINDOWS_AT_ONCE]
                for backup in run.execute(group, newest_closed=self.job.newest_closed()):
                    key = backup.window.key
                    _log.info(
                        "%s: window %s, %d records, executor %s.",
                        name,
                        key,
                        backup.records,
                        backup.executor,
                    )
                    for line in problem_lines(evaluate(backup, settings.application)):
                        _log.warning("%s: window %s: %s", name, key, line)
        Repository.open(settings).schemas.try_to_save(settings.registry)


def _check_of(*over: threading.Event) -> Callable[[], None]:
    """Return a function that raises _Ended once one of the events is set."""

    def check() -> None:
        if any(event.is_set() for event in over):
            raise _Ended

    return check


def _outages() -> tuple[type[Exception], ...]:
    """Return the errors after which a follower retries: those of Kafka, warehouse and Spark."""
    from spark_resources.failures import SPARK_FAILURES

    return KStreamsAssetsError, *storage_errors(), *SPARK_FAILURES


def _line(error: BaseException) -> str:
    """Return an error in one line; errors of Spark and gRPC in plain words."""
    from spark_resources.failures import spark_failure

    return " ".join(str(spark_failure(error) or error).split()) or type(error).__name__


def _without_numbers(text: str) -> str:
    """Return a text that is equal for repetitions of one problem, whatever its figures."""
    return _NUMBER.sub("", text)


def _problem(error: BaseException) -> str:
    return error.problem if isinstance(error, KStreamsAssetsError) else _line(error)


@dataclass(slots=True)
class _Tally:
    """How much of a long backup with this name is read."""

    name: str
    began: float = field(default_factory=time.monotonic)
    read: float = 0.0
    left: float = 0.0

    def add(self, progress: Progress) -> str:
        """Return the progress in words: the share that is read, and how long the rest takes."""
        self.read += progress.read_bytes
        self.left = max(self.left - progress.read_bytes, progress.left_bytes, 0.0)
        share = self.read / max(self.read + self.left, 1.0)
        text = f"{self.name}: {100 * share:.0f} % read"
        took_s = time.monotonic() - self.began
        pace = Pace(self.read / took_s, "") if self.read and took_s else progress.pace
        if pace is None:
            return f"{text}, {bytes_text(round(self.left))} left."
        return f"{text}, about {duration(round(1000 * pace.takes_s(self.left)))} left."


@dataclass(slots=True)
class Follower:
    """Follows one application, in one thread. Only one follower of an application can run."""

    settings: ApplicationSettings
    spark: Spark
    run_id: str
    every_s: float
    on_status: Callable[[FollowerStatus], None] = lambda _: None
    """Called after each step."""
    new_lineage: bool = False
    """Accept a cluster that neither the backups nor a restore of them lead to."""
    give_up_s: float = _GIVE_UP_S
    """Without success for this long, the follower ends, unless another run holds the lock."""
    status: FollowerStatus = field(init=False)
    _closing: _Closing | None = field(init=False, default=None)
    _watch: CommitWatch | None = field(init=False, default=None)
    _newest: RecoveryPoint | None = field(init=False, default=None)
    """The newest point that this follower took."""
    _over: threading.Event = field(init=False, default_factory=threading.Event)
    _success: float = field(init=False, default_factory=time.monotonic)
    _logged: float = field(init=False, default=float("-inf"))
    _tally: _Tally | None = field(init=False, default=None)
    _status_lock: threading.RLock = field(init=False, default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.status = FollowerStatus(
            self.settings.application_id,
            os.getpid(),
            socket.gethostname(),
            now_ms(),
        )

    def trouble(self) -> str:
        """Return why the follower cannot be relied on, as far as it knows; empty if it follows."""
        return self.status.trouble(longest_age_s(self.settings))

    def stuck(self) -> str:
        """Return that it makes no progress and no attempts, so that it should be restarted."""
        if self._idle_s() <= _STUCK_S:
            return ""
        ago = duration(round(1000 * self._idle_s()))
        return f"Its last success was {ago} ago. {self.status.problem}".strip()

    def _idle_s(self) -> float:
        """Seconds since its last success: a step, a part of a long backup, a wait for a lock."""
        return time.monotonic() - self._success

    def follow(self, ended: threading.Event) -> None:
        """Step until asked to end; a step that has begun to commit is completed.

        Raises:
            WarehouseLockedError: Another follower of the application runs.
            LeaseLostError: Another follower has taken over.
            OtherClusterError: The backups are of another cluster.
            KStreamsAssetsError: The error that lasted for `give_up_s`.
        """
        try:
            with ThreadPoolExecutor(1, "close") as pool, ExitStack() as stack:
                stack.callback(self._over.set)  # the thread that closes windows ends as well
                self._closing = _Closing(self._job(ended), pool)
                self._go_on(self._closing, stack, ended)
        except _Ended:
            pass
        except BaseException as error:
            self._report(ended_at_ms=now_ms(), problem=_problem(error), catching_up="")
            raise
        self._report(ended_at_ms=now_ms(), catching_up="")

    def _go_on(self, closing: _Closing, stack: ExitStack, ended: threading.Event) -> None:
        """Step until asked to end, also after an outage."""
        repo = Repository.open(self.settings)
        held: LockHandle | None = None
        while not ended.is_set():
            try:
                if held is None:
                    self.settings.warehouse.make()
                    lock = repo.lock(Lock.FOLLOWER, purpose=f"follower {self.run_id}", wait_s=0)
                    held = stack.enter_context(lock)
                    self._report()
                with KafkaCluster(self.settings.connection) as cluster, self._watched(ended):
                    while not ended.is_set():
                        held.require_held()
                        closing.start_if_due()
                        ended.wait(self._paced(cluster, ended))
            except _outages() as error:
                is_over = held.is_lost if held else isinstance(error, WarehouseLockedError)
                if is_over or isinstance(error, OtherClusterError):
                    raise
                if isinstance(error, WarehouseLockedError):
                    # Another run works on the application, such as one of KTables for hours. Its
                    # lock ends with it, and a new follower would wait for the same one.
                    self._success = time.monotonic()
                elif self._has_given_up():
                    raise
                ended.wait(self._failed(error))

    @contextmanager
    def _watched(self, ended: threading.Event) -> Iterator[None]:
        """Watch commits, if points wait for them, until the block ends."""
        over = threading.Event()
        watch = CommitWatch(self.settings, self.new_lineage, _check_of(ended, over))
        self._watch = watch
        try:
            yield
        finally:
            over.set()
            watch.close()
            self._watch = None

    def _has_given_up(self) -> bool:
        return self.status.failures >= _LEAST_FAILURES and self._idle_s() > self.give_up_s

    def _job(self, ended: threading.Event) -> BackupJob:
        check = _check_of(ended, self._over)
        return BackupJob(
            self.settings, self.spark, self.run_id, check=check, on_phase=self._has_read
        )

    def _paced(self, cluster: KafkaCluster, ended: threading.Event) -> float:
        """Run one step; return how long to wait for the next (s)."""
        began, cpu = time.monotonic(), time.process_time()
        self.step(cluster, ended)
        took_s = time.monotonic() - began
        busy_s = (time.process_time() - cpu) / _SHARE
        pause_s = max(0.0, max(self.every_s, busy_s) - took_s)
        self._report(step_s=round(took_s, 3), pause_s=round(pause_s, 3))
        return pause_s

    def _failed(self, error: Exception) -> float:
        failures, problem = self.status.failures + 1, _problem(error)
        pause_s = longer_pause_s(self.every_s, failures, _LONGEST_TRY_S)
        is_old = _without_numbers(problem) == _without_numbers(self.status.problem)
        if not is_old or time.monotonic() - self._logged > _LONGEST_PAUSE_S:
            self._logged = time.monotonic()
            _log.warning("%s: %s Trying again in %.0f s.", self._name, _line(error), pause_s)
        self._report(failures=failures, problem=problem, pause_s=pause_s)
        return pause_s

    def step(self, cluster: KafkaCluster, ended: threading.Event) -> None:
        """Take a point, and back up what came before it.

        While closed windows are being backed up, increments wait and no point becomes covered.

        Raises:
            KStreamsAssetsError: Its subclasses say what failed; the next step tries again.
        """
        settings = self.settings
        held = Repository.open(settings).ledger.held_positions(settings.application)
        if self._watch is not None and self._watch.is_due(self._newest):
            point = self._watch.point(held)
        else:
            recorder = recorder_of(settings, cluster, new_lineage=self.new_lineage)
            point = recorder.take(held=held)
        self._newest = point or self._newest
        if point is None:
            self._success = time.monotonic()
            self._change(stepped_at_ms=now_ms(), steps=self.status.steps + 1, failures=0)
            return
        job = self._job(ended)
        is_closing = self._closing is not None and self._closing.is_running
        if is_closing:
            short = settings.backup.model_copy(update={"lock_wait_seconds": _SHORT_WAIT_S})
            job = replace(job, settings=replace(settings, backup=short))
        run = BackupRun(job.on(cluster))
        calendar = WindowCalendar(settings.windows)
        newest_closed = calendar.newest_closed()  # before the open one: it may close meanwhile
        backup: WindowBackup | None = None
        try:
            backup = run.increment(calendar.closes_next(), newest_closed=newest_closed)
        except WarehouseLockedError:
            if not is_closing:
                raise
        self._success = time.monotonic()
        self._change(
            stepped_at_ms=now_ms(),
            steps=self.status.steps + 1,
            records=self.status.records + (0 if backup is None else backup.records),
            executor=self.status.executor if backup is None else backup.executor,
            failures=0,
            problem=_unread(backup),
        )
        contents = Repository.of(settings.warehouse, settings.application.application_id).reading(
            settings.application
        )
        if contents.statuses([point])[0].covered:
            self._tally = None
            self._change(
                covered_point=point.id,
                covered_at_ms=point.taken_at_ms,
                guarantee=point.guarantee.value,
                catching_up="",
            )

    def _has_read(self, progress: Progress) -> None:
        """Report the progress of a long backup."""
        if progress.phase is not Phase.RECORDS:
            return
        with self._status_lock:
            self._success = time.monotonic()
            tally = self._tally or _Tally(_FIRST if self._is_first() else _LATER)
            self._tally = tally
            text = tally.add(progress)
            if text != self.status.catching_up:
                _log.info("%s: %s", self._name, text)
            self._report(catching_up=text)

    def _is_first(self) -> bool:
        """Whether no window has been backed up completely so far."""
        ledger = Repository.open(self.settings).ledger
        return not any(ledger.done({topic.name for topic in self.settings.topics}).values())

    @property
    def _name(self) -> str:
        return self.settings.application_id

    def _change(self, **changes: object) -> None:
        with self._status_lock:
            self.status = replace(self.status, **changes, told_at_ms=now_ms())

    def _report(self, **changes: object) -> None:
        """Write the status if possible; without it, readers see the age of the last one."""
        with self._status_lock:
            self._change(**changes)
            path = status_file(self.settings.warehouse, self._name)
            try:
                store_at(path).put_text(json.dumps(asdict(self.status)), durable=False)
            except storage_errors() as error:
                _log.debug("%s: the status cannot be written: %s", self._name, _line(error))
            self.on_status(self.status)


def _unread(backup: WindowBackup | None) -> str:
    return "" if backup is None else " ".join(one.reason for one in backup.unread)
