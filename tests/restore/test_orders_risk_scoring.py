"""Orders sorted by risk: no record is lost or doubled, poison records neither, restored or not."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from examples.orders_created.orders import TOPIC
from examples.orders_risk_scoring.application import CANDIDATES, ERROR, EXAMPLE, FILTERED_OUT, STORE
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.point import Guarantee
from kstreams_assets.restore.request import ChangelogSource
from spark_resources.resource import SparkSessionResource
from tests.examples.orders_created.records import created, orders_of
from tests.restore.example_definition import Definition
from tests.restore.example_snapshots import assert_snapshots_equal_queries
from tests.restore.example_trial import (
    LIVE,
    QUIET,
    ExampleRun,
    ExampleTrial,
    InputFeed,
    assert_restored_as_control,
    holds,
    run_example,
)
from tests.streams.feed import Record

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

RATE: Final = 600
AN_HOUR_AGO_MS: Final = time.time_ns() // 1_000_000 - 3_600_000
"""Not longer ago: the broker deletes what is older than a week."""
POISON: Final = (
    Record(0, -1, AN_HOUR_AGO_MS, None, b"no key, no JSON", (("trace", b"\xff"),)),
    Record(1, -1, AN_HOUR_AGO_MS + 1, b"\xff\xfe", None),
    Record(2, -1, AN_HOUR_AGO_MS + 2, b"", b'{"customer_id": 7, "amount_cents": 1}'),
)
"""Records whose keys are no text either, with the reasons for which they are no orders."""
REASONS: Final = (b"not JSON", b"no value", b"no customer")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, spark: SparkSessionResource) -> ExampleRun:
    trial = ExampleTrial(
        Definition(EXAMPLE, "orders_risk_scoring"),
        [InputFeed(TOPIC, created(), RATE)],
        before={TOPIC: POISON},
    )
    return run_example(trial, tmp_path_factory.mktemp("orders-risk-scoring"), spark)


def keys(records: Sequence[Record]) -> Counter[bytes | None]:
    return Counter(record.key for record in records)


def test_every_record_lands_in_exactly_one_topic(run: ExampleRun) -> None:
    assert {p.guarantee for p in run.source.points.values()} == {Guarantee.EXACT}
    arrived, candidates, filtered, errors = (
        run.source.written[run.prefix + topic] for topic in (TOPIC, CANDIDATES, FILTERED_OUT, ERROR)
    )
    assert keys(candidates) + keys(filtered) + keys(errors) == keys(arrived)
    orders = orders_of(r for r in arrived if r.key not in {poison.key for poison in POISON})
    by_kind: dict[str, Counter[bytes | None]] = defaultdict(Counter)
    for order in orders:
        by_kind[order.kind][order.key] += 1
    assert keys(candidates) == by_kind.pop("order")
    assert keys(filtered) == by_kind.pop("no positive amount")
    assert set(by_kind) == {"no value", "not JSON", "no customer", "no amount"}


def test_poison_records_are_kept_as_they_came_with_a_reason(run: ExampleRun) -> None:
    arrived = {record.key: record for record in run.source.written[run.prefix + TOPIC]}
    found = run.source.written[run.prefix + ERROR]
    assert len(found) > len(POISON)
    for record in found:
        came = arrived[record.key]
        assert (record.value, record.timestamp_ms) == (came.value, came.timestamp_ms)
        assert record.headers[:-1] == came.headers
    reasons = {record.key: record.headers[-1] for record in found}
    expected = dict(zip((r.key for r in POISON), REASONS, strict=True))
    made = orders_of(r for r in found if r.key not in expected)
    expected |= {order.key: order.kind.encode() for order in made}
    assert reasons == {key: ("reason", reason) for key, reason in expected.items()}


def test_candidates_and_scores_follow_from_the_orders(run: ExampleRun) -> None:
    candidates = run.source.written[run.prefix + CANDIDATES]
    scores: dict[str, Mapping[str, int]] = {}
    for record in candidates:
        [order] = orders_of([record])
        assert json.loads(record.value or b"") == {
            "order_id": order.key.decode(),
            "customer_id": order.customer_id,
            "amount_cents": order.amount_cents,
            "points": min(100, order.amount_cents // 10_000),
        }
        before = scores.get(order.customer_id, {"orders": 0, "total_cents": 0})
        total = before["total_cents"] + order.amount_cents
        scores[order.customer_id] = {
            "orders": before["orders"] + 1,
            "total_cents": total,
            "score": min(100, total // 10_000),
        }
    assert {answer["key"]: answer["value"] for answer in run.answers[STORE]} == scores
    assert len(scores) > 100


def test_five_live_points_go_on(
    run: ExampleRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    poison = run.source.written[run.prefix + ERROR]
    for label in LIVE:  # some before the point, some after it
        held = sum(holds(run.source.points[label], run.prefix + ERROR, r) for r in poison)
        assert 0 < held < len(poison)
    assert_restored_as_control(run, LIVE, second_cluster, spark, tmp_path)


def test_snapshots_equal_queries(run: ExampleRun, spark: SparkSessionResource) -> None:
    assert_snapshots_equal_queries(run, spark)


def test_snapshots_restore_as_the_raw_log_does(
    run: ExampleRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    assert_snapshots_equal_queries(run, spark)
    labels = (LIVE[-1], QUIET)
    source = ChangelogSource.SNAPSHOT
    assert_restored_as_control(run, labels, second_cluster, spark, tmp_path, source=source)
