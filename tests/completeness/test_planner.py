"""From points and windows to files, saved records and what they are worth; no broker, no JVM."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kstreams_assets.completeness import planner as planner_module
from kstreams_assets.completeness.content import EvaluationPoint, Part, ViewPart
from kstreams_assets.completeness.planner import ContentPlanner
from kstreams_assets.completeness.runnable import Verifiability
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import Guarantee
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.staging import Staging
from kstreams_assets.rules.view import views_of
from spark_resources.work import LoggedRows, LogSource
from tests.completeness.stored_topics import (
    CHANGELOG,
    HOUR_MS,
    JOINED,
    MOVED,
    ORDERS,
    TOTALS,
    StoredTopics,
    order,
    total,
    window_of,
)


@pytest.fixture
def stored(tmp_path: Path) -> StoredTopics:
    """Two windows: 10 orders each, of which 8 and 18 are taken in."""
    stored = StoredTopics(Warehouse(tmp_path))
    for index in range(2):
        begin = 10 * index
        stored.close(
            index,
            {
                ORDERS: [order(begin + n, "a", 1) for n in range(10)],
                TOTALS: [total(begin + n, "a", n + 1, n + 1) for n in range(8)],
                CHANGELOG: [total(begin + n, "a", n + 1, n + 1) for n in range(8)],
            },
            {ORDERS: begin + 8, JOINED: 0, MOVED: 0},
        )
    return stored


@pytest.fixture
def staging(stored: StoredTopics) -> Iterator[Staging]:
    with Staging(stored.warehouse, "completeness-app") as staging:
        yield staging


def parts(stored: StoredTopics, *names: str, part: Part = Part.ALL) -> list[ViewPart]:
    views = views_of(stored.settings)
    return [ViewPart(views[name], part) for name in names]


def logged(
    planner: ContentPlanner, evaluation_point: EvaluationPoint, asked: ViewPart
) -> LoggedRows:
    found = planner.at(evaluation_point).content(asked)
    assert isinstance(found, LoggedRows)
    return found


def source(rows: LoggedRows) -> LogSource:
    assert isinstance(rows.source, LogSource)
    return rows.source


def verifiability(
    planner: ContentPlanner, evaluation_point: EvaluationPoint, views: Sequence[ViewPart]
) -> Verifiability:
    [found] = planner.at(evaluation_point).verifiability_of([views])
    return found


def test_a_window_stands_at_the_point_that_ends_it(stored: StoredTopics, staging: Staging) -> None:
    points = ContentPlanner(stored.settings, staging).points
    first, second = (points.of_window(window_of(index)) for index in range(2))
    assert first is not None
    assert (first.point.id, first.before, first.window) == ("point-0", None, "w0000")
    assert second is not None
    assert second.before is not None
    assert (second.point.id, second.before.id) == ("point-1", "point-0")
    assert points.of_window(window_of(7)) is None


def test_any_point_follows_the_last_window_that_had_ended(
    stored: StoredTopics, staging: Staging
) -> None:
    stored.point("between", 3 * HOUR_MS // 2, {ORDERS: 15})
    stored.point("first", 1_000, {ORDERS: 5})
    points = ContentPlanner(stored.settings, staging).points
    between, first = points.of_point("between"), points.of_point("first")
    assert (between.window, between.before and between.before.id) == (None, "point-0")
    assert first.before is None
    assert points.of_point("point-1") == points.of_window(window_of(1))
    with pytest.raises(KStreamsAssetsError, match="no-such-point"):
        points.of_point("no-such-point")


def test_a_small_topic_is_one_source_at_every_point(stored: StoredTopics, staging: Staging) -> None:
    planner = ContentPlanner(stored.settings, staging)
    [asked] = parts(stored, ORDERS)
    found = [logged(planner, planner.points.of_point(f"point-{n}"), asked) for n in range(2)]
    assert found[0].source == found[1].source
    assert source(found[0]).is_whole
    assert len(source(found[0]).files) == 2
    assert [dict(rows.ranges) for rows in found] == [
        {0: (OffsetRange(0, 8),)},
        {0: (OffsetRange(0, 18),)},
    ]


def test_of_a_large_topic_only_files_that_are_needed_are_read(
    stored: StoredTopics, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "KEPT_BYTES", 10)
    planner = ContentPlanner(stored.settings, staging)
    early = logged(planner, planner.points.of_point("point-0"), parts(stored, ORDERS)[0])
    [new] = parts(stored, ORDERS, part=Part.NEW)
    late = logged(planner, planner.points.of_point("point-1"), new)
    assert not source(early).is_whole
    assert len(source(early).files) == 1
    assert dict(late.ranges) == {0: (OffsetRange(8, 18),)}
    assert len(source(late).files) == 2  # offsets 8 and 9 lie in the first window


def test_saved_records_are_taken_that_no_file_holds(stored: StoredTopics, staging: Staging) -> None:
    ends = {ORDERS: 15, MOVED: 4, CHANGELOG: 12}
    stored.point(
        "between",
        HOUR_MS + 5_000,
        ends,
        {ORDERS: 12, MOVED: 1},
        saved_from={MOVED: 1, CHANGELOG: 6},
    )
    stored.save("between", MOVED, [order(n, "a", 1) for n in (1, 3)])
    stored.save("between", CHANGELOG, [total(n, "a", n, n) for n in (6, 7, 8, 10, 11)])
    planner = ContentPlanner(stored.settings, staging)
    evaluation_point = planner.points.of_point("between")

    moved, changelog, store, orders = (
        logged(planner, evaluation_point, one)
        for one in parts(stored, MOVED, CHANGELOG, "sums", ORDERS)
    )

    assert offsets(moved) == [1, 3]
    assert offsets(changelog) == [8]  # the files begin again at 10
    assert offsets(store) == [6, 7, 8, 10, 11]  # the newest of a key counts, whatever comes twice
    assert offsets(orders) == []
    assert dict(moved.in_flight_from) == {0: 0}


def offsets(rows: LoggedRows) -> list[int]:
    if rows.saved_file is None:
        return []
    return pq.ParquetFile(rows.saved_file).read()["offset"].to_pylist()


def test_staged_files_are_gone_when_it_is_closed(stored: StoredTopics) -> None:
    with Staging(stored.warehouse, "completeness-app") as staging:
        stored.point("p", HOUR_MS + 5_000, {MOVED: 4}, {MOVED: 1}, saved_from={MOVED: 1})
        stored.save("p", MOVED, [order(2, "a", 1)])
        planner = ContentPlanner(stored.settings, staging)
        found = logged(planner, planner.points.of_point("p"), parts(stored, MOVED)[0])
        assert found.saved_file is not None
        assert found.saved_file.exists()
    assert not found.saved_file.exists()


def test_an_exact_covered_point_has_nothing_against_it(
    stored: StoredTopics, staging: Staging
) -> None:
    planner = ContentPlanner(stored.settings, staging)
    views = parts(stored, ORDERS, TOTALS, "sums", MOVED)
    assert verifiability(planner, planner.points.of_point("point-1"), views) == Verifiability()


def test_only_what_a_rule_looks_at_must_be_covered(stored: StoredTopics, staging: Staging) -> None:
    ends = {ORDERS: 18, TOTALS: 30, CHANGELOG: 18}
    stored.point("ahead", 2 * HOUR_MS + 5, ends, {ORDERS: 18})
    planner = ContentPlanner(stored.settings, staging)
    evaluation_point = planner.points.of_point("ahead")
    assert (
        verifiability(planner, evaluation_point, parts(stored, ORDERS, "sums")) == Verifiability()
    )
    found = verifiability(planner, evaluation_point, parts(stored, ORDERS, TOTALS))
    assert "totals-0: offsets 18 to 29" in found.not_covered


def test_of_an_input_only_what_was_taken_in_must_be_covered(
    stored: StoredTopics, staging: Staging
) -> None:
    stored.point("ahead", 2 * HOUR_MS + 5, {ORDERS: 500}, {ORDERS: 20})
    planner = ContentPlanner(stored.settings, staging)
    assert (
        verifiability(planner, planner.points.of_point("ahead"), parts(stored, ORDERS))
        == Verifiability()
    )


def test_a_point_that_may_repeat_records_is_told(stored: StoredTopics, staging: Staging) -> None:
    stored.point(
        "weak", 2 * HOUR_MS + 5, {ORDERS: 18}, {ORDERS: 18}, guarantee=Guarantee.AT_LEAST_ONCE
    )
    planner = ContentPlanner(stored.settings, staging)
    found = verifiability(planner, planner.points.of_point("weak"), parts(stored, ORDERS))
    assert found == Verifiability(repeats="The application repeats records")


def test_topics_that_the_point_does_not_know_are_told(
    stored: StoredTopics, staging: Staging
) -> None:
    stored.point("old", 5_000, {ORDERS: 4}, {ORDERS: 4})
    planner = ContentPlanner(stored.settings, staging)
    found = verifiability(planner, planner.points.of_point("old"), parts(stored, ORDERS, TOTALS))
    assert "totals" in found.unknown


def test_a_topic_that_begins_late_is_incomplete_but_not_in_windows(tmp_path: Path) -> None:
    stored = StoredTopics(Warehouse(tmp_path))
    starts = {ORDERS: 100}
    for index in range(2):
        begin = 100 + 10 * index
        records = {ORDERS: [order(begin + n, "a", 1) for n in range(10)]}
        about = {"begins": starts} if index == 0 else {}
        stored.close(index, records, {ORDERS: begin + 9}, log_starts=starts, **about)
    with Staging(stored.warehouse, "completeness-app") as staging:
        planner = ContentPlanner(stored.settings, staging)
        evaluation_point = planner.points.of_point("point-1")
        whole = verifiability(planner, evaluation_point, parts(stored, ORDERS))
        new = verifiability(planner, evaluation_point, parts(stored, ORDERS, part=Part.NEW))
    assert whole.incomplete == "orders-0 starts at offset 100 in the backup"
    assert (whole.not_covered, new) == ("", Verifiability())


def test_a_topic_that_is_not_backed_up_is_told(stored: StoredTopics, staging: Staging) -> None:
    views = parts(stored, TOTALS)
    settings = stored.settings
    object.__setattr__(settings, "topics", tuple(t for t in settings.topics if t.name != TOTALS))
    planner = ContentPlanner(settings, staging)
    found = verifiability(planner, planner.points.of_point("point-1"), views)
    assert found == Verifiability(not_covered="Not in the backup: totals.")


def test_an_unconfirmed_guess_blocks_the_rules_that_read_by_it(
    stored: StoredTopics, staging: Staging
) -> None:
    """A rule over the same topic as a topic reads no store, so that it is evaluated."""
    settings = stored.settings
    [store, *others] = settings.application.stores
    guessed = (replace(store, unconfirmed=("Perhaps it has no log.",)), *others)
    object.__setattr__(settings, "application", replace(settings.application, stores=guessed))
    planner = ContentPlanner(settings, staging)
    evaluation_point = planner.points.of_point("point-1")
    of_store = verifiability(
        planner, evaluation_point, [ViewPart(views_of(settings)[store.name], Part.ALL)]
    )
    assert "Perhaps it has no log." in of_store.unconfirmed
    assert f"remove stores.{store.name}.unconfirmed" in of_store.unconfirmed
    assert verifiability(planner, evaluation_point, parts(stored, ORDERS)).unconfirmed == ""
