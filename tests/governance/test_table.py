"""Reports are stored, and the newest is found again."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.checks import Finding, Severity
from kstreams_assets.governance import findings as table_module
from kstreams_assets.governance.findings import (
    FindingsTable,
    GovernanceReport,
    evaluation_of,
)
from kstreams_assets.layout import CONTROL_TABLES, Warehouse

BAD = Finding("t", "a", "b", "Do c.", Severity.WARN)
WORSE = Finding("u", "d", "e", "Do f.")


def report(at_ms: int = 1_000, run_id: str = "run-1") -> GovernanceReport:
    """Two checks, one of which failed."""
    verdicts = (
        evaluation_of("store_growth", "Nothing was compared.", (), ("no limit.",)),
        evaluation_of("keys_are_spread", "1 topic.", (WORSE, BAD), ()),
    )
    return GovernanceReport("shop", run_id, "cluster", at_ms, verdicts)


def test_its_layout_is_looked_at() -> None:
    assert "governance_findings" in CONTROL_TABLES


def test_there_and_back(tmp_path: Path) -> None:
    table = FindingsTable(Warehouse(tmp_path))
    assert table.newest("shop") is None
    first, second = report(), report(2_000, "run-0")
    table.record(second)
    table.record(first)
    table.record(replace(report(3_000), application_id="other"))
    assert table.newest("shop") == second
    assert table.newest("other") == replace(report(3_000), application_id="other")


def test_of_two_in_one_millisecond_one_is_shown_whole(tmp_path: Path) -> None:
    table = FindingsTable(Warehouse(tmp_path))
    table.record(report())
    table.record(report(run_id="run-2"))
    assert table.newest("shop") == report(run_id="run-2")


def test_small_files_are_put_together_and_old_reports_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "_KEPT_MS", 2_000)
    table = FindingsTable(Warehouse(tmp_path))
    for at_ms in range(1_000, 35_000, 1_000):
        table.record(report(at_ms, f"run-{at_ms}"))
    files = table._table.files("shop")
    assert [(file.rows, file.low) for file in files] == [(6, 31_000), (2, 34_000)]
    assert table.newest("shop") == report(34_000, "run-34000")


def test_what_a_report_says() -> None:
    found = report()
    assert found.is_red
    assert found.of_severity(Severity.WARN) == [BAD]
    assert found.evaluations[1].explanation == ("u: d; expected: e. Do f. t: a; expected: b. Do c.")
    passed = found.evaluations[0].explanation
    assert passed == "Nothing was compared. Not judged: no limit."
    many = evaluation_of("x", "", (BAD,) * 12, ())
    assert many.explanation.endswith("And 2 more.")
    assert not many.is_red
