"""Decides how often a passive cut samples: densely around expected commits only. Pure."""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

DEFAULT_COMMIT_S: Final = 30.0
"""`commit.interval.ms` of Kafka Streams at least once."""
LATER: Final = 1.2
"""Commits come somewhat later than their interval says."""
_KEPT = 8
_EARLY_S = 0.1
_LATE_S = 0.4
"""A thread that waits for records notices the end of its interval up to 100 ms later."""


@dataclass(slots=True)
class CommitPace:
    """Learns the commit interval of each thread, and spends a budget of requests.

    All times are seconds of one clock, which only moves forward. On average there are at most
    `per_s` requests per second; `burst` of them may be saved for the moments that matter.
    """

    per_s: float = 50.0
    burst: float = 300.0
    dense_s: float = 0.003
    sparse_s: float = 0.1
    _commits: defaultdict[str, deque[float]] = field(
        init=False, default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEPT))
    )
    _left: float = field(init=False)
    _spent_at: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._left = self.burst

    def committed(self, thread: str, at_s: float) -> None:
        """Record a commit of a thread."""
        times = self._commits[thread]
        if not times or at_s > times[-1]:
            times.append(at_s)

    def spend(self, now_s: float, requests: int = 1) -> None:
        """Record requests."""
        self._refill(now_s)
        self._left -= requests

    def interval_s(self, threads: Iterable[str]) -> float | None:
        """Return the longest commit interval of these threads, None if all are unknown."""
        gaps = [gap for thread in threads for gap in self._gaps(thread)]
        return max(gaps, default=None)

    def pause_s(self, now_s: float, waiting: Iterable[str]) -> float:
        """Return how long to wait before the next sample, given the threads that matter now."""
        self._refill(now_s)
        opens = min((self._opens_in(thread, now_s) for thread in waiting), default=self.sparse_s)
        # An empty budget must not be spent outside of windows as soon as it grows.
        affordable_s = max(0.0, (1.0 - self._left) / self.per_s)
        return max(min(max(opens, self.dense_s), self.sparse_s), affordable_s)

    def _opens_in(self, thread: str, now_s: float) -> float:
        """Return when the window of the thread's next commit opens; 0 if open or unknown."""
        gaps = self._gaps(thread)
        if not gaps:
            return 0.0
        last = self._commits[thread][-1]
        opens, closes = last + min(gaps) - _EARLY_S, last + max(gaps) + _LATE_S
        if now_s < opens:
            return opens - now_s
        # A thread without records commits nothing: its next commit may come at any time.
        return 0.0 if now_s < closes else self.sparse_s / 2

    def _gaps(self, thread: str) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self._commits.get(thread, ()))]

    def _refill(self, now_s: float) -> None:
        if self._spent_at is not None:
            passed = max(0.0, now_s - self._spent_at)
            self._left = min(self.burst, self._left + passed * self.per_s)
        self._spent_at = max(now_s, self._spent_at or now_s)
