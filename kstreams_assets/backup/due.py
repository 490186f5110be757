"""Which windows are due: closed, not yet backed up, not older than the first recovery point.

A window that is stored, but of whose log nobody could see in time why offsets have no record, is
due for that look.
"""

from bisect import bisect_left
from dataclasses import dataclass

from kstreams_assets.backup.ledger import Ledger
from kstreams_assets.backup.partitions import WindowCalendar
from kstreams_assets.backup.windows import Window
from kstreams_assets.recovery.table import RecoveryPointTable
from kstreams_assets.settings import ApplicationSettings


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """A closed window and the topics of it that are backed up."""

    window: Window
    done: frozenset[str]
    missing: frozenset[str]
    points: int
    """Recovery points that were taken in the window, or on its behalf."""

    @property
    def is_due(self) -> bool:
        """Whether a topic of it is not backed up."""
        return bool(self.missing)


def window_statuses(settings: ApplicationSettings) -> list[WindowStatus]:
    """Every closed window from the first recovery point on, in order of time.

    Without any recovery point only the newest closed window is there: a backup of it takes one.
    """
    calendar = WindowCalendar(settings.windows)
    newest = calendar.newest_closed()
    if newest is None:
        return []
    instants = RecoveryPointTable(settings.warehouse).instants(settings.application_id)
    first_ms = min((i.effective_at_ms for i in instants), default=newest.start_ms)
    windows = calendar.closed_since(min(first_ms, newest.start_ms))
    names = frozenset(topic.name for topic in settings.topics)
    ledger = Ledger(settings.warehouse, settings.application_id)
    done = ledger.done(names)
    for window, topics in ledger.not_examined(names).items():
        done[window] -= topics
    counts = _counts(windows, [i.effective_at_ms for i in instants])
    return [
        WindowStatus(
            window=window,
            done=frozenset(done.get(window, set())),
            missing=names - done.get(window, set()),
            points=counts[window],
        )
        for window in windows
    ]


def _counts(windows: list[Window], instants: list[int]) -> dict[Window, int]:
    ordered = sorted(instants)
    return {
        window: bisect_left(ordered, window.end_ms) - bisect_left(ordered, window.start_ms)
        for window in windows
    }
