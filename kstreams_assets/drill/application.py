"""The application during a drill: its process, its log, its cost, and how far it has come."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import psutil

from kstreams_assets.checks import Severity
from kstreams_assets.drill.command import DrillCommand
from kstreams_assets.drill.report import Failure, LagSample, Phase
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.process import GuardedProcess
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.restore.watch import Assessment, Health, Limits, follow
from kstreams_assets.settings import ApplicationSettings, DrillSettings

_ASSIGNED: Final = re.compile(r"State transition from \w+ to PARTITIONS_ASSIGNED")
_RESTORED: Final = re.compile(
    r"Finished restoring changelog (\S+) to store (\S+) with a total number of (\d+) records"
)
_IN_PROGRESS: Final = re.compile(r"Restoration in progress for \d+ partitions")


@dataclass(slots=True)
class StreamsLog:
    """Takes lines in order, each with the time (seconds) at which it was seen.

    `records` are those that were restored, by changelog partition; a partition that is restored
    again after a rebalance counts once.
    """

    running_line: str
    running_at_s: float | None = None
    records: dict[str, int] = field(default_factory=dict)
    _assigned_at_s: float | None = None
    _restored_at_s: float | None = None
    _running: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        self._running = re.compile(self.running_line)

    def take(self, line: str, at_s: float) -> None:
        """Record the event of a line."""
        if self.running_at_s is None and self._running.search(line):
            self.running_at_s = at_s
        if self._assigned_at_s is None and (_ASSIGNED.search(line) or _IN_PROGRESS.search(line)):
            self._assigned_at_s = at_s
        restored = _RESTORED.search(line)
        if restored is not None:
            self.records.setdefault(restored[1], int(restored[3]))
            self._restored_at_s = at_s

    @property
    def restoration_s(self) -> float | None:
        """From the assignment of partitions to the last restored store; None if not written."""
        if self._assigned_at_s is None or self._restored_at_s is None:
            return None
        return self._restored_at_s - self._assigned_at_s


@dataclass(frozen=True, slots=True)
class TreeUse:
    """Resource use of a process with its descendants; None if the system does not report it."""

    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    disk_written_bytes: int | None = None
    disk_read_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _ProcessUse:
    cpu_s: float
    memory_bytes: int
    written_bytes: int | None
    read_bytes: int | None


class TreeMeter:
    """Measures a process tree; sample often, because the counters of an ended process are lost."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[tuple[int, float], _ProcessUse] = {}
        self._peak_bytes = 0

    def sample(self) -> TreeUse:
        """Return the resource use so far."""
        memory = 0
        for process in self._tree():
            try:
                use = _use_of(process)
                self._seen[process.pid, process.create_time()] = use
            except psutil.Error:
                continue  # it has just ended; its last sample counts
            memory += use.memory_bytes
        self._peak_bytes = max(self._peak_bytes, memory)
        uses = self._seen.values()
        return TreeUse(
            cpu_s=sum(use.cpu_s for use in uses),
            peak_memory_bytes=self._peak_bytes,
            disk_written_bytes=_sum(use.written_bytes for use in uses),
            disk_read_bytes=_sum(use.read_bytes for use in uses),
        )

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._pid)
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return []


def _use_of(process: psutil.Process) -> _ProcessUse:
    with process.oneshot():
        times = process.cpu_times()
        memory = process.memory_info().rss
        written, read = _io_of(process)
    return _ProcessUse(times.user + times.system, memory, written, read)


def _io_of(process: psutil.Process) -> tuple[int | None, int | None]:
    """Return bytes written to and read from disks; macOS does not report them."""
    if not hasattr(process, "io_counters"):
        return None, None
    try:
        counters = process.io_counters()
    except (psutil.AccessDenied, NotImplementedError):
        return None, None
    return counters.write_bytes, counters.read_bytes


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Processor seconds since the start of the machine, of the processors this process may use."""

    all_s: float
    idle_s: float
    io_wait_s: float | None

    @classmethod
    def now(cls) -> "MachineUse":
        """Return the present counters."""
        times = psutil.cpu_times(percpu=True)
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        own = [t for number, t in enumerate(times) if allowed is None or number in allowed]
        waits = [getattr(t, "iowait", None) for t in own]
        # guest time is part of user time
        all_s = sum(sum(t) - getattr(t, "guest", 0.0) - getattr(t, "guest_nice", 0.0) for t in own)
        known = [wait for wait in waits if wait is not None]
        return cls(all_s, sum(t.idle for t in own), sum(known) if known else None)

    def shares_until(self, later: "MachineUse") -> tuple[float | None, float | None]:
        """Return the busy share and the share waiting for disks; None if not reported."""
        all_s = later.all_s - self.all_s
        if all_s <= 0:
            return None, None
        waited = None
        if self.io_wait_s is not None and later.io_wait_s is not None:
            waited = _share((later.io_wait_s - self.io_wait_s) / all_s)
        busy = 1 - (later.idle_s - self.idle_s) / all_s - (waited or 0.0)
        return _share(busy), waited


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def size_of(folder: Path) -> int:
    """Return the size (bytes) of all files below a folder; files may be deleted meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


