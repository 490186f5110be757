"""Records that an application cannot read: one dies of them, others put them aside."""

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pytest

from examples.fraud_detector.application import EXAMPLE, RISK_SCORES, TRANSACTIONS
from examples.fraud_detector.transactions import TransactionGenerator
from examples.streams.application import ExampleApplication
from kstreams_assets.errors import ProcessError
from kstreams_assets.ktables.checks import evaluate_snapshot
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.model.point import Guarantee
from spark_resources.resource import SparkSessionResource
from tests.failures.applications import ORDERS, described_once
from tests.failures.conftest import Record
from tests.failures.revival import Revived, application_of, restored_under_own_names
from tests.failures.seen import (
    after_going_on,
    checks_of,
    points_of,
    restored_and_compared,
    rules_of,
)
from tests.failures.stage import Stage, await_end, exceptions, running
from tests.restore.example_definition import Definition
from tests.restore.example_expectations import partition_of
from tests.restore.example_trial import ExampleTrial, InputFeed
from tests.streams.cluster import unique_name
from tests.streams.feed import Record as LogRecord
from tests.streams.feed import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

GENERATOR: Final = TransactionGenerator(seed=6)
POISONED: Final = b"user-00003"
RATE: Final = 400
POISON: Final = (
    (b"p-1", b"\x00\xff no JSON"),
    (b"p-2", b'{"customer_id": "", "amount_cents": 1}'),
    (b"p-3", b'{"customer_id": "c", "amount_cents": "much"}'),
    (b"p-4", None),
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def transaction(index: int) -> LogRecord:
    """A transaction, in the partition to which the application sends it itself."""
    made = GENERATOR.transaction(index)
    return LogRecord(partition_of(made.user_id.encode()), -1, now_ms(), made.key, made.value)


def score(user: bytes, value: bytes | None) -> LogRecord:
    return LogRecord(partition_of(user), -1, now_ms(), user, value)


def test_a_record_that_cannot_be_deserialised_kills(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    definition = Definition(described_once(EXAMPLE), "fraud_detector")
    feeds = [InputFeed(TRANSACTIONS, transaction, RATE)]
    trial = ExampleTrial(definition, feeds, config=ORDERS.config)
    stage = stage_of(trial)
    scores = stage.topic(RISK_SCORES)
    high, poison = score(POISONED, struct.pack(">d", 99.0)), score(POISONED, b"99.0")
    produce(stage.servers, scores, [score(*made) for made in GENERATOR.risk_scores()])
    produce(stage.servers, scores, [high])
    application = stage.instance()
    with running(application), stage.feed() as feed:
        stage.await_results()
        time.sleep(1)
        stage.take("before it")
        produce(stage.servers, scores, [poison])
        await_end(application)
        why = [e for e in exceptions(application) if "Serialization" in e]
        stage.take("after it")
        ends_again(application)
        produce(stage.servers, scores, [high])
        application.start()
        feed.stop()
        stage.source.drain()
        backup = stage.back_up(stage.points["after it"], spark)
        application.stop()
    snapshots = make_snapshots(
        stage.settings, stage.windows, spark=spark, run_id=unique_name("snapshots")
    )
    control = stage.source.ended(stage.points)
    ktables = {
        verdict.check: f"red: {verdict.subject}"
        for snapshot in snapshots
        for verdict in evaluate_snapshot(snapshot, Guarantee.EXACT)
        if not verdict.passed
    }
    target = stage.settings.connection
    restored = restored_under_own_names(control, "after it", target, spark)
    restores = restored_and_compared(stage, control, spark, "before it")
    again = Revived("after it", restored, application_of(stage, restored))
    try:
        rest = control.after(restored.point)[stage.input]
        produce(stage.servers, again.topic(stage.input), rest)
        ends_again(again.application)
        restores["after it"] = "ends as the original did"
        produce(stage.servers, again.topic(scores), [high])
        again.application.start()
        [gone_on] = after_going_on(stage, control, [again], replay=False).values()
        restores["after it, with a right record of the same key"] = gone_on
    finally:
        again.application.kill()
    outcome(
        "bad-schema",
        stage.name,
        happens={
            "the application": f"ends ({why[0] if why else 'unknown'}), after a restart again",
            "with a right record of the same key": "goes on",
        },
        checks=checks_of(stage, backup) | points_of(stage) | ktables,
        restores=restores,
    )


def ends_again(application: ExampleApplication) -> None:
    """Start it: it ends before it is RUNNING, or soon after."""
    with suppress(ProcessError):
        application.start()
    await_end(application)


def test_records_that_are_no_orders_are_put_aside(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    stage = stage_of(ORDERS)
    poison = [
        LogRecord(index % 4, -1, now_ms(), key, value, (("trace", b"\xff"),))
        for index, (key, value) in enumerate(POISON)
    ]
    with running(stage.instance()), stage.feed() as feed:
        stage.await_results()
        produce(stage.servers, stage.input, poison)
        time.sleep(1)
        live = stage.take("with poison")
        feed.stop()
        stage.source.drain()
        backup = stage.back_up(live, spark)
    control = stage.source.ended(stage.points)
    rejected = {r.key: r for r in control.written[stage.topic("orders-rejected")]}
    kept = all(
        (found := rejected.get(key)) is not None
        and found.value == value
        and [name for name, _ in found.headers] == ["trace", "reason"]
        for key, value in POISON
    )
    outcome(
        "poison-record",
        stage.name,
        happens={
            "the application": "puts them into orders-rejected as they came, with the reason"
            if kept
            else "loses some of them",
        },
        checks=rules_of(stage, live, spark) | checks_of(stage, backup) | points_of(stage),
        restores=restored_and_compared(stage, control, spark, "with poison"),
    )
