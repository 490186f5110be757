"""A broker that is away for a moment, and output topics that cannot be written."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from examples.orders_count.application import COUNTS as COUNTS_TOPIC
from examples.orders_count.application import HIGH_VALUE, HIGH_VALUE_CENTS
from examples.orders_created.orders import TOPIC as CREATED
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from spark_resources.resource import SparkSessionResource
from tests.examples.orders_created.records import count_by_customer, orders_of
from tests.failures.applications import COUNTS, RISKS, running_with
from tests.failures.conftest import Record
from tests.failures.revival import restored_under_own_names, revived
from tests.failures.seen import (
    after_going_on,
    checks_of,
    points_of,
    restored_and_compared,
    rules_of,
)
from tests.failures.stage import Stage, await_end, exceptions, running
from tests.restore.example_trial import PARTITIONS
from tests.restore.trial import Source, SourceRun
from tests.streams.cluster import connection_to
from tests.streams.feed import Record as LogRecord

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]


def test_a_broker_is_briefly_away(
    kafka_cluster: LocalCluster,
    spark: SparkSessionResource,
    outcome: Record,
    tmp_path: Path,
) -> None:
    with (
        LocalCluster(tmp_path / "broker") as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
    ):
        stage = Stage.of(RISKS, cluster, tmp_path)
        application = stage.instance()
        with running(application), stage.feed() as feed:
            stage.await_results()
            time.sleep(1)
            stage.take("before")
            pid = application.pid
            local.kill_node(0)
            blocker = point_meanwhile(stage)
            local.start_node(0)
            stage.take("when it is back")
            feed.stop()
            stage.source.drain()
            same = application.pid == pid
            last = stage.take("at rest")
            application.stop()
        backup = stage.back_up(last, spark)
        control = stage.source.ended(stage.points)
    target = connection_to(kafka_cluster.bootstrap_servers)
    outcome(
        "broker-briefly-away",
        stage.name,
        happens={
            "the application": "waits and goes on, the same process" if same else "ends",
            "a recovery point meanwhile": blocker,
        },
        checks=rules_of(stage, stage.points["when it is back"], spark)
        | checks_of(stage, backup)
        | points_of(stage),
        restores=restored_and_compared(
            stage, control, spark, "before", "when it is back", target=target
        ),
    )


def point_meanwhile(stage: Stage) -> str:
    """What becomes of a point that is taken while no broker answers."""
    impatient = KafkaConnection(bootstrap_servers=stage.servers, request_timeout_seconds=3)
    with KafkaCluster(impatient) as cluster:
        try:
            Source(stage.settings, cluster).take()
        except KStreamsAssetsError as error:
            return f"refused within the request timeout ({type(error).__name__})"
    return "taken"


def test_an_output_topic_is_deleted(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    # As it is, Kafka Streams goes on trying for minutes.
    soon = {
        "producer.delivery.timeout.ms": "3000",
        "producer.request.timeout.ms": "1500",
        "producer.max.block.ms": "3000",
        "task.timeout.ms": "0",
    }
    stage = stage_of(running_with(COUNTS, soon))
    application, output = stage.instance(), stage.topic(HIGH_VALUE)
    with running(application), stage.feed() as feed:
        stage.await_results()
        time.sleep(1)
        backups = stage.back_up(stage.take("before"), spark)
        stage.source.cluster.delete_topics([output])
        await_end(application)
        why = "StreamsException" if "StreamsException" in exceptions(application) else "unknown"
        feed.stop()
        stood = stage.lag() > 0
        stage.source.cluster.create_topics([TopicSpec(output, PARTITIONS)])
        application.start()
        stage.source.drain()
        after = stage.take("after")
        backups += stage.back_up(after, spark)
        application.stop()
    control = stage.source.ended(stage.points)
    totals = count_by_customer(orders_of(control.written[stage.input]))
    counted = len(control.written[stage.topic(COUNTS_TOPIC)]) == sum(totals.values())
    outcome(
        "output-topic-unavailable",
        stage.name,
        happens={
            "the application": f"tries again until its timeouts, then ends ({why})",
            "orders meanwhile": "wait" if stood else "are taken in",
            "with a new topic": "goes on, each order is counted once"
            if counted
            else "orders are missing or doubled",
            "what the old topic held": "is gone"
            if len(high_values(control.written[output])) < len(high_value_orders(control))
            else "is there",
        },
        checks=rules_of(stage, after, spark) | checks_of(stage, backups) | points_of(stage),
        restores={"before": high_values_after_restore(stage, control, spark)},
    )


def high_values(records: Iterable[LogRecord]) -> set[bytes | None]:
    """The orders in a topic of high values."""
    return {record.key for record in records}


def high_value_orders(control: SourceRun) -> set[bytes | None]:
    """The orders that belong there."""
    topic = next(name for name in control.written if name.endswith(CREATED))
    return {
        order.key
        for order in orders_of(control.written[topic])
        if order.is_order and order.amount_cents >= HIGH_VALUE_CENTS
    }


def high_values_after_restore(stage: Stage, control: SourceRun, spark: SparkSessionResource) -> str:
    """What the output holds when the point before its deletion was restored and has gone on."""
    target = stage.settings.connection
    restored = restored_under_own_names(control, "before", target, spark)
    with revived(stage, {"before": restored}) as applications:
        after_going_on(stage, control, applications)
        output = stage.topic(HIGH_VALUE)
        whole = high_values(restored.written(output)[output]) == high_value_orders(control)
    return "its rules pass; the topic is back, with every order" if whole else "orders are missing"
