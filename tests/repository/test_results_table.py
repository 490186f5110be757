"""Results are kept as they were, whichever way they are asked for."""

from dataclasses import replace
from pathlib import Path

from kstreams_assets.app.rules import Place
from kstreams_assets.checks import Severity
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.rule_results import Outcome, RuleKind, RuleResult, Sample
from kstreams_assets.repository.repository import Repository

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


def test_results_can_be_chosen(tmp_path: Path) -> None:
    table = Repository(Warehouse(tmp_path), "app").results
    table.record([PASSED, VIOLATED])
    assert table.of(rules=["balance"]) == [VIOLATED]
    assert table.of(windows=["w0001"]) == [VIOLATED]
    assert table.of(points=["point-2"]) == [PASSED]
    assert table.of(places=[Place.BACKUP]) == [PASSED]
    assert table.of(run_id="run-1") == [VIOLATED]
    assert table.of(rules=["balance"], points=["point-2"]) == []
    assert table.of(rules=[]) == []


def test_the_newest_of_each_rule_and_place_stands(tmp_path: Path) -> None:
    table = Repository(Warehouse(tmp_path), "app").results
    again = replace(VIOLATED, outcome=Outcome.PASSED, evaluated_at_ms=3_000)
    elsewhere = replace(VIOLATED, place=Place.RESTORE)
    assert table.standings([VIOLATED.rule]) == []
    table.record([elsewhere, again])
    table.record([VIOLATED, PASSED, replace(VIOLATED, application_id="other")])
    at_backup, at_restore = table.standings([VIOLATED.rule])
    assert (at_backup.newest, at_restore.newest) == (again, elsewhere)
    assert at_backup.evaluations == {
        outcome: int(outcome in {Outcome.PASSED, Outcome.VIOLATED}) for outcome in Outcome
    }
    assert at_restore.evaluations[Outcome.VIOLATED] == 1
    assert table.standings([]) == []


def test_the_newest_come_first(tmp_path: Path) -> None:
    table = Repository(Warehouse(tmp_path), "app").results
    results = [replace(PASSED, evaluated_at_ms=number) for number in range(5)]
    for result in results:
        table.record([result])
    assert table.newest(2) == results[:2:-1]
    assert table.newest(0) == []
    assert Repository(Warehouse(tmp_path), "other").results.newest(2) == []
