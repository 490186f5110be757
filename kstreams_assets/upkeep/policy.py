"""Which recovery points a policy keeps, and by which of its lines. Pure."""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from kstreams_assets.settings import KeepSettings
from kstreams_assets.warehouse.judge import RANK, PointStatus, Restores
from kstreams_assets.warehouse.point import in_force, in_order
from kstreams_assets.warehouse.points import PointInstant, at_edges

Judge = Callable[[str], PointStatus | None]
"""What a restore of a point (id) would give; None where it is gone."""

ALL = "all"
MINIMUM = "minimum"
PINNED = "pinned"
RESTORED = "restored from"
NEWEST = "newest"
NOT_BACKED_UP = "not backed up yet"
ENDS_WINDOW = "ends a window that is due"

_TRIED = 64
"""So many points of a period are judged, newest first, before the best of them is taken."""


def kept_points(
    instants: Sequence[PointInstant],
    judge: Judge,
    policy: KeepSettings,
    *,
    now_ms: int,
    timezone: str = "UTC",
    backed_up_to_ms: int,
    pinned: Collection[str] = (),
    restored: Collection[str] = (),
    due_edges_ms: Iterable[int] = (),
) -> dict[str, tuple[str, ...]]:
    """Ids of the points that stay, each with the lines of the policy that keep it.

    Args:
        instants: Every point there is.
        judge: Asked for as few points as may be.
        policy: What is kept.
        now_ms: Epoch milliseconds.
        timezone: That of days and longer periods.
        backed_up_to_ms: Points that count later than that are not backed up yet: all of them stay.
        pinned: Ids of pinned points.
        restored: Ids of points that unfinished restores are made from.
        due_edges_ms: Where windows begin and end that are still to be backed up.
    """
    ordered = sorted(instants, key=in_order)
    found: dict[str, list[str]] = {}

    def keep(line: str, ids: Iterable[str]) -> None:
        for point_id in ids:
            found.setdefault(point_id, []).append(line)

    known = {instant.id for instant in ordered}
    keep(PINNED, known & {*pinned})
    keep(RESTORED, known & {*restored})
    keep(NOT_BACKED_UP, (i.id for i in ordered if i.effective_at_ms >= backed_up_to_ms))
    keep(ENDS_WINDOW, sorted(at_edges(ordered, due_edges_ms)))
    keep(ALL, (i.id for i in ordered if i.effective_at_ms >= now_ms - 1000 * policy.all_s))
    for line in policy.lines:
        begins_ms = now_ms - 1000 * line.for_s
        period = _period(line.name, timezone)
        of_period: dict[object, list[PointInstant]] = {}
        for instant in ordered:
            if begins_ms <= instant.effective_at_ms < backed_up_to_ms:
                of_period.setdefault(period(instant.effective_at_ms), []).append(instant)
        best = (_best(of_it, judge) for of_it in of_period.values())
        keep(line.name, (point_id for point_id in best if point_id is not None))
    backed_up = [i for i in ordered if i.effective_at_ms < backed_up_to_ms]
    exact = (i.id for i in reversed(backed_up) if _gives(judge, i.id) is Restores.EXACT)
    keep(MINIMUM, (point_id for point_id, _ in zip(exact, range(policy.minimum), strict=False)))
    if ordered:
        keep(NEWEST, {ordered[-1].id, in_force(ordered)[-1].id})
    return {instant.id: tuple(found[instant.id]) for instant in ordered if instant.id in found}


def _gives(judge: Judge, point_id: str) -> Restores:
    status = judge(point_id)
    return Restores.NOTHING if status is None else status.gives


def _best(instants: Sequence[PointInstant], judge: Judge) -> str | None:
    """The last point that restores exactly, else the best one; None where none restores."""
    best: tuple[int, str] | None = None
    for instant in list(reversed(instants))[:_TRIED]:
        rank = RANK[_gives(judge, instant.id)]
        if rank and (best is None or rank > best[0]):
            best = rank, instant.id
        if rank == RANK[Restores.EXACT]:
            break
    return None if best is None else best[1]


def _period(line: str, timezone: str) -> Callable[[int], object]:
    zone = ZoneInfo(timezone)

    def of(instant_ms: int) -> object:
        if line == "hourly":
            return instant_ms // 3_600_000
        day = datetime.fromtimestamp(instant_ms / 1000, tz=zone)
        if line == "daily":
            return day.date()
        if line == "weekly":
            return day.isocalendar()[:2]
        return (day.year, day.month) if line == "monthly" else day.year

    return of


def first_index(sizes: Sequence[int], *, ratio: int) -> int:
    """From which of some neighbours on the last ones are put together.

    One is only written anew once those behind it together have a share of its size, so that what is
    written is bounded by a small multiple of what there is, however often it is done. Of those that
    stay, each is more than `ratio` times as large as all behind it: they are few.
    """
    first, behind = max(len(sizes) - 1, 0), 0
    for index in reversed(range(len(sizes))):
        if sizes[index] <= ratio * max(behind, 1):
            first = index
        behind += sizes[index]
    return first
