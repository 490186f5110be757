"""State that is damaged: on the disk of an instance, in the changelog, by another topology."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.orders_count.application import COUNTS as COUNTS_TOPIC
from examples.orders_count.application import COUNTS_V2, EXAMPLE_V2, STORE
from kstreams_assets.errors import ProcessError, RestoreIncompleteError
from spark_resources.resource import SparkSessionResource
from tests.examples.orders_created.records import GENERATOR
from tests.failures.applications import COUNTS, counted, each_once
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
from tests.failures.stage import Stage, exceptions, running
from tests.restore.example_definition import Definition
from tests.restore.example_trial import ExampleTrial
from tests.restore.trial import SourceRun
from tests.streams.feed import Record as LogRecord
from tests.streams.feed import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

WRONG = 1_000_000


def damage(state_dir: Path) -> int:
    """Overwrite every file of the stores with other bytes; how many."""
    files = [
        file
        for pattern in ("*.sst", "MANIFEST-*", "CURRENT")
        for file in state_dir.rglob(pattern)
        if file.is_file()
    ]
    for file in files:
        file.write_bytes(b"\xa5" * max(1, file.stat().st_size))
    return len(files)


def test_the_files_of_a_state_store_are_damaged(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    stage = stage_of(COUNTS)
    application = stage.instance(queries=True)
    with running(application):
        with stage.feed() as first:
            stage.await_results()
            time.sleep(1)
            first.stop()
        stage.source.drain()
        stage.take("before")
        application.stop()
        assert damage(stage.state_dir()) > 0
        with stage.feed(first=first.count) as second:
            starts = "starts all the same"
            try:
                application.start()
            except ProcessError:
                seen = [e for e in exceptions(application) if e == "ProcessorStateException"]
                starts = f"does not start ({seen[0] if seen else 'unknown'})"
                shutil.rmtree(stage.state_dir())
                application.start()
            second.stop()
        stage.source.drain()
        last = stage.take("after")
        answers = {row["key"]: row["value"] for row in application.query(STORE)}
        application.stop()
    backup = stage.back_up(last, spark)
    control = stage.source.ended(stage.points)
    expected = each_once(control.written[stage.input])
    right = answers == {customer: counts[-1] for customer, counts in expected.items()}
    outcome(
        "state-store-corrupted",
        stage.name,
        happens={
            "the application": starts,
            "without the state directory": "starts, every count is right"
            if right
            else "counts are wrong",
        },
        checks=checks_of(stage, backup) | points_of(stage) | rules_of(stage, last, spark),
        restores=restored_and_compared(stage, control, spark, "before"),
    )


def test_a_wrong_record_stands_in_the_changelog(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    stage = stage_of(COUNTS)
    application = stage.instance(queries=True)
    with running(application):
        with stage.feed() as first:
            stage.await_results()
            time.sleep(1)
            first.stop()
        stage.source.drain()
        before = stage.take("before")
        application.stop()
        victim = spoil(stage, first.count)
        shutil.rmtree(stage.state_dir())
        with stage.feed(first=first.count) as second:
            application.start()
            second.stop()
        stage.source.drain()
        after = stage.take_any("after")
        answers = {row["key"]: row["value"] for row in application.query(STORE)}
        application.stop()
    backup = stage.back_up(after, spark)
    control = stage.source.ended(stage.points)
    rules_before, rules_after = (rules_of(stage, point, spark) for point in (before, after))
    outcome(
        "changelog-corrupted",
        stage.name,
        happens={
            "the application": "runs, and goes on from the wrong count"
            if answers[victim] >= WRONG
            else "has the right count",
        },
        checks={f"{rule} (before)": said for rule, said in rules_before.items()}
        | {f"{rule} (after)": said for rule, said in rules_after.items()}
        | checks_of(stage, backup)
        | points_of(stage),
        restores={
            label: counts_after_restore(stage, control, spark, label)
            for label in ("before", "after")
        },
    )


def spoil(stage: Stage, first: int) -> str:
    """Write a wrong count to the changelog, of the customer who orders next; which."""
    partitions = {record.key: record.partition for record in stage.written(stage.changelog)}
    orders = (GENERATOR.order(index) for index in range(first, first + 1000))
    customers = (order.customer_id.encode() for order in orders if order.is_order)
    key = next(customer for customer in customers if customer in partitions)
    now_ms = time.time_ns() // 1_000_000
    wrong = LogRecord(partitions[key], -1, now_ms, key, WRONG.to_bytes(8))
    produce(stage.servers, stage.changelog, [wrong])
    return key.decode()


def counts_after_restore(
    stage: Stage, control: SourceRun, spark: SparkSessionResource, label: str
) -> str:
    """Whether each order counts once where this point was restored and has gone on."""
    output, target = stage.topic(COUNTS_TOPIC), stage.settings.connection
    try:
        restored = restored_under_own_names(control, label, target, spark)
    except RestoreIncompleteError as error:
        return blocker(error)
    with revived(stage, {label: restored}) as applications:
        after_going_on(stage, control, applications)
        found = counted(restored.written(output)[output])
    right = found == each_once(control.written[stage.input])
    return "its rules pass; goes on, each order counts once" if right else "counts are wrong"


def test_a_store_is_renamed_under_the_same_application_id(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    stage = stage_of(COUNTS)
    first_version = stage.instance()
    second_version = ExampleTrial(
        Definition(EXAMPLE_V2, "orders_count_v2"), stage.trial.feeds, config=stage.trial.config
    ).application(stage.servers, stage.settings.application_id, stage.prefix, stage.state_dir())
    EXAMPLE_V2.create_topics(stage.servers, topic_prefix=stage.prefix)
    with running(first_version):
        with stage.feed() as first:
            stage.await_results()
            time.sleep(1)
            first.stop()
        stage.source.drain()
        before = stage.take("before")
        first_version.stop()
    with running(second_version), stage.feed(first=first.count) as second:
        time.sleep(1)
        second.stop()
        stage.source.drain()
        # The new store has a changelog that the YAML does not name: no point is exact.
        after = stage.take_any("after")
        second_version.stop()
    backup = stage.back_up(after, spark)
    control = stage.source.ended(stage.points)
    anew = counted(stage.written(stage.topic(COUNTS_V2)))
    known = counted(control.written[stage.topic(COUNTS_TOPIC)])
    again = [customer for customer in anew if customer in known and anew[customer][0] == 1]
    ends = [
        {cut.partition: cut.end for cut in point.partitions if cut.topic == stage.changelog}
        for point in (before, after)
    ]
    outcome(
        "incompatible-topology",
        stage.name,
        happens={
            "the application": "runs without an error",
            "customers who had ordered before": "are counted from 1 again"
            if again
            else "are counted on",
            "the old changelog": "receives no records" if ends[0] == ends[1] else "goes on",
        },
        checks=governance_of(stage, "stores_as_declared", "topology_as_declared")
        | rules_of(stage, after, spark)
        | checks_of(stage, backup)
        | points_of(stage),
        restores={"before": counts_after_restore(stage, control, spark, "before")},
    )
