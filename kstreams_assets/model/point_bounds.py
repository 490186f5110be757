"""The recovery points of an application in order: which bound windows."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from kstreams_assets.model.point import PointInstant, in_force, in_order


def as_counted(instant: PointInstant) -> tuple[int, int, str]:
    # The id decides between equals, so that their order in the files never does.
    return (instant.effective_at_ms, instant.taken_at_ms, instant.id)


@dataclass(frozen=True, slots=True)
class PointBounds:
    """The points of an application, in the orders in which they are asked for.

    `counting` are all of them by the instant they count for, `taken` by when they were taken,
    `in_force` those that can bound windows (`point.in_force`), of which `effective_ms` are the
    instants. A follower takes a point every few seconds: adding it must not cost what all cost.
    """

    parts: tuple[tuple[PointInstant, ...], ...] = ()
    """What the files of the table hold, each remembered for as long as the file is there."""
    counting: Sequence[PointInstant] = ()
    taken: Sequence[PointInstant] = ()
    in_force: Sequence[PointInstant] = ()
    effective_ms: Sequence[int] = ()

    def with_parts(self, parts: Sequence[tuple[PointInstant, ...]]) -> "PointBounds":
        """The same of the files that there are by now."""
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
                [*self.in_force, *added],
                [*self.effective_ms, *(one.effective_at_ms for one in added)],
            )
        instants = sorted((one for part in parts for one in part), key=as_counted)
        ordered = in_force(instants)
        return PointBounds(
            tuple(parts),
            instants,
            sorted(instants, key=in_order),
            ordered,
            [one.effective_at_ms for one in ordered],
        )

    def _are_later(self, added: Sequence[PointInstant]) -> bool:
        """Whether points count after all others in every order, and after one another."""
        last = [self.counting[-1], self.taken[-1], self.in_force[-1]] if self.counting else []
        return all(
            as_counted(before) < as_counted(after) and in_order(before) < in_order(after)
            for before, after in [*((one, added[0]) for one in last if added), *pairwise(added)]
        )

    def before(self, instant_ms: int) -> PointInstant | None:
        """The last point that counts before an instant, None without one."""
        index = bisect_left(self.effective_ms, instant_ms)
        return self.in_force[index - 1] if index else None

    def last_inside(self, start_ms: int, end_ms: int) -> PointInstant | None:
        """The last point that counts in `[start_ms, end_ms)`, None without one."""
        last = self.before(end_ms)
        return last if last is not None and last.effective_at_ms >= start_ms else None

    def at_edges(self, edges_ms: Iterable[int]) -> set[str]:
        """As the function `at_edges`."""
        found = (self.before(edge) for edge in edges_ms)
        return {one.id for one in found if one is not None}


def at_edges(instants: Iterable[PointInstant], edges_ms: Iterable[int]) -> set[str]:
    """Ids of the points that windows with these edges need: the last one before each edge."""
    return _NO_BOUNDS.with_parts([tuple(instants)]).at_edges(edges_ms)


_NO_BOUNDS: Final = PointBounds()
