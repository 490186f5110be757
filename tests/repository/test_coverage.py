"""The newest recovery point that can be restored, and how old it is: from tables alone."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import Guarantee, PartitionCut, RecoveryPoint
from kstreams_assets.model.restorability import (
    POINT_CHECKS,
    Restorability,
    counts,
    recovery_point_age,
)
from kstreams_assets.repository.coverage import (
    newest_restorable,
    newest_statuses,
    recovery_point_is_recent,
)
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.points import RecoveryPointTable
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, RecoveryPointSettings, WindowSchedule
from tests.backup.held_records import hold_records
from tests.backup.samples import APPLICATION_ID, application, backup, point, result, span
from tests.clock import freeze_time
from tests.timing import processor_time

TOPICS = (
    AppTopic("in", TopicRoles({TopicRole.INPUT})),
    AppTopic("log", TopicRoles({TopicRole.CHANGELOG})),
)
SCHEDULE = WindowSchedule.every("hour", start="2026-10-20")


def _ms(hour: int, minute: int) -> int:
    return round(datetime(2026, 10, 20, hour, minute, tzinfo=UTC).timestamp() * 1000)


def _settings(root: Path, *, objective_s: int | None = None) -> ApplicationSettings:
    return ApplicationSettings(
        application=application(*TOPICS, AppTopic("out", TopicRoles({TopicRole.OUTPUT}))),
        topics=TOPICS,
        connection=KafkaConnection(bootstrap_servers="localhost:1"),
        warehouse=Warehouse(root),
        windows=SCHEDULE,
        recovery_points=RecoveryPointSettings(objective_seconds=objective_s),
    )


@pytest.fixture(autouse=True)
def _half_past_six() -> Iterator[None]:
    with freeze_time(datetime(2026, 10, 20, 6, 30, tzinfo=UTC)):
        yield


def _point(hour: int, minute: int, end: int, *, is_exact: bool = True) -> RecoveryPoint:
    cuts = [PartitionCut(name, 0, "life-1", 0, end) for name in ("in", "log", "out")]
    taken = point(_ms(hour, minute), *cuts, point_id=f"{hour:02}{minute:02}")
    return replace(taken, guarantee=Guarantee.EXACT) if is_exact else taken


def _back_up(root: Path, hour: int, start: int, end: int, *, hole: int | None = None) -> None:
    window = WindowCalendar(SCHEDULE).window(f"2026-10-20-0{hour}:00")
    made = []
    for name in ("in", "log"):
        plan = replace(span(start, end, topic=name, continues=start > 0), window=window)
        stored = replace(result(plan), first_hole=hole, contiguity_known=True)
        made.append(replace(backup(stored, topic=name), window=window))
    Ledger(Warehouse(root), APPLICATION_ID).record(made, run_id="run-1")
    hold_records(Warehouse(root), APPLICATION_ID)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Windows 02:00 and 03:00 are backed up, the latter with a hole at 180."""
    Repository(Warehouse(tmp_path), APPLICATION_ID).points.append_many(
        [
            _point(2, 30, 50, is_exact=False),
            _point(2, 59, 100),
            _point(3, 30, 150),
            _point(3, 59, 200),
            _point(4, 59, 300),
            _point(6, 29, 500),
        ]
    )
    _back_up(tmp_path, 2, 0, 100)
    _back_up(tmp_path, 3, 100, 200, hole=180)
    return tmp_path


def test_newest_first(root: Path) -> None:
    statuses = newest_statuses(_settings(root), 10)
    assert [(s.id, s.restorability.value) for s in statuses] == [
        ("0629", "nothing"),
        ("0459", "nothing"),
        ("0359", "unproven"),
        ("0330", "exact"),
        ("0259", "exact"),
        ("0230", "at_least_once"),
    ]
    assert counts(statuses) == {
        Restorability.EXACT: 2,
        Restorability.AT_LEAST_ONCE: 1,
        Restorability.UNPROVEN: 1,
        Restorability.NOTHING: 2,
    }
    assert "the window of the point is still open" in statuses[0].reason
    assert "back up window 2026-10-20-04:00." in statuses[1].reason
    assert "no longer had offset 180" in statuses[2].reason
    assert all("not evaluated: out" in status.reason for status in statuses)


def test_the_newest_restorable(root: Path) -> None:
    found = newest_restorable(_settings(root))
    assert (found.exact and found.exact.id, found.covered and found.covered.id) == ("0330", "0359")
    _back_up(root, 3, 100, 200)
    _back_up(root, 4, 200, 300)
    found = newest_restorable(_settings(root))
    assert found.covered == found.exact
    assert found.exact is not None
    assert found.exact.id == "0459"
    assert recovery_point_age(found.exact, _ms(6, 30)) == 91 * 60
    assert recovery_point_age(None, _ms(6, 30)) is None
    # a stamp in the future says nothing about the age, but clocks may be a little apart
    assert recovery_point_age(found.exact, found.exact.taken_at_ms - 3_600_000) is None
    assert recovery_point_age(found.exact, found.exact.taken_at_ms - 1_000) == 0


def test_the_search_goes_back_over_many_points(tmp_path: Path) -> None:
    later = [_point(5, 0, 1000 + number) for number in range(500)]
    later = [
        replace(p, id=f"later-{n}", taken_at_ms=p.taken_at_ms + n) for n, p in enumerate(later)
    ]
    Repository(Warehouse(tmp_path), APPLICATION_ID).points.append_many([_point(2, 59, 100), *later])
    _back_up(tmp_path, 2, 0, 100)
    with processor_time() as took:
        found = newest_restorable(_settings(tmp_path))
    assert found.exact is not None
    assert found.exact.id == "0259"
    assert took.seconds < 2


