"""Which recovery points are kept, and which parts of their table are worth writing anew. Pure.

All points are kept for a time, then the last of each window. What windows begin and end with never
changes by it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kstreams_assets.recovery.point import in_force


class RetainedPoint(Protocol):
    """What of a point decides whether it is kept."""

    @property
    def id(self) -> str: ...

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


@dataclass(frozen=True, slots=True)
class FileRange:
    """A file of a table: what it weighs (rows, or bytes) and the range of its growing column.

    `low` and `high` are numbers in all files of a table, or texts in all of them.
    """

    weight: int
    low: Any
    high: Any


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
        newest = max(filter(is_wanted, points), key=lambda p: p.taken_at_ms, default=None)
        chosen |= {newest.id: newest} if newest else {}
    return chosen.keys() | _suppressors(ordered, chosen.values())


def ranges_to_rewrite(
    files: Sequence[FileRange], touched: Callable[[FileRange], bool], *, enough: int
) -> list[tuple[Any, Any]]:
    """Ranges whose files become one each: small neighbours, and those that have rows to drop.

    A file of the weight `enough` is left alone unless it is `touched`; a range is closed when its
    files weigh that much, so that the work per range is bounded. Files whose ranges overlap go
    together. Oldest first, `[low, high]`.
    """
    runs = _runs(sorted(files, key=lambda f: f.low), touched, enough)
    return [(run.low, run.high) for run in runs if run.files > 1 or run.is_touched]


@dataclass(slots=True)
class _Run:
    """Neighbouring files that become one."""

    low: Any
    high: Any
    weight: int
    is_touched: bool
    takes_more: bool
    files: int = 1

    def add(self, file: FileRange, *, is_touched: bool) -> None:
        self.high = max(self.high, file.high)
        self.weight += file.weight
        self.is_touched |= is_touched
        self.files += 1


def _runs(
    files: Sequence[FileRange], touched: Callable[[FileRange], bool], enough: int
) -> list[_Run]:
    runs: list[_Run] = []
    for file in files:
        is_touched = touched(file)
        joins = is_touched or file.weight < enough
        if runs and (file.low <= runs[-1].high or (runs[-1].takes_more and joins)):
            runs[-1].add(file, is_touched=is_touched)
            runs[-1].takes_more = joins and runs[-1].weight < enough
        else:
            takes_more = joins and file.weight < enough
            runs.append(_Run(file.low, file.high, file.weight, is_touched, takes_more))
    return runs


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
