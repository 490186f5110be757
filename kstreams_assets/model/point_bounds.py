"""The recovery points of an application in order, and those that bound windows."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from kstreams_assets.model.point import PointInstant, effective_points, in_order


def as_counted(instant: PointInstant) -> tuple[int, int, str]:
    # The id decides between equal keys, so that their order in the files never does.
    return (instant.effective_at_ms, instant.taken_at_ms, instant.id)


@dataclass(frozen=True, slots=True)
class PointBounds:
    """The points of an application, in several orders.

    `counting` are all of them by evaluation time, `taken` by the time they were taken. `effective`
    are those that can bound windows (`point.effective_points`), with their evaluation times in
    `effective_ms`. A follower takes a point every few seconds, so adding one must be cheap.
    """

    parts: tuple[tuple[PointInstant, ...], ...] = ()
    """The points in each file of the table, cached while the file exists."""
    counting: Sequence[PointInstant] = ()
    taken: Sequence[PointInstant] = ()
    effective: Sequence[PointInstant] = ()
    effective_ms: Sequence[int] = ()

    def with_parts(self, parts: Sequence[tuple[PointInstant, ...]]) -> "PointBounds":
        """A copy for the current files."""
        known = {id(part) for part in self.parts}
        new = [part for part in parts if id(part) not in known]
        if not new and len(parts) == len(self.parts):
            return self
        added = sorted((one for part in new for one in part), key=as_counted)
        is_longer = len(parts) == len(self.parts) + len(new)
        if is_longer and self._are_later(added):
            return PointBounds(
                (*self.parts, *new),
                [*self.counting, *added],
                [*self.taken, *added],
                [*self.effective, *added],
                [*self.effective_ms, *(one.effective_at_ms for one in added)],
            )
        instants = sorted((one for part in parts for one in part), key=as_counted)
        ordered = effective_points(instants)
        return PointBounds(
            tuple(parts),
            instants,
            sorted(instants, key=in_order),
            ordered,
            [one.effective_at_ms for one in ordered],
        )

    def _are_later(self, added: Sequence[PointInstant]) -> bool:
        """Whether points come after all others in every order, and after one another."""
        last = [self.counting[-1], self.taken[-1], self.effective[-1]] if self.counting else []
        return all(
            as_counted(before) < as_counted(after) and in_order(before) < in_order(after)
            for before, after in [*((one, added[0]) for one in last if added), *pairwise(added)]
        )

    def before(self, instant_ms: int) -> PointInstant | None:
        """The last point with an evaluation time before this one, None without one."""
        index = bisect_left(self.effective_ms, instant_ms)
        return self.effective[index - 1] if index else None

    def last_inside(self, start_ms: int, end_ms: int) -> PointInstant | None:
        """The last point with an evaluation time in `[start_ms, end_ms)`, None without one."""
        last = self.before(end_ms)
        return last if last is not None and last.effective_at_ms >= start_ms else None

    def at_edges(self, edges_ms: Iterable[int]) -> set[str]:
        """Like the function `at_edges`."""
        found = (self.before(edge) for edge in edges_ms)
        return {one.id for one in found if one is not None}


def at_edges(instants: Iterable[PointInstant], edges_ms: Iterable[int]) -> set[str]:
    """Ids of the points that windows with these edges need: the last one before each edge."""
    return _NO_BOUNDS.with_parts([tuple(instants)]).at_edges(edges_ms)


_NO_BOUNDS: Final = PointBounds()
