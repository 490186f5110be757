"""Keys: one that gets nearly all records, and many that are deleted."""

import json
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from examples.fraud_detector.application import EXAMPLE as FRAUD_DETECTOR
from examples.fraud_detector.application import RISK_SCORES, SESSIONS, TRANSACTIONS
from examples.orders_created.orders import TOPIC as CREATED
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.restore.request import ChangelogSource
from spark_resources.resource import SparkSessionResource
from tests.examples.orders_created.records import PARTITIONS, created
from tests.failures.applications import COUNTS, described_once
from tests.failures.conftest import Record
from tests.failures.seen import checks_of, governance_of, points_of, restored_and_compared, rules_of
from tests.failures.stage import Stage, running
from tests.restore.example_definition import Definition
from tests.restore.example_expectations import partition_of
from tests.restore.example_trial import ExampleTrial, InputFeed, holds
from tests.restore.trial import SourceRun
from tests.streams.cluster import unique_name
from tests.streams.feed import Record as LogRecord
from tests.streams.feed import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

HOT: Final = "customer-of-all"
USERS: Final = tuple(b"user-%02d" % number for number in range(40))


def hot(index: int) -> LogRecord:
    """An order; nearly all are of one customer."""
    if index % 20 == 0:
        return created()(index)
    fields = {"order_id": f"hot-{index}", "customer_id": HOT, "amount_cents": 1 + index % 500}
    partition = zlib.crc32(HOT.encode()) % PARTITIONS
    value = json.dumps(fields).encode()
    return LogRecord(partition, -1, time.time_ns() // 1_000_000, f"hot-{index}".encode(), value)


def test_one_key_gets_nearly_all_records(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    stage = stage_of(replace(COUNTS, feeds=[InputFeed(CREATED, hot, 500)]))
    limits = stage.settings.governance.limits.model_copy(update={"max_partition_share": 0.6})
    governance = stage.settings.governance.model_copy(update={"limits": limits})
    stage.declare(governance=governance)
    with running(stage.instance(0), stage.instance(1)), stage.feed() as feed:
        stage.await_results()
        time.sleep(2)
        live = stage.take("under load")
        feed.stop()
        stage.source.drain()
        last = stage.take("at rest")
        backup = stage.back_up(last, spark)
        governance = governance_of(stage, "keys_are_spread")
    control = stage.source.ended(stage.points)
    outcome(
        "hot-key",
        stage.name,
        happens={"updates of the store": share_of_one_partition(stage, control)},
        checks=governance
        | rules_of(stage, live, spark)
        | checks_of(stage, backup)
        | points_of(stage),
        restores=restored_and_compared(stage, control, spark, "under load"),
    )


def share_of_one_partition(stage: Stage, control: SourceRun) -> str:
    """How unevenly the work of the store is spread."""
    records = control.written[stage.changelog]
    most = max(
        sum(record.partition == number for record in records) for number in range(PARTITIONS)
    )
    share = "nine tenths and more are" if most >= 0.9 * len(records) else "no more than usual is"
    return f"{share} one task's, whatever the number of instances"


def test_most_records_of_a_changelog_are_deletions(
    stage_of: Callable[..., Stage], spark: SparkSessionResource, outcome: Record
) -> None:
    definition = Definition(described_once(FRAUD_DETECTOR), "fraud_detector")
    feeds = [InputFeed(TRANSACTIONS, burst, 500)]
    stage = stage_of(ExampleTrial(definition, feeds, config=COUNTS.config))
    limits = stage.settings.governance.limits.model_copy(update={"max_tombstone_share": 0.4})
    governance = stage.settings.governance.model_copy(update={"limits": limits})
    stage.declare(governance=governance)
    now_ms = time.time_ns() // 1_000_000
    risks = [
        LogRecord(partition_of(user), -1, now_ms, user, struct.pack(">d", 99.0)) for user in USERS
    ]
    produce(stage.servers, stage.topic(RISK_SCORES), risks)
    with running(stage.instance()), stage.feed() as feed:
        stage.await_results()
        time.sleep(1)
        live = stage.take("under load")
        backups = stage.back_up(live, spark)
        governance = governance_of(stage, "tombstone_share")
        feed.stop()
        stage.source.drain()
    control = stage.source.ended(stage.points)
    records = [r for r in control.written[stage.changelog] if holds(live, stage.changelog, r)]
    deletions = sum(record.value is None for record in records)
    snapshots = make_snapshots(
        stage.settings, stage.windows, spark=spark, run_id=unique_name("snapshots")
    )
    rows = {snapshot.store: snapshot.rows for snapshot in snapshots}[SESSIONS]
    outcome(
        "tombstone-flood",
        stage.name,
        happens={
            "the changelog": "every second record is a deletion"
            if 0.45 < deletions / len(records) < 0.55
            else "has other records",
            "its snapshot": "less than a tenth of the records"
            if rows < 0.1 * len(records)
            else "most of the records",
        },
        checks=governance
        | rules_of(stage, live, spark)
        | checks_of(stage, backups)
        | points_of(stage),
        restores=from_log_and_snapshot(stage, control, spark),
    )


def from_log_and_snapshot(
    stage: Stage, control: SourceRun, spark: SparkSessionResource
) -> dict[str, str]:
    """What a restore gives whose changelog comes from the log, or from the KTable snapshot."""
    label = "under load"
    log = restored_and_compared(stage, control, spark, label)
    snapshot = restored_and_compared(
        stage, control, spark, label, changelogs=ChangelogSource.SNAPSHOT, with_rules=False
    )
    return {"from the log": log[label], "from the snapshot": snapshot[label]}


def burst(index: int) -> LogRecord:
    """A large transaction of one of a few users, in the partition of its user."""
    user = USERS[index % len(USERS)]
    value = json.dumps({"user_id": user.decode(), "amount_cents": 100_001}).encode()
    now_ms = time.time_ns() // 1_000_000
    return LogRecord(partition_of(user), -1, now_ms, f"t-{index}".encode(), value)
