"""Inputs: deleted before they were read, and written to one of two topics only."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from examples.orders_count.application import COUNTS as COUNTS_TOPIC
from examples.orders_created.orders import TOPIC as CREATED
from examples.orders_risk_scoring.application import CANDIDATES, ERROR, FILTERED_OUT
from kstreams_assets.errors import RestoreIncompleteError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.resource import SparkSessionResource
from tests.examples.orders_created.records import PARTITIONS, created, orders_of
from tests.failures.applications import COUNTS, RISKS
from tests.failures.conftest import Record
from tests.failures.revival import restored_under_own_names, revived
from tests.failures.seen import (
    after_going_on,
    blocker,
    checks_of,
    governance_of,
    points_of,
    restored_and_compared,
    rules_of,
)
from tests.failures.stage import Stage, running
from tests.restore.control import read
from tests.restore.trial import SourceRun
from tests.streams.feed import Record as LogRecord
from tests.streams.feed import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

LEGACY: Final = "orders.legacy"
SORTED: Final = (CANDIDATES, FILTERED_OUT, ERROR)


def test_retention_passes_the_committed_offsets(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    stage = stage_of(RISKS)
    application = stage.instance()
    with running(application):
        with stage.feed() as first:
            stage.await_results()
            time.sleep(1)
            first.stop()
        stage.source.drain()
        application.stop()
        with stage.feed(first=first.count) as second:
            time.sleep(1)
            second.stop()
        stopped = stage.take("while it stood still")
        backups = stage.back_up(stopped, spark)
        fed = stage.written(stage.input)
        delete_all(stage)
        governance = governance_of(stage, "lag_within_limits")
        application.start()
        fed += go_on(stage, len(fed))
        stage.source.drain()
        after = stage.take("after")
        application.stop()
    backups += stage.back_up(after, spark)
    written = [*map(stage.topic, SORTED), stage.changelog]
    control = SourceRun(
        stage.settings, stage.points, {stage.input: fed, **read(stage.servers, written)}
    )
    done = sum(len(control.written[stage.topic(topic)]) for topic in SORTED)
    outcome(
        "lag-behind-retention",
        stage.name,
        happens={
            "the application": "goes on without an error, the deleted orders are never sorted"
            if done == len(fed) - second.count
            else "sorts other orders",
        },
        checks=governance
        | rules_of(stage, after, spark)
        | checks_of(stage, backups)
        | points_of(stage),
        restores={"while it stood still": sorted_after_restore(stage, control, spark)},
    )


def go_on(stage: Stage, first: int) -> list[LogRecord]:
    """Produce some more orders; they come after all that a point held."""
    later = 1_000_000
    orders = [created()(index) for index in range(first, first + 600)]
    produce(stage.servers, stage.input, orders)
    return [order._replace(offset=later + index) for index, order in enumerate(orders)]


def delete_all(stage: Stage) -> None:
    """Delete all that the input holds, as retention does."""
    partitions = [TopicPartitionId(stage.input, number) for number in range(PARTITIONS)]
    ends = stage.source.cluster.high_watermarks(partitions)
    assert stage.source.cluster.delete_records(ends) == ends


def sorted_after_restore(stage: Stage, control: SourceRun, spark: SparkSessionResource) -> str:
    """What the outputs hold when the point was restored and has gone on."""
    label = "while it stood still"
    restored = restored_under_own_names(control, label, stage.settings.connection, spark)
    with revived(stage, {label: restored}) as applications:
        after_going_on(stage, control, applications)
        outputs = [stage.topic(topic) for topic in SORTED]
        keys = [r.key for records in restored.written(*outputs).values() for r in records]
    right = Counter(keys) == Counter(record.key for record in control.written[stage.input])
    return "its rules pass; goes on, every order is sorted once" if right else "not all"


def test_a_record_is_missing_in_one_of_two_topics(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    def saying(prefix: str) -> dict[str, Any]:
        form = {"key": "string", "value": "bytes"}
        return {
            "outputs": [f"{prefix}{LEGACY}"],
            "topics": {f"{prefix}{LEGACY}": form, f"{prefix}{CREATED}": form},
            "completeness": [
                {
                    "name": "both_topics_agree",
                    "balance": f"{prefix}{LEGACY} == {prefix}{CREATED}",
                    "per": "_key",
                }
            ],
            "stores": {},
            "governance": None,
        }

    stage = stage_of(COUNTS, saying=saying)
    legacy, now_ms = stage.topic(LEGACY), time.time_ns() // 1_000_000
    stage.source.cluster.create_topics([TopicSpec(legacy, PARTITIONS)])
    orders = [created()(index)._replace(timestamp_ms=now_ms) for index in range(1500)]
    no_orders = sum(not order.is_order for order in orders_of(orders))
    missing = next(order for order in orders[700:] if orders_of([order])[0].is_order)
    with running(stage.instance()):
        produce(stage.servers, legacy, orders)
        produce(stage.servers, stage.input, [order for order in orders if order != missing])
        stage.await_results()
        stage.source.drain()
        point = stage.take("after the migration")
        backup = stage.back_up(point, spark)
        first = rules_of(stage, point, spark)
        counted_before = len(stage.written(stage.topic(COUNTS_TOPIC)))
        produce(stage.servers, stage.input, [missing])
        stage.source.drain()
        mended = stage.take("with what was missing")
        backup += stage.back_up(mended, spark)
        second = rules_of(stage, mended, spark)
        counted_after = len(stage.written(stage.topic(COUNTS_TOPIC)))
    control = stage.source.ended(stage.points)
    outcome(
        "dual-write",
        stage.name,
        happens={
            "the application": "runs on, the order is not counted until it is written"
            if counted_before == len(orders) - 1 - no_orders and counted_after == counted_before + 1
            else "counts other orders",
        },
        checks={f"{rule} (one order missing)": said for rule, said in first.items()}
        | {f"{rule} (written later)": said for rule, said in second.items()}
        | checks_of(stage, backup)
        | points_of(stage),
        restores=refused_and_restored(stage, control, spark),
    )


def refused_and_restored(
    stage: Stage, control: SourceRun, spark: SparkSessionResource
) -> dict[str, str]:
    """What a restore of the point without the record gives, and one of the point with it."""
    lacking, mended = "after the migration", "with what was missing"
    try:
        restored_under_own_names(control, lacking, stage.settings.connection, spark)
    except RestoreIncompleteError as error:
        refused = blocker(error)
    else:
        refused = "is restored"
    return {lacking: refused, **restored_and_compared(stage, control, spark, mended)}
