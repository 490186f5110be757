"""What processes and the machine use while a drill runs."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class TreeUse:
    """What a process and all its descendants have used; None where the system does not tell."""

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
    """Follows a process tree; ask often, since what a process used is gone with it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[tuple[int, float], _ProcessUse] = {}
        self._peak_bytes = 0

    def sample(self) -> TreeUse:
        """What was used so far."""
        memory = 0
        for process in self._tree():
            try:
                use = _use_of(process)
                self._seen[process.pid, process.create_time()] = use
            except psutil.Error:
                continue  # it has ended in this moment: what it used last is known
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
    """Bytes that went to and came from disks; macOS does not tell."""
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
        """As it stands."""
        times = psutil.cpu_times(percpu=True)
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        own = [t for number, t in enumerate(times) if allowed is None or number in allowed]
        waits = [getattr(t, "iowait", None) for t in own]
        # guest time is part of user time
        all_s = sum(sum(t) - getattr(t, "guest", 0.0) - getattr(t, "guest_nice", 0.0) for t in own)
        known = [wait for wait in waits if wait is not None]
        return cls(all_s, sum(t.idle for t in own), sum(known) if known else None)

    def shares_until(self, later: "MachineUse") -> tuple[float | None, float | None]:
        """Which share was busy, which waited for disks; None where the system does not tell."""
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
    """Bytes of all files below a folder; files may go meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total
