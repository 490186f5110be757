"""A time limit for the work between the commands around a restore, while the application stops."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn, TypeVar

from kstreams_assets.errors import KStreamsAssetsError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """How many seconds the work of a restore may take; `interrupt` ends jobs that still run."""

    seconds: float
    interrupt: Callable[[], None]


class _TimeIsUp(KeyboardInterrupt):
    """Raised in the main thread to end the same things as Ctrl-C: Spark jobs, locks, tasks."""


def within(deadline: Deadline | None, work: Callable[[], T], *, restore_id: str) -> T:
    """Do the work of a restore, and end it when its time is up; without a deadline, just do it.

    Work that must not be interrupted, such as the commit of group offsets, is not included. For
    the main thread only.

    Raises:
        KStreamsAssetsError: The time was up; records that are written stay.
    """
    if deadline is None:
        return work()

    is_up = threading.Event()

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        is_up.set()
        raise _TimeIsUp

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, end)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, deadline.seconds)
    try:
        result = work()
        if not is_up.is_set():
            return result
    except BaseException:
        # A failure while the work ends, such as a cancelled Spark job, is not the cause.
        if not is_up.is_set():
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left_s:  # another timer of this process
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left_s - time.monotonic() + began))
    deadline.interrupt()
    # Outside of the handler: an error with an interrupt in its context is shown as Ctrl-C.
    raise KStreamsAssetsError(
        f"Restore {restore_id} was not verified within {deadline.seconds:g} s (--deadline) and"
        " was ended. No group offset was committed, and the after"
        " command is not run: the application stays stopped.",
        remedy="Run the same command again: it continues where it stopped and writes nothing"
        " twice. Give a longer --deadline if the restore needs it. To continue without the restore,"
        " start the application manually on its own topics and offsets.",
    )
