"""One source: answers, errors, hanging, late answers."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.metrics.catalogue import WINDOWS_DUE, Sample, Source
from kstreams_assets.metrics.collect import Reading

UP, DOWN = 1.0, 0.0


@dataclass
class Slow:
    """A source that answers with the number of the question, once it may."""

    asked: int = 0
    may_answer: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def read(self) -> Sequence[Sample]:
        """Waits."""
        self.asked += 1
        number = self.asked
        assert self.may_answer.acquire(timeout=60)
        return [WINDOWS_DUE.sample(number)]


def _reading(read: Slow, limit_s: float = 0.2) -> Reading:
    return Reading("shop", Source.WAREHOUSE, read.read, limit_s)


def _scrape(reading: Reading) -> dict[str, float]:
    answer = reading.start()
    samples = reading.finish(answer, deadline=time.monotonic() + reading.limit_s)
    return {sample.metric.name: sample.value for sample in samples}


def _await_threads(reading: Reading) -> None:
    for thread in threading.enumerate():
        if thread.name == f"metrics-{reading.source}-{reading.application_id}":
            thread.join(timeout=20)


def test_an_answer_in_time() -> None:
    source = Slow()
    source.may_answer.release()
    found = _scrape(_reading(source, 20))
    assert (found["kstreams_up"], found["kstreams_windows_due"]) == (UP, 1)
    assert 0 <= found["kstreams_scrape_duration_seconds"] < 20


def test_a_source_that_hangs_is_down_in_time_and_asked_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Slow()
    reading = _reading(source)
    began = time.monotonic()
    assert [_scrape(reading) for _ in range(3)] == [{"kstreams_up": DOWN}] * 3
    assert time.monotonic() - began < 30  # the source hangs for 60 s
    assert source.asked == 1
    assert "shop, warehouse: no answer within 0.2 s" in caplog.text
    source.may_answer.release()
    _await_threads(reading)


def test_a_late_answer_is_there_at_the_next_scrape() -> None:
    source = Slow()
    reading = _reading(source)
    assert _scrape(reading) == {"kstreams_up": DOWN}
    for number in (1, 2, 3):
        time.sleep(0.25)
        source.may_answer.release()
        _await_threads(reading)
        found = _scrape(reading)
        assert (found["kstreams_up"], found["kstreams_windows_due"]) == (UP, number)
        assert found["kstreams_scrape_duration_seconds"] > reading.limit_s
    source.may_answer.release()
    _await_threads(reading)


def test_a_source_that_is_quick_again_is_asked_at_each_scrape() -> None:
    source = Slow()
    reading = _reading(source, 60)
    for number in (1, 2, 3):
        source.may_answer.release()
        assert _scrape(reading)["kstreams_windows_due"] == number


def test_an_error_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Sequence[Sample]:
        raise ConfigurationError("The disk is gone.", remedy="Mount it.")

    reading = Reading("shop", Source.WAREHOUSE, fail, 20)
    with caplog.at_level(logging.WARNING):
        assert _scrape(reading) == {"kstreams_up": DOWN}
    assert [record.getMessage() for record in caplog.records] == [
        "shop, warehouse: The disk is gone. Mount it."
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_of_ours_makes_it_down_at_once() -> None:
    def wrong() -> Sequence[Sample]:
        return [WINDOWS_DUE.sample(1, no="label")]

    began = time.monotonic()
    reading = Reading("shop", Source.WAREHOUSE, wrong, 60)
    assert _scrape(reading) == {"kstreams_up": DOWN}
    assert time.monotonic() - began < 30
    _await_threads(reading)
