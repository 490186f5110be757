"""`kstreams-assets governance`: what it prints, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kstreams_assets.checks import Severity
from kstreams_assets.cli import governance as command
from kstreams_assets.errors import AuthorizationFailedError
from kstreams_assets.governance.facts import GovernanceFacts
from kstreams_assets.layout import Warehouse
from kstreams_assets.repository.repository import Repository
from tests.cli.application import Program, Result, document, write
from tests.governance.samples import CHANGELOG, V1, V1_FILE, configs, declared, facts_are, healthy

HEALTHY = healthy(declared("orders_count_v1"))
BAD_POLICY = configs(CHANGELOG, cleanup_policy="delete")(HEALTHY)


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """The YAML of an application whose cluster does not answer."""
    connection = {"bootstrap_servers": "127.0.0.1:1", "request_timeout_seconds": 1}
    warehouse = str(tmp_path / "warehouse")
    return write(tmp_path / "defs.yaml", document(warehouse=warehouse, connection=connection))


@pytest.fixture
def governance(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """The command, of the example whose cluster is as these facts have it."""

    def run(facts: GovernanceFacts, *options: str) -> Result:
        facts_are(facts, monkeypatch)
        warehouse = tmp_path / "warehouse"
        return program("governance", "--app", V1_FILE, "--warehouse", warehouse, *options)

    return run


def test_all_is_well(governance: Callable[..., Result]) -> None:
    result = governance(HEALTHY)
    assert (result.exit_code, result.err) == (0, "")
    assert result.out.startswith(f"Governance of {V1} on cluster cluster, 2025-11-22T")
    results = [line.split("│")[2].strip() for line in result.out.splitlines() if "│" in line]
    assert set(results) == {"passed", "not compared"}
    assert results.count("not compared") == result.out.count("Nothing was compared.") > 0
    assert "governance.partitions is not declared." in result.out


def test_an_error_is_a_failed_check(governance: Callable[..., Result], tmp_path: Path) -> None:
    result = governance(BAD_POLICY)
    assert result.exit_code == 1
    assert "RED: 1" in result.out
    assert result.err.startswith(f"ERROR cleanup_policies_fit: {CHANGELOG}: cleanup.policy delete;")
    assert "kafka-configs.sh --bootstrap-server kafka:9092 --alter" in result.err
    warehouse = Warehouse(tmp_path / "warehouse")
    report = Repository(warehouse, V1).findings.newest()
    assert report is not None
    assert [one.subject for one in report.of_severity(Severity.ERROR)] == [CHANGELOG]


def test_a_warning_is_not(governance: Callable[..., Result]) -> None:
    result = governance(configs(CHANGELOG, min_insync_replicas=1)(HEALTHY))
    assert result.exit_code == 0
    assert "WARN: 1" in result.out
    assert result.err.startswith(f"WARN changelogs_replicated: {CHANGELOG}: min.insync.replicas 1;")


def test_json(governance: Callable[..., Result]) -> None:
    result = governance(BAD_POLICY, "--json")
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
