"""Durations and conditions that mean the same on a busy machine as on a calm one."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

DEADLINE_S = 60.0
"""After so long a condition is given up. A machine with other work pauses for several seconds."""


@dataclass
class Took:
    """What the work in a block took; known once the block has ended."""

    seconds: float = math.nan


@contextmanager
def processor_time() -> Iterator[Took]:
    """Measure the processor time of this process: other work of the machine does not count."""
    took, began = Took(), time.process_time()
    try:
        yield took
    finally:
        took.seconds = time.process_time() - began


def eventually(condition: Callable[[], object], *, within_s: float = DEADLINE_S) -> bool:
    """Wait until a condition holds; whether it did in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Clock:
    """Stands for the module `time` in code under test: no pause of the machine moves it.

    Sleeping takes no time. Each look takes a moment, so that whoever only looks comes to an end.
    """

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        """Seconds, as `time.monotonic`."""
        self.now_s += 1e-4
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let the time pass, as `time.sleep`."""
        assert seconds >= 0
        self.now_s += seconds
