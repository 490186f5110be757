"""`kstreams-assets governance`: what it prints, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kstreams_assets.cli import governance as command
from kstreams_assets.errors import AuthorizationFailedError
from kstreams_assets.governance.facts import GovernanceFacts
from kstreams_assets.governance.findings import GovernanceReport
from kstreams_assets.governance.judge import judge
from kstreams_assets.settings import ApplicationSettings
from tests.cli.application import Program, document, write
from tests.governance.samples import CHANGELOG, configs, declared, healthy

Look = Callable[..., tuple[GovernanceReport, GovernanceFacts]]


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """The YAML of an application whose cluster does not answer."""
    connection = {"bootstrap_servers": "127.0.0.1:1", "request_timeout_seconds": 1}
    warehouse = str(tmp_path / "warehouse")
    return write(tmp_path / "defs.yaml", document(warehouse=warehouse, connection=connection))


def found(facts: GovernanceFacts) -> Look:
    """A look that finds these facts."""

    def look(
        settings: ApplicationSettings, *, run_id: str
    ) -> tuple[GovernanceReport, GovernanceFacts]:
        assert run_id.startswith("cli-")
        verdicts = judge(facts, declared("orders_count_v1"))
        name = settings.application_id
        return GovernanceReport(name, run_id, "cluster", facts.taken_at_ms, verdicts), facts

    return look


HEALTHY = healthy(declared("orders_count_v1"))


def test_all_is_well(program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "check_governance", found(HEALTHY))
    result = program("governance", "--app", app_file)
    assert (result.exit_code, result.err) == (0, "")
    assert result.out.startswith("Governance of shop on cluster cluster, 2025-11-22T")
    results = [line.split("│")[2].strip() for line in result.out.splitlines() if "│" in line]
    assert set(results) == {"passed", "not compared"}
    assert results.count("not compared") == result.out.count("Nothing was compared.") > 0
    assert "governance.internal_topics is not declared." in result.out


def test_an_error_is_a_failed_check(
    program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        command, "check_governance", found(configs(CHANGELOG, cleanup_policy="delete")(HEALTHY))
    )
    result = program("governance", "--app", app_file)
    assert result.exit_code == 1
    assert "RED: 1" in result.out
    assert result.err.startswith(f"ERROR cleanup_policies_fit: {CHANGELOG}: cleanup.policy delete;")
    assert "kafka-configs.sh --bootstrap-server kafka:9092 --alter" in result.err


def test_a_warning_is_not(
    program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        command, "check_governance", found(configs(CHANGELOG, min_insync_replicas=1)(HEALTHY))
    )
    result = program("governance", "--app", app_file)
    assert result.exit_code == 0
    assert "WARN: 1" in result.out
    assert result.err.startswith(f"WARN changelogs_replicated: {CHANGELOG}: min.insync.replicas 1;")


def test_json(program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        command, "check_governance", found(configs(CHANGELOG, cleanup_policy="delete")(HEALTHY))
    )
    result = program("governance", "--app", app_file, "--json")
    assert result.exit_code == 1
    report = json.loads(result.out)
    assert report["passed"] is False
    (failed,) = [check for check in report["checks"] if check["passed"] is False]
    assert failed["check"] == "cleanup_policies_fit"
    assert failed["findings"][0]["subject"] == CHANGELOG
    assert failed["findings"][0]["expected"] == "compact for a store of kind key_value"


def test_a_cluster_that_is_down_is_one_line(program: Program, app_file: Path) -> None:
    result = program("governance", "--app", app_file)
    assert result.exit_code == 2
    assert result.err.startswith("Error: Kafka at 127.0.0.1:1 did not answer within 1 s")
    assert result.err.count("\n") == 1


def test_a_missing_right_is_one_line(
    program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AuthorizationFailedError(
            operation="describe_configs", resource="topic t", needed="DESCRIBE_CONFIGS"
        )

    monkeypatch.setattr(command, "check_governance", refuse)
    result = program("governance", "--app", app_file)
    assert result.exit_code == 2
    assert result.err == (
        "Error: Not allowed: describe_configs on topic t."
        " Give the user of this connection the right DESCRIBE_CONFIGS on topic t.\n"
    )
