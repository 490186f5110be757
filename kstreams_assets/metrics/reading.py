"""Asks one source in a thread of its own, and waits no longer than a scrape may take."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Final

from deltalake.exceptions import DeltaError

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.metrics.catalogue import SCRAPE_SECONDS, UP
from kstreams_assets.metrics.sample import Sample, Source

_LOG: Final = logging.getLogger(__name__)
_DOWN: Final = (KStreamsAssetsError, DeltaError, OSError)
"""What a source that cannot answer raises; anything else is a mistake of ours, and is shown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a source gave, and how long it took (seconds)."""

    samples: Sequence[Sample]
    took_s: float


@dataclass(slots=True)
class Reading:
    """One source of one application; usable from several threads.

    `limit_s` is how long a scrape waits (seconds). A question that is still open when the next
    scrape comes is not asked again, so a source that hangs costs one thread. An answer that came
    too late is given to the next scrape, and the question asked again for the one after it: a slow
    source is one scrape old, not missing.
    """

    application_id: str
    source: Source
    read: Callable[[], Sequence[Sample]]
    limit_s: float
    _newest: "Future[Answer] | None" = None
    _is_slow: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> "Future[Answer]":
        """The answer to wait for; asks, unless the last question is still open."""
        with self._lock:
            last = self._newest
            if last is not None and not last.done():
                return last
            self._newest = Future()
            name = f"metrics-{self.source}-{self.application_id}"
            # A daemon: a hanging broker must not keep the program from ending.
            threading.Thread(
                target=self._answer, args=(self._newest,), name=name, daemon=True
            ).start()
            return last if last is not None and self._is_slow else self._newest

    def _answer(self, answer: "Future[Answer]") -> None:
        began = time.monotonic()
        try:
            samples = self.read()
            answer.set_result(Answer(samples, time.monotonic() - began))
        except _DOWN as error:
            answer.set_exception(error)
        finally:
            answer.cancel()  # what is not done by now never will be

    def finish(self, answer: "Future[Answer]", *, deadline: float) -> list[Sample]:
        """The samples, and whether the source is up; without an answer by then it is not.

        `deadline` is on the clock of `time.monotonic`.
        """
        named = {"source": self.source.value}
        try:
            found = answer.result(timeout=max(0.0, deadline - time.monotonic()))
        except CancelledError:
            return self._down("an error of this program, shown above")
        except _DOWN as error:
            self._is_slow = not answer.done()
            late = f"no answer within {self.limit_s:g} s"
            return self._down(late if self._is_slow else str(error))
        self._is_slow = found.took_s > self.limit_s
        return [
            UP.sample(1, **named),
            SCRAPE_SECONDS.sample(found.took_s, **named),
            *found.samples,
        ]

    def _down(self, reason: str) -> list[Sample]:
        _LOG.warning("%s, %s: %s", self.application_id, self.source, reason)
        return [UP.sample(0, source=self.source.value)]
