"""Dagster's queue with the settings of `dagster.yaml`: what runs beside what, and what first."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.test_utils import MockedRunLauncher
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
    QueuedRunCoordinatorDaemon,
)

from kstreams_assets.orchestration.component import build_application_definitions
from spark_resources.resource import SparkSessionResource
from tests.backup.samples import APPLICATION_ID
from tests.orchestration.default_keys import completeness_key, ktable_key
from tests.orchestration.requesting import ROOT, Bench, backup_keys, queue, record
from tests.orchestration.test_follow_up import STORES, TOPICS, FollowUp, follow_up_settings

TABLES = frozenset({ktable_key(APPLICATION_ID, "store")})
RULES = frozenset({completeness_key(APPLICATION_ID)})
BACKUPS = frozenset(backup_keys("t", "u"))


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """One that queues runs, and launches none for real."""
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text("utf-8"))
    launcher = {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"}
    overrides = {"concurrency": settings["concurrency"], "run_launcher": launcher}
    with dg.instance_for_test(overrides=overrides) as instance:
        yield instance


def _launched(instance: dg.DagsterInstance) -> list[frozenset[dg.AssetKey]]:
    """The assets of the runs that one look of the queue's daemon launches, in order."""
    launcher = instance.run_launcher
    assert isinstance(launcher, MockedRunLauncher)
    before = len(launcher.queue())
    with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as workspace:
        list(QueuedRunCoordinatorDaemon(interval_seconds=1).run_iteration(workspace))
    return [run.asset_selection for run in launcher.queue()[before:]]


def test_a_backup_waits_for_no_queued_tables_and_for_no_rules(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    root = tmp_path / "warehouse"
    definitions = dg.Definitions.merge(
        build_application_definitions(follow_up_settings(root)),
        dg.Definitions(resources={"spark": SparkSessionResource()}),
    )
    bench = Bench(root, instance, minutes=2.5, topics=TOPICS, stores=STORES)
    follow_up = FollowUp(root, instance, minutes=1.5)
    record(root, [0])
    [tables] = follow_up.ticks()
    follow_up.make_tables(0)
    [rules] = follow_up.ticks()
    # Dagster gives a pool its limit when it first sees a run of it in the queue, and launches that.
    first = queue(instance, definitions, tables)
    assert _launched(instance) == [TABLES]
    instance.report_run_failed(first)

    queue(instance, definitions, rules)
    queue(instance, definitions, tables)
    backup = queue(instance, definitions, bench.request())
    assert _launched(instance) == [BACKUPS, RULES]
    assert _launched(instance) == [], "tables and backups share the pool of the warehouse's lock"
    instance.report_run_failed(backup)
    assert _launched(instance) == [TABLES]
