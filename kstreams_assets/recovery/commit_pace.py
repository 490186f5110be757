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
_GOLDEN = 0.618
"""Its multiples, less their whole part, spread evenly."""
_EARLY_S = 0.1
_LATE_S = 0.4
"""A thread that waits for records notices the end of its interval up to 100 ms later."""


@dataclass(slots=True)
class CommitPace:
    """Learns the commit interval of each thread, and spends a budget of requests.

    All times are seconds of one clock, which only moves forward. On average there are at most
    `per_s` requests per second; `burst` of them may be saved for the moments that matter.

    A commit is proven only if two samples lie between the flush before it and the next record, a
    matter of 20 ms. If the budget does not suffice for dense samples around every commit, some
    commits get all of it: samples at equal distances would prove few.
    """

    per_s: float = 50.0
    burst: float = 600.0
    window: float = 60.0
    """Requests around one commit; dense samples begin only once as many are left.

    The number varies between this and twice this: cycles that are as long as those of a thread
    would never meet its commits.
    """
    dense_s: float = 0.003
    sparse_s: float = 0.1
    _commits: defaultdict[str, deque[float]] = field(
        init=False, default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEPT))
    )
    _left: float = field(init=False)
    _spent_at: float | None = field(init=False, default=None)
    _is_dense: bool = field(init=False, default=False)
    _windows: int = field(init=False, default=0)

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
        is_open = opens <= 0.0
        was_dense = self._is_dense
        self._is_dense = is_open and self._left >= (1.0 if was_dense else self._enough)
        if self._is_dense and not was_dense:
            self._windows += 1
        if self._is_dense:
            return self.dense_s
        # What is left is for the next window.
        return self.sparse_s if is_open else max(min(opens, self.sparse_s), self.dense_s)

    @property
    def _enough(self) -> float:
        return self.window * (1 + self._windows * _GOLDEN % 1)

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