class TestManyPoints:
    """The search costs the same however many points nobody has backed up yet."""

    POINTS = 2000

    @pytest.fixture
    def loaded(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many points each read of them brought into memory."""
        sizes: list[int] = []
        load = RecoveryPointTable.load

        def counted(table: RecoveryPointTable, *args: Any, **more: Any) -> list[RecoveryPoint]:
            points = load(table, *args, **more)
            sizes.append(len(points))
            return points

        monkeypatch.setattr(RecoveryPointTable, "load", counted)
        return sizes

    def _points(self, root: Path, *, exact_every: int = 1) -> None:
        """One after the other, each with one record more; the number 0 is the oldest."""
        made = [_point(2, 30, n + 1, is_exact=n % exact_every == 0) for n in range(self.POINTS)]
        at_ms = _ms(2, 30)
        made = [replace(p, id=f"p{n:04d}", taken_at_ms=at_ms + n) for n, p in enumerate(made)]
        Repository(Warehouse(root), APPLICATION_ID).points.append_many(made)

    def test_nothing_is_covered(self, tmp_path: Path, loaded: list[int]) -> None:
        self._points(tmp_path)
        found = newest_restorable(_settings(tmp_path))
        assert (found.exact, found.covered) == (None, None)
        assert sum(loaded) < 120
        assert max(loaded) < 50

    @pytest.mark.parametrize("number", [0, 3, 444, 1023, 1985, 1998])
    def test_the_newest_that_is_covered_is_found(
        self, tmp_path: Path, loaded: list[int], number: int
    ) -> None:
        self._points(tmp_path)
        _back_up(tmp_path, 2, 0, number + 1)
        found = newest_restorable(_settings(tmp_path))
        assert found.exact is not None
        assert found.exact.id == f"p{number:04d}"
        assert sum(loaded) < 150

    def test_so_is_the_newest_exact_one(self, tmp_path: Path, loaded: list[int]) -> None:
        self._points(tmp_path, exact_every=97)
        _back_up(tmp_path, 2, 0, 500)
        found = newest_restorable(_settings(tmp_path))
        assert (found.covered and found.covered.id, found.exact and found.exact.id) == (
            "p0499",
            "p0485",
        )
        assert sum(loaded) < 200


def test_an_empty_warehouse(tmp_path: Path) -> None:
    found = newest_restorable(_settings(tmp_path))
    assert (found.exact, found.covered) == (None, None)
    assert newest_statuses(_settings(tmp_path), 10) == []
    assert list(tmp_path.iterdir()) == []


class TestRecent:
    """Is the objective met?"""

    def test_no_objective(self, root: Path) -> None:
        found = recovery_point_is_recent(_settings(root), now_ms=_ms(4, 30))
        assert (found.passed, found.age_s, found.objective_s) == (True, 3600, None)
        assert "3600 s old (2026-10-20T03:30:00.000+00:00)" in found.explanation
        assert "The newest covered point is unproven (2026-10-20T03:59" in found.explanation
        assert "No objective is declared" in found.explanation

    def test_new_points_that_lack_a_topic_turn_it_red_however_exact_older_ones_are(
        self, root: Path
    ) -> None:
        settings = _settings(root)
        assert recovery_point_is_recent(settings, now_ms=_ms(4, 30)).passed
        lacking = replace(_point(6, 30, 500), id="0630", absent_topics=("log",))
        Repository(Warehouse(root), lacking.application_id).points.append(lacking)
        found = recovery_point_is_recent(settings, now_ms=_ms(4, 30))
        assert not found.passed
        assert "topic log is declared, but was not visible" in found.explanation
        new = replace(lacking, id="0631", taken_at_ms=_ms(6, 31), absent_topics=())
        new = replace(new, undeclared_topics=("app-new-changelog",))
        Repository(Warehouse(root), new.application_id).points.append(new)
        found = recovery_point_is_recent(settings, now_ms=_ms(4, 30))
        assert not found.passed
        assert "topic app-new-changelog belongs to the application" in found.explanation
        denied = replace(settings.application, not_mine=frozenset({"app-new-changelog"}))
        settings = replace(settings, application=denied)
        assert recovery_point_is_recent(settings, now_ms=_ms(4, 30)).passed

    @pytest.mark.parametrize(("objective_s", "passed"), [(3600, True), (3599, False)])
    def test_against_the_objective(self, root: Path, objective_s: int, passed: bool) -> None:
        settings = _settings(root, objective_s=objective_s)
        found = recovery_point_is_recent(settings, now_ms=_ms(4, 30))
        assert (found.passed, found.objective_s) == (passed, objective_s)
        assert ("Back up the windows that are due" in found.explanation) is not passed

    def test_now_is_the_present_time(self, root: Path) -> None:
        found = recovery_point_is_recent(_settings(root))
        assert found.age_s == pytest.approx(time.time() - _ms(3, 30) / 1000, abs=60)

    @pytest.mark.parametrize("objective_s", [None, 999_999])
    def test_without_an_exact_covered_point(self, tmp_path: Path, objective_s: int | None) -> None:
        Repository(Warehouse(tmp_path), APPLICATION_ID).points.append(
            _point(2, 30, 50, is_exact=False)
        )
        _back_up(tmp_path, 2, 0, 100)
        settings = _settings(tmp_path, objective_s=objective_s)
        found = recovery_point_is_recent(settings, now_ms=_ms(4, 30))
        assert (found.passed, found.age_s) == (False, None)
        assert "Back up the windows that are due" in found.explanation
        assert "No recovery point is both exact and covered" in found.explanation
        assert "point is at_least_once" in found.explanation


def test_each_check_says_when_it_is_red() -> None:
    assert all("Red: " in text for text in POINT_CHECKS.values())
