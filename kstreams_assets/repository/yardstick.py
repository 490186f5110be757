"""The guarantee to require of an application's recovery points: its own.

`at_least_once` is the default of Kafka Streams. For such an application no point can have a better
guarantee, and none needs one.
"""

from collections.abc import Iterable

from kstreams_assets.model.point import Guarantee, PointInstant, in_order
from kstreams_assets.model.restorability import Yardstick
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, DeclaredGuarantee


def yardstick_of(
    settings: ApplicationSettings, instants: Iterable[PointInstant] | None = None
) -> Yardstick:
    """The declared guarantee; else the one of the newest recovery point that shows one.

    If no point shows any, points have to be exact.

    Args:
        settings: Of the application.
        instants: Of its points, if already known.
    """
    if settings.guarantee is not DeclaredGuarantee.AUTO:
        return Yardstick(Guarantee(settings.guarantee.value), declared=True)
    if instants is None:
        instants = Repository.open(settings).points.instants()
    shown = [i for i in sorted(instants, key=in_order, reverse=True) if i.runs_at is not None]
    if not shown:
        return Yardstick(Guarantee.EXACT)
    newest = shown[0]
    other = next((i for i in shown if i.runs_at is not newest.runs_at), None)
    return Yardstick(newest.runs_at or Guarantee.EXACT, newest, other)
