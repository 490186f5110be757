"""What the tables tell, from tables made by hand."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.metrics.collect import read_warehouse
from kstreams_assets.model.point import Guarantee, PartitionCut, RecoveryPoint
from kstreams_assets.model.spans import Gap, GapCause, SpanContent, SpanResult
from kstreams_assets.repository import ledger as ledger_module
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, RecoveryPointSettings, WindowSchedule
from tests.backup.held_records import hold_records
from tests.backup.samples import APPLICATION_ID, application, backup, point, span
from tests.clock import freeze_time
from tests.ktables.samples import KEYS, snapshot
from tests.metrics.exposed import Exposed

TOPICS = (
    AppTopic("in", TopicRoles({TopicRole.INPUT})),
    AppTopic("log", TopicRoles({TopicRole.CHANGELOG})),
)
SCHEDULE = WindowSchedule.every("hour", start="2026-10-20")


def _at(hour: int, minute: int) -> float:
    """Seconds of a time of the day."""
    return datetime(2026, 10, 20, hour, minute, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def _half_past_six() -> Iterator[None]:
    with freeze_time(datetime(2026, 10, 20, 6, 30, tzinfo=UTC)):
        yield


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    """An application with an empty warehouse."""
    return ApplicationSettings(
        application=application(*TOPICS),
        topics=TOPICS,
        connection=KafkaConnection(bootstrap_servers="localhost:1"),
        warehouse=Warehouse(tmp_path),
        windows=SCHEDULE,
        recovery_points=RecoveryPointSettings(objective_seconds=900),
    )


def _point(hour: int, minute: int, end: int, *, is_exact: bool) -> RecoveryPoint:
    cuts = [PartitionCut(name, 0, "life-1", 0, end) for name in ("in", "log")]
    taken = point(round(_at(hour, minute) * 1000), *cuts, point_id=f"{hour:02}{minute:02}")
    return replace(taken, guarantee=Guarantee.EXACT) if is_exact else taken


def _back_up(
    settings: ApplicationSettings,
    hour: int,
    start: int,
    end: int,
    *gaps: Gap,
    topics: tuple[str, ...] = ("in", "log"),
    increment: int | None = None,
) -> None:
    window = WindowCalendar(SCHEDULE).window(f"2026-10-20-0{hour}:00")
    if increment is not None:
        window = window.increment(increment, window.start_ms, window.end_ms)
    made = []
    for name in topics:
        plan = replace(span(start, end, topic=name, continues=start > 0), window=window)
        content = SpanContent(records=end - start, stored_bytes=1000)
        told = gaps if name == "in" else ()
        stored = SpanResult(plan, content, told, contiguity_known=True)
        made.append(replace(backup(stored, topic=name), window=window))
    ledger = Ledger(settings.warehouse, APPLICATION_ID)
    if increment is None:
        ledger.record(made, run_id="run-1")
    else:
        ledger.record_increment(made, run_id="run-1")
    hold_records(settings.warehouse, APPLICATION_ID)


def _exposed(settings: ApplicationSettings) -> Exposed:
    return Exposed.of_samples(read_warehouse(settings))


def test_a_warehouse_without_tables(settings: ApplicationSettings) -> None:
    found = _exposed(settings)
    assert found.names == {
        "kstreams_ready",
        "kstreams_recovery_point_objective_seconds",
        "kstreams_restores_unfinished",
        "kstreams_windows_due",
    }
    assert found.one("kstreams_windows_due") == 1  # the newest closed one


def test_a_warehouse_that_is_not_mounted_is_an_error(
    settings: ApplicationSettings, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="gone does not exist"):
        read_warehouse(replace(settings, warehouse=Warehouse(tmp_path / "gone")))


def test_recovery_points(settings: ApplicationSettings) -> None:
    points = Repository.open(settings).points
    points.append(_point(3, 50, 100, is_exact=True))
    points.append(_point(4, 50, 150, is_exact=False))
    newest = replace(_point(5, 50, 200, is_exact=True), took_ms=432, in_flight=17)
    points.append(newest)
    _back_up(settings, 3, 0, 100)
    _back_up(settings, 4, 100, 150)
    found = _exposed(settings)
    assert found.one("kstreams_recovery_point_timestamp_seconds", kind="newest") == _at(5, 50)
    assert found.one("kstreams_recovery_point_timestamp_seconds", kind="covered") == _at(4, 50)
    assert found.one("kstreams_recovery_point_timestamp_seconds", kind="exact") == _at(3, 50)
    assert found.one("kstreams_recovery_point_exact") == 1
    assert found.one("kstreams_recovery_point_duration_seconds") == 0.432
    assert found.one("kstreams_recovery_point_in_flight_records") == 17
    assert found.one("kstreams_recovery_point_objective_seconds") == 900


def test_without_an_objective_none_is_told(settings: ApplicationSettings) -> None:
    without = replace(settings, recovery_points=RecoveryPointSettings())
    assert "kstreams_recovery_point_objective_seconds" not in _exposed(without).names


def test_backups(settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    Repository.open(settings).points.append(_point(3, 50, 100, is_exact=True))
    recorded = [_at(5, 2), _at(5, 1), _at(6, 20)]
    monkeypatch.setattr(
        ledger_module.time, "time_ns", lambda: round(recorded[0] * 1_000_000_000), raising=True
    )
    _back_up(settings, 4, 100, 150)  # a backfill goes in any order
    recorded.pop(0)
    _back_up(settings, 3, 0, 100)
    recorded.pop(0)
    _back_up(settings, 5, 150, 170, topics=("in",))
    found = _exposed(settings)
    assert found.one("kstreams_windows_due") == 1  # 05:00 lacks a topic
    assert found.one("kstreams_backup_window_end_timestamp_seconds") == _at(5, 0)
    assert found.one("kstreams_backup_timestamp_seconds") == _at(6, 20)
    assert found.one("kstreams_backup_delay_seconds") == 120
    assert found.one("kstreams_backup_end_offset", topic="in", partition="0") == 170
    assert found.one("kstreams_backup_end_offset", topic="log", partition="0") == 150
    assert found.one("kstreams_backup_records", topic="in") == 170
    assert found.one("kstreams_backup_stored_bytes", topic="log") == 2000


def test_increments_of_the_open_window_are_backed_up(settings: ApplicationSettings) -> None:
    _back_up(settings, 5, 0, 100)
    with freeze_time(datetime(2026, 10, 20, 7, 30, tzinfo=UTC)):
        _back_up(settings, 6, 100, 150, increment=0)
        _back_up(settings, 6, 150, 170, increment=1)
    found = _exposed(settings)
    assert found.one("kstreams_backup_end_offset", topic="in", partition="0") == 170
    assert found.one("kstreams_backup_records", topic="in") == 170


def test_losses(settings: ApplicationSettings) -> None:
    _back_up(
        settings,
        3,
        0,
        100,
        Gap(GapCause.RETENTION, 0, 34, 34),
        Gap(GapCause.RETENTION, 40, 45, 5),
        Gap(GapCause.TRANSACTION_MARKER, 0, 100, 7),
        Gap(GapCause.TOPIC_DELETED, 100, None, None),
    )
    _back_up(settings, 4, 100, 150, Gap(GapCause.UNEXPLAINED, 100, 150, 2))
    found = _exposed(settings)
    told = {
        (topic, cause): (
            found.one("kstreams_backup_lost_offsets", topic=topic, cause=cause),
            found.one("kstreams_backup_losses", topic=topic, cause=cause),
        )
        for topic in ("in", "log")
        for cause in (
            *("retention", "topic_recreated", "topic_deleted", "log_truncated"),
            *("not_restored", "unexplained", "not_examined"),
        )
    }
    assert len(found.all("kstreams_backup_losses")) == len(told)
    assert {key: value for key, value in told.items() if any(value)} == {
        ("in", "retention"): (39, 2),
        ("in", "topic_deleted"): (0, 1),
        ("in", "unexplained"): (2, 1),
    }


def test_the_newest_snapshot_of_each_store(settings: ApplicationSettings) -> None:
    for store in ("totals", "sessions"):
        (settings.warehouse.ktable(APPLICATION_ID, store) / "_delta_log").mkdir(parents=True)
    Repository.open(settings).snapshots.record(
        [
            snapshot(KEYS[2], rows=12, proved=False, problem_rows=3),
            snapshot(KEYS[1], rows=7),
            snapshot(KEYS[0], "sessions", rows=5),
        ]
    )
    found = _exposed(settings)
    assert found.one("kstreams_store_rows", store="totals") == 12
    assert found.one("kstreams_store_rows", store="sessions") == 5
    assert found.one("kstreams_store_bytes", store="totals") == 900
    assert found.one("kstreams_store_snapshot_timestamp_seconds", store="totals") == _at(2, 55)
    assert found.one("kstreams_store_snapshot_proved", store="totals") == 0
    assert found.one("kstreams_store_snapshot_proved", store="sessions") == 1
    assert found.one("kstreams_store_snapshot_problem_rows", store="totals") == 3
    assert found.one("kstreams_store_snapshot_duration_seconds", store="totals") == 1.5
