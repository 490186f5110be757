"""Completeness rules between the restored topics and the group offsets, as Dagster runs them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.app.rules import Place
from kstreams_assets.completeness.on_restores import SKIPPED
from kstreams_assets.completeness.result import Outcome, ResultsTable, RuleResult
from kstreams_assets.errors import GroupNotEmptyError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.orchestration import restore as assets
from kstreams_assets.orchestration import restore as completeness_asset
from kstreams_assets.orchestration.keys import (
    CollidingNamesError,
    group_offsets_key,
    restore_completeness_key,
    restore_key,
)
from kstreams_assets.restore.group_offsets import Gate
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.run import RestoreResult
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.restores import RestoresTable, RestoreState, StoredRestore
from spark_resources.partition_records import Difference
from spark_resources.resource import SparkSessionResource
from tests.completeness.outcomes import result, rule
from tests.restore import outcomes
from tests.restore.outcomes import BETWEEN, ORDERS, TOTALS

NAMES = (ORDERS, BETWEEN, TOTALS)
LOST, TOLD = "nothing_lost", "told_only"
STEPS = ["restore_shop", "shop__restore__restored_completeness", "shop__restore__group_offsets"]


@dataclass
class _Restore:
    """Stands in for planning, restoring, evaluating and committing; the tables are real ones."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    evaluation_error: Exception | None = None
    evaluated: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)

    def plan(
        self, settings: ApplicationSettings, request: RestoreRequest, target: KafkaConnection
    ) -> RestorePlan:
        return outcomes.plan(request, target=target.bootstrap_servers)

    def run(
        self,
        settings: ApplicationSettings,
        planned: RestorePlan,
        target: KafkaConnection,
        *,
        run_id: str,
        **_: Any,
    ) -> RestoreResult:
        made = outcomes.result(planned, *self.differences, run_id=run_id)
        skip = '{"skip_completeness": true}' if planned.request.skip_completeness else "{}"
        made = replace(made, restore=replace(made.restore, request=skip))
        RestoresTable(settings.warehouse).append(made.restore)
        return made

    def evaluate(
        self,
        settings: ApplicationSettings,
        restore: StoredRestore,
        target: KafkaConnection,
        *,
        spark: SparkSessionResource,
        log: Callable[[str], None],
    ) -> list[RuleResult]:
        assert restore.state is RestoreState.VERIFIED
        self.evaluated.append(restore.run_id)
        if self.evaluation_error is not None:
            raise self.evaluation_error
        made = [
            result(
                self.outcomes.get(name, Outcome.PASSED),
                rule=name,
                place=Place.RESTORE,
                blocking=name == LOST,
                run_id=restore.run_id,
            )
            for name in (LOST, TOLD)
        ]
        ResultsTable(settings.warehouse).record(made)
        return made

    def commit(
        self,
        settings: ApplicationSettings,
        restore: StoredRestore,
        target: KafkaConnection,
        *,
        gate: Gate,
    ) -> StoredRestore:
        gate(settings, restore)
        self.committed.append(restore.run_id)
        return replace(
            restore,
            state=RestoreState.COMMITTED,
            former_offsets=(),
            committed=restore.to_commit,
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> _Restore:
    """What the assets call."""
    made = _Restore()
    monkeypatch.setattr(assets, "plan_restore", made.plan)
    monkeypatch.setattr(assets, "run_restore", made.run)
    monkeypatch.setattr(assets, "commit_group_offsets", made.commit)
    monkeypatch.setattr(completeness_asset, "evaluate_restore", made.evaluate)
    return made


@pytest.fixture
def settings(tmp_path: Path, fake: _Restore) -> ApplicationSettings:
    """A rule that blocks, one that does not, one of another place."""
    rules = (
        rule(LOST, views=[ORDERS]),
        rule(TOLD, views=[ORDERS], blocking=False),
        rule("elsewhere", on=frozenset({Place.BACKUP})),
    )
    return replace(outcomes.settings(tmp_path / "warehouse"), completeness=rules)


def _keys(*, completeness: bool = True) -> list[dg.AssetKey]:
    between = [restore_completeness_key("shop")] if completeness else []
    return [*(restore_key("shop", name) for name in NAMES), *between, group_offsets_key("shop")]


def _materialise(
    settings: ApplicationSettings, *, keys: list[dg.AssetKey] | None = None, **config: Any
) -> dg.ExecuteInProcessResult:
    job = dg.Definitions(
        assets=assets.build_restore_assets(settings),
        jobs=[dg.define_asset_job("job", keys or _keys())],
        resources={"spark": SparkSessionResource()},
        executor=dg.in_process_executor,
    ).resolve_job_def("job")
    with dg.DagsterInstance.ephemeral() as instance:
        return job.execute_in_process(
            instance=instance,
            run_config={"ops": {"restore_shop": {"config": config}}} if config else None,
            raise_on_error=False,
        )


def _begun(done: dg.ExecuteInProcessResult) -> list[str | None]:
    return [event.step_key for event in done.all_events if event.is_step_start]


def _rules(done: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    key = restore_completeness_key("shop")
    found = done.get_asset_check_evaluations()
    return {e.check_name: e for e in found if e.asset_key == key}


def _failure(done: dg.ExecuteInProcessResult) -> str:
    (failure,) = done.get_step_failure_events()
    data = failure.step_failure_data
    assert data.user_failure_data is not None, data.error
    return data.user_failure_data.description or ""


def test_topics_then_rules_then_group_offsets(
    settings: ApplicationSettings, fake: _Restore
) -> None:
    done = _materialise(settings, dry_run=False)
    assert done.success
    assert _begun(done) == STEPS
    assert fake.evaluated == fake.committed == [done.run_id]
    checked = _rules(done)
    assert {name: (e.passed, e.blocking) for name, e in checked.items()} == {
        LOST: (True, True),
        TOLD: (True, False),
    }
    (values,) = [
        event.materialization.metadata
        for event in done.all_events
        if event.is_step_materialization and event.asset_key == restore_completeness_key("shop")
    ]
    assert (values["rules"].value, values["passed"].value) == (2, 2)
    assert values["restore"].value == "point-1-0123abcd"


@pytest.mark.parametrize("outcome", [Outcome.VIOLATED, Outcome.FAILED])
def test_a_blocking_rule_keeps_the_group_offsets_away(
    settings: ApplicationSettings, fake: _Restore, outcome: Outcome
) -> None:
    fake.outcomes[LOST] = outcome
    done = _materialise(settings, dry_run=False)
    assert not done.success
    assert _begun(done) == STEPS[:2]
    assert fake.committed == []
    red = _rules(done)[LOST]
    assert (red.passed, red.severity) == (False, dg.AssetCheckSeverity.ERROR)
    if outcome is Outcome.VIOLATED:
        table = red.metadata["rows_in_violation"]
        assert isinstance(table, dg.TableMetadataValue)
        assert len(table.records) == 2


@pytest.mark.parametrize(
    ("name", "outcome"),
    [(TOLD, Outcome.VIOLATED), (LOST, Outcome.NOT_VERIFIABLE)],
)
def test_what_does_not_block_is_told(
    settings: ApplicationSettings, fake: _Restore, name: str, outcome: Outcome
) -> None:
    fake.outcomes[name] = outcome
    done = _materialise(settings, dry_run=False)
    assert done.success
    assert not _rules(done)[name].passed
    assert fake.committed == [done.run_id]


def test_what_is_not_as_the_backup_is_not_evaluated(
    settings: ApplicationSettings, fake: _Restore
) -> None:
    fake.differences = (Difference(TopicPartitionId(f"new-{TOTALS}", 0), 4, "the value differs"),)
    done = _materialise(settings, dry_run=False)
    assert _begun(done) == STEPS[:1]
    assert fake.evaluated == fake.committed == []


def test_a_dry_run_evaluates_nothing(settings: ApplicationSettings, fake: _Restore) -> None:
    done = _materialise(settings)
    assert done.success
    assert _begun(done) == STEPS[:1]
    assert fake.evaluated == fake.committed == []


def test_skipped_as_asked_they_are_never_green(
    settings: ApplicationSettings, fake: _Restore
) -> None:
    done = _materialise(settings, dry_run=False, skip_completeness=True)
    assert done.success
    assert fake.evaluated == []
    assert fake.committed == [done.run_id]
    for told in _rules(done).values():
        assert (told.passed, told.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert told.description == SKIPPED


def test_without_the_rules_in_the_selection_the_commit_refuses(
    settings: ApplicationSettings, fake: _Restore
) -> None:
    done = _materialise(settings, keys=_keys(completeness=False), dry_run=False)
    assert not done.success
    assert fake.committed == []
    assert "rule nothing_lost was not evaluated on it" in _failure(done)
    assert "skip_completeness: true" in _failure(done)


def test_an_error_of_ours_is_a_failure_in_its_own_words(
    settings: ApplicationSettings, fake: _Restore
) -> None:
    fake.evaluation_error = GroupNotEmptyError(
        operation="evaluate completeness rules", group="shop", group_type="classic", state="Stable"
    )
    done = _materialise(settings, dry_run=False)
    assert _failure(done) == str(fake.evaluation_error)
    assert fake.committed == []


def test_keys_edges_and_checks(settings: ApplicationSettings) -> None:
    topics, rules, offsets = assets.build_restore_assets(settings)
    assert rules.key == restore_completeness_key("shop")
    assert rules.op.pool == "kstreams_restore_shop"
    (spec,) = rules.specs
    restored = {f"shop/restore/{name}" for name in NAMES}
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == restored
    above = {dep.asset_key.to_user_string() for spec in offsets.specs for dep in spec.deps}
    assert above == {*restored, "shop/restore/restored_completeness"}
    assert {check.name: check.blocking for check in rules.check_specs} == {LOST: True, TOLD: False}
    assert topics.op.name == "restore_shop"


def test_without_rules_on_restores_there_is_no_asset(settings: ApplicationSettings) -> None:
    elsewhere = replace(settings, completeness=settings.completeness[2:])
    assert len(assets.build_restore_assets(elsewhere)) == 2


def test_a_topic_with_the_name_of_the_rules(settings: ApplicationSettings) -> None:
    topic = AppTopic("restored_completeness", TopicRoles({TopicRole.INPUT}))
    application = replace(settings.application, topics=(topic,))
    named = replace(settings, application=application, topics=(topic,))
    with pytest.raises(CollidingNamesError, match="'restored_completeness'"):
        assets.build_restore_assets(named)
    assert len(assets.build_restore_assets(replace(named, completeness=()))) == 2
