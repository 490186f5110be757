"""Which windows are due."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.backup.requests import WindowStatus, window_statuses
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import new_point_id
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from tests.backup.samples import APPLICATION_ID, application, backup, cut, point, result, span
from tests.clock import freeze_time

TOPICS = tuple(AppTopic(name, TopicRoles({TopicRole.INPUT})) for name in ("t", "u"))
SCHEDULE = WindowSchedule.every("hour", start="2026-10-20")
NOW = datetime(2026, 10, 20, 6, 30, tzinfo=UTC)


def _settings(root: Path) -> ApplicationSettings:
    return ApplicationSettings(
        application=application(*TOPICS),
        topics=TOPICS,
        connection=KafkaConnection(bootstrap_servers="localhost:1"),
        warehouse=Warehouse(root),
        windows=SCHEDULE,
    )


def _statuses(root: Path) -> list[WindowStatus]:
    with freeze_time(NOW):
        return window_statuses(_settings(root))


def _ms(hour: int, minute: int) -> int:
    return round(datetime(2026, 10, 20, hour, minute, tzinfo=UTC).timestamp() * 1000)


def _hour(status: WindowStatus) -> int:
    return int(status.window.key[-5:-3])


def _record(
    root: Path, key: str, *topics: str, point_id: str | None = "point-1", end: int = 5
) -> None:
    window = WindowCalendar(SCHEDULE).window(key)
    backups = [
        replace(
            backup(result(replace(span(0, end, topic=topic), window=window)), topic=topic),
            window=window,
            recovery_point_id=point_id,
        )
        for topic in topics
    ]
    Ledger(Warehouse(root), APPLICATION_ID).record(backups, run_id="run-1")


def _take(root: Path, hour: int, minute: int, closes: int | None = None) -> None:
    table = Repository(Warehouse(root), APPLICATION_ID).points
    table.append(
        point(
            _ms(hour, minute),
            cut(0, 5),
            closes_window_end_ms=None if closes is None else _ms(closes, 0),
        )
    )


def test_without_any_point_only_the_newest_closed_window_is_due(tmp_path: Path) -> None:
    (status,) = _statuses(tmp_path)
    assert status.window.key == "2026-10-20-05:00"
    assert status.is_due
    assert (status.done, status.missing, status.points) == (frozenset(), {"t", "u"}, 0)


def test_windows_from_the_first_point_on(tmp_path: Path) -> None:
    _take(tmp_path, 2, 59)
    _take(tmp_path, 4, 0)
    _take(tmp_path, 4, 59)
    found = _statuses(tmp_path)
    assert [(_hour(s), s.points, s.is_due) for s in found] == [
        (2, 1, True),
        (3, 0, True),
        (4, 2, True),
        (5, 0, True),
    ]


def test_a_late_point_counts_for_the_window_it_closes(tmp_path: Path) -> None:
    _take(tmp_path, 6, 10, closes=6)
    assert [(_hour(s), s.points) for s in _statuses(tmp_path)] == [(5, 1)]


def test_a_window_is_done_when_all_its_topics_are(tmp_path: Path) -> None:
    _take(tmp_path, 3, 30)
    _record(tmp_path, "2026-10-20-03:00", "t", "u")
    _record(tmp_path, "2026-10-20-04:00", "u")
    assert [(_hour(s), s.is_due, s.missing) for s in _statuses(tmp_path)] == [
        (3, False, frozenset()),
        (4, True, {"t"}),
        (5, True, {"t", "u"}),
    ]


def test_points_of_the_open_window_make_nothing_due_but_the_newest(tmp_path: Path) -> None:
    _take(tmp_path, 6, 20)
    assert [_hour(s) for s in _statuses(tmp_path)] == [5]


def test_a_window_without_a_point_is_not_due_and_not_backed_up(tmp_path: Path) -> None:
    """Its row names the point of an earlier window, or none."""
    own, late = new_point_id(_ms(3, 30)), new_point_id(_ms(5, 2))
    for hour, point_id in ((2, None), (3, own), (4, late), (5, late)):
        end = 5 if hour in (3, 4) else 0
        _record(tmp_path, f"2026-10-20-{hour:02d}:00", "t", "u", point_id=point_id, end=end)
    _take(tmp_path, 1, 30)
    _take(tmp_path, 4, 59)
    found = {_hour(s): (s.is_due, s.is_backed_up) for s in _statuses(tmp_path)}
    assert found == {
        1: (True, False),
        2: (False, False),
        3: (False, True),  # its point was dropped since
        4: (False, True),
        5: (False, False),
    }


def _open_settings(root: Path) -> ApplicationSettings:
    """The first window is that in which the application was first seen."""
    first_seen_ms = Repository(Warehouse(root), APPLICATION_ID).first_seen_ms
    windows = WindowSchedule.every("hour").seen_since(first_seen_ms)
    return replace(_settings(root), windows=windows)


def _first(root: Path, hour: int) -> str:
    """The first window, as seen at an hour of the day."""
    with freeze_time(datetime(2026, 10, 20, hour, 30, tzinfo=UTC)):
        calendar = WindowCalendar(_open_settings(root).windows)
        return calendar.key_at(calendar.first_ms)


def test_windows_start_when_the_application_is_first_seen(tmp_path: Path) -> None:
    assert [_first(tmp_path, hour)[-5:] for hour in (2, 6)] == ["02:00", "06:00"]
    _take(tmp_path, 6, 20)
    assert [_first(tmp_path, hour)[-5:] for hour in (6, 9)] == ["06:00", "06:00"]
    with freeze_time(NOW):
        assert window_statuses(_open_settings(tmp_path)) == []
    with freeze_time(datetime(2026, 10, 20, 8, 30, tzinfo=UTC)):
        found = window_statuses(_open_settings(tmp_path))
    assert [_hour(status) for status in found] == [6, 7]


def test_the_first_window_stays_when_points_are_dropped(tmp_path: Path) -> None:
    with freeze_time(NOW):
        _record(tmp_path, "2026-10-20-03:00", "t")
    _take(tmp_path, 6, 20)
    assert _first(tmp_path, 9) == "2026-10-20-03:00"


def test_before_the_first_window_has_closed(tmp_path: Path) -> None:
    with freeze_time(datetime(2026, 10, 20, 0, 30, tzinfo=UTC)):
        assert window_statuses(_settings(tmp_path)) == []
