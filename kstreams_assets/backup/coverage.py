"""Which recovery points are covered by backups, and how old the newest one is that can be restored.

Reads the ledger and the recovery points; needs neither a broker nor a JVM.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kstreams_assets.backup.chains import chains_of
from kstreams_assets.backup.facts import TopicFactsTable
from kstreams_assets.backup.ledger import Ledger
from kstreams_assets.backup.partitions import WindowCalendar
from kstreams_assets.backup.point_judge import PointJudge, PointStatus, Restores
from kstreams_assets.recovery.point import RecoveryPoint, iso_time
from kstreams_assets.recovery.table import RecoveryPointTable
from kstreams_assets.settings import ApplicationSettings

POINT_CHECKS: Mapping[str, str] = {
    "recovery_point_is_recent": (
        "The newest recovery point that is exact and covered by backups is not older than the"
        " declared objective (passes when none is declared). Red: an outage now would lose more"
        " than was agreed; back up the windows that are due, see why points are not exact."
    ),
}
"""Checks of the asset `recovery_points/<app>`."""

_FIRST_BATCH = 64
_BATCH_GROWTH = 4


@dataclass(frozen=True, slots=True)
class Restorable:
    """The newest recovery point that restores exactly, and the newest that is covered at all."""

    exact: PointStatus | None
    covered: PointStatus | None


@dataclass(frozen=True, slots=True)
class Recency:
    """Whether the recovery point objective is met; ages and objective in seconds.

    `age_s` is None when no point is both exact and covered.
    """

    passed: bool
    explanation: str
    age_s: float | None
    objective_s: int | None
    restorable: Restorable


class Coverage:
    """The recovery points of one application, held against what is backed up now."""

    def __init__(self, settings: ApplicationSettings) -> None:
        self._settings = settings
        self._points = RecoveryPointTable(settings.warehouse)
        self._backed_up = {topic.name for topic in settings.topics}
        # The ledger is read once: later backups do not show in this object.
        ledger = Ledger(settings.warehouse, settings.application_id)
        topics = self._backed_up | {topic.name for topic in settings.application.topics}
        self._chains = chains_of(ledger.stored_spans(topics))
        facts = TopicFactsTable(settings.warehouse, settings.application_id)
        self._delete_retention_ms = facts.delete_retention_ms(topics)

    def statuses(self, points: Sequence[RecoveryPoint]) -> list[PointStatus]:
        """What a restore of each of these points would give, in the order given."""
        if not points:
            return []
        oldest_ms = min(point.effective_at_ms for point in points)
        judge = PointJudge(
            self._chains,
            roles={topic.name: topic.roles for topic in self._settings.application.topics},
            backed_up=self._backed_up,
            closed=WindowCalendar(self._settings.windows).closed_since(oldest_ms),
            delete_retention_ms=self._delete_retention_ms,
        )
        return judge.judge(points)

    def newest(self, count: int) -> list[PointStatus]:
        """The statuses of the newest points, newest first."""
        return self.statuses(self._points.newest(self._settings.application_id, count))

    def newest_restorable(self) -> Restorable:
        """The newest points that can be restored; looks no further back than it has to."""
        covered = next((s for s in self._search() if s.covered), None)
        exact = covered if covered and covered.gives is Restores.EXACT else None
        if covered and exact is None:
            older = self._search(exact_before_ms=covered.taken_at_ms)
            exact = next((s for s in older if s.gives is Restores.EXACT), None)
        return Restorable(exact=exact, covered=covered)

    def _search(self, *, exact_before_ms: int | None = None) -> Iterator[PointStatus]:
        """Statuses from the newest point on (or exact ones), loaded in batches that grow."""
        application_id = self._settings.application_id
        instants = sorted(
            self._points.instants(application_id), key=lambda i: i.taken_at_ms, reverse=True
        )
        ids = [
            instant.id
            for instant in instants
            if exact_before_ms is None or (instant.exact and instant.taken_at_ms < exact_before_ms)
        ]
        size = _FIRST_BATCH
        while ids:
            batch, ids = ids[:size], ids[size:]
            yield from self.statuses(self._points.load(application_id, batch)[::-1])
            size *= _BATCH_GROWTH


def newest_restorable(settings: ApplicationSettings) -> Restorable:
    """The newest recovery points of an application that can be restored."""
    return Coverage(settings).newest_restorable()


def recovery_point_age(status: PointStatus | None, now_ms: int) -> float | None:
    """Seconds since a point was taken, None without one."""
    return None if status is None else max(now_ms - status.taken_at_ms, 0) / 1000


def recovery_point_is_recent(
    settings: ApplicationSettings,
    *,
    restorable: Restorable | None = None,
    now_ms: int | None = None,
) -> Recency:
    """Hold the age of the newest exact, covered point against the declared objective.

    Args:
        restorable: Found before; looked for when left out.
        now_ms: Epoch milliseconds; the present time when left out.
    """
    found = restorable or newest_restorable(settings)
    objective_s = settings.recovery_points.objective_s
    age_s = recovery_point_age(found.exact, now_ms or time.time_ns() // 1_000_000)
    return Recency(
        passed=objective_s is None or (age_s is not None and age_s <= objective_s),
        explanation=_explanation(found, age_s, objective_s),
        age_s=age_s,
        objective_s=objective_s,
        restorable=found,
    )


def _explanation(found: Restorable, age_s: float | None, objective_s: int | None) -> str:
    texts: list[str] = []
    if found.exact and age_s is not None:
        at = iso_time(found.exact.taken_at_ms)
        texts.append(f"The newest exact, covered point is {age_s:.0f} s old ({at}).")
    else:
        texts.append("No recovery point is both exact and covered by backups.")
    if found.covered and found.covered != found.exact:
        at = iso_time(found.covered.taken_at_ms)
        texts.append(f"The newest covered one gives {found.covered.gives} ({at}).")
    if objective_s is None:
        texts.append("No objective is declared (recovery_points.objective_seconds).")
    else:
        texts.append(f"The objective is {objective_s} s.")
        if age_s is None or age_s > objective_s:
            texts.append(
                "Back up the windows that are due; kstreams-assets recovery-points list tells why"
                " newer points do not count."
            )
    return " ".join(texts)


def counts(statuses: Iterable[PointStatus]) -> dict[Restores, int]:
    """How many points give what."""
    found = dict.fromkeys(Restores, 0)
    for status in statuses:
        found[status.gives] += 1
    return found
