"""Which recovery points are kept. Pure.

All points are kept for a time, then the last of each window. What windows begin and end with never
changes by it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from kstreams_assets.recovery.point import in_force, in_order


class RetainedPoint(Protocol):
    """What of a point decides whether it is kept."""

    @property
    def id(self) -> str: ...

    @property
    def sequence(self) -> int | None: ...

    @property
    def taken_at_ms(self) -> int: ...

    @property
    def effective_at_ms(self) -> int: ...

    @property
    def closes_window(self) -> bool: ...

    @property
    def sealed(self) -> bool: ...

    @property
    def exact(self) -> bool: ...


P = TypeVar("P", bound=RetainedPoint)


def kept(
    points: Sequence[RetainedPoint],
    *,
    edges_ms: Iterable[int],
    keep_all_from_ms: int,
    named: Collection[str] = (),
) -> set[str]:
    """Ids of the points that stay.

    Those taken at or after `keep_all_from_ms`, the last in force before each window edge, the late
    ones that close windows, the `named` (of the ledger, or pinned), the newest, the newest sealed
    and the newest exact one. Windows begin and end with the same points by what stays as by all of
    them, at these `edges_ms` and at any after the newest point.
    """
    if not points:
        return set()
    ordered = in_force(points)
    chosen = {point.id: point for point in [*_before(ordered, edges_ms), ordered[-1]]}
    chosen |= {p.id: p for p in points if p.taken_at_ms >= keep_all_from_ms or p.closes_window}
    chosen |= {p.id: p for p in points if p.id in named}
    for is_wanted in (_sealed, _exact):
        newest = max(filter(is_wanted, points), key=in_order, default=None)
        chosen |= {newest.id: newest} if newest else {}
    return chosen.keys() | _suppressors(ordered, chosen.values())


def _before(ordered: Sequence[P], edges_ms: Iterable[int]) -> list[P]:
    """The last point in force before each edge."""
    effective = [point.effective_at_ms for point in ordered]
    return [ordered[i - 1] for i in {bisect_left(effective, edge) for edge in edges_ms} if i]


def _suppressors(ordered: Sequence[RetainedPoint], chosen: Iterable[RetainedPoint]) -> set[str]:
    """Points in force that keep others, which stay too, from being in force."""
    in_force_ids = {point.id for point in ordered}
    keys = [(point.effective_at_ms, point.taken_at_ms) for point in ordered]
    return {
        ordered[bisect_right(keys, (point.effective_at_ms, point.taken_at_ms)) - 1].id
        for point in chosen
        if point.id not in in_force_ids
    }


def _sealed(point: RetainedPoint) -> bool:
    return point.sealed


def _exact(point: RetainedPoint) -> bool:
    return point.exact
