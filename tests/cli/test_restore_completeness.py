"""`restore run` with completeness rules: evaluated on the target before the offsets go there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.rules import Place
from kstreams_assets.cli import restore as restore_module
from kstreams_assets.completeness.result import Outcome, RuleResult
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.restores import RestoresTable, RestoreState, StoredRestore
from spark_resources.partition_records import Difference
from tests.cli.application import Program, document, write
from tests.completeness.outcomes import result
from tests.restore import outcomes
from tests.restore.outcomes import TOTALS

LOST, TOLD = "nothing_lost", "told_only"


@dataclass
class _Restore:
    """Stands in for planning, running, evaluating and committing."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    did: list[str] = field(default_factory=list)

    def plan(
        self,
        settings: ApplicationSettings,
        request: RestoreRequest,
        target: KafkaConnection,
        *,
        look_s: float = 0.0,
    ) -> RestorePlan:
        del settings, look_s
        return outcomes.plan(request, target=target.bootstrap_servers)

    def run(self, settings: ApplicationSettings, planned: RestorePlan, *_: Any, **more: Any):
        self.did.append("restored")
        made = outcomes.result(planned, *self.differences, run_id=more["run_id"])
        asked = json.dumps({"skip_completeness": planned.request.skip_completeness})
        return replace(made, restore=replace(made.restore, request=asked))

    def evaluate(self, settings: ApplicationSettings, *_: Any, **__: Any) -> Sequence[RuleResult]:
        self.did.append("evaluated")
        return [
            result(
                self.outcomes.get(name, Outcome.PASSED),
                rule=name,
                place=Place.RESTORE,
                blocking=name == LOST,
            )
            for name in (LOST, TOLD)
        ]

    def commit(
        self,
        settings: ApplicationSettings,
        restore: StoredRestore,
        target: KafkaConnection,
        *,
        gate: object,
    ) -> StoredRestore:
        self.did.append("committed")
        return replace(restore, state=RestoreState.COMMITTED, committed=restore.to_commit)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> _Restore:
    """What the command calls."""
    made = _Restore()
    monkeypatch.setattr(restore_module, "plan_restore", made.plan)
    monkeypatch.setattr(restore_module, "run_restore", made.run)
    monkeypatch.setattr(restore_module, "evaluate_restore", made.evaluate)
    monkeypatch.setattr(restore_module, "commit_group_offsets", made.commit)
    return made


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """The YAML of `shop`, with a target."""
    more = {
        "warehouse": str(tmp_path / "warehouse"),
        "restore": {"target": {"bootstrap_servers": "target:1"}},
    }
    return write(tmp_path / "defs.yaml", document(**more))


def test_restored_evaluated_committed(program: Program, app_file: Path, fake: _Restore) -> None:
    done = program("restore", "run", "--app", app_file)
    assert (done.exit_code, done.err) == (0, "")
    assert fake.did == ["restored", "evaluated", "committed"]
    assert "Completeness on the target" in done.out
    assert "committed and read back" in done.out


@pytest.mark.parametrize("outcome", [Outcome.VIOLATED, Outcome.FAILED])
def test_a_blocking_rule_exits_1_and_commits_nothing(
    program: Program, app_file: Path, fake: _Restore, outcome: Outcome
) -> None:
    fake.outcomes[LOST] = outcome
    done = program("restore", "run", "--app", app_file)
    assert done.exit_code == 1
    assert fake.did == ["restored", "evaluated"]
    first, refused = done.err.splitlines()
    assert first.startswith(f"ERROR {LOST}: It is {outcome.value}.")
    assert refused.startswith("ERROR Restore point-1-0123abcd is not known to be complete: rule")
    assert "--skip-completeness" in refused
    assert "After the restore" not in done.out
    found = json.loads(program("restore", "run", "--app", app_file, "--json").out)
    assert (found["state"], found["committed"]) == ("verified", [])
    assert [(r["rule"], r["blocks"]) for r in found["completeness"]] == [
        (LOST, True),
        (TOLD, False),
    ]


@pytest.mark.parametrize(
    ("name", "outcome"), [(TOLD, Outcome.VIOLATED), (LOST, Outcome.NOT_VERIFIABLE)]
)
def test_what_does_not_block_is_told(
    program: Program, app_file: Path, fake: _Restore, name: str, outcome: Outcome
) -> None:
    fake.outcomes[name] = outcome
    done = program("restore", "run", "--app", app_file)
    assert done.exit_code == 0
    assert fake.did[-1] == "committed"
    assert f" {name}: " in done.err


def test_skipped_as_asked_it_is_said(program: Program, app_file: Path, fake: _Restore) -> None:
    fake.outcomes[LOST] = Outcome.VIOLATED
    done = program("restore", "run", "--app", app_file, "--skip-completeness")
    assert (done.exit_code, done.err) == (0, "")
    assert fake.did == ["restored", "committed"]
    assert "rules are not evaluated on the target, as asked" in done.out
    assert "Completeness rules were not evaluated on the target, as asked" in done.out
    planned = program("restore", "plan", "--app", app_file, "--skip-completeness", "--json")
    assert json.loads(planned.out)["skip_completeness"] is True


def test_what_is_not_as_the_backup_is_not_evaluated(
    program: Program, app_file: Path, fake: _Restore
) -> None:
    fake.differences = (Difference(TopicPartitionId(f"new-{TOTALS}", 0), 4, "the value differs"),)
    done = program("restore", "run", "--app", app_file)
    assert done.exit_code == 1
    assert fake.did == ["restored"]


def test_the_list_tells_who_skipped_them(program: Program, app_file: Path) -> None:
    table = RestoresTable(Warehouse(app_file.parent / "warehouse"))
    made = outcomes.stored(outcomes.plan(RestoreRequest()), RestoreState.COMMITTED)
    table.append(made)
    skipped = replace(made, restore_id="other", request='{"skip_completeness": true}')
    table.append(skipped)
    found = json.loads(program("restore", "list", "--app", app_file, "--json").out)
    told = {each["restore_id"]: each["completeness_skipped"] for each in found["restores"]}
    assert told == {made.restore_id: False, "other": True}
