"""The asset that says at a glance whether an application could be restored."""

import time
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.drill.readiness import readiness
from kstreams_assets.orchestration import restorable
from kstreams_assets.orchestration.keys import window_partitions
from kstreams_assets.orchestration.restorable import (
    FRESHNESS,
    RESTORABLE,
    WINDOWS_HAVE_POINTS,
    build_restorable_asset,
    build_restorable_sensor,
)
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from tests.orchestration.default_keys import restorable_key
from tests.restore.restored_app import RestoredApp

KEY = restorable_key("shop")


@pytest.fixture
def settings(restored_app: RestoredApp) -> ApplicationSettings:
    """The application with a warehouse of its own."""
    return replace(restored_app.app.settings, warehouse=restored_app.warehouse)


def _materialized(settings: ApplicationSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata of the asset, and its checks by name."""
    done = dg.materialize([build_restorable_asset(settings)])
    (event,) = done.asset_materializations_for_node(KEY.to_python_identifier())
    checks = {check.check_name: check for check in done.get_asset_check_evaluations()}
    return {name: value.value for name, value in event.metadata.items()}, checks


def test_it_says_what_ready_says(settings: ApplicationSettings, restored_app: RestoredApp) -> None:
    values, checks = _materialized(settings)
    found = readiness(settings)
    check = checks[RESTORABLE]
    assert (check.passed, check.description) == (found.ready, found.why)
    assert values["restorable"] == ("yes" if found.ready else "no")
    assert values["newest_exact_point"] == restored_app.point.id
    age_s = time.time() - restored_app.point.taken_at_ms / 1000
    assert values["newest_exact_point_age_s"] == pytest.approx(age_s, abs=60)
    assert checks[WINDOWS_HAVE_POINTS].severity is dg.AssetCheckSeverity.WARN


def test_an_objective_is_shown_and_missed(settings: ApplicationSettings) -> None:
    told = settings.recovery_points.model_copy(update={"objective_seconds": 10})
    values, checks = _materialized(replace(settings, recovery_points=told))
    assert not checks[RESTORABLE].passed
    assert "The objective is 10 s." in (checks[RESTORABLE].description or "")
    assert checks[RESTORABLE].metadata["recovery_point_objective_s"].value == 10
    assert values["restorable"] == "no"


def test_recovery_points_are_browsable(
    settings: ApplicationSettings, restored_app: RestoredApp
) -> None:
    Repository.open(settings).pins.pin(restored_app.point.id, "audit")
    rows = [record.data for record in _materialized(settings)[0]["recovery_points"].records]
    assert [row["recovery_point"] for row in rows] == [
        point.id for point in reversed(restored_app.app.points)
    ]
    newest = rows[0]
    assert (newest["guarantee"], newest["covered"], newest["pin"]) == ("exact", True, "audit")


def test_the_sensor_reports_and_then_waits(
    settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = build_restorable_sensor(settings)
    with dg.DagsterInstance.ephemeral() as instance:
        result = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(result, dg.SensorResult)
        events = result.asset_events
        assert [type(event) for event in events] == [
            dg.AssetMaterialization,
            dg.AssetCheckEvaluation,
            dg.AssetCheckEvaluation,
        ]
        for event in events:
            instance.report_runless_asset_event(event)
        again = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(again, dg.SensorResult)
        assert not again.asset_events
        monkeypatch.setattr(restorable, "EVERY_S", 0)
        monkeypatch.setattr("kstreams_assets.orchestration.check_events._SHARE", 0)
        once_more = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(once_more, dg.SensorResult)
        assert once_more.asset_events


def test_a_stale_evaluation_shows(settings: ApplicationSettings) -> None:
    (spec,) = build_restorable_asset(settings).specs
    assert spec.freshness_policy == FRESHNESS


def test_windows_before_the_first_backup_are_not_shown(restored_app: RestoredApp) -> None:
    schedule = restored_app.app.settings.windows.model_copy(update={"start": "2020-01-01"})
    first = restored_app.app.points[0]
    shown = window_partitions(schedule.seen_since(lambda: first.effective_at_ms))
    key = WindowCalendar(schedule).key_at(first.effective_at_ms)
    assert shown.get_first_partition_key() == key
    assert window_partitions(schedule).get_first_partition_key() == "2020-01-01-00:00"
