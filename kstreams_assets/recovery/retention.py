"""Decides which recovery points are kept and why: by the recorder's rule or the policy of `expire`.

A line is a reason to keep points. The recorder's lines keep all that windows and restores may need;
a policy keeps fewer of the points that are backed up. Without a policy `expire` follows the
recorder's rule. All code that deletes points uses this module.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.model.point import PointInstant, effective_points, in_order
from kstreams_assets.model.point_bounds import at_edges
from kstreams_assets.model.restorability import RANK, PointStatus, Restorability
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, KeepSettings, KeptLogs

StatusOf = Callable[[str], PointStatus | None]
"""Returns what a restore of a point (id) would achieve; None if the point is gone."""
Line = tuple[str, Collection[str]]
"""A reason for keeping points, and their ids."""

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
"""At most this many points of a period are evaluated, newest first, to find the best one."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The recorder's rule: which points and saved records are kept.

    The functions are called once in a round: `edges_ms(low, high)` returns the times at which
    windows start or end in that range, `named()` the ids of points that must be kept (named by the
    ledger as closing a window, or pinned), `proven()` the changelog offsets (topic id, start, end)
    that backups have without a hole and that need not be kept twice.
    """

    keep_all_s: float
    edges_ms: Callable[[int, int], Iterable[int]]
    named: Callable[[], Iterable[str]] = tuple
    proven: Callable[[], Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]]] = dict

    def keep_all_from_ms(self, now_ms: int) -> int:
        """Return the time from which on every point is kept."""
        return now_ms - round(self.keep_all_s * 1000)

    def lines(
        self, instants: Sequence[PointInstant], *, now_ms: int, pruned_to_ms: int = 0
    ) -> list[Line]:
        """Return why points are kept; those taken before `pruned_to_ms` are, if they exist."""
        low_ms = min((i.effective_at_ms for i in instants), default=0)
        pruned = {i.id for i in instants if min(i.taken_at_ms, i.effective_at_ms) < pruned_to_ms}
        return recorder_lines(
            instants,
            # A point is the last one only before edges that are later than it.
            edges_ms=self.edges_ms(max(low_ms, pruned_to_ms), now_ms),
            keep_all_from_ms=self.keep_all_from_ms(now_ms),
            named=pruned.union(self.named()),
        )


def retention_of(settings: ApplicationSettings) -> Retention:
    """Return the recorder's rule for the points of an application.

    The last point of each window is kept, and those that the ledger names or that unfinished
    restores use. Changelog records that backups have without holes are not kept twice.
    """
    calendar = WindowCalendar(settings.windows)
    repo, keep = Repository.open(settings), settings.keep
    hourly = keep is not None and any(line.name == "hourly" for line in keep.lines)

    def edges_ms(low_ms: int, high_ms: int) -> set[int]:
        windows = calendar.closed_since(low_ms)
        edges = {edge for window in windows for edge in (window.start_ms, window.end_ms)}
        # The policy may request more points than there are windows.
        hours = range(low_ms // _HOUR_MS * _HOUR_MS, high_ms, _HOUR_MS) if hourly else ()
        return edges.union(hours)

    return Retention(
        keep_all_s=max(settings.recovery_points.keep_all_s, keep.all_s if keep else 0),
        edges_ms=edges_ms,
        named=lambda: {*repo.ledger.closing_point_ids(), *_restored(repo), *_pinned(repo)},
        proven=lambda: repo.ledger.proven_ranges(settings.application),
    )


def policy_of(settings: ApplicationSettings) -> KeepSettings:
    """Return the policy of `expire`, by default that of the recorder, which keeps logs whole."""
    keep_all_s = settings.recovery_points.keep_all_s
    return settings.keep or KeepSettings(all=f"{keep_all_s}s", logs=KeptLogs.WHOLE)


def kept_by_policy(
    settings: ApplicationSettings,
    instants: Sequence[PointInstant],
    status_of: StatusOf,
    *,
    now_ms: int,
    backed_up_to_ms: int,
    due_edges_ms: Iterable[int] = (),
) -> dict[str, tuple[str, ...]]:
    """Return the points that `expire` keeps, as `kept_points` does.

    Args:
        settings: The application with its policy.
        instants: All points.
        status_of: Called for as few points as possible.
        now_ms: Epoch milliseconds.
        backed_up_to_ms: Points effective later are not backed up yet: all of them are kept.
        due_edges_ms: Starts and ends of windows that are still to be backed up.
    """
    lines = (
        retention_of(settings).lines(instants, now_ms=now_ms)
        if settings.keep is None
        else _policy_lines(
            instants,
            status_of,
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
    """Return ids of the points to keep, in order of effective time, with the lines that keep them.

    Args:
        instants: All points.
        lines: Those of the recorder's rule, or of a policy.
    """
    found: dict[str, list[str]] = {}
    for line, ids in lines:
        for point_id in ids:
            found.setdefault(point_id, []).append(line)
    ordered = sorted(instants, key=in_order)
    return {instant.id: tuple(found[instant.id]) for instant in ordered if instant.id in found}


def leaving_points(instants: Iterable[PointInstant], lines: Iterable[Line]) -> dict[str, int]:
    """Return ids of the points that no line keeps, with the times at which they were taken."""
    kept = {point_id for _, ids in lines for point_id in ids}
    return {instant.id: instant.taken_at_ms for instant in instants if instant.id not in kept}


def recorder_lines(
    points: Sequence[PointInstant],
    *,
    edges_ms: Iterable[int],
    keep_all_from_ms: int,
    named: Collection[str] = (),
) -> list[Line]:
    """Return the recorder's lines: keep all points for a time, then the last of each window.

    Keeps those taken at or after `keep_all_from_ms`, the last effective one before each window
    edge, the late ones that close windows, the `named` (of the ledger, or pinned), the newest, the
    newest sealed and the newest exact one. Windows start and end with the same points as before,
    at these `edges_ms` and at any after the newest point.
    """
    if not points:
        return []
    ordered = effective_points(points)
    lines: list[Line] = [
        (ENDS_WINDOW, at_edges(ordered, edges_ms)),
        (ALL, {p.id for p in points if p.taken_at_ms >= keep_all_from_ms or p.closes_window}),
        (NAMED, {p.id for p in points if p.id in named}),
        (NEWEST, {ordered[-1].id}),
    ]
    for some in ([p for p in points if p.sealed], [p for p in points if p.exact]):
        lines.append((NEWEST_PROVEN, {max(some, key=in_order).id} if some else ()))
    chosen = {point_id for _, ids in lines for point_id in ids}
    # Effective points that keep others, which stay too, from being effective.
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
    status_of: StatusOf,
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
        best = (_best(of_it, status_of) for of_it in of_period.values())
        yield line.name, [point_id for point_id in best if point_id is not None]
    backed_up = [i for i in ordered if i.effective_at_ms < backed_up_to_ms]
    exact = (
        i.id for i in reversed(backed_up) if _restorability(status_of, i.id) is Restorability.EXACT
    )
    yield MINIMUM, [point_id for point_id, _ in zip(exact, range(policy.minimum), strict=False)]
    if ordered:
        yield NEWEST, {ordered[-1].id, effective_points(ordered)[-1].id}


def _restorability(status_of: StatusOf, point_id: str) -> Restorability:
    status = status_of(point_id)
    return Restorability.NOTHING if status is None else status.restorability


def _best(instants: Sequence[PointInstant], status_of: StatusOf) -> str | None:
    """Return the last exactly restorable point, else the best one; None without any."""
    best: tuple[int, str] | None = None
    for instant in list(reversed(instants))[:_TRIED]:
        rank = RANK[_restorability(status_of, instant.id)]
        if rank and (best is None or rank > best[0]):
            best = rank, instant.id
        if rank == RANK[Restorability.EXACT]:
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
