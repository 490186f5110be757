"""Restores, governance and drills, from tables made by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.app.rules import CompletenessRule, Place, Recomputation
from kstreams_assets.checks import Finding, Severity
from kstreams_assets.drill.readiness import Readiness
from kstreams_assets.drill.report import (
    ApplicationMeasure,
    DrillReport,
    Failure,
    Phase,
    PhaseMeasure,
    stored_drill,
)
from kstreams_assets.metrics import collect as proofs
from kstreams_assets.metrics.collect import read_warehouse
from kstreams_assets.model.governance_report import GovernanceReport, evaluation_of
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore
from kstreams_assets.model.rule_results import Outcome, RuleKind, RuleResult
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, DrillSettings
from tests.drill.reports import REPORT
from tests.metrics.exposed import Exposed
from tests.orchestration.requesting import settings_of


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    """Application `shop` with an empty warehouse."""
    return settings_of(tmp_path)


def _exposed(settings: ApplicationSettings) -> Exposed:
    return Exposed.of_samples(read_warehouse(settings))


def _restore(restore_id: str, state: RestoreState, at_ms: int) -> StoredRestore:
    return StoredRestore(
        application_id="shop",
        restore_id=restore_id,
        state=state,
        changed_at_ms=at_ms,
        created_at_ms=at_ms,
        run_id="run-1",
        point_id="point-1",
        group="shop",
        target_cluster_id="cluster-2",
        target_bootstrap_servers="b1:9092",
        mode=RestoreMode.STATE,
        request="{}",
        topics=(),
    )


def test_restores(settings: ApplicationSettings) -> None:
    restores = Repository.open(settings).restores
    assert _exposed(settings).one("kstreams_restores_unfinished") == 0
    restores.append(_restore("r2", RestoreState.VERIFIED, 7_000))
    restores.append(_restore("r1", RestoreState.COMMITTED, 5_000))
    restores.append(_restore("r0", RestoreState.FINISHED, 1_000))
    found = _exposed(settings)
    assert found.one("kstreams_restores_unfinished") == 2
    assert found.one("kstreams_restore_state", state="verified") == 1
    assert sum(found.all("kstreams_restore_state")) == 1
    assert len(found.all("kstreams_restore_state")) == len(RestoreState)
    assert found.one("kstreams_restore_timestamp_seconds") == 7


def test_a_drill_is_no_restore(settings: ApplicationSettings) -> None:
    table = Repository.open(settings).restores
    table.append(_restore("r1", RestoreState.VERIFIED, 5_000))
    table.append(replace(_restore("d", RestoreState.FINISHED, 7_000), run_id=REPORT.run_id))
    table.append(replace(_restore("e", RestoreState.PLANNED, 8_000), run_id=REPORT.run_id))
    Repository.open(settings).drills.record(stored_drill(REPORT))
    found = _exposed(settings)
    assert found.one("kstreams_restore_state", state="verified") == 1
    assert found.one("kstreams_restores_unfinished") == 1


def _result(rule: str, place: Place, outcome: Outcome, at_ms: int, violations: int) -> RuleResult:
    return RuleResult(
        application_id="shop",
        rule=rule,
        kind=RuleKind.RULE,
        place=place,
        point_id="point-1",
        window=None,
        outcome=outcome,
        explanation="So it is.",
        severity=Severity.ERROR,
        blocking=True,
        violations=violations,
        evaluated_at_ms=at_ms,
        run_id="run-1",
    )


def test_completeness(settings: ApplicationSettings) -> None:
    declared = replace(
        settings,
        completeness=(CompletenessRule(name="none_lost", query="SELECT 1", views=()),),
        recomputed=(Recomputation(store="totals", source="t"),),
    )
    results = Repository.open(settings).results
    results.record(
        [
            _result("none_lost", Place.BACKUP, Outcome.PASSED, 5_000, 0),
            _result("none_lost", Place.BACKUP, Outcome.VIOLATED, 7_000, 3),
            _result("none_lost", Place.RESTORE, Outcome.PASSED, 9_000, 0),
            _result("recompute_totals", Place.BACKUP, Outcome.NOT_VERIFIABLE, 8_000, 0),
            _result("removed_since", Place.BACKUP, Outcome.VIOLATED, 9_000, 1),
        ]
    )
    results.record([_result("none_lost", Place.BACKUP, Outcome.PASSED, 6_000, 0)])
    found = _exposed(declared)

    def outcome(rule: str, place: str) -> list[str]:
        name = "kstreams_completeness_outcome"
        labels = {"rule": rule, "place": place}
        return [o.value for o in Outcome if found.one(name, **labels, outcome=o.value)]

    assert outcome("none_lost", "backup") == ["violated"]
    assert outcome("none_lost", "restore") == ["passed"]
    assert outcome("recompute_totals", "backup") == ["not_verifiable"]
    assert not found.all("kstreams_completeness_outcome", rule="removed_since")
    labels = {"rule": "none_lost", "place": "backup"}
    assert found.one("kstreams_completeness_violations", **labels) == 3
    assert found.one("kstreams_completeness_timestamp_seconds", **labels) == 7
    name = "kstreams_completeness_evaluations_total"
    assert found.one(name, **labels, outcome="passed") == 2
    assert found.one(name, **labels, outcome="violated") == 1
    assert found.one(name, **labels, outcome="failed") == 0


def test_ready(settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _exposed(settings).one("kstreams_ready") == 0
    statements = (Finding("drill", "Fine.", severity=Severity.WARN),)
    monkeypatch.setattr(proofs, "evaluate_readiness", lambda _: Readiness(statements))
    assert _exposed(settings).one("kstreams_ready") == 1


def test_governance(settings: ApplicationSettings) -> None:
    assert "kstreams_governance_timestamp_seconds" not in _exposed(settings).names
    finding = Finding("t", "1 replica", "3", "Raise it.")
    warning = replace(finding, severity=Severity.WARN)
    verdicts = (
        evaluation_of("changelogs_replicated", "all", (finding, finding, warning), ()),
        evaluation_of("store_growth", "all", (), ()),
    )
    report = GovernanceReport("shop", "run-1", "cluster", 9_000, verdicts)
    Repository.open(settings).findings.record(replace(report, run_id="run-0", judged_at_ms=8_000))
    Repository.open(settings).findings.record(report)
    found = _exposed(settings)
    assert found.one("kstreams_governance_timestamp_seconds") == 9
    counts = {
        (check, severity): found.one(
            "kstreams_governance_findings", check=check, severity=severity.value
        )
        for check in ("changelogs_replicated", "store_growth")
        for severity in Severity
    }
    assert counts == {
        ("changelogs_replicated", Severity.ERROR): 2,
        ("changelogs_replicated", Severity.WARN): 1,
        ("store_growth", Severity.ERROR): 0,
        ("store_growth", Severity.WARN): 0,
    }


APPLICATION = ApplicationMeasure(
    to_running_s=4.0,
    to_caught_up_s=10.0,
    changelog_records=5,
    changelog_records_expected=5,
    changelog_records_per_s=100.0,
    rate_from=None,
    cpu_s=3.0,
    cpu_start_s=2.0,
    cpu_catch_up_s=1.0,
    peak_memory_bytes=1,
    disk_written_bytes=1,
    disk_read_bytes=1,
    state_bytes=1,
)
DRILL = DrillReport(
    drill_id="d1",
    application_id="shop",
    run_id="run-1",
    began_at_ms=1_000,
    ended_at_ms=61_000,
    stores=("totals",),
    objective_s=30.0,
    phases=(
        PhaseMeasure(Phase.RESTORE, 12.0),
        PhaseMeasure(Phase.START, 4.0),
        PhaseMeasure(Phase.CATCH_UP, 6.0),
    ),
    application=APPLICATION,
)


def test_a_drill(settings: ApplicationSettings) -> None:
    declared = replace(settings, drill=DrillSettings(objective_seconds=30.0))
    assert _exposed(declared).one("kstreams_recovery_time_objective_seconds") == 30
    assert "kstreams_recovery_time_objective_seconds" not in _exposed(settings).names
    drills = Repository.open(settings).drills
    failed = replace(DRILL, drill_id="d0", began_at_ms=0, failure=Failure(Phase.START, "No."))
    drills.record(stored_drill(failed))
    drills.record(stored_drill(DRILL))
    found = _exposed(settings)
    assert found.one("kstreams_drill_timestamp_seconds") == 61
    assert found.one("kstreams_drill_passed") == 1
    assert found.one("kstreams_drill_duration_seconds") == 22
    assert found.one("kstreams_drill_phase_duration_seconds", phase="restore") == 12
    assert found.one("kstreams_drill_phase_duration_seconds", phase="start") == 4
    assert found.one("kstreams_drill_phase_duration_seconds", phase="catch_up") == 6
    assert found.one("kstreams_drill_objective", result="met") == 1
    assert sum(found.all("kstreams_drill_objective")) == 1


def test_a_drill_that_never_came_so_far(settings: ApplicationSettings) -> None:
    failed = replace(
        DRILL,
        phases=DRILL.phases[:1],
        application=None,
        failure=Failure(Phase.START, "Never RUNNING."),
    )
    Repository.open(settings).drills.record(stored_drill(failed))
    found = _exposed(settings)
    assert found.one("kstreams_drill_passed") == 0
    assert found.one("kstreams_drill_objective", result="not_recovered") == 1
    assert "kstreams_drill_duration_seconds" not in found.names
    assert found.all("kstreams_drill_phase_duration_seconds") == [12]
