"""The extent of backups: the newest restorable recovery point, and its age."""

import time
from collections.abc import Callable, Iterator, Sequence

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.model.point import PointInstant, in_order
from kstreams_assets.model.restorability import (
    PointStatus,
    Recency,
    Restorability,
    Restorable,
    recovery_point_age,
)
from kstreams_assets.repository.contents import View
from kstreams_assets.repository.evaluator import absent_texts, unknown_texts
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time

_NEWEST = 16
_PER_DOUBLING = 8


class _Search:
    """Search the newest points of a kind among these, which are ordered newest first."""

    def __init__(self, view: View, instants: Sequence[PointInstant]) -> None:
        self._view, self._instants = view, instants

    def newest(self) -> tuple[PointStatus | None, PointStatus | None]:
        """The newest exactly restorable point, and the newest covered one.

        The newest points are evaluated one by one. Further back only `_PER_DOUBLING` points are
        evaluated between a number of points and twice that number. If one of them matches, the
        points right before it are evaluated. A few hundred points are thus loaded, however many
        there are. A point is only missed if the evaluated older points on both sides are not
        restorable.
        """
        covered = self._search(self._instants, lambda status: status.covered)
        if covered is None or covered.restorability is Restorability.EXACT:
            return covered, covered
        after = next(n for n, i in enumerate(self._instants, start=1) if i.id == covered.id)
        older = [i for i in self._instants[after:] if i.exact]
        return self._search(
            older, lambda status: status.restorability is Restorability.EXACT
        ), covered

    def _search(
        self, instants: Sequence[PointInstant], wanted: Callable[[PointStatus], bool]
    ) -> PointStatus | None:
        """The newest point of the kind, among the evaluated ones; newest first."""
        before = -1
        looked_at = _looked_at(len(instants))
        statuses = self._statuses([instants[index] for index in looked_at])
        for index, status in zip(looked_at, statuses, strict=True):
            if status and wanted(status):
                return self._first(instants[before + 1 : index], wanted) or status
            before = index
        return None

    def _first(
        self, instants: Sequence[PointInstant], wanted: Callable[[PointStatus], bool]
    ) -> PointStatus | None:
        """The newest of the points from which on all are of the kind; found by bisection."""
        found: PointStatus | None = None
        while instants:
            middle = len(instants) // 2
            (status,) = self._statuses([instants[middle]])
            if status and wanted(status):
                found, instants = status, instants[:middle]
            else:
                instants = instants[middle + 1 :]
        return found

    def _statuses(self, instants: Sequence[PointInstant]) -> Iterator[PointStatus | None]:
        return self._view.statuses_of([instant.id for instant in instants])


def _looked_at(points: int) -> list[int]:
    """Numbers of the evaluated points, the newest being 0, including the oldest."""
    numbers = [*range(min(points, _NEWEST))]
    step = _NEWEST // _PER_DOUBLING
    while numbers and numbers[-1] < points - 1:
        further = range(numbers[-1] + step, points, step)[:_PER_DOUBLING]
        numbers += further or [points - 1]
        step *= 2
    return numbers


def newest_restorable(settings: ApplicationSettings, view: View | None = None) -> Restorable:
    """The newest recovery points of an application that can be restored."""
    view = view or Repository.open(settings).reading(settings)
    instants = _newest_first(view)
    yardstick = view.points.yardstick(settings.guarantee, instants)
    exact, covered = _Search(view, instants).newest()
    return Restorable(exact, covered, _lacking(settings.application, view), yardstick)


def newest_statuses(
    settings: ApplicationSettings, count: int, view: View | None = None
) -> list[PointStatus]:
    """The restorability of the newest points of an application, newest first."""
    view = view or Repository.open(settings).reading(settings)
    ids = [instant.id for instant in _newest_first(view)[:count]]
    return [status for status in view.statuses_of(ids) if status]


def _newest_first(view: View) -> list[PointInstant]:
    return sorted(view.points.instants(), key=in_order, reverse=True)


def _lacking(application: StreamsApplication, view: View) -> str:
    """Older points may be exact although the newest one misses an added or removed topic."""
    newest = view.points.newest()
    if not newest:
        return ""
    roles = {topic.name: topic.roles for topic in application.topics}
    return "; ".join(
        [*absent_texts(newest[0], roles), *unknown_texts(newest[0], application.not_mine)]
    )


def recovery_point_is_recent(
    settings: ApplicationSettings,
    *,
    restorable: Restorable | None = None,
    now_ms: int | None = None,
) -> Recency:
    """Compare the age of the newest sufficient covered point with the declared objective.

    Without such a point it does not pass, even without a declared objective. It does not pass
    either while new points are missing topics of the application: they will never become exact.

    Args:
        restorable: The points, if known; else they are looked up.
        now_ms: Epoch milliseconds; by default the current time.
    """
    found = restorable or newest_restorable(settings)
    objective_s = settings.recovery_points.objective_seconds
    age_s = recovery_point_age(found.enough, now_ms or time.time_ns() // 1_000_000)
    return Recency(
        passed=(
            age_s is not None
            and (objective_s is None or age_s <= objective_s)
            and not found.lacking
        ),
        explanation=_explanation(found, age_s, objective_s),
        age_s=age_s,
        objective_s=objective_s,
        restorable=found,
    )


def _explanation(found: Restorable, age_s: float | None, objective_s: int | None) -> str:
    texts: list[str] = []
    enough, kind = found.enough, "exact, covered point"
    if enough and enough.restorability is Restorability.AT_LEAST_ONCE:
        kind = "covered at_least_once point, like the application,"
    if enough and age_s is not None:
        at = iso_time(enough.taken_at_ms)
        texts.append(f"The newest {kind} is {age_s:.0f} s old ({at}).{_repeats(enough)}")
    elif enough:
        at = iso_time(enough.taken_at_ms)
        texts.append(
            f"The newest {kind.rstrip(',')} {enough.id} is stamped {at}, which is in the future:"
            " its age is unknown. Set the clocks of the recorder and of this machine; the next"
            " point counts again."
        )
    elif found.yardstick and found.yardstick.least is not Restorability.EXACT:
        texts.append("No recovery point is both at_least_once and covered by backups.")
    else:
        texts.append("No recovery point is both exact and covered by backups.")
    if found.lesser:
        at = iso_time(found.lesser.taken_at_ms)
        texts.append(f"The newest covered point is {found.lesser.restorability} ({at}).")
    if found.lacking:
        texts.append(f"The newest point is missing topics of the application: {found.lacking}.")
    if objective_s is None:
        texts.append("No objective is declared (recovery_points.objective_seconds).")
    else:
        texts.append(f"The objective is {objective_s} s.")
    if age_s is None or (objective_s is not None and age_s > objective_s):
        texts.append(
            "Back up the windows that are due; kstreams-assets recovery-points list reports why"
            " newer points do not count."
        )
    return " ".join(texts)


def _repeats(status: PointStatus) -> str:
    if status.restorability is not Restorability.AT_LEAST_ONCE or status.repeats_at_most is None:
        return ""
    return f" A restore of it processes at most {status.repeats_at_most:,} records again."
