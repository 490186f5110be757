"""Selects the due windows that are backed up next: one range, oldest first."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Final

from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import taken_at_of
from kstreams_assets.model.spans import Window
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath, store_at


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """A closed window, and its topics by whether they are backed up."""

    window: Window
    missing: frozenset[str]
    done: frozenset[str] = frozenset()
    points: int = 0
    """Recovery points that were taken in the window, or for it."""
    without_point: bool = False
    """Whether it was recorded without a point: then nothing of it is or can be backed up."""

    @property
    def is_backed_up(self) -> bool:
        """Whether every topic of it is backed up."""
        return not self.is_due and not self.without_point

    @property
    def is_due(self) -> bool:
        """Whether a topic of it is not backed up."""
        return bool(self.missing)


def window_statuses(settings: ApplicationSettings) -> list[WindowStatus]:
    """Return every closed window from the first recovery point on, in order of time.

    Without any recovery point, return only the newest closed window: its backup takes one.
    """
    calendar = WindowCalendar(settings.windows)
    newest = calendar.newest_closed()
    if newest is None:
        return []
    repo = Repository.open(settings)
    instants = repo.points.instants()
    first_ms = min((i.effective_at_ms for i in instants), default=newest.start_ms)
    windows = calendar.closed_since(min(first_ms, newest.start_ms))
    names = frozenset(topic.name for topic in settings.topics)
    ledger = repo.ledger
    done = ledger.done(names, windows=windows)
    for window, topics in ledger.not_examined(names).items():
        done[window] -= topics
    taken = sorted(instant.effective_at_ms for instant in instants)
    ended = _ended_by_no_point(repo, names)
    statuses: list[WindowStatus] = []
    for window in windows:
        points = bisect_left(taken, window.end_ms) - bisect_left(taken, window.start_ms)
        statuses.append(
            WindowStatus(
                window=window,
                missing=names - done.get(window, set()),
                done=frozenset(done.get(window, set())),
                points=points,
                without_point=points == 0 and window in ended,
            )
        )
    return statuses


def _ended_by_no_point(repo: Repository, topics: frozenset[str]) -> set[Window]:
    """Return recorded windows that do not end with a recovery point of their own.

    They have no offsets, and end with the point of an earlier window. Points are deleted later;
    the ledger's rows about them stay.
    """
    points: dict[Window, str | None] = {}
    for of_topic in repo.ledger.closing_points(topics).values():
        for window, point_id in of_topic.items():
            points[window] = point_id or points.get(window)
    found: set[Window] = set()
    earlier: set[str] = set()
    for window, point_id in sorted(points.items()):
        taken_at_ms = None if point_id is None else taken_at_of(point_id)
        if (
            point_id is None
            or point_id in earlier
            or (taken_at_ms is not None and taken_at_ms < window.start_ms)
        ):
            found.add(window)
        if point_id is not None:
            earlier.add(point_id)
    return found if not found else found - repo.ledger.with_offsets(topics)


MAX_WINDOWS: Final = 200
"""Windows of one run: at most about an hour of work, and one Delta transaction."""

FIRST_PAUSE_S: Final = 60
LONGEST_PAUSE_S: Final = 1_800
LONGEST_OUTAGE_PAUSE_S: Final = 300
_OUTAGE: Final = 3
"""This many failed runs in a row count as an outage."""
_SHRINK_BITS: Final = 2
"""Each failure reduces the next range to a fourth."""
_MOST_STEPS: Final = 4
"""After this many steps a range is one window."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run that has ended, of the windows `first` to `last` (keys, both inclusive).

    `again` means that these windows had failed before. `partly_done` means that a failed run has
    backed up other topics, so neither the cluster nor the warehouse is down.
    """

    first: str
    last: str
    ended_at_ms: int
    succeeded: bool
    again: bool = False
    partly_done: bool = False

    @property
    def hints_at_outage(self) -> bool:
        """Whether the run could not do anything."""
        return not self.succeeded and not self.partly_done


@dataclass(frozen=True, slots=True)
class BackupRequest:
    """The adjacent windows to back up in one run, in order, and their topics.

    `attempt` is 1 for windows that have not failed yet.
    """

    windows: tuple[Window, ...]
    topics: frozenset[str]
    attempt: int


@dataclass(frozen=True, slots=True)
class Paused:
    """Every due window has failed recently, or every run has."""

    windows: int
    until_ms: int
    """When the first of them is tried again."""


def next_request(
    windows: Sequence[WindowStatus],
    attempts: Iterable[Attempt],
    *,
    now_ms: int,
    max_windows: int = MAX_WINDOWS,
) -> BackupRequest | Paused | None:
    """Return what to back up next; None when nothing is due.

    Args:
        windows: Every closed window from the first that may be due on, in order of time.
        attempts: Ended runs: failed ones, those that succeeded `again`, and the last success.
        now_ms: Epoch milliseconds.
        max_windows: The most windows of one run.
    """
    due = [index for index, window in enumerate(windows) if window.missing]
    if not due:
        return None
    past = _Past.of(windows, attempts)
    until_ms = {index: past.paused_until_ms(index, now_ms) for index in due}
    ready = [index for index in due if until_ms[index] <= now_ms]
    if not ready:
        return Paused(len(due), min(until_ms.values()))
    first = ready[0]
    limit = past.limit(first, max_windows)
    chosen = [first]
    for index in ready[1:limit]:
        together = index == chosen[-1] + 1 and windows[index].missing == windows[first].missing
        if not together or past.steps(index) != past.steps(first):
            break
        chosen.append(index)
    return BackupRequest(
        windows=tuple(windows[index].window for index in chosen),
        topics=windows[first].missing,
        attempt=max(past.failures[index] for index in chosen) + 1,
    )


@dataclass(frozen=True, slots=True)
class _Past:
    """The results of earlier runs, for each window by its index."""

    failures: list[int]
    last_failed_ms: list[int]
    recoveries_ms: list[int]
    """When windows succeeded that had failed before, in order."""
    failures_in_a_row: int
    """Failed runs since the last successful one."""
    newest_failure_ms: int

    @classmethod
    def of(cls, windows: Sequence[WindowStatus], attempts: Iterable[Attempt]) -> "_Past":
        ended = sorted(attempts, key=lambda attempt: attempt.ended_at_ms)
        failed = [attempt for attempt in ended if not attempt.succeeded]
        index_of = {window.window.key: index for index, window in enumerate(windows)}
        failures = [0] * len(windows)
        last_failed_ms = [0] * len(windows)
        for attempt in failed:
            last = index_of.get(attempt.last)
            if last is None:
                continue
            # An unknown first window is older than the first window that may be due.
            for index in range(index_of.get(attempt.first, 0), last + 1):
                failures[index] += 1
                last_failed_ms[index] = attempt.ended_at_ms
        return cls(
            failures,
            last_failed_ms,
            [attempt.ended_at_ms for attempt in ended if attempt.succeeded and attempt.again],
            sum(1 for _ in takewhile(lambda attempt: attempt.hints_at_outage, reversed(ended))),
            failed[-1].ended_at_ms if failed else 0,
        )

    def paused_until_ms(self, index: int, now_ms: int) -> int:
        """Return when a window may be tried (again); 0 if it may be tried now."""
        own_ms = _after(self.last_failed_ms[index], pause_s(self.failures[index]), now_ms)
        outage_s = min(pause_s(self.failures_in_a_row - _OUTAGE + 1), LONGEST_OUTAGE_PAUSE_S)
        return max(own_ms, _after(self.newest_failure_ms, outage_s, now_ms))

    def steps(self, index: int) -> int:
        """Return how often a window's range is reduced because the window failed."""
        return min(self.failures[index], _MOST_STEPS)

    def limit(self, index: int, max_windows: int) -> int:
        """Return how many windows may be backed up together with this one.

        Each success of windows that had failed before, later than the last failure of this one,
        takes one step back: after an outage of hours the ranges are soon whole again.
        """
        since = bisect_right(self.recoveries_ms, self.last_failed_ms[index])
        recovered = len(self.recoveries_ms) - since
        return max(1, max_windows >> (_SHRINK_BITS * max(0, self.steps(index) - recovered)))


