"""Completeness rules between the restored topics and the group offsets, as Dagster runs them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.app.rules import Place
from kstreams_assets.completeness.on_restores import SKIPPED
from kstreams_assets.errors import ConfigurationError, KafkaError
from kstreams_assets.model.rule_results import Outcome
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.orchestration import restore as assets
from kstreams_assets.settings import ApplicationSettings
from tests.completeness.outcomes import rule
from tests.orchestration.default_keys import restore_completeness_key
from tests.orchestration.restoring import NAMES, DagsterShop, Run
from tests.restore import outcomes
from tests.restore.restored_app import LOST, TOLD, Rules
from tests.upkeep.simulated_app import INPUT, STATE

RULES = (
    rule(LOST, views=[INPUT]),
    rule(TOLD, views=[INPUT], blocking=False),
    rule("elsewhere", on=frozenset({Place.BACKUP})),
)
COMPLETENESS = "restored_completeness"
ALL = (*NAMES, COMPLETENESS, "group_offsets")
STEPS = ["restore_shop", "shop__restore__restored_completeness", "shop__restore__group_offsets"]


@pytest.fixture
def rules(shop: DagsterShop, monkeypatch: pytest.MonkeyPatch) -> Rules:
    """A rule that blocks, one that does not, one of another place."""
    made = Rules()
    monkeypatch.setattr(assets, "evaluate_restore", made.evaluate)
    shop.configure(completeness=RULES)
    return made


def _begun(run: Run) -> list[str | None]:
    return run.steps(dg.DagsterEventType.STEP_START)


def _rules(run: Run) -> dict[str, dg.AssetCheckEvaluation]:
    return {check: e for (asset, check), e in run.evaluations.items() if asset == COMPLETENESS}


def test_topics_then_rules_then_group_offsets(shop: DagsterShop, rules: Rules) -> None:
    run = shop(*ALL, dry_run=False)
    assert run.success
    assert _begun(run) == STEPS
    assert rules.evaluated == 1
    shop.of.assert_restored()
    assert {name: (e.passed, e.blocking) for name, e in _rules(run).items()} == {
        LOST: (True, True),
        TOLD: (True, False),
    }
    values = run.materialised[COMPLETENESS]
    assert (values["rules"], values["passed"]) == (2, 2)
    assert values["restore"] == shop.of.stored.restore_id


@pytest.mark.parametrize("outcome", [Outcome.VIOLATED, Outcome.FAILED])
def test_a_blocking_rule_keeps_the_group_offsets_away(
    shop: DagsterShop, rules: Rules, outcome: Outcome
) -> None:
    rules.outcomes[LOST] = outcome
    run = shop(*ALL, dry_run=False)
    assert not run.success
    assert _begun(run) == STEPS[:2]
    assert shop.of.target.offsets == {}
    red = _rules(run)[LOST]
    assert (red.passed, red.severity) == (False, dg.AssetCheckSeverity.ERROR)
    if outcome is Outcome.VIOLATED:
        table = red.metadata["rows_in_violation"]
        assert isinstance(table, dg.TableMetadataValue)
        assert len(table.records) == 2


@pytest.mark.parametrize(
    ("name", "outcome"),
    [(TOLD, Outcome.VIOLATED), (LOST, Outcome.NOT_VERIFIABLE)],
)
def test_what_does_not_block_is_reported(
    shop: DagsterShop, rules: Rules, name: str, outcome: Outcome
) -> None:
    rules.outcomes[name] = outcome
    run = shop(*ALL, dry_run=False)
    assert run.success
    assert not _rules(run)[name].passed
    shop.of.assert_restored()


def test_what_differs_from_the_backup_is_not_evaluated(shop: DagsterShop, rules: Rules) -> None:
    shop.of.target.spoiled = TopicPartitionId(STATE, 0)
    run = shop(*ALL, dry_run=False)
    assert _begun(run) == STEPS[:1]
    assert (rules.evaluated, shop.of.target.offsets) == (0, {})


def test_a_dry_run_evaluates_nothing(shop: DagsterShop, rules: Rules) -> None:
    run = shop(*ALL)
    assert run.success
    assert _begun(run) == STEPS[:1]
    assert (rules.evaluated, shop.of.target.did) == (0, [])


@pytest.mark.parametrize("names", [(COMPLETENESS,), (COMPLETENESS, "group_offsets")])
def test_alone_they_show_the_plan(shop: DagsterShop, rules: Rules, names: tuple[str, ...]) -> None:
    run = shop(*names)
    assert run.success
    assert f"`{INPUT}`" in run.observed[COMPLETENESS]["plan"]
    assert (run.materialised, run.evaluations) == ({}, {})
    refused = shop.restore(*names).failure
    assert refused.startswith(f"{COMPLETENESS} cannot be restored alone: ")
    assert "Launch job shop_restore" in refused
    assert (rules.evaluated, shop.of.target.did) == (0, [])


def test_skipped_as_asked_they_are_never_green(shop: DagsterShop, rules: Rules) -> None:
    run = shop(*ALL, dry_run=False, skip_completeness=True)
    assert run.success
    assert rules.evaluated == 0
    shop.of.assert_restored()
    for skipped in _rules(run).values():
        assert (skipped.passed, skipped.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert skipped.description == SKIPPED


def test_without_the_rules_in_the_selection_the_commit_refuses(
    shop: DagsterShop, rules: Rules
) -> None:
    run = shop(dry_run=False)
    assert not run.success
    assert shop.of.target.offsets == {}
    assert f"rule {LOST} was not evaluated on it" in run.failure
    assert "skip_completeness: true" in run.failure


def test_an_error_of_ours_is_a_failure_in_its_own_words(shop: DagsterShop, rules: Rules) -> None:
    rules.error = KafkaError("Group shop is in use.", remedy="Stop the application.")
    assert shop(*ALL, dry_run=False).failure == str(rules.error)
    assert shop.of.target.offsets == {}


def _settings(tmp_path: Path, **more: Any) -> ApplicationSettings:
    return replace(outcomes.settings(tmp_path), **{"completeness": RULES, **more})


def test_keys_edges_and_checks(tmp_path: Path) -> None:
    topics, rules, offsets = assets.build_restore_assets(_settings(tmp_path))
    assert rules.key == restore_completeness_key("shop")
    assert rules.op.pool == "kstreams_restore_shop"
    (spec,) = rules.specs
    restored = {f"shop/restore/{topic.name}" for topic in outcomes.TOPICS}
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == restored
    above = {dep.asset_key.to_user_string() for spec in offsets.specs for dep in spec.deps}
    assert above == {*restored, f"shop/restore/{COMPLETENESS}"}
    assert {check.name: check.blocking for check in rules.check_specs} == {LOST: True, TOLD: False}
    assert topics.op.name == "restore_shop"


def test_without_rules_on_restores_there_is_no_asset(tmp_path: Path) -> None:
    assert len(assets.build_restore_assets(_settings(tmp_path, completeness=RULES[2:]))) == 2


def test_a_topic_with_the_name_of_the_rules(tmp_path: Path) -> None:
    topic = AppTopic(COMPLETENESS, TopicRoles({TopicRole.INPUT}))
    application = replace(outcomes.settings(tmp_path).application, topics=(topic,))
    named = _settings(tmp_path, application=application, topics=(topic,))
    with pytest.raises(ConfigurationError, match=f"'{COMPLETENESS}'"):
        assets.build_restore_assets(named)
    assert len(assets.build_restore_assets(replace(named, completeness=()))) == 2
