"""Completeness rules as Dagster runs them: real instance, real broker, real Spark."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.app.model import TopicRole
from kstreams_assets.app.rules import CompletenessRule, Place
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.model.rule_results import Outcome
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import WindowSchedule
from spark_resources.resource import SparkSessionResource
from tests.e2e import restore_location
from tests.e2e.test_dagster_run import produce, run, settings_of, take_point_in
from tests.e2e.test_restore_run import Application
from tests.orchestration.default_keys import backup_key, completeness_key, restore_completeness_key
from tests.streams.workbench import Workbench

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.usefixtures("closed_in_order"),
    pytest.mark.on_store,
]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


def test_backups_and_rules_of_a_range_in_one_run(
    workbench: Workbench, instance: dg.DagsterInstance, spark: SparkSessionResource
) -> None:
    totals = workbench.topic("totals", role=TopicRole.OUTPUT)
    orders = TopicPartitionId(workbench.topic("orders"), 0)
    # a group that is there and empty: so the points are exact
    offsets = {orders: CommittedOffset(0, "")}
    workbench.cluster.commit_group_offsets(workbench.application_id, offsets)
    now = datetime.now(tz=UTC)
    windows = [f"{now - timedelta(minutes=ago):%Y-%m-%d-%H:%M}" for ago in (12, 11, 10)]
    for window in windows:
        produce(workbench, totals, 1)
        take_point_in(workbench, window)
    rule = CompletenessRule(
        name="two_at_most",
        query=f"SELECT _partition, _offset, _window FROM `{totals}` WHERE _offset >= 2",
        views=(totals,),
    )
    schedule = WindowSchedule.every("minute", start=f"{now - timedelta(days=1):%Y-%m-%d}")
    settings = replace(settings_of(workbench), windows=schedule, completeness=(rule,))
    key = completeness_key(settings.application_id)
    keys = [*(backup_key(settings.application_id, t) for t in (totals, orders.topic)), key]

    done = run(settings, instance, spark, keys=keys, first=windows[0], last=windows[2])

    assert done.success
    found = {e.partition: e for e in done.get_asset_check_evaluations() if e.asset_key == key}
    assert {window: e.passed for window, e in found.items()} == {
        windows[0]: True,
        windows[1]: True,
        windows[2]: False,
        None: False,
    }
    table = found[windows[2]].metadata["rows_in_violation"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [record.data for record in table.records] == [
        {"_partition": "0", "_offset": "2", "_window": windows[2]}
    ]
    stored = Repository(workbench.warehouse, settings.application_id).results.of()
    assert [(r.window, r.outcome) for r in stored] == [
        (windows[0], Outcome.PASSED),
        (windows[1], Outcome.PASSED),
        (windows[2], Outcome.VIOLATED),
    ]
    assert {r.run_id for r in stored} == {done.run_id}


def test_a_rule_that_is_violated_on_the_target_keeps_the_group_offsets_away(
    workbench: Workbench, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = Application(workbench, monkeypatch)
    rule = {
        "name": "three_at_most",
        "sql": f"SELECT _offset FROM `{application.orders}` WHERE _offset >= 3",
        "views": [application.orders],
    }
    told = json.loads(restore_location.told()) | {"completeness": [rule]}
    monkeypatch.setenv("RESTORE_TEST_APPLICATION", json.dumps(told))

    refused = _restore(application, instance)

    # ten orders are on the target, seven of them the application has taken in
    assert not refused.success
    (red,) = _rules(application, refused)
    assert (red.passed, red.metadata["violations"].value) == (False, 4)
    assert application.offsets() == {}
    (stored,) = Repository(workbench.warehouse, workbench.application_id).results.of()
    assert (stored.place, stored.outcome) == (Place.RESTORE, Outcome.VIOLATED)

    skipped = _restore(application, instance, skip_completeness=True)

    assert skipped.success
    (told_only,) = _rules(application, skipped)
    assert (told_only.passed, told_only.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert len(application.offsets()) == 1
    (restore,) = Repository(workbench.warehouse, workbench.application_id).restores.all()
    assert restore.state is RestoreState.COMMITTED
    assert restore.skips_completeness


def _restore(
    application: Application, instance: dg.DagsterInstance, **config: Any
) -> dg.ExecuteInProcessResult:
    keys = application.asset_keys()
    return (
        restore_location.defs()
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(
            instance=instance,
            asset_selection=[*keys, restore_completeness_key(application.bench.application_id)],
            run_config=application.config(**config),
            partition_key=application.window,
            raise_on_error=False,
        )
    )


def _rules(
    application: Application, done: dg.ExecuteInProcessResult
) -> list[dg.AssetCheckEvaluation]:
    key = restore_completeness_key(application.bench.application_id)
    return [e for e in done.get_asset_check_evaluations() if e.asset_key == key]
