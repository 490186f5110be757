"""Instances that crash, lose their disk, or are replaced by a deployment."""

import shutil
import time
from collections.abc import Callable

import pytest

from examples.orders_count.application import COUNTS as COUNTS_TOPIC
from examples.orders_count.application import STORE
from spark_resources.resource import SparkSessionResource
from tests.examples.orders_created.records import count_by_customer, orders_of
from tests.failures.applications import COUNTS, ORDERS, RISKS
from tests.failures.conftest import Record
from tests.failures.seen import checks_of, points_of, restored_and_compared, rules_of
from tests.failures.stage import Stage, running

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]


def test_an_instance_crashes(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    stage = stage_of(RISKS)
    killed, survivor = stage.instance(0), stage.instance(1)
    with running(killed, survivor), stage.feed() as feed:
        stage.await_results()
        time.sleep(1)
        stage.take("before the crash")
        before = stage.committed()
        killed.kill()
        crashed = stage.take("just after it")
        at_crash = stage.committed()
        time.sleep(1)  # so that every partition gets records that only the survivor can process
        feed.stop()
        stage.source.drain()
        after = stage.committed()
        moved = [id_ for id_ in before if after[id_] > at_crash[id_] and id_.topic == stage.input]
        survivor_runs = survivor.running
        last = stage.take("at rest")
        survivor.stop()
    backup = stage.back_up(last, spark)
    control = stage.source.ended(stage.points)
    outcome(
        "instance-crash",
        stage.name,
        happens={
            "the other instance": "runs on" if survivor_runs else "ends",
            "partitions that go on": "all" if len(moved) == 4 else "not all",
        },
        checks=rules_of(stage, crashed, spark) | checks_of(stage, backup) | points_of(stage),
        restores=restored_and_compared(stage, control, spark, "before the crash", "just after it"),
    )


def test_a_state_directory_is_lost(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    stage = stage_of(COUNTS)
    application = stage.instance(queries=True)
    with running(application):
        with stage.feed() as first:
            stage.await_results()
            time.sleep(1)
            stage.take("before the loss")
            first.stop()
        stage.source.drain()
        application.kill()
        shutil.rmtree(stage.state_dir())
        with stage.feed(first=first.count) as second:
            application.start()
            time.sleep(1)
            second.stop()
        stage.source.drain()
        last = stage.take("after it")
        answers = {row["key"]: row["value"] for row in application.query(STORE)}
        application.stop()
    backup = stage.back_up(last, spark)
    control = stage.source.ended(stage.points)
    totals = count_by_customer(orders_of(control.written[stage.input]))
    written = control.written[stage.topic(COUNTS_TOPIC)]
    once = len(written) == sum(totals.values())
    outcome(
        "state-directory-lost",
        stage.name,
        happens={
            "the store": "is as before" if answers == totals else "is not as before",
            "outputs": "none doubled, none missing" if once else "doubled or missing",
        },
        checks=rules_of(stage, last, spark) | checks_of(stage, backup) | points_of(stage),
        restores=restored_and_compared(stage, control, spark, "before the loss"),
    )


def test_a_deployment_replaces_instances_one_by_one(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    stage = stage_of(ORDERS)
    instances = stage.instance(0), stage.instance(1)
    with running(*instances), stage.feed() as feed:
        stage.await_results()
        time.sleep(1)
        for number, instance in enumerate(instances):
            instance.stop()
            stage.take(f"instance {number} is down")
            instance.start()
            stage.take(f"instance {number} is back")
        feed.stop()
        stage.source.drain()
        last = stage.take("at rest")
        for instance in instances:
            instance.stop()
    backup = stage.back_up(last, spark)
    control = stage.source.ended(stage.points)
    orders, done, rejected = (
        len(control.written[stage.topic(topic)])
        for topic in ("orders", "customer-totals", "orders-rejected")
    )
    outcome(
        "rebalance-during-deployment",
        stage.name,
        happens={
            "orders": "each adds to a total or is rejected, once"
            if feed.count == orders == done + rejected
            else "some are missing or doubled",
        },
        checks=rules_of(stage, stage.points["instance 1 is down"], spark)
        | checks_of(stage, backup)
        | points_of(stage),
        restores=restored_and_compared(
            stage, control, spark, "instance 0 is down", "instance 1 is back"
        ),
    )
