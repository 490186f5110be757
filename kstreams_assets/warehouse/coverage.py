"""How far backups reach: the newest recovery point that can be restored, and how old it is."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.judge import PointStatus, Restores, absent_texts, unknown_texts
from kstreams_assets.warehouse.point import CLOCK_STEP_MS, in_order
from kstreams_assets.warehouse.points import PointInstant, RecoveryPointTable
from kstreams_assets.warehouse.yardstick import Yardstick, yardstick_of

POINT_CHECKS: Mapping[str, str] = {
    "recovery_point_is_recent": (
        "A recovery point is covered by backups and gives what the application itself guarantees"
        " (exact where it processes exactly once, else at_least_once), and the newest such point is"
        " not older than the declared objective (however old, when none is declared). Red: an"
        " outage now would lose more than was agreed, or the newest point lacks a topic of the"
        " application; back up the windows that are due, see why points do not count."
    ),
}
"""Checks of the asset `<app>/recovery_points`."""

_NEWEST = 16
_PER_DOUBLING = 8


@dataclass(frozen=True, slots=True)
class Restorable:
    """The newest recovery point that restores exactly, and the newest that is covered at all.

    `yardstick` is what the application itself guarantees, None: exactly once.
    """

    exact: PointStatus | None
    covered: PointStatus | None
    lacking: str = ""
    """Topics of the application that the newest point of all has nothing of, with what to do."""
    yardstick: Yardstick | None = None

    @property
    def enough(self) -> PointStatus | None:
        """The newest covered point that gives what the application guarantees."""
        if self.yardstick and self.covered and self.yardstick.accepts(self.covered.gives):
            return self.covered
        return self.exact


@dataclass(frozen=True, slots=True)
class Recency:
    """Whether the recovery point objective is met; ages and objective in seconds.

    `age_s` is None when no covered point gives what the application guarantees.
    """

    passed: bool
    explanation: str
    age_s: float | None
    objective_s: int | None
    restorable: Restorable


class _Search:
    """Looks for the newest points of a kind among these, which are in order, newest first."""

    def __init__(self, contents: Contents, instants: Sequence[PointInstant]) -> None:
        self._contents, self._instants = contents, instants

    def newest(self) -> tuple[PointStatus | None, PointStatus | None]:
        """The newest point that restores exactly, and the newest that is covered at all.

        The newest points are looked at one by one; further back `_PER_DOUBLING` of those between
        one number of points and twice that number, and where one of them is found, the points
        right before it. So the points that are loaded are a few hundred however many there are,
        and one is only overlooked if older ones that are looked at on either side cannot be
        restored.
        """
        covered = self._search(self._instants, lambda status: status.covered)
        if covered is None or covered.gives is Restores.EXACT:
            return covered, covered
        after = next(n for n, i in enumerate(self._instants, start=1) if i.id == covered.id)
        older = [i for i in self._instants[after:] if i.exact]
        return self._search(older, lambda status: status.gives is Restores.EXACT), covered

    def _search(
        self, instants: Sequence[PointInstant], wanted: Callable[[PointStatus], bool]
    ) -> PointStatus | None:
        """The newest point of the kind, among those that are looked at; newest first."""
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
        """The newest of the points from which on all are of the kind; found by halving."""
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
        return self._contents.statuses_of([instant.id for instant in instants])


def _looked_at(points: int) -> list[int]:
    """Numbers of the points that are looked at, the newest being 0, and the oldest with them."""
    numbers = [*range(min(points, _NEWEST))]
    step = _NEWEST // _PER_DOUBLING
    while numbers and numbers[-1] < points - 1:
        further = range(numbers[-1] + step, points, step)[:_PER_DOUBLING]
        numbers += further or [points - 1]
        step *= 2
    return numbers


def newest_restorable(
    settings: ApplicationSettings, contents: Contents | None = None
) -> Restorable:
    """The newest recovery points of an application that can be restored."""
    instants = _newest_first(settings)
    exact, covered = _Search(contents or Contents.of(settings), instants).newest()
    return Restorable(exact, covered, _lacking(settings), yardstick_of(settings, instants))


def newest_statuses(
    settings: ApplicationSettings, count: int, contents: Contents | None = None
) -> list[PointStatus]:
    """What the newest points of an application would give, newest first."""
    ids = [instant.id for instant in _newest_first(settings)[:count]]
    return [status for status in (contents or Contents.of(settings)).statuses_of(ids) if status]


def _newest_first(settings: ApplicationSettings) -> list[PointInstant]:
    instants = RecoveryPointTable(settings.warehouse).instants(settings.application_id)
    return sorted(instants, key=in_order, reverse=True)


def _lacking(settings: ApplicationSettings) -> str:
    """Older points may well be exact, and the newest one lack what appeared or went since."""
    application = settings.application
    newest = RecoveryPointTable(settings.warehouse).newest(settings.application_id)
    if not newest:
        return ""
    roles = {topic.name: topic.roles for topic in application.topics}
    return "; ".join(
        [*absent_texts(newest[0], roles), *unknown_texts(newest[0], application.not_mine)]
    )


def recovery_point_age(status: PointStatus | None, now_ms: int) -> float | None:
    """Seconds since a point was taken, None without one or if its stamp lies in the future.

    Clocks that are apart by less than a minute are told from one that is wrong.
    """
    if status is None or status.taken_at_ms > now_ms + CLOCK_STEP_MS:
        return None
    return max(now_ms - status.taken_at_ms, 0) / 1000


def recovery_point_is_recent(
    settings: ApplicationSettings,
    *,
    restorable: Restorable | None = None,
    now_ms: int | None = None,
) -> Recency:
    """Hold the age of the newest covered point that is enough against the declared objective.

    Without such a point it does not pass, whether or not an objective is declared. Nor does it
    while new points lack topics of the application: they will not become exact by themselves.

    Args:
        restorable: Found before; looked for when left out.
        now_ms: Epoch milliseconds; the present time when left out.
    """
    found = restorable or newest_restorable(settings)
    objective_s = settings.recovery_points.objective_s
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
    if enough and enough.gives is Restores.AT_LEAST_ONCE:
        kind = "covered point that gives at_least_once, as the application does,"
    if enough and age_s is not None:
        at = iso_time(enough.taken_at_ms)
        texts.append(f"The newest {kind} is {age_s:.0f} s old ({at}).{_repeats(enough)}")
    elif enough:
        at = iso_time(enough.taken_at_ms)
        texts.append(
            f"The newest {kind.rstrip(',')} {enough.id} is stamped {at}, which is in the"
            " future: its age is not known. Set the clocks of the recorder and of this machine;"
            " the next point counts again."
        )
    elif found.yardstick and found.yardstick.least is not Restores.EXACT:
        texts.append("No recovery point that gives at_least_once is covered by backups.")
    else:
        texts.append("No recovery point is both exact and covered by backups.")
    if found.covered and found.covered != enough:
        at = iso_time(found.covered.taken_at_ms)
        texts.append(f"The newest covered one gives {found.covered.gives} ({at}).")
    if found.lacking:
        texts.append(f"The newest point lacks topics of the application: {found.lacking}.")
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
    if status.gives is not Restores.AT_LEAST_ONCE or status.repeats_at_most is None:
        return ""
    return f" A restore of it processes at most {status.repeats_at_most:,} records again."


def counts(statuses: Iterable[PointStatus]) -> dict[Restores, int]:
    """How many points give what."""
    found = dict.fromkeys(Restores, 0)
    for status in statuses:
        found[status.gives] += 1
    return found
