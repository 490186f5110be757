"""`restore run` with completeness rules: evaluated on the target before the offsets go there."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.cli import restore as restore_module
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.model.rule_results import Outcome
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import RestoreRequest
from tests.cli.application import Program, document, write
from tests.cli.shop import Shop
from tests.restore import outcomes
from tests.restore.restored_app import LOST, TOLD, Rules
from tests.upkeep.simulated_app import INPUT, OUTPUT, STATE


@pytest.fixture
def rules(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Rules:
    """The rules of the application."""
    made = Rules()
    monkeypatch.setattr(restore_module, "evaluate_restore", made.evaluate)
    balance: dict[str, Any] = {"balance": f"{INPUT} == {OUTPUT}", "on": ["restore"]}
    shop.configure(
        completeness=[
            {"name": LOST, **balance},
            {"name": TOLD, **balance, "severity": "warn"},
        ]
    )
    return made


def test_restored_evaluated_committed(shop: Shop, rules: Rules) -> None:
    done = shop("run")
    assert (done.exit_code, done.err) == (0, "")
    assert rules.evaluated == 1
    shop.assert_restored()
    assert "Completeness on the target" in done.out
    assert "committed and read back" in done.out


@pytest.mark.parametrize("outcome", [Outcome.VIOLATED, Outcome.FAILED])
def test_a_blocking_rule_exits_1_and_commits_nothing(
    shop: Shop, rules: Rules, outcome: Outcome
) -> None:
    rules.outcomes[LOST] = outcome
    done = shop("run")
    assert done.exit_code == 1
    assert shop.target.did == ["produce", "verify"]
    assert shop.target.offsets == {}
    first, refused = done.err.splitlines()
    assert first.startswith(f"ERROR {LOST}: It is {outcome.value}.")
    assert refused.startswith(f"ERROR Restore {shop.stored.restore_id} is possibly incomplete")
    assert "--skip-completeness" in refused
    assert "After the restore" not in done.out
    found = shop.json("run")
    assert (found["state"], found["committed"]) == ("verified", [])
    assert [(r["rule"], r["blocks"]) for r in found["completeness"]] == [
        (LOST, True),
        (TOLD, False),
    ]


@pytest.mark.parametrize(
    ("name", "outcome"), [(TOLD, Outcome.VIOLATED), (LOST, Outcome.NOT_VERIFIABLE)]
)
def test_what_does_not_block_is_reported(
    shop: Shop, rules: Rules, name: str, outcome: Outcome
) -> None:
    rules.outcomes[name] = outcome
    done = shop("run")
    assert done.exit_code == 0
    shop.assert_restored()
    assert f" {name}: " in done.err


def test_skipped_as_asked_it_is_said(shop: Shop, rules: Rules) -> None:
    rules.outcomes[LOST] = Outcome.VIOLATED
    done = shop("run", "--skip-completeness")
    assert (done.exit_code, done.err) == (0, "")
    assert rules.evaluated == 0
    shop.assert_restored()
    assert "not evaluated on the target" in done.out
    assert "Completeness rules were not evaluated on the target" in done.out
    assert shop.json("plan", "--skip-completeness")["skip_completeness"] is True


def test_what_differs_from_the_backup_is_not_evaluated(shop: Shop, rules: Rules) -> None:
    shop.target.spoiled = TopicPartitionId(STATE, 0)
    done = shop("run")
    assert done.exit_code == 1
    assert rules.evaluated == 0


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """The YAML of `shop`, with a target."""
    more = {
        "warehouse": str(tmp_path / "warehouse"),
        "restore": {"target": {"bootstrap_servers": "target:1"}},
    }
    return write(tmp_path / "defs.yaml", document(**more))


def test_the_list_tells_who_skipped_them(program: Program, app_file: Path) -> None:
    table = Repository(Warehouse(app_file.parent / "warehouse"), "shop").restores
    made = outcomes.stored(outcomes.plan(RestoreRequest()), RestoreState.COMMITTED)
    table.append(made)
    skipped = replace(made, restore_id="other", request='{"skip_completeness": true}')
    table.append(skipped)
    found = json.loads(program("restore", "list", "--app", app_file, "--json").out)
    told = {each["restore_id"]: each["completeness_skipped"] for each in found["restores"]}
    assert told == {made.restore_id: False, "other": True}
