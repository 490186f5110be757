"""Backups as Dagster runs: real instance, real broker, real Spark."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import dagster as dg
import pytest
from confluent_kafka import Producer

from kstreams_assets.backup.verdicts import CHECKS
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.orchestration.translator import AssetKind, KafkaStreamsTranslator
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from spark_resources.resource import SparkSessionResource
from spark_resources.work import Spark
from tests.orchestration.default_keys import backup_key, recovery_points_key
from tests.streams.workbench import Workbench

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.on_store,
    pytest.mark.usefixtures("on_spark"),
]

WINDOWS = ("2026-01-01-00:00", "2026-01-01-00:01", "2026-01-01-00:02")
"""Closed long ago; the points below are given instants inside them."""


class Soon(KafkaStreamsTranslator):
    """Outages are repeated as always, after shorter pauses."""

    def get_retry_policy(self, kind: AssetKind) -> dg.RetryPolicy | None:
        return super().get_retry_policy(kind) and dg.RetryPolicy(max_retries=2, delay=0.5)


class NoSpark(SparkSessionResource):
    """Fails when anything asks for a session."""

    def _init_session(self) -> NoReturn:
        raise AssertionError("Spark was started")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


def settings_of(
    workbench: Workbench, connection: KafkaConnection | None = None
) -> ApplicationSettings:
    return replace(
        workbench.application_settings,
        connection=connection or workbench.cluster.connection,
        backup=workbench.settings,
    )


def take_point_in(workbench: Workbench, window: str) -> None:
    """Take a real point and date it half a minute into a window."""
    point = workbench.take_point()
    start = datetime.strptime(window, "%Y-%m-%d-%H:%M").replace(tzinfo=UTC)
    dated = replace(
        point, id=f"{point.id}-{window}", taken_at_ms=round(start.timestamp() * 1000) + 30_000
    )
    Repository(workbench.warehouse, dated.application_id).points.append(dated)


def produce(workbench: Workbench, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": workbench.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, f"{number}")
    assert producer.flush(20) == 0


def run(
    settings: ApplicationSettings,
    instance: dg.DagsterInstance,
    spark: Spark,
    *,
    keys: list[dg.AssetKey],
    first: str,
    last: str,
    translator: KafkaStreamsTranslator | None = None,
) -> dg.ExecuteInProcessResult:
    definitions = dg.Definitions.merge(
        build_application_definitions(settings, translator),
        dg.Definitions(resources={"spark": spark}),
    )
    return definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=keys,
        tags={
            "dagster/asset_partition_range_start": first,
            "dagster/asset_partition_range_end": last,
        },
        raise_on_error=False,
    )


def records_of(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str | None, object]:
    """Records that each window's materialisation tells of."""
    found = instance.fetch_materializations(key, limit=100).records
    return {
        record.partition_key: record.asset_materialization.metadata["records"].value
        for record in reversed(found)
        if record.asset_materialization is not None
    }


def test_a_range_of_windows_is_one_run_with_verdicts_and_numbers_for_each(
    workbench: Workbench, instance: dg.DagsterInstance
) -> None:
    orders, totals = workbench.topic("orders"), workbench.topic("totals")
    for index, window in enumerate(WINDOWS):
        produce(workbench, orders, 10 * (index + 1))
        produce(workbench, totals, 1)
        take_point_in(workbench, window)
    settings = settings_of(workbench)
    keys = [backup_key(settings.application_id, topic) for topic in (orders, totals)]

    result = run(settings, instance, workbench.spark, keys=keys, first=WINDOWS[0], last=WINDOWS[2])

    assert result.success
    assert records_of(instance, keys[0]) == dict(zip(WINDOWS, (10, 20, 30), strict=True))
    assert records_of(instance, keys[1]) == dict.fromkeys(WINDOWS, 1)
    evaluations = {
        (evaluation.asset_key, evaluation.check_name, evaluation.partition): evaluation.passed
        for evaluation in result.get_asset_check_evaluations()
        if evaluation.partition is not None
    }
    assert evaluations == {
        (key, check, window): True for key in keys for check in CHECKS for window in WINDOWS
    }
    newest = instance.get_latest_materialization_event(keys[0])
    assert newest is not None
    assert newest.asset_materialization is not None
    metadata = newest.asset_materialization.metadata
    assert {"bytes", "tombstones", "duration_s", "delta_version", "offsets"} <= metadata.keys()


