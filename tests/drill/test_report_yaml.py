"""The report as YAML, and as a row of the table."""

from dataclasses import replace
from pathlib import Path

import yaml

from kstreams_assets.drill.report import (
    Failure,
    LagSample,
    Phase,
    report_document,
    report_yaml,
    stored_drill,
)
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.drill import ObjectiveResult
from kstreams_assets.repository.repository import Repository
from tests.drill.reports import REPORT


def test_the_fields_of_a_failure_drill() -> None:
    drill = yaml.safe_load(report_yaml(REPORT))["restoreDrill"]
    assert list(drill)[:8] == [
        "app",
        "inputRecords",
        "stateStore",
        "localStateDeleted",
        "restoreDuration",
        "correctnessCheck",
        "bottleneck",
        "productionRisk",
    ]
    assert (drill["app"], drill["inputRecords"], drill["stateStore"]) == ("shop", 1_000, "totals")
    assert drill["restoreDuration"] == (
        "32.0 s (topics 20.0 s, start and stores 4.0 s, catching up 2.5 s)"
    )
    assert drill["correctnessCheck"] == "passed"
    assert drill["recoverySeconds"] == 32.0
    assert drill["recoveryObjective"] == "met"
    assert drill["restoredRecordsPerSecond"] == 100
    assert drill["application"]["changelogRateFrom"] == "log"
    assert drill["reason"] is None


def test_a_drill_that_ended_early() -> None:
    ended = replace(
        REPORT,
        stores=("a", "b"),
        phases=REPORT.phases[:1],
        restored=None,
        application=None,
        waiting_records=None,
        lag=(),
        comparisons=(),
        rules=(),
        failure=Failure(Phase.RESTORE, "Refused."),
    )
    drill = report_document(ended)["restoreDrill"]
    assert drill["stateStores"] == ["a", "b"]
    assert drill["restoreDuration"] == "not recovered (topics 20.0 s)"
    assert (drill["correctnessCheck"], drill["failedPhase"]) == ("failed", "restore")
    assert (drill["inputRecords"], drill["recoveryPoint"], drill["application"]) == (None,) * 3


def test_lag_is_shown_where_it_changes() -> None:
    lag = [LagSample(float(n), 500, counted=True) for n in range(100)]
    lag += [LagSample(100.0 + n, 500 - n, counted=True) for n in range(500)]
    lag += [LagSample(600.0, 0, counted=True)]
    samples = report_document(replace(REPORT, lag=tuple(lag)))["restoreDrill"]["lag"]["samples"]
    assert len(samples) <= 63
    assert samples[0]["second"] == 0.0
    assert samples[1]["second"] >= 99.0
    assert (samples[-1]["second"], samples[-1]["records"]) == (600.0, 0)


def test_the_table_gives_back_the_newest(tmp_path: Path) -> None:
    table = Repository(Warehouse(tmp_path), "shop").drills
    assert table.newest() is None
    failed = replace(REPORT, drill_id="later", began_at_ms=REPORT.began_at_ms + 1)
    failed = replace(failed, failure=Failure(Phase.START, "Never."), application=None)
    table.record(stored_drill(failed))
    table.record(stored_drill(REPORT))
    table.record(stored_drill(replace(REPORT, application_id="other")))
    newest, oldest = table.all()
    assert (newest.drill_id, newest.passed, newest.failed_phase) == ("later", False, "start")
    assert newest.objective_result is ObjectiveResult.NOT_RECOVERED
    assert newest.total_s is None
    assert (oldest.passed, oldest.total_s, oldest.restore_s) == (True, 32.0, 20.0)
    assert oldest.report == report_yaml(REPORT)
