"""A bound for what lies between the commands around a restore: the application is stopped then."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, TypeVar

from kstreams_assets.errors import RestoreDeadlineError

T = TypeVar("T")


class _TimeIsUp(KeyboardInterrupt):
    """Raised in the main thread, so that all that ends at Ctrl-C ends: Spark jobs, locks, tasks."""


def within(deadline_s: float | None, work: Callable[[], T], *, restore_id: str) -> T:
    """Do the work of a restore, and end it when its time is up; without a deadline, just do it.

    What must not be cut in the middle, such as the commit of group offsets, is not part of the
    work. For the main thread only.

    Raises:
        RestoreDeadlineError: The time was up; records that are written stay.
    """
    if deadline_s is None:
        return work()

    is_up = threading.Event()

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        is_up.set()
        raise _TimeIsUp

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, end)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, deadline_s)
    try:
        result = work()
        if not is_up.is_set():
            return result
    except BaseException:
        # Whatever fails while the work ends, as Spark does whose job is cancelled, is no cause.
        if not is_up.is_set():
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left_s:  # another timer of this process
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left_s - time.monotonic() + began))
    # Outside of the handler: an error with an interrupt in its context is shown as Ctrl-C.
    raise RestoreDeadlineError(restore_id=restore_id, deadline_s=deadline_s)
