"""The guarantee of a restore of a recovery point, and its reason."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kstreams_assets.model.point import CLOCK_STEP_MS, Guarantee, Method, PointInstant
from kstreams_assets.texts import iso_time


class Restorability(StrEnum):
    """The guarantee of a restore of a recovery point from the backups.

    `unproven`: all records that could still be read are there, but compaction may have removed
    records of the point before. `nothing`: not covered.
    """

    EXACT = "exact"
    AT_LEAST_ONCE = "at_least_once"
    UNPROVEN = "unproven"
    NOTHING = "nothing"


RANK: Final[Mapping[Restorability, int]] = {
    Restorability.EXACT: 3,
    Restorability.AT_LEAST_ONCE: 2,
    Restorability.UNPROVEN: 1,
    Restorability.NOTHING: 0,
}
"""Better guarantees have higher numbers."""


@dataclass(frozen=True, slots=True)
class PointStatus:
    """The restorability of a recovery point; `guarantee` is the one it was taken with."""

    id: str
    taken_at_ms: int
    method: Method
    guarantee: Guarantee
    sealed: bool
    covered: bool
    restorability: Restorability
    reason: str
    repeats_at_most: int | None = None
    """Maximum number of records that a restore may process twice, see the point's; None:
    unknown."""
    damaged: bool = False
    """Whether stored data that it needs does not match its record."""
    is_pending: bool = False
    """Whether it only waits for a backup: all missing records came after the newest one, and the
    window of the point is still open."""
    has_increments: bool = False
    """Whether the newest backups are increments: a follower is or was running."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The guarantee of an application, and its source.

    `shown_by` is the newest point whose records showed it, None if it is declared or has not been
    shown. `other` is the newest earlier point that showed the other one.
    """

    guarantee: Guarantee
    shown_by: PointInstant | None = None
    other: PointInstant | None = None
    declared: bool = False

    @property
    def least(self) -> Restorability:
        """The minimum guarantee of a restore."""
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            return Restorability.AT_LEAST_ONCE
        return Restorability.EXACT

    def accepts(self, restorability: Restorability) -> bool:
        """Whether this restorability reaches the application's guarantee."""
        return RANK[restorability] >= RANK[self.least]

    def __str__(self) -> str:
        """One sentence for people."""
        if self.declared:
            how = "declared (`guarantee`)"
        elif self.shown_by is None:
            how = "assumed: no record has shown it so far"
        else:
            how = f"shown by its records at {iso_time(self.shown_by.taken_at_ms)}"
        words = "exactly once" if self.guarantee is Guarantee.EXACT else "at least once"
        return f"The application processes {words} ({how})."


POINT_CHECKS: Mapping[str, str] = {
    "recovery_point_is_recent": (
        "A recovery point is covered by backups and has the guarantee of the application (exact"
        " with exactly-once processing, otherwise at_least_once). The newest such point is not"
        " older than the declared objective, if one is declared. Red: an outage now loses more"
        " than the objective, or the newest point is missing a topic of the application. Back up"
        " the windows that are due, and check the reasons of the points."
    ),
}
"""Checks of the asset `<app>/recovery_points`."""


@dataclass(frozen=True, slots=True)
class Restorable:
    """The newest exactly restorable recovery point, and the newest covered one.

    `yardstick` is the application's own guarantee; None: exactly once.
    """

    exact: PointStatus | None
    covered: PointStatus | None
    lacking: str = ""
    """Topics of the application that are missing in the newest point of all, with the remedy."""
    yardstick: Yardstick | None = None

    @property
    def enough(self) -> PointStatus | None:
        """The newest covered point with the application's own guarantee."""
        if self.yardstick and self.covered and self.yardstick.accepts(self.covered.restorability):
            return self.covered
        return self.exact

    @property
    def lesser(self) -> PointStatus | None:
        """The newest covered point, if it has less than the application's guarantee."""
        return None if self.covered == self.enough else self.covered


@dataclass(frozen=True, slots=True)
class Recency:
    """Whether the recovery point objective is met; ages and objective in seconds.

    `age_s` is None if no covered point has the application's own guarantee.
    """

    passed: bool
    explanation: str
    age_s: float | None
    objective_s: int | None
    restorable: Restorable


def recovery_point_age(status: PointStatus | None, now_ms: int) -> float | None:
    """Seconds since a point was taken, None without one or if its timestamp is in the future.

    Clock differences of less than a minute do not count as a wrong clock.
    """
    if status is None or status.taken_at_ms > now_ms + CLOCK_STEP_MS:
        return None
    return max(now_ms - status.taken_at_ms, 0) / 1000


def counts(statuses: Iterable[PointStatus]) -> dict[Restorability, int]:
    """The number of points with each restorability."""
    found = dict.fromkeys(Restorability, 0)
    for status in statuses:
        found[status.restorability] += 1
    return found
