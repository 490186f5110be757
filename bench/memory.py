"""How much memory a Spark session takes."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def peak_memory(jvm_pid: int | None) -> Iterator[list[float]]:
    """Peak resident memory in MB of the largest Python worker and of the JVM."""
    peaks = [0.0, 0.0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            peaks[0] = max([peaks[0], *map(_peak_mb, python_workers(jvm_pid))])
            peaks[1] = max(peaks[1], _peak_mb(jvm_pid))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join(10)


def python_workers(jvm_pid: int | None) -> list[int]:
    """Processes in which Spark runs Python tasks: children of the JVM's pyspark daemon."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    daemons = {pid for pid, parent in parents.items() if parent == jvm_pid}
    return [pid for pid, parent in parents.items() if parent in daemons]


def _peak_mb(pid: int | None) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0
