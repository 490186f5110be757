"""Watches the commits of an at-least-once application between the steps of a follower."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from kstreams_assets.errors import KafkaError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.model.point import Guarantee, RecoveryPoint
from kstreams_assets.model.spans import Position
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import Awaited, Recorder, recorder_of
from kstreams_assets.settings import ApplicationSettings

if TYPE_CHECKING:
    from kstreams_assets.recovery.passive_method import CommitHistory

_SHORT_WATCH_S: Final = 0.5
"""An application that runs exactly once, or not at all, needs no longer wait than this."""
QUICK_S: Final = 10.0
"""A follower that may choose waits for a cut that takes no longer."""
TRIES: Final = 3
"""Such a follower waits this many times as long, for the commits that prove nothing."""
PAUSE_S: Final = 60.0
"""Without a cut or a proof, it takes points without a wait for this time, later for longer."""
_LONGEST_PAUSE_S: Final = 600.0

_log = logging.getLogger(__name__)


def longer_pause_s(first_s: float, failures: int, longest_s: float) -> float:
    """Return the pause after so many failures: twice as long after each, up to a limit."""
    return min(first_s * 2 ** min(failures, 10), max(first_s, longest_s))


class _Open(NamedTuple):
    """A connection of its own: the steps of the follower use theirs meanwhile."""

    recorder: Recorder
    reader: RawLogReader
    history: "CommitHistory"
    pool: ThreadPoolExecutor


@dataclass(slots=True)
class CommitWatch:
    """Decides whether the next point waits for commits, and waits for them in a thread.

    With `recovery_points.commit_wait_seconds`, each point waits. Without it, a point waits if the
    commits so far show that a cut takes up to `QUICK_S`; after a point without proof, the next ones
    do not wait for a while. Connections are opened once they are needed.
    """

    settings: ApplicationSettings
    new_lineage: bool
    check: Callable[[], None]
    """Raises when the follower has ended."""
    _stack: ExitStack = field(init=False, default_factory=ExitStack)
    _opened: _Open | None = field(init=False, default=None)
    _running: "Future[Awaited] | None" = field(init=False, default=None)
    _wait_s: float = field(init=False, default=0.0)
    _not_before: float = field(init=False, default=0.0)
    _failures: int = field(init=False, default=0)

    def is_due(self, newest: RecoveryPoint | None) -> bool:
        """Return whether the next point waits; `newest` is the last one that was taken."""
        if self._running is None:
            configured_s = self.settings.recovery_points.commit_wait_seconds
            self._wait_s = self._chosen_s(newest) if configured_s is None else configured_s
        return self._wait_s > 0

    def point(self, held: Mapping[TopicPartitionId, Position]) -> RecoveryPoint | None:
        """Take a point; None while commits are awaited."""
        opened = self._open()
        if self._running is None:
            self._running = opened.pool.submit(self._awaited, opened, self._wait_s)
        wait([self._running], timeout=_SHORT_WATCH_S)
        if not self._running.done():
            return None
        running, self._running = self._running, None
        # The watching thread has ended: the connection is free.
        point = opened.recorder.take(held=held, awaited=running.result())
        self._failures = 0 if point.guarantee is Guarantee.EXACT else self._failures + 1
        self._pause()
        return point

    def close(self) -> None:
        """End the thread and close the connection; `check` must raise by now."""
        self._stack.close()

    def takes_s(self) -> float | None:
        """Return how long a cut takes, None if that is unknown."""
        opened = self._open()
        try:
            return opened.recorder.cut_at_commits_takes_s(opened.reader, opened.history)
        except KafkaError as error:  # an outage ends the step when it takes its point
            _log.debug("How long a cut takes is unknown: %s", error)
            return None

    def _chosen_s(self, newest: RecoveryPoint | None) -> float:
        if newest is None or newest.runs_at is not Guarantee.AT_LEAST_ONCE:
            return 0.0
        if time.monotonic() < self._not_before:
            return 0.0
        takes_s = self.takes_s()
        if takes_s is None or takes_s > QUICK_S:
            self._failures += 1
            self._pause()
            return 0.0
        return TRIES * takes_s

    def _pause(self) -> None:
        if self._failures:
            pause_s = longer_pause_s(PAUSE_S, self._failures - 1, _LONGEST_PAUSE_S)
            self._not_before = time.monotonic() + pause_s

    def _open(self) -> _Open:
        if self._opened is None:
            from kstreams_assets.recovery.passive_method import CommitHistory

            cluster = self._stack.enter_context(KafkaCluster(self.settings.connection))
            reader = self._stack.enter_context(cluster.raw_log())
            pool = self._stack.enter_context(ThreadPoolExecutor(1, "watch"))
            recorder = recorder_of(self.settings, cluster, new_lineage=self.new_lineage)
            self._opened = _Open(recorder, reader, CommitHistory(), pool)
        return self._opened

    def _awaited(self, opened: _Open, wait_s: float) -> Awaited:
        return opened.recorder.wait_for_commits(
            opened.reader, wait_s, history=opened.history, sleep=self._sleep
        )

    def _sleep(self, seconds: float) -> None:
        self.check()
        time.sleep(seconds)
