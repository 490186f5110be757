"""Results are kept as they were, whichever way they are asked for."""

from dataclasses import replace
from pathlib import Path

from kstreams_assets.app.rules import Place
from kstreams_assets.checks import Severity
from kstreams_assets.completeness.result import Outcome, ResultsTable, RuleKind, RuleResult
from kstreams_assets.layout import CONTROL_TABLES, Warehouse
from kstreams_assets.warehouse.table import Table
from spark_resources.work import Sample

VIOLATED = RuleResult(
    application_id="app",
    rule="balance",
    kind=RuleKind.RULE,
    place=Place.KTABLES,
    point_id="point-1",
    window="w0001",
    outcome=Outcome.VIOLATED,
    explanation="2 rows in violation.",
    severity=Severity.WARN,
    blocking=False,
    violations=2,
    sample=Sample(("key", "difference"), (("a", "1"), (None, "-2"))),
    stores_from="KTable snapshots",
    took_ms=7,
    evaluated_at_ms=1_000,
    run_id="run-1",
)
PASSED = replace(
    VIOLATED,
    rule="recompute_sums",
    kind=RuleKind.RECOMPUTE,
    place=Place.BACKUP,
    point_id="point-2",
    window=None,
    outcome=Outcome.PASSED,
    severity=Severity.ERROR,
    blocking=True,
    violations=0,
    sample=Sample(),
    evaluated_at_ms=2_000,
    run_id="run-2",
)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    table = ResultsTable(Warehouse(tmp_path))
    assert table.of("app") == []
    table.record([])
    table.record([PASSED, VIOLATED])
    table.record([replace(VIOLATED, application_id="other")])
    assert table.of("app") == [VIOLATED, PASSED]


def test_results_can_be_chosen(tmp_path: Path) -> None:
    table = ResultsTable(Warehouse(tmp_path))
    table.record([PASSED, VIOLATED])
    assert table.of("app", rules=["balance"]) == [VIOLATED]
    assert table.of("app", windows=["w0001"]) == [VIOLATED]
    assert table.of("app", points=["point-2"]) == [PASSED]
    assert table.of("app", places=[Place.BACKUP]) == [PASSED]
    assert table.of("app", run_id="run-1") == [VIOLATED]
    assert table.of("app", rules=["balance"], points=["point-2"]) == []
    assert table.of("app", rules=[]) == []


def test_the_newest_of_each_rule_and_place_stands(tmp_path: Path) -> None:
    table = ResultsTable(Warehouse(tmp_path))
    again = replace(VIOLATED, outcome=Outcome.PASSED, evaluated_at_ms=3_000)
    elsewhere = replace(VIOLATED, place=Place.RESTORE)
    assert table.standings("app", [VIOLATED.rule]) == []
    table.record([elsewhere, again])
    table.record([VIOLATED, PASSED, replace(VIOLATED, application_id="other")])
    at_backup, at_restore = table.standings("app", [VIOLATED.rule])
    assert (at_backup.newest, at_restore.newest) == (again, elsewhere)
    assert at_backup.evaluations == {
        outcome: int(outcome in {Outcome.PASSED, Outcome.VIOLATED}) for outcome in Outcome
    }
    assert at_restore.evaluations[Outcome.VIOLATED] == 1
    assert table.standings("app", []) == []


def test_the_newest_come_first(tmp_path: Path) -> None:
    table = ResultsTable(Warehouse(tmp_path))
    results = [replace(PASSED, evaluated_at_ms=number) for number in range(5)]
    for result in results:
        table.record([result])
    assert table.newest("app", 2) == results[:2:-1]
    assert table.newest("app", 0) == []
    assert table.newest("other", 2) == []


def test_small_files_are_put_together_and_nothing_is_lost(tmp_path: Path) -> None:
    table = ResultsTable(Warehouse(tmp_path))
    results = [replace(PASSED, evaluated_at_ms=number) for number in range(70)]
    for result in results:
        table.record([result])
    assert table.of("app") == results
    control = Table(
        Warehouse(tmp_path).control("completeness_results"),
        RuleResult,
        grows_along="evaluated_at_ms",
    )
    assert len(control.files("app")) < 10


def test_newer_releases_are_looked_for_in_it() -> None:
    assert "completeness_results" in CONTROL_TABLES
