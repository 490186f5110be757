"""Which offsets a view holds at a point, for every role of a topic."""

from pathlib import Path

import pytest

from kstreams_assets.completeness.content import (
    EvaluationPoint,
    Part,
    in_flight_from,
    part_of,
    partitions_of_view,
)
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.rules.view import View, views_of
from tests.completeness.stored_topics import (
    CHANGELOG,
    JOINED,
    MOVED,
    ORDERS,
    RATES,
    TOTALS,
    StoredTopics,
)

ENDS = {ORDERS: 100, RATES: 9, MOVED: 80, JOINED: 50, TOTALS: 60, CHANGELOG: 70}
COMMITTED = {ORDERS: 90, MOVED: 75, JOINED: 40}
OPEN = OffsetRange(55, 58)


@pytest.fixture
def stored(tmp_path: Path) -> StoredTopics:
    return StoredTopics(Warehouse(tmp_path))


@pytest.fixture
def views(stored: StoredTopics) -> dict[str, View]:
    return dict(views_of(stored.settings))


def early(stored: StoredTopics) -> RecoveryPoint:
    ends = {ORDERS: 60, RATES: 5, MOVED: 50, JOINED: 30, TOTALS: 58, CHANGELOG: 40}
    return stored.point(
        "early", 1_000, ends, {ORDERS: 55, MOVED: 45, JOINED: 20}, excluded={TOTALS: [OPEN]}
    )


def ranges(
    view: View, evaluation_point: EvaluationPoint, part: Part = Part.ALL
) -> list[tuple[int, int]]:
    [found] = partitions_of_view(view, evaluation_point, part) or [None]
    return [] if found is None else [(each.start, each.end) for each in found.ranges]


def test_each_role_shows_what_belongs_to_the_cut(
    stored: StoredTopics, views: dict[str, View]
) -> None:
    point = stored.point("p", 2_000, ENDS, COMMITTED, log_starts={MOVED: 60, ORDERS: 3})
    evaluation_point = EvaluationPoint(point)
    shown = {name: ranges(views[name], evaluation_point) for name in (*ENDS, "sums")}
    assert shown == {
        ORDERS: [(0, 90)],  # what the application has taken in, as far back as is backed up
        RATES: [(0, 9)],
        MOVED: [(75, 80)],  # in flight
        JOINED: [(0, 50)],
        TOTALS: [(0, 60)],
        CHANGELOG: [(0, 70)],
        "sums": [(0, 70)],
    }


def test_ranges_of_other_transactions_are_left_out(
    stored: StoredTopics, views: dict[str, View]
) -> None:
    evaluation_point = EvaluationPoint(early(stored))
    assert ranges(views[TOTALS], evaluation_point) == [(0, 55)]


def test_nothing_is_taken_in_without_a_committed_offset(
    stored: StoredTopics, views: dict[str, View]
) -> None:
    evaluation_point = EvaluationPoint(stored.point("p", 2_000, ENDS, {}, log_starts={MOVED: 60}))
    assert ranges(views[ORDERS], evaluation_point) == []
    assert ranges(views[MOVED], evaluation_point) == [(60, 80)]
    assert in_flight_from(views[JOINED], evaluation_point) == {0: 0}


def test_in_flight_is_what_lies_at_or_above_the_committed_offset(
    stored: StoredTopics, views: dict[str, View]
) -> None:
    evaluation_point = EvaluationPoint(stored.point("p", 2_000, ENDS, COMMITTED))
    found = {name: dict(in_flight_from(views[name], evaluation_point)) for name in (*ENDS, "sums")}
    nothing = {name: {} for name in (ORDERS, RATES, TOTALS, CHANGELOG, "sums")}
    assert found == nothing | {JOINED: {0: 40}, MOVED: {0: 0}}


def test_new_is_what_the_point_before_did_not_hold(
    stored: StoredTopics, views: dict[str, View]
) -> None:
    evaluation_point = EvaluationPoint(stored.point("p", 2_000, ENDS, COMMITTED), early(stored))
    shown = {
        name: ranges(views[name], evaluation_point, Part.NEW)
        for name in (ORDERS, RATES, JOINED, TOTALS)
    }
    assert shown == {
        ORDERS: [(55, 90)],  # from committed offset to committed offset
        RATES: [(5, 9)],
        JOINED: [(30, 50)],
        TOTALS: [(55, 60)],  # what was in an open transaction then, too
    }


def test_before_is_the_state_and_what_was_in_flight_then(
    stored: StoredTopics, views: dict[str, View]
) -> None:
    evaluation_point = EvaluationPoint(stored.point("p", 2_000, ENDS, COMMITTED), early(stored))
    shown = {
        name: ranges(views[name], evaluation_point, Part.BEFORE) for name in ("sums", MOVED, JOINED)
    }
    assert shown == {"sums": [(0, 40)], MOVED: [(45, 50)], JOINED: [(20, 30)]}
    # Whether it still is in flight, the point of the window tells.
    assert in_flight_from(views[JOINED], evaluation_point) == {0: 40}
    assert ranges(views["sums"], EvaluationPoint(evaluation_point.point), Part.BEFORE) == []


def test_a_topic_that_was_made_anew_is_new_as_a_whole(
    stored: StoredTopics, views: dict[str, View]
) -> None:
    before = early(stored)
    point = stored.point("p", 2_000, ENDS, COMMITTED)
    for cut in point.partitions:
        object.__setattr__(cut, "topic_id", "another")
    assert ranges(views[TOTALS], EvaluationPoint(point, before), Part.NEW) == [(0, 60)]


@pytest.mark.parametrize(
    ("name", "by_window", "part"),
    [
        (ORDERS, False, Part.ALL),
        (ORDERS, True, Part.NEW),
        (JOINED, True, Part.NEW),
        (f"{JOINED}@before", True, Part.BEFORE),
        (MOVED, True, Part.ALL),
        (f"{MOVED}@before", True, Part.BEFORE),
        ("sums", True, Part.ALL),
        ("sums@before", True, Part.BEFORE),
    ],
)
def test_the_name_and_the_scope_say_which_part_is_shown(
    name: str, by_window: bool, part: Part, views: dict[str, View]
) -> None:
    view = views[name.removesuffix("@before")]
    assert part_of(name, view, by_window=by_window) is part
