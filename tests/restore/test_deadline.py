"""The deadline of a restore: what it ends, what it leaves alone, and how that looks."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.restore.deadline import Deadline, within
from spark_resources.failures import SparkJobError


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """The handler of the signal and the timers of the process are as before."""
    handler = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getsignal(signal.SIGALRM) is handler


def _work() -> str:
    return "done"


def _after(seconds: float, ended: list[str] | None = None) -> Deadline:
    return Deadline(seconds, lambda: (ended if ended is not None else []).append("interrupted"))


@pytest.mark.parametrize("deadline_s", [None, 60.0])
def test_work_that_is_in_time(deadline_s: float | None) -> None:
    ended: list[str] = []
    deadline = None if deadline_s is None else _after(deadline_s, ended)
    assert within(deadline, _work, restore_id="r") == "done"
    assert ended == []


def test_a_failure_is_its_own() -> None:
    def fails() -> None:
        raise SparkJobError("no memory")

    with pytest.raises(SparkJobError, match="no memory"):
        within(_after(60.0), fails, restore_id="r")


def test_ctrl_c_is_still_ctrl_c() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        within(_after(60.0), interrupted, restore_id="r")


@pytest.mark.parametrize(
    "kind", ["sleeps", "waits for a thread", "fails on its way out", "is caught"]
)
def test_work_that_is_not_in_time_is_ended(kind: str) -> None:
    cleaned: list[str] = []

    def work() -> None:
        # A rule that Spark failed on is a result, not an error.
        with suppress(SparkJobError if kind == "is caught" else OSError):
            try:
                if kind == "waits for a thread":
                    threading.Event().wait(60)
                time.sleep(60)
            except BaseException:
                if kind in ("fails on its way out", "is caught"):
                    raise SparkJobError("the job was cancelled") from None
                raise
            finally:
                cleaned.append("cleaned")

    began = time.monotonic()
    with pytest.raises(KStreamsAssetsError, match="was not verified") as raised:
        within(_after(0.2, cleaned), work, restore_id="point-1-0123abcd")
    assert time.monotonic() - began < 30
    assert cleaned == ["cleaned", "interrupted"]
    text = str(raised.value)
    assert "Restore point-1-0123abcd was not verified within 0.2 s (--deadline)" in text
    assert "No group offset was committed" in text
    assert "the application stays stopped" in text
    assert "Run the same command again" in text
    assert raised.value.__context__ is None  # else it would be shown as Ctrl-C


def test_another_timer_of_the_process_goes_on() -> None:
    with _timer(300.0):
        within(_after(60.0), _work, restore_id="r")
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 300.0


@contextmanager
def _timer(seconds: float) -> Iterator[None]:
    before, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, before)
