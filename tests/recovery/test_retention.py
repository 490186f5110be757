"""Which points stay, and which files are put together."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kstreams_assets.backup.windows import WindowEdges
from kstreams_assets.model.file_ranges import FileRange, ranges_to_rewrite
from kstreams_assets.model.point import PointInstant, RecoveryPoint, effective_points
from kstreams_assets.model.point_bounds import at_edges
from kstreams_assets.model.spans import Window
from kstreams_assets.recovery.retention import kept_points, recorder_lines
from tests.backup.samples import cut, point

WINDOW_MS = 10


def instant(
    taken_at_ms: int, closes_ms: int | None = None, *, sealed: bool = False, exact: bool = False
) -> PointInstant:
    """A point by its times; its id tells them."""
    effective = taken_at_ms if closes_ms is None else closes_ms - 1
    return PointInstant(f"p{taken_at_ms}", taken_at_ms, effective, sealed, exact)


def kept(points: Sequence[PointInstant], **rule: Any) -> set[str]:
    return {*kept_points(points, recorder_lines(points, **rule))}


def stays(points: Sequence[PointInstant], keep_all_from_ms: int, *named: str) -> set[int]:
    """The times of the points that stay, by windows of ten milliseconds."""
    ids = kept(
        points,
        edges_ms=range(0, 1000, WINDOW_MS),
        keep_all_from_ms=keep_all_from_ms,
        named=named,
    )
    return {point.taken_at_ms for point in points if point.id in ids}


class TestKept:
    """Each reason to stay, by itself."""

    def test_all_for_a_time_then_the_last_of_each_window(self) -> None:
        points = [instant(at) for at in (1, 4, 8, 12, 19, 31, 33, 36, 39)]
        assert stays(points, 34) == {8, 19, 36, 39}
        assert stays(points, 33) == {8, 19, 33, 36, 39}
        assert stays(points, 0) == {p.taken_at_ms for p in points}
        assert stays([], 0) == set()

    def test_the_newest_of_a_window_that_is_open(self) -> None:
        points = [instant(at) for at in (8, 991, 994)]
        assert stays(points, 5000) == {8, 994}

    def test_named_points(self) -> None:
        points = [instant(at) for at in (1, 4, 8, 12)]
        assert stays(points, 100, "p4", "unknown") == {4, 8, 12}

    def test_the_newest_sealed_and_the_newest_exact(self) -> None:
        points = [
            instant(1, sealed=True, exact=True),
            instant(2, exact=True),
            instant(3, sealed=True),
            instant(4),
            instant(5),
            instant(6),
        ]
        assert stays(points, 100) == {2, 3, 6}

    def test_a_late_point_and_those_it_passed_over(self) -> None:
        late = instant(26, closes_ms=10)
        points = [instant(3), instant(21), instant(24), late, instant(27), instant(29)]
        assert stays(points, 100) == {26, 29}

    def test_every_late_point(self) -> None:
        """Also one that another late point for the same window has followed."""
        points = [instant(8), instant(26, closes_ms=10), instant(28, closes_ms=10), instant(40)]
        assert stays(points, 100) == {26, 28, 40}

    def test_a_named_point_does_not_come_back_into_force(self) -> None:
        """p24 was passed over for p26; were p26 to go, windows would begin with p24."""
        ahead = PointInstant("p5", 5, 18)
        points = [instant(12), ahead, instant(13), instant(19)]
        ids = kept(points, edges_ms=[20], keep_all_from_ms=100, named={"p5"})
        assert ids == {"p5", "p13", "p19"}
        assert [p.id for p in effective_points([p for p in points if p.id in ids])] == [
            "p13",
            "p19",
        ]


@dataclass(frozen=True)
class History:
    """Points with or without what makes them stay."""

    points: list[RecoveryPoint]
    named: set[str]
    keep_all_from_ms: int


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Points in the order they were taken; some late, some even for windows to come."""
    times = sorted(draw(st.sets(st.integers(0, 120), max_size=25)))
    points = []
    for number, at in enumerate(times):
        closes = draw(
            st.one_of(st.none(), st.none(), st.integers(0, 13).map(lambda w: w * WINDOW_MS))
        )
        points.append(point(at, cut(0, number), cut(1, 2 * number), closes_window_end_ms=closes))
    named = draw(st.sets(st.sampled_from([p.id for p in points]))) if points else set()
    return History(points, named, draw(st.integers(0, 130)))


@settings(max_examples=150, deadline=None)
@given(histories())
def test_windows_have_the_same_edges_by_what_stays(history: History) -> None:
    instants = [PointInstant(p.id, p.taken_at_ms, p.effective_at_ms) for p in history.points]
    edges = range(0, 150, WINDOW_MS)
    ids = kept(
        instants, edges_ms=edges, keep_all_from_ms=history.keep_all_from_ms, named=history.named
    )
    thinned = [i for i in instants if i.id in ids]
    for edge in edges:
        assert at_edges(thinned, [edge]) == at_edges(instants, [edge])
    windows = [Window(a, b, f"w{a}") for a, b in itertools.pairwise(edges)]
    before = WindowEdges(history.points)
    after = WindowEdges([p for p in history.points if p.id in ids])
    for window in windows:
        assert after.partitions_of(window, ["t"]) == before.partitions_of(window, ["t"])
        closing = after.closing_point(window), before.closing_point(window)
        own = [p is not None and p.effective_at_ms >= window.start_ms for p in closing]
        assert own[0] == own[1]
    # thinned out again, and again by later points, nothing changes
    again = kept(
        thinned, edges_ms=edges, keep_all_from_ms=history.keep_all_from_ms, named=history.named
    )
    assert again == ids


class TestRangesToRewrite:
    """What is put together."""

    @staticmethod
    def ranges(*weights: int, touched: Sequence[int] = ()) -> list[tuple[int, int]]:
        """Files one after the other, each ten wide; `touched` are their numbers."""
        files = [FileRange(weight, 10 * i, 10 * i + 9) for i, weight in enumerate(weights)]
        return ranges_to_rewrite(files, lambda file: file.low // 10 in touched, enough=100)

    def test_small_neighbours_until_they_weigh_enough(self) -> None:
        assert self.ranges(60, 60, 60, 10) == [(0, 19), (20, 39)]

    def test_what_is_large_or_alone_is_left(self) -> None:
        assert self.ranges(10, 100, 10) == []
        assert self.ranges() == []

    def test_a_file_with_rows_to_drop_takes_its_neighbours_along(self) -> None:
        assert self.ranges(100, 100, 5, 5, touched=[1]) == [(10, 19), (20, 39)]
        assert self.ranges(5, 100, 100, touched=[1]) == [(0, 19)]
        assert self.ranges(100, touched=[0]) == [(0, 9)]

    def test_overlapping_files_go_together(self) -> None:
        files = [FileRange(10, 0, 25), FileRange(200, 20, 40), FileRange(200, 41, 50)]
        assert ranges_to_rewrite(files, lambda _: False, enough=100) == [(0, 40)]

    def test_many_small_files_take_no_time(self) -> None:
        assert len(self.ranges(*[1] * 20_000)) == 200


def test_a_hundred_thousand_points() -> None:
    count = 100_000
    points = [instant(at, sealed=True, exact=True) for at in range(count)]
    ids = kept(points, edges_ms=range(0, count, 360), keep_all_from_ms=count - 100)
    assert len(ids) == 100 + len(range(0, count, 360)) - 1
