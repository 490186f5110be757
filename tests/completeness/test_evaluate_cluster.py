"""Rules on a restored cluster, before the group offsets are committed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kstreams_assets.app.rules import CompletenessRule, Place, Scope
from kstreams_assets.checks import Severity
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.rule_results import Outcome, RuleResult
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from spark_resources.resource import SparkSessionResource
from tests.completeness.stored_topics import (
    CHANGELOG,
    MOVED,
    ORDERS,
    ROLES,
    TOTALS,
    StoredTopics,
    order,
    total,
)
from tests.completeness.test_evaluate import BALANCE, NEW, POSITIVE, RECOMPUTED
from tests.streams.cluster import unique_name
from tests.streams.feed import Record, produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

HELD = {
    ORDERS: [order(0, "anna", 10), order(1, "bo", 20), order(2, "bo", 30), order(3, "bo", 5)],
    MOVED: [order(7, "bo", 30)],
    CHANGELOG: [total(0, "anna", 1, 10), total(1, "bo", 1, 20)],
    TOTALS: [total(0, "anna", 1, 10), total(1, "bo", 1, 20)],
}
"""Three of the four orders are taken in; one of these is in flight."""


@dataclass
class Restored:
    """An application whose topics are on a cluster under other names."""

    stored: StoredTopics
    cluster: KafkaCluster
    names: Mapping[str, str]
    spark: SparkSessionResource

    def evaluate(
        self, *rules: CompletenessRule, orders: int = 3, moved: int = 0
    ) -> dict[str, RuleResult]:
        """The rules with these committed offsets on the target."""
        settings = replace(self.stored.settings, completeness=rules, recomputed=(RECOMPUTED,))
        with Evaluator(settings, spark=self.spark, run_id="run") as evaluator:
            found = evaluator.cluster(
                self.cluster,
                names=self.names,
                committed={
                    TopicPartitionId(self.names[ORDERS], 0): orders,
                    TopicPartitionId(self.names[MOVED], 0): moved,
                },
                point_id="point-0",
            )
        return {result.rule: result for result in found}


@pytest.fixture
def restored(tmp_path: Path, kafka_cluster: LocalCluster, spark: SparkSessionResource) -> Restored:
    stored = StoredTopics(Warehouse(tmp_path))
    stored.close(0, HELD, {ORDERS: 3, MOVED: 7}, log_starts={MOVED: 7}, begins={MOVED: 7})
    connection = KafkaConnection(bootstrap_servers=kafka_cluster.bootstrap_servers)
    cluster = KafkaCluster(connection)
    names = {topic: unique_name(topic) for topic in ROLES}
    # The records have times of long ago: the broker would delete them when it next looks.
    kept = {"retention.ms": "-1"}
    cluster.create_topics([TopicSpec(name, 1, 1, kept) for name in names.values()])
    for topic, records in HELD.items():
        made = [
            Record(0, -1, r.timestamp_ms, r.raw_key, json.dumps(r.value).encode()) for r in records
        ]
        produce(kafka_cluster.bootstrap_servers, names[topic], made)
    return Restored(stored, cluster, names, spark)


def test_rules_are_judged_by_the_offsets_that_are_to_be_committed(restored: Restored) -> None:
    found = restored.evaluate(BALANCE, POSITIVE, NEW)
    assert {name: r.outcome for name, r in found.items()} == {
        "money_is_kept": Outcome.PASSED,
        "no_debts": Outcome.PASSED,
        "recompute_sums": Outcome.PASSED,
        "new_money": Outcome.NOT_VERIFIABLE,
    }, found
    assert {(r.place, r.window, r.point_id) for r in found.values()} == {
        (Place.RESTORE, None, "point-0")
    }
    assert found["money_is_kept"].stores_from == "changelogs on the cluster"
    kept = Repository(restored.stored.warehouse, "app").results.of()
    assert {result.rule for result in kept} == set(found)

    for offsets in ({"orders": 4}, {"orders": 2}, {"moved": 1}):
        wrong = restored.evaluate(BALANCE, **offsets)
        assert {r.outcome for r in wrong.values()} == {Outcome.VIOLATED}, offsets
        assert wrong["money_is_kept"].blocks
        assert "bo" in {row[0] for row in wrong["recompute_sums"].sample.rows}


def test_a_restored_tail_cannot_be_balanced(restored: Restored) -> None:
    found = restored.evaluate(BALANCE, POSITIVE, orders=0)
    assert found["money_is_kept"].outcome is Outcome.NOT_VERIFIABLE
    assert "of orders-0 only the tail is on the cluster" in found["money_is_kept"].explanation
    assert not found["money_is_kept"].blocks
    assert found["no_debts"].passed


def test_rules_that_are_not_for_restores_are_left_out(restored: Restored) -> None:
    rule = POSITIVE.model_copy(update={"on": frozenset({Place.BACKUP})})
    change = {"severity": Severity.WARN, "scope": Scope.EVERYTHING}
    warning = BALANCE.model_copy(update=change)
    found = restored.evaluate(rule, warning, orders=4)
    assert set(found) == {"money_is_kept", "recompute_sums"}
    assert found["money_is_kept"].outcome is Outcome.VIOLATED
    assert not found["money_is_kept"].blocks
