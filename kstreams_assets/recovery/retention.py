"""Which recovery points stay, and why: by the recorder's rule, or by the policy of `expire`.

A line is a reason to stay. The recorder's lines keep whatever windows and restores may need; a
policy keeps fewer points of what is backed up. Without a policy `expire` follows the recorder's
rule. Whatever drops points asks here.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.model.point import PointInstant, in_force, in_order
from kstreams_assets.model.point_bounds import at_edges
from kstreams_assets.model.restorability import RANK, PointStatus, Restores
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, KeepSettings, KeptLogs

Judge = Callable[[str], PointStatus | None]
"""What a restore of a point (id) would give; None where it is gone."""
Line = tuple[str, Collection[str]]
"""Why points stay, and their ids."""

ALL = "all"
MINIMUM = "minimum"
PINNED = "pinned"
RESTORED = "restored from"
NEWEST = "newest"
NOT_BACKED_UP = "not backed up yet"
ENDS_WINDOW = "ends a window that is due"
NAMED = "named by the ledger, a restore or a pin"
NEWEST_PROVEN = "newest that is sealed or exact"
HOLDS_BACK = "holds back one that stays"

_HOUR_MS = 3_600_000
_TRIED = 64
"""So many points of a period are judged, newest first, before the best of them is taken."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The recorder's rule: what decides which points and saved records stay.

    The functions are asked once in a round: `edges_ms(low, high)` gives the instants at which
    windows begin or end in that time, `named()` the ids of points that must stay (those that the
    ledger names as closing a window, pinned ones), `proven()` the changelog offsets (topic id,
    start, end) that backups hold without a hole, and that therefore need not be kept a second time.
    """

    keep_all_s: float
    edges_ms: Callable[[int, int], Iterable[int]]
    named: Callable[[], Iterable[str]] = tuple
    proven: Callable[[], Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]]] = dict

    def keep_all_from_ms(self, now_ms: int) -> int:
        """Every point taken from then on stays."""
        return now_ms - round(self.keep_all_s * 1000)

    def lines(
        self, instants: Sequence[PointInstant], *, now_ms: int, pruned_to_ms: int = 0
    ) -> list[Line]:
        """Why points stay; those taken before `pruned_to_ms` do, as far as they are there."""
        low_ms = min((i.effective_at_ms for i in instants), default=0)
        judged = {i.id for i in instants if min(i.taken_at_ms, i.effective_at_ms) < pruned_to_ms}
        return recorder_lines(
            instants,
            # A point is only the last before an edge that lies behind it.
            edges_ms=self.edges_ms(max(low_ms, pruned_to_ms), now_ms),
            keep_all_from_ms=self.keep_all_from_ms(now_ms),
            named=judged.union(self.named()),
        )


def retention_of(settings: ApplicationSettings) -> Retention:
    """How the recorder prunes the points of an application.

    The last of each window stays, and those that the ledger names or that unfinished restores are
    made from; what backups hold without holes is not kept a second time.
    """
    calendar = WindowCalendar(settings.windows)
    repo, keep = Repository.open(settings), settings.keep
    hourly = keep is not None and any(line.name == "hourly" for line in keep.lines)

    def edges_ms(low_ms: int, high_ms: int) -> set[int]:
        windows = calendar.closed_since(low_ms)
        edges = {edge for window in windows for edge in (window.start_ms, window.end_ms)}
        # The policy may ask for more points than there are windows.
        hours = range(low_ms // _HOUR_MS * _HOUR_MS, high_ms, _HOUR_MS) if hourly else ()
        return edges.union(hours)

    return Retention(
        keep_all_s=max(settings.recovery_points.keep_all_s, keep.all_s if keep else 0),
        edges_ms=edges_ms,
        named=lambda: {*repo.ledger.closing_point_ids(), *_restored(repo), *_pinned(repo)},
        proven=lambda: repo.ledger.proven_ranges(settings.application),
    )


def policy_of(settings: ApplicationSettings) -> KeepSettings:
    """The policy of `expire`; that of the recorder, which keeps logs whole, where none is given."""
    keep_all_s = settings.recovery_points.keep_all_s
    return settings.keep or KeepSettings(all=f"{keep_all_s}s", logs=KeptLogs.WHOLE)


def kept_by_policy(
    settings: ApplicationSettings,
    instants: Sequence[PointInstant],
    judge: Judge,
    *,
    now_ms: int,
    backed_up_to_ms: int,
    due_edges_ms: Iterable[int] = (),
) -> dict[str, tuple[str, ...]]:
    """The points that `expire` keeps, as `kept_points` gives them.

    Args:
        settings: The application, whose policy it is.
        instants: Every point there is.
        judge: Asked for as few points as may be.
        now_ms: Epoch milliseconds.
        backed_up_to_ms: Points that count later than that are not backed up yet: all of them stay.
        due_edges_ms: Where windows begin and end that are still to be backed up.
    """
    lines = (
        retention_of(settings).lines(instants, now_ms=now_ms)
        if settings.keep is None
        else _policy_lines(
            instants,
            judge,
            settings,
            now_ms=now_ms,
            backed_up_to_ms=backed_up_to_ms,
            due_edges_ms=due_edges_ms,
        )
    )
    return kept_points(instants, lines)


def _pinned(repo: Repository) -> set[str]:
    return {pin.recovery_point_id for pin in repo.pins.all()}


def _restored(repo: Repository) -> Collection[str]:
    return repo.lineage.needed_points()


def kept_points(
    instants: Iterable[PointInstant], lines: Iterable[Line]
) -> dict[str, tuple[str, ...]]:
    """Ids of the points that stay, in the order in which they count, with the lines that keep them.

    Args:
        instants: Every point there is.
        lines: Those of the recorder's rule, or of a policy.
    """
    found: dict[str, list[str]] = {}
    for line, ids in lines:
        for point_id in ids:
            found.setdefault(point_id, []).append(line)
    ordered = sorted(instants, key=in_order)
    return {instant.id: tuple(found[instant.id]) for instant in ordered if instant.id in found}


def leaving_points(instants: Iterable[PointInstant], lines: Iterable[Line]) -> dict[str, int]:
    """Ids of the points that no line keeps, with the times at which they were taken."""
    kept = {point_id for _, ids in lines for point_id in ids}
    return {instant.id: instant.taken_at_ms for instant in instants if instant.id not in kept}


def recorder_lines(
    points: Sequence[PointInstant],
    *,
    edges_ms: Iterable[int],
    keep_all_from_ms: int,
    named: Collection[str] = (),
) -> list[Line]:
    """What the recorder keeps: all points for a time, then the last of each window.

    Those taken at or after `keep_all_from_ms`, the last in force before each window edge, the late
    ones that close windows, the `named` (of the ledger, or pinned), the newest, the newest sealed
    and the newest exact one. Windows begin and end with the same points by what stays as by all of
    them, at these `edges_ms` and at any after the newest point.
    """
    if not points:
        return []
    ordered = in_force(points)
    lines: list[Line] = [
        (ENDS_WINDOW, at_edges(ordered, edges_ms)),
        (ALL, {p.id for p in points if p.taken_at_ms >= keep_all_from_ms or p.closes_window}),
        (NAMED, {p.id for p in points if p.id in named}),
        (NEWEST, {ordered[-1].id}),
    ]
    for some in ([p for p in points if p.sealed], [p for p in points if p.exact]):
        lines.append((NEWEST_PROVEN, {max(some, key=in_order).id} if some else ()))
    chosen = {point_id for _, ids in lines for point_id in ids}
    # Points in force that keep others, which stay too, from being in force.
    in_force_ids = {point.id for point in ordered}
    keys = [(point.effective_at_ms, point.taken_at_ms) for point in ordered]
    before = {
        ordered[bisect_right(keys, (point.effective_at_ms, point.taken_at_ms)) - 1].id
        for point in points
        if point.id in chosen and point.id not in in_force_ids
    }
    return [*lines, (HOLDS_BACK, before)]


def _policy_lines(
    instants: Sequence[PointInstant],
    judge: Judge,
    settings: ApplicationSettings,
    *,
    now_ms: int,
    backed_up_to_ms: int,
    due_edges_ms: Iterable[int],
) -> Iterator[Line]:
    repo, policy = Repository.open(settings), policy_of(settings)
    ordered = sorted(instants, key=in_order)
    yield PINNED, _pinned(repo)
    yield RESTORED, _restored(repo)
    yield NOT_BACKED_UP, [i.id for i in ordered if i.effective_at_ms >= backed_up_to_ms]
    yield ENDS_WINDOW, at_edges(ordered, due_edges_ms)
    yield ALL, [i.id for i in ordered if i.effective_at_ms >= now_ms - 1000 * policy.all_s]
    for line in policy.lines:
        begins_ms = now_ms - 1000 * line.for_s
        period = _period(line.name, settings.windows.timezone)
        of_period: dict[object, list[PointInstant]] = {}
        for instant in ordered:
            if begins_ms <= instant.effective_at_ms < backed_up_to_ms:
                of_period.setdefault(period(instant.effective_at_ms), []).append(instant)
        best = (_best(of_it, judge) for of_it in of_period.values())
        yield line.name, [point_id for point_id in best if point_id is not None]
    backed_up = [i for i in ordered if i.effective_at_ms < backed_up_to_ms]
    exact = (i.id for i in reversed(backed_up) if _gives(judge, i.id) is Restores.EXACT)
    yield MINIMUM, [point_id for point_id, _ in zip(exact, range(policy.minimum), strict=False)]
    if ordered:
        yield NEWEST, {ordered[-1].id, in_force(ordered)[-1].id}


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
