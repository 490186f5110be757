"""CPU and memory of processes with all that they start."""

import os
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

_EVERY_S = 0.2
_YOUNG_S = 2.0
"""A process that began so shortly before it was watched is counted from its begin."""


@dataclass(slots=True)
class Usage:
    """CPU seconds, and the peak of the resident memory of all together in MB (10^6).

    Memory that processes share counts for each of them: the sum is an upper bound.
    """

    cpu_s: float = 0.0
    peak_mb: float = 0.0
    alone: Sequence[int] = ()
    _began: dict[int, float] = field(default_factory=dict[int, float], repr=False)
    _seen: dict[int, float] = field(default_factory=dict[int, float], repr=False)

    def look(self, roots: Iterable[int], *, before: float = 0.0) -> None:
        """Count what the processes have used by now; those that ended count as last seen.

        What processes have used that began before this time (epoch seconds) does not count.
        """
        together = 0.0
        for process in (*_with_children(roots), *map(psutil.Process, self.alone)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                used = times.user + times.system
                together += process.memory_info().rss / 1e6
                if process.create_time() < before - _YOUNG_S:
                    self._began[process.pid] = used
                self._seen[process.pid] = used
        self.peak_mb = max(self.peak_mb, together)
        self.cpu_s = sum(used - self._began.get(pid, 0.0) for pid, used in self._seen.items())

    def of(self, pid: int) -> float:
        """CPU seconds of one process, as last seen."""
        return self._seen.get(pid, 0.0) - self._began.get(pid, 0.0)


@contextmanager
def watched(roots: Callable[[], Iterable[int]], *, me: bool = False) -> Iterator[Usage]:
    """What these processes and all that they start use during the block; with `me` this one too.

    Of this one without its children, of which the broker is one.
    """
    usage, ended = Usage(alone=(os.getpid(),) if me else ()), threading.Event()
    began = time.time()
    usage.look(roots(), before=began)

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            usage.look(roots())

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        ended.set()
        thread.join(10)
        usage.look(roots())


def of_children() -> float:
    """CPU seconds of all children of this process that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def python_workers(jvm_pid: int | None) -> list[int]:
    """Processes in which Spark runs Python tasks: children of the JVM's pyspark daemon."""
    if jvm_pid is None:
        return []
    with suppress(psutil.Error):
        daemons = psutil.Process(jvm_pid).children()
        return [worker.pid for daemon in daemons for worker in daemon.children()]
    return []


def _with_children(roots: Iterable[int]) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    for pid in roots:
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                found[process.pid] = process
    return list(found.values())
