"""`kstreams-assets drill` and `kstreams-assets ready` as a shell sees them."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.checks import Finding, Severity
from kstreams_assets.cli import drill as drill_module
from kstreams_assets.cli import ready as ready_module
from kstreams_assets.drill.readiness import Readiness
from kstreams_assets.drill.report import DrillReport, Failure, Phase
from kstreams_assets.drill.run import DrillRequest
from tests.cli.application import Program, document, nothing_written, write
from tests.drill.reports import REPORT

COMMAND = ["{python}", "-c", "pass", "{client_properties}", "{state_dir}"]


@pytest.fixture
def drilled(monkeypatch: pytest.MonkeyPatch) -> list[DrillRequest]:
    """Drills give `REPORT`, or what a test puts in its place; their requests."""
    requests: list[DrillRequest] = []

    def run(_: object, request: DrillRequest) -> DrillReport:
        requests.append(request)
        return REPORT

    monkeypatch.setattr(drill_module.DrillJob, "run", run)
    return requests


def _app(tmp_path: Path, **drill: Any) -> Path:
    block = {"command": COMMAND, **drill}
    return write(
        tmp_path / "defs.yaml", document(warehouse=str(tmp_path / "warehouse"), drill=block)
    )


def test_a_summary_is_printed(
    program: Program, tmp_path: Path, drilled: list[DrillRequest]
) -> None:
    result = program("drill", "--app", _app(tmp_path), "--as-of", "1970-01-01T00:00:05Z", "--keep")
    assert result.exit_code == 0
    assert f"Drill {REPORT.drill_id} of shop: passed." in result.out
    assert "The recovery took 32.0 s of 60 s allowed." in result.out
    assert f"{REPORT.drill_id}.yaml" in result.out
    assert "restoreDrill:" not in result.out
    assert len(result.out.splitlines()) <= 12
    assert drilled == [DrillRequest(as_of_ms=5_000, keep=True)]


def test_as_json(program: Program, tmp_path: Path, drilled: list[DrillRequest]) -> None:
    result = program("drill", "--app", _app(tmp_path), "--point", "p1", "--json")
    assert result.exit_code == 0
    assert json.loads(result.out)["restoreDrill"]["recoverySeconds"] == 32.0
    assert drilled == [DrillRequest(point_id="p1")]


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (replace(REPORT, objective_s=1.0), "more than the 1 s allowed"),
        (replace(REPORT, failure=Failure(Phase.START, "Never up.")), "phase start: Never up."),
    ],
)
def test_red_exits_1(
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    report: DrillReport,
    told: str,
) -> None:
    monkeypatch.setattr(drill_module.DrillJob, "run", lambda *_: report)
    result = program("drill", "--app", _app(tmp_path))
    assert result.exit_code == 1
    assert told in result.out


def test_not_declared_is_no_failure(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = replace(REPORT, objective_s=None)
    monkeypatch.setattr(drill_module.DrillJob, "run", lambda *_: report)
    assert program("drill", "--app", _app(tmp_path)).exit_code == 0


@pytest.mark.parametrize("what", ["jars", "java"])
def test_a_machine_that_cannot_drill_is_no_failed_drill(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "jars":
        monkeypatch.setenv("KSTREAMS_ASSETS_JARS", str(tmp_path / "no-jars"))
    else:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
        monkeypatch.setenv("PATH", str(tmp_path))
    app = _app(tmp_path, command=[sys.executable, *COMMAND[1:]])
    with nothing_written(tmp_path):
        result = program("drill", "--app", app)
    assert (result.exit_code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert ("jar" if what == "jars" else "JDK") in result.err


@pytest.mark.parametrize(
    ("block", "arguments", "told"),
    [
        ({"command": []}, [], "so a drill cannot start the application. Set drill.command"),
        (
            {"command": ["no-such", "{client_properties}", "{state_dir}"]},
            [],
            "The drill cannot start 'no-such': the program is missing",
        ),
        ({}, ["--as-of", "2026-11-21T00:00:00Z", "--point", "p"], "Both as_of"),
    ],
)
def test_what_cannot_begin_is_one_line(
    program: Program, tmp_path: Path, block: dict[str, Any], arguments: list[str], told: str
) -> None:
    app = _app(tmp_path, **block)
    with nothing_written(tmp_path):
        result = program("drill", "--app", app, *arguments)
    assert result.exit_code == 2
    assert told in result.err
    assert result.err.startswith("Error: ")
    assert len(result.err.splitlines()) == 1


class TestReady:
    """`kstreams-assets ready`."""

    def test_no(self, program: Program, tmp_path: Path) -> None:
        result = program("ready", "--app", _app(tmp_path))
        assert result.exit_code == 1
        assert result.out.startswith("ready: no (shop)")
        assert "No restore drill has run yet." in result.out
        assert "does not answer" in result.out

    def test_yes(self, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = Readiness((Finding("drill", "Passed.", severity=Severity.WARN),))
        monkeypatch.setattr(ready_module, "readiness", lambda *_, **__: found)
        result = program("ready", "--app", _app(tmp_path), "--json")
        assert result.exit_code == 0
        said = json.loads(result.out)
        assert (said["ready"], said["why"]) == (True, "No blockers.")
        assert said["statements"] == [
            {"subject": "drill", "speaks_against": False, "text": "Passed."}
        ]
