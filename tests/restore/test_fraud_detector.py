"""The fraud detector restored: sessions with their tombstones, a global table without changelog."""

import json
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from examples.fraud_detector.application import ALERTS, EXAMPLE, RISK_SCORES, SESSIONS, TRANSACTIONS
from examples.fraud_detector.transactions import HIGH_RISK, LARGE_CENTS, TransactionGenerator
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.request import InputsExtent
from spark_resources.resource import SparkSessionResource
from tests.restore.control import Written, by_key, differences, newest
from tests.restore.example_definition import Definition
from tests.restore.example_expectations import (
    assert_live_and_exact,
    partition_of,
    retention_differences,
)
from tests.restore.example_snapshots import assert_snapshots_equal_queries
from tests.restore.example_trial import (
    LIVE,
    ExampleRun,
    ExampleTrial,
    InputFeed,
    assert_restored_as_control,
    run_example,
)
from tests.streams.feed import Record

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

RATE: Final = 800
STEP_MS: Final = 900
"""Event time between two transactions: it passes so quickly that sessions end and expire."""
BRIDGE: Final = {0: 0, 339: 0, 340: 150_000}
"""Two transactions five minutes and five seconds apart, and a late one between them, by turn."""
BRIDGE_EVERY: Final = 400
BRIDGES: Final = 10
GAP_MS: Final = 300_000
RETENTION_MS: Final = 330_000
GENERATOR: Final = TransactionGenerator(seed=5)


def transactions() -> Callable[[int], Record]:
    """Transactions by index, from twelve hours ago on; the late ones are late by minutes.

    Those of a user lie in the partition to which the application sends them itself: each partition
    of the repartition topic then has one source, and its order does not depend on chance.
    """
    began_ms = time.time_ns() // 1_000_000 - 12 * 3_600_000

    def transaction(index: int) -> Record:
        made = GENERATOR.transaction(index)
        user, value, late_ms = made.user_id, made.value, made.late_ms
        turn = index % BRIDGE_EVERY
        if turn in BRIDGE:
            user, late_ms = f"bridge-{index // BRIDGE_EVERY % BRIDGES}", BRIDGE[turn]
            value = json.dumps({"user_id": user, "amount_cents": LARGE_CENTS + 1}).encode()
        at_ms = began_ms + index * STEP_MS - late_ms
        return Record(partition_of(user.encode()), -1, at_ms, made.key, value)

    return transaction


def risk_scores() -> list[Record]:
    """The global table's records; they never change while the application runs."""
    now_ms = time.time_ns() // 1_000_000
    bridges = [(b"bridge-%d" % number, struct.pack(">d", 99.5)) for number in range(BRIDGES)]
    return [
        Record(partition_of(user), -1, now_ms, user, score)
        for user, score in [*GENERATOR.risk_scores(), *bridges]
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, spark: SparkSessionResource) -> ExampleRun:
    trial = ExampleTrial(
        definition=Definition(EXAMPLE, "fraud_detector"),
        feeds=[InputFeed(TRANSACTIONS, transactions(), RATE)],
        before={RISK_SCORES: risk_scores()},
    )
    return run_example(trial, tmp_path_factory.mktemp("fraud-detector"), spark)


@dataclass(slots=True)
class Sessions:
    """Session windows of one partition, as Kafka Streams keeps them.

    `changes` are the changelog's records (key, value), `alerts` user, count, first and last
    transaction. `merged` counts transactions that joined sessions which were apart before.
    """

    open: dict[str, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    stream_time_ms: int = -1
    merged: int = 0
    changes: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    alerts: list[tuple[str, int, int, int]] = field(default_factory=list)

    def add(self, user: str, at_ms: int) -> None:
        """Count one transaction."""
        oldest_ms = self.stream_time_ms - RETENTION_MS + 1
        near = [
            session
            for session in self.open[user]
            if session[1] >= max(at_ms - GAP_MS, oldest_ms) and session[0] <= at_ms + GAP_MS
        ]
        start = min([at_ms, *(first for first, _, _ in near)])
        end = max([at_ms, *(last for _, last, _ in near)])
        count = 1 + sum(number for _, _, number in near)
        self.merged += len(near) > 1
        for session in sorted(near, key=lambda session: session[:2]):
            self.open[user].remove(session)
            if (start, end) != (at_ms, at_ms):
                self.changes.append((session_key(user, *session[:2]), None))
        self.open[user].append((start, end, count))
        self.changes.append((session_key(user, start, end), count.to_bytes(8)))
        self.stream_time_ms = max(self.stream_time_ms, end)
        if count >= 3:
            self.alerts.append((user, count, start, end))


def session_key(user: str, start_ms: int, end_ms: int) -> bytes:
    """A key of the changelog: the end comes first."""
    return user.encode() + end_ms.to_bytes(8) + start_ms.to_bytes(8)


def sessions_of(records: Sequence[Record], risk_of: Mapping[bytes | None, Written]) -> Sessions:
    """What follows from the transactions of one partition."""
    sessions = Sessions()
    for record in records:
        try:
            made = json.loads(record.value or b"")
        except json.JSONDecodeError:
            continue
        score = risk_of.get(made["user_id"].encode())
        (risk,) = (0.0,) if score is None else struct.unpack(">d", score.value or b"")
        if made["amount_cents"] > LARGE_CENTS and risk > HIGH_RISK:
            sessions.add(made["user_id"], record.timestamp_ms)
    return sessions


def by_partition(records: Sequence[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        found[record.partition].append(record)
    return found


def test_sessions_and_alerts_are_what_the_transactions_make(run: ExampleRun) -> None:
    assert_live_and_exact(run)
    written = run.source.written
    changelog = by_partition(written[f"{run.settings.application_id}-{SESSIONS}-changelog"])
    expected = {
        partition: sessions_of(records, newest(written[run.prefix + RISK_SCORES]))
        for partition, records in by_partition(written[run.prefix + TRANSACTIONS]).items()
    }
    for partition, sessions in expected.items():
        changes = [(record.key, record.value) for record in changelog[partition]]
        assert changes == sessions.changes, partition
    assert sum(sessions.merged for sessions in expected.values()) > 0
    raised = [json.loads(record.value or b"") for record in written[run.prefix + ALERTS]]
    found = [(a["user_id"], a["count"], a["from_ms"], a["to_ms"]) for a in raised]
    assert sorted(found) == sorted(alert for s in expected.values() for alert in s.alerts)
    assert found


def test_scores_were_changed_and_deleted_before(run: ExampleRun) -> None:
    scores = run.source.written[run.prefix + RISK_SCORES]
    assert 0 < len(newest(scores)) < GENERATOR.users + BRIDGES < len(scores)


def test_tables_are_what_the_stores_answered(run: ExampleRun, spark: SparkSessionResource) -> None:
    assert_snapshots_equal_queries(run, spark)


def test_declared_retention_is_that_of_the_changelog(run: ExampleRun) -> None:
    assert retention_differences(run) == {}


def test_it_goes_on_from_live_points(
    run: ExampleRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    """Of inputs only the tail comes back, but the global table is state: it is needed whole."""
    all_restored = assert_restored_as_control(
        run,
        LIVE,
        second_cluster,
        spark,
        tmp_path,
        change=lambda request: request.model_copy(update={"inputs": InputsExtent.TAIL}),
    )
    scores = run.prefix + RISK_SCORES
    for label, restored in all_restored.items():
        found = by_key(restored.written(scores)[scores])
        assert differences(by_key(run.source.written[scores]), found) == [], label
