"""What can be asked of the recovery points of an application: the guarantee it has itself.

`at_least_once` is the default of Kafka Streams. Of such an application no point can promise more
than that, and none has to.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kstreams_assets.settings import ApplicationSettings, DeclaredGuarantee
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.judge import RANK, Restores
from kstreams_assets.warehouse.point import Guarantee, in_order
from kstreams_assets.warehouse.points import PointInstant, RecoveryPointTable


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The guarantee of an application, and how it is known.

    `shown_by` is the newest point whose records showed it, None where it is declared or nothing
    has shown it. `other` is the newest point before it that showed the other one.
    """

    guarantee: Guarantee
    shown_by: PointInstant | None = None
    other: PointInstant | None = None
    declared: bool = False

    @property
    def least(self) -> Restores:
        """What a restore has to give at least."""
        if self.guarantee is Guarantee.AT_LEAST_ONCE:
            return Restores.AT_LEAST_ONCE
        return Restores.EXACT

    def accepts(self, gives: Restores) -> bool:
        """Whether a point that gives this gives what the application guarantees."""
        return RANK[gives] >= RANK[self.least]

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


def yardstick_of(
    settings: ApplicationSettings, instants: Iterable[PointInstant] | None = None
) -> Yardstick:
    """The guarantee that is declared; else what the newest recovery point shows that shows one.

    Where no point shows any, points have to be exact.

    Args:
        settings: Of the application.
        instants: Of its points, where they are known already.
    """
    if settings.guarantee is not DeclaredGuarantee.AUTO:
        return Yardstick(Guarantee(settings.guarantee.value), declared=True)
    if instants is None:
        instants = RecoveryPointTable(settings.warehouse).instants(settings.application_id)
    shown = [i for i in sorted(instants, key=in_order, reverse=True) if i.runs_at is not None]
    if not shown:
        return Yardstick(Guarantee.EXACT)
    newest = shown[0]
    other = next((i for i in shown if i.runs_at is not newest.runs_at), None)
    return Yardstick(newest.runs_at or Guarantee.EXACT, newest, other)