_LOOK_S: Final = 0.05
_MEASURE_EVERY: Final = 8
"""Looks from one measurement to the next: 0.4 s."""
_STOP_S: Final = 30.0
_JOIN_S: Final = 10.0
_TAIL_LINES: Final = 20


class DrilledApplication:
    """Runs the command from the start of the block to its end, as a context manager.

    A thread reads its output and measures it. Raises ProcessError when it cannot be started.
    """

    def __init__(self, command: DrillCommand, *, log_file: Path, running_line: str) -> None:
        self.started_s: Final = time.monotonic()
        self.log: Final = StreamsLog(running_line)
        self._process = GuardedProcess(
            command.arguments,
            log_file=log_file,
            environment=command.environment,
            working_directory=command.working_directory,
        )
        self._log_file = log_file
        self._meter = TreeMeter(self._process.pid)
        self._use = TreeUse()
        self._ended = threading.Event()
        self._use_at_running: TreeUse | None = None
        self._thread = threading.Thread(target=self._watch, name="drill", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        """None while it runs, then its exit code, or the negative signal number."""
        return self._process.returncode

    @property
    def running_s(self) -> float | None:
        """Seconds from its start to RUNNING, None as long as it has not said so."""
        at_s = self.log.running_at_s
        return None if at_s is None else at_s - self.started_s

    @property
    def use(self) -> TreeUse:
        """What it has used, as last measured."""
        return self._use

    @property
    def use_at_running(self) -> TreeUse | None:
        """What it had used when it was RUNNING, None as long as it is not."""
        return self._use_at_running

    def last_lines(self) -> tuple[str, ...]:
        """The end of its output."""
        return tuple(self._process.log_tail(_TAIL_LINES).splitlines())

    def stop(self) -> None:
        """Close it in an orderly way (SIGTERM), after 30 s SIGKILL; read its output to the end."""
        self._process.stop(timeout_s=_STOP_S)
        self._ended.set()
        self._thread.join(_JOIN_S)

    def _watch(self) -> None:
        looks, rest = 0, ""
        with contextlib.closing(
            self._log_file.open("r", encoding="utf-8", errors="replace")
        ) as log:
            while True:
                ended = self._ended.is_set()
                *lines, rest = (rest + log.read()).split("\n")
                now_s = time.monotonic()
                for line in lines:
                    self.log.take(line, now_s)
                if looks % _MEASURE_EVERY == 0 or self._is_just_running():
                    self._use = self._meter.sample()
                if self._is_just_running():
                    self._use_at_running = self._use
                if ended:
                    return
                looks += 1
                self._ended.wait(_LOOK_S)

    def _is_just_running(self) -> bool:
        return self._use_at_running is None and self.log.running_at_s is not None


_EVERY_S: Final = 0.5
_SLACK_S: Final = 60.0


@dataclass(slots=True)
class Follower:
    """Looks at the group and the process twice a second.

    `caught_up_s` is set once the application has caught up: from its start to the first look of
    those, without a gap to the last, at which nothing was left to be processed. `lag` and
    `waiting` (records that had not been processed before the start) are filled in meanwhile.
    """

    settings: ApplicationSettings
    restore: StoredRestore
    cluster: KafkaCluster
    log: Callable[[str], None]
    caught_up_s: float | None = None
    waiting: int | None = None
    waiting_counted: bool = True
    lag: list[LagSample] = field(default_factory=list)
    _zero_since_s: float | None = None
    _logged_state: str = ""

    def before_start(self) -> None:
        """Count what waits for the application."""
        with closing(self._assessments()) as assessments:
            first = next(assessments)
        self.waiting, self.waiting_counted = first.records_left, first.counted

    def until_running(self, application: DrilledApplication) -> Failure | None:
        """Wait for RUNNING; why it was not reached."""
        drill = self.settings.drill
        for seen in self._looks(application):
            if application.running_s is not None:
                return None
            failure = self._ended(application, seen, Phase.START)
            if failure is not None:
                return failure
            if time.monotonic() - application.started_s > drill.start_timeout_seconds:
                return Failure(Phase.START, _never_running(drill, seen))
        return None

    def until_caught_up(self, application: DrilledApplication) -> Failure | None:
        """Wait until nothing is left to be processed; why that was not reached."""
        drill = self.settings.drill
        began_s = time.monotonic()
        for seen in self._looks(application):
            if self._is_caught_up(application, seen):
                return None
            failure = self._ended(application, seen, Phase.CATCH_UP)
            if failure is not None:
                return failure
            if time.monotonic() - began_s > drill.catch_up_timeout_seconds:
                return Failure(Phase.CATCH_UP, _never_caught_up(drill, seen))
        return None

    def _looks(self, application: DrilledApplication) -> Generator[Assessment, None, None]:
        """Assessments without end: `follow` ends when a first goal is reached, more may follow."""
        while True:
            with closing(self._assessments()) as assessments:
                for seen in assessments:
                    self._note(application, seen)
                    yield seen

    def _assessments(self) -> Generator[Assessment, None, None]:
        drill = self.settings.drill
        longest_s = drill.start_timeout_seconds + drill.catch_up_timeout_seconds + _SLACK_S
        limits = Limits(
            every_s=_EVERY_S,
            timeout_s=longest_s,
            not_started_after_s=longest_s,
            not_stable_after_s=longest_s,
            # how long that may last is the drill's own limit
            not_moving_after_s=longest_s,
        )
        return follow(self.settings, self.restore, self.cluster, limits=limits)

    def _note(self, application: DrilledApplication, seen: Assessment) -> None:
        at_s = time.monotonic() - application.started_s
        self.lag.append(LagSample(at_s, seen.records_left, seen.counted))
        nothing_left = seen.observation.is_stable and seen.counted and seen.records_left == 0
        if not nothing_left:
            self._zero_since_s = None
        elif self._zero_since_s is None:
            self._zero_since_s = at_s
        state = str(seen)
        if state != self._logged_state:
            self._logged_state = state
            self.log(f"{at_s:.1f} s after its start the application is {state}.")

    def _is_caught_up(self, application: DrilledApplication, seen: Assessment) -> bool:
        if seen.health is not Health.HEALTHY or self._zero_since_s is None:
            return False
        # Lag was zero before RUNNING was said: then it is RUNNING that was waited for.
        self.caught_up_s = max(self._zero_since_s, application.running_s or 0.0)
        return True

    def _ended(
        self, application: DrilledApplication, seen: Assessment, phase: Phase
    ) -> Failure | None:
        code = application.exit_code
        if code is not None:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            last = next((line for line in reversed(application.last_lines()) if line.strip()), "")
            said = f" Its last line: {last.strip()}." if last else " It wrote nothing."
            when = "before it was RUNNING" if phase is Phase.START else "before it had caught up"
            return Failure(
                phase,
                f"The application {how} {when}.{said} Read lastLines in the report, and correct"
                " drill.command, its environment or the application.",
            )
        if seen.health is Health.UNHEALTHY:
            troubles = " ".join(t.text for t in seen.troubles if t.severity is Severity.ERROR)
            return Failure(phase, f"The application is not well: {troubles}")
        return None


def _never_running(drill: DrillSettings, seen: Assessment) -> str:
    return (
        f"The application was not RUNNING within {drill.start_timeout_seconds:g} s: no line of its"
        f" output matched {drill.running_line!r} (last seen: {seen}). Read lastLines in the report;"
        " if it runs, correct drill.running_line or the level of its log, if it needs longer, raise"
        " drill.start_timeout_seconds."
    )


def _never_caught_up(drill: DrillSettings, seen: Assessment) -> str:
    return (
        f"The application had not caught up within {drill.catch_up_timeout_seconds:g} s of RUNNING"
        f" (last seen: {seen}). See its log for errors about records; if it only needs longer,"
        " raise drill.catch_up_timeout_seconds."
    )