def _after(failed_ms: int, pause: int, now_ms: int) -> int:
    """Return the end of a pause; 0 without one, or if the clock was set back."""
    return 0 if pause == 0 or failed_ms > now_ms else failed_ms + pause * 1000


def pause_s(failures: int) -> int:
    """Return how long a window pauses after this many failures (s)."""
    if failures <= 0:
        return 0
    return min(FIRST_PAUSE_S << min(failures - 1, 16), LONGEST_PAUSE_S)


CLAIM_S: Final = 60
"""How long a claim without a run is valid; a killed daemon delays its runs by this time."""


@dataclass(frozen=True, slots=True)
class RequestClaim:
    """The last request, and when it was made (epoch milliseconds)."""

    run_key: str
    claimed_at_ms: int

    def counts_at(self, now_ms: int) -> bool:
        """Whether its run may still be created."""
        return 0 <= now_ms - self.claimed_at_ms < CLAIM_S * 1000


def claim_file(warehouse: Warehouse, application_id: str) -> StorePath:
    """Return the path of an application's claim, beside its locks."""
    return warehouse.lock_file(f"backup-requests/{application_id}").with_suffix(".json")


def read_claim(path: StorePath) -> RequestClaim | None:
    """Return the newest claim; None without one, or if it is unreadable."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return RequestClaim(str(facts["run_key"]), int(facts["claimed_at_ms"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_claim(path: StorePath, claim: RequestClaim) -> None:
    """Replace the claim atomically."""
    store_at(path).put_text(json.dumps(asdict(claim)))
