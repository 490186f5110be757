"""Reports are stored, and the newest is found again."""

from dataclasses import replace
from pathlib import Path

from kstreams_assets.checks import Finding, Severity
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.governance_report import GovernanceReport, evaluation_of
from kstreams_assets.repository.repository import Repository

BAD = Finding("t", "a", "b", "Do c.", Severity.WARN)
WORSE = Finding("u", "d", "e", "Do f.")


def report(at_ms: int = 1_000, run_id: str = "run-1") -> GovernanceReport:
    """Two checks, one of which failed."""
    verdicts = (
        evaluation_of("store_growth", "Nothing was compared.", (), ("no limit.",)),
        evaluation_of("keys_are_spread", "1 topic.", (WORSE, BAD), ()),
    )
    return GovernanceReport("shop", run_id, "cluster", at_ms, verdicts)


def test_there_and_back(tmp_path: Path) -> None:
    table = Repository(Warehouse(tmp_path), "shop").findings
    assert table.newest() is None
    first, second = report(), report(2_000, "run-0")
    table.record(second)
    table.record(first)
    table.record(replace(report(3_000), application_id="other"))
    assert table.newest() == second
    other = Repository(Warehouse(tmp_path), "other").findings
    assert other.newest() == replace(report(3_000), application_id="other")


def test_of_two_in_one_millisecond_one_is_shown_whole(tmp_path: Path) -> None:
    table = Repository(Warehouse(tmp_path), "shop").findings
    table.record(report())
    table.record(report(run_id="run-2"))
    assert table.newest() == report(run_id="run-2")


def test_what_a_report_says() -> None:
    found = report()
    assert found.is_red
    assert found.of_severity(Severity.WARN) == [BAD]
    assert found.evaluations[1].explanation == ("u: d; expected: e. Do f. t: a; expected: b. Do c.")
    passed = found.evaluations[0].explanation
    assert passed == "Nothing was compared. Not evaluated: no limit."
    many = evaluation_of("x", "", (BAD,) * 12, ())
    assert many.explanation.endswith("And 2 more.")
    assert not many.is_red