def test_one_window_of_one_topic_and_its_loss_is_a_red_check_not_a_failed_run(
    workbench: Workbench, instance: dg.DagsterInstance
) -> None:
    orders, other = workbench.topic("orders"), workbench.topic("other")
    produce(workbench, orders, 10)
    take_point_in(workbench, WINDOWS[0])
    partition = workbench.take_point().partitions[0].id
    workbench.cluster.delete_records({partition: 4})
    settings = settings_of(workbench)
    key = backup_key(settings.application_id, orders)

    result = run(settings, instance, workbench.spark, keys=[key], first=WINDOWS[0], last=WINDOWS[0])

    assert result.success
    assert partition.topic == orders
    red = [e for e in result.get_asset_check_evaluations() if not e.passed]
    assert {evaluation.check_name for evaluation in red} == {"no_source_loss"}
    assert f"{orders}-0: offsets 0 to 3 (retention)" in (red[0].description or "")
    assert records_of(instance, key) == {WINDOWS[0]: 6}
    assert records_of(instance, backup_key(settings.application_id, other)) == {}


def test_windows_without_records_do_not_start_spark(
    workbench: Workbench, instance: dg.DagsterInstance
) -> None:
    orders = workbench.topic("orders")
    take_point_in(workbench, WINDOWS[0])
    settings = settings_of(workbench)
    key = backup_key(settings.application_id, orders)

    result = run(settings, instance, NoSpark(), keys=[key], first=WINDOWS[0], last=WINDOWS[2])

    assert result.success
    # Nothing was backed up with the windows after the point: they are told of, and are not green.
    assert records_of(instance, key) == {WINDOWS[0]: 0}
    assert instance.get_materialized_partitions(key) == {WINDOWS[0]}
    told = instance.fetch_observations(key, limit=10).records
    assert {one.partition_key for one in told} == {*WINDOWS[1:]}
    failed = [one for one in result.get_asset_check_evaluations() if not one.passed]
    assert all(one.severity is dg.AssetCheckSeverity.WARN for one in failed)
    assert {one.check_name for one in failed} <= {"every_offset_accounted", "no_source_loss"}


def test_a_click_on_recovery_points_takes_one(
    workbench: Workbench, instance: dg.DagsterInstance
) -> None:
    workbench.topic("orders")
    settings = settings_of(workbench)
    definitions = build_application_definitions(settings)
    key = recovery_points_key(settings.application_id)

    result = dg.materialize([definitions.get_assets_def(key)], instance=instance)

    [point] = Repository(settings.warehouse, settings.application_id).points.newest()
    [event] = result.asset_materializations_for_node(key.to_python_identifier())
    assert event.metadata["recovery_point"].value == point.id
    assert event.metadata["guarantee"].value == point.guarantee
    assert event.metadata["points_judged"].value == 1
    [check] = result.get_asset_check_evaluations()
    assert check.passed
    assert "No objective is declared" in (check.description or "")


def test_a_broker_that_is_down_fails_the_run_with_one_clear_line(
    workbench: Workbench, instance: dg.DagsterInstance
) -> None:
    orders = workbench.topic("orders")
    take_point_in(workbench, WINDOWS[0])
    nowhere = KafkaConnection(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1)
    settings = settings_of(workbench, nowhere)
    key = backup_key(settings.application_id, orders)

    began = time.monotonic()
    result = run(
        settings,
        instance,
        NoSpark(),
        keys=[key],
        first=WINDOWS[0],
        last=WINDOWS[0],
        translator=Soon(),
    )

    assert not result.success
    assert time.monotonic() - began < 30
    [failure] = [event for event in result.all_events if event.is_step_failure]
    description = failure.step_failure_data.user_failure_data
    assert description is not None
    assert "Kafka at 127.0.0.1:1 did not answer within 1 s" in (description.description or "")
    assert (description.description or "").endswith("Tried 3 times.")
    assert len([event for event in result.all_events if event.is_step_up_for_retry]) == 2
    assert not workbench.records_path.exists()
    assert workbench.ledger.entries() == []
