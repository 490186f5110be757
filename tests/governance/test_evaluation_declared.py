"""What is declared is compared; what is not passes and says so; numbers have limits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kstreams_assets.app.governance import Limits
from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.store_format import format_of
from kstreams_assets.checks import Severity
from kstreams_assets.governance.evaluation import evaluate
from kstreams_assets.governance.facts import (
    BackedUpRecords,
    Declared,
    GovernanceFacts,
    PartitionState,
    StoreRows,
)
from kstreams_assets.offsets import TopicPartitionId
from tests.governance.samples import (
    CHANGELOG,
    ORDERS,
    PARTITIONS,
    REPARTITION,
    and_topics,
    configs,
    declared,
    failed,
    healthy,
    the_one,
    topic,
    with_topic,
    without_topic,
)

Change = Callable[[GovernanceFacts], GovernanceFacts]

DECLARED: dict[str, tuple[dict[str, Any], Change, str, tuple[str, ...]]] = {
    "an internal topic is not declared": (
        {"internal_topics": (CHANGELOG,)},
        lambda facts: facts,
        "internal_topics_as_declared",
        (f"{REPARTITION}: the topology has this internal topic", "governance.internal_topics"),
    ),
    "a store is not declared": (
        {"stores": ()},
        lambda facts: facts,
        "stores_as_declared",
        ("order-count-by-customer: the topology has this store", "add it to governance.stores"),
    ),
    "an output is not declared": (
        {"outputs": ("customer-order-counts.v1",)},
        lambda facts: facts,
        "topology_as_declared",
        ("orders.high-value.v1: the topology has this output", "governance.outputs"),
    ),
    "a count is not as declared": (
        {"partitions": {ORDERS: 8}},
        lambda facts: facts,
        "partitions_as_needed",
        (f"{ORDERS}: 4 partitions; expected: 8", f"--alter --topic {ORDERS} --partitions 8"),
    ),
    "fewer replicas than declared": (
        {"replication_factor": 4},
        topic(REPARTITION, replication_factor=4, in_sync=4),
        "changelogs_replicated",
        ("replication factor 3; expected: at least 4, as declared", "replication.factor=4"),
    ),
    "inputs are forgotten": (
        {"rebuild_hours": 30 * 24},
        lambda facts: facts,
        "inputs_kept_for_rebuild",
        (f"{ORDERS}: retention.ms 604800000 ms (7 d)", "retention.ms=2592000000"),
    ),
    "inputs are forgotten before the backup reads them, too": (
        {"rebuild_hours": 24},
        configs(ORDERS, retention_ms=60_000),
        "inputs_kept_for_rebuild",
        (f"{ORDERS}: retention.ms 60000 ms (1 min)", "retention.ms=86400000"),
    ),
    "inputs are limited by size": (
        {"rebuild_hours": 24},
        configs(ORDERS, retention_bytes=1000),
        "inputs_kept_for_rebuild",
        (f"{ORDERS}: retention.bytes 1000", "retention.bytes=-1"),
    ),
}


@pytest.mark.parametrize("name", DECLARED)
def test_what_is_declared_is_compared(name: str) -> None:
    governance, change, check, texts = DECLARED[name]
    said = declared("orders_count_v1", **governance)
    only = the_one(change(healthy(said)), said)
    assert only.check == check
    assert len(only.findings) == 1
    for text in texts:
        assert text in only.explanation


class TestNumbers:
    """Shares and limits; below a hundred records they say nothing."""

    def test_tombstones(self) -> None:
        said = declared("orders_count_v1")
        flood = {TopicPartitionId(CHANGELOG, n): BackedUpRecords(50, 49) for n in range(2)}
        only = the_one(replace(healthy(said), backed_up=flood), said)
        assert only.check == "tombstone_share"
        assert only.severity is Severity.WARN
        assert f"{CHANGELOG}: 98.0% of the records in the newest windows" in only.explanation
        assert "min.cleanable.dirty.ratio=0.1" in only.explanation
        few = {TopicPartitionId(CHANGELOG, 0): BackedUpRecords(99, 99)}
        assert failed(replace(healthy(said), backed_up=few), said) == {}

    def test_growth(self) -> None:
        limits = Limits(max_store_growth=0.5)
        said = declared("orders_count_v1", limits=limits)
        store = "order-count-by-customer"
        grown = {store: StoreRows("01:00", 1000, "02:00", 1501)}
        only = the_one(replace(healthy(said), store_rows=grown), said)
        assert only.check == "store_growth"
        assert "1,000 rows in window 01:00, 1,501 in 02:00: +50.1%" in only.explanation
        for rows in (StoreRows("01:00", 1000, "02:00", 1500), StoreRows("a", 99, "b", 1000)):
            assert failed(replace(healthy(said), store_rows={store: rows}), said) == {}

    def test_lag(self) -> None:
        limits = Limits(max_lag_records=100)
        said = declared("orders_count_v1", limits=limits)
        facts = healthy(said)
        behind = {**facts.reads, TopicPartitionId(ORDERS, 0): PartitionState(0, 1000, 899)}
        only = the_one(replace(facts, reads=behind), said)
        assert only.check == "lag_within_limits"
        assert f"{ORDERS}: the application is 101 offsets behind" in only.explanation
        behind[TopicPartitionId(ORDERS, 0)] = PartitionState(0, 1000, 900)
        assert failed(replace(facts, reads=behind), said) == {}

    def test_a_partition_never_committed_counts_whole(self) -> None:
        assert PartitionState(100, 1000, None).lag == 900
        assert PartitionState(100, 1000, None).lost == 0

    def test_a_hot_key(self) -> None:
        limits = Limits(max_partition_share=0.5)
        said = declared("orders_count_v1", limits=limits)
        facts = healthy(said)
        stored = {
            TopicPartitionId(ORDERS, n): BackedUpRecords(800 if n == 3 else 100, 0)
            for n in range(PARTITIONS)
        }
        only = the_one(replace(facts, backed_up=stored), said)
        assert only.check == "keys_are_spread"
        assert f"{ORDERS}: partition 3 gets 72.7% of the records" in only.explanation
        reads = {
            **facts.reads,
            TopicPartitionId(ORDERS, 0): PartitionState(0, 10_000, 10_000),
        }
        assert failed(replace(facts, reads=reads), said).keys() == {"keys_are_spread"}


class TestNotDeclared:
    """What is not declared passes, and says so."""

    def test_what_is_not_judged(self) -> None:
        said = declared("order_processor")
        not_judged = {v.check: v.not_judged for v in evaluate(healthy(said), said) if v.not_judged}
        assert not_judged == {
            "internal_topics_as_declared": ("governance.internal_topics is not declared.",),
            "stores_as_declared": ("governance.stores is not declared.",),
            "topology_as_declared": (
                "governance.inputs is not declared.",
                "governance.outputs is not declared.",
            ),
            "partitions_as_needed": ("governance.partitions is not declared.",),
            "inputs_kept_for_rebuild": ("governance.rebuild_hours is not declared.",),
            "tombstone_share": ("no changelog has 100 records in the newest windows.",),
            "store_growth": ("governance.limits.max_store_growth is not declared.",),
            "lag_within_limits": ("governance.limits.max_lag_records is not declared.",),
            "keys_are_spread": ("governance.limits.max_partition_share is not declared.",),
        }
        verdict = evaluate(healthy(said), said)[0]
        assert verdict.explanation.endswith(
            "Not evaluated: governance.internal_topics is not declared."
        )

    def test_an_application_that_never_ran(self) -> None:
        said = declared("order_processor")
        facts = healthy(said)
        reads = {p: PartitionState(0, 1000, None) for p in facts.reads}
        facts = replace(facts, committed_topics=frozenset(), reads=reads)
        assert failed(facts, said) == {}
        assert any(
            "has not committed offsets" in t for v in evaluate(facts, said) for t in v.not_judged
        )

    def test_an_input_that_is_not_read(self) -> None:
        said = declared("browser_actions")
        facts = healthy(said)
        reads = {
            p: replace(state, committed=None) if p.topic == "captchas-solved" else state
            for p, state in facts.reads.items()
        }
        only = the_one(replace(facts, reads=reads), said)
        assert only.check == "topology_as_declared"
        assert "captchas-solved: group browser-actions has committed no offset" in only.explanation

    def test_one_broker_needs_no_replicas(self) -> None:
        said = declared("orders_count_v1")
        facts = replace(healthy(said), brokers=1)
        for name in facts.topics:
            single = {"min.insync.replicas": "1"}
            facts = with_topic(facts, name, replication_factor=1, in_sync=1, configs=single)
        assert failed(facts, said) == {}

    def test_a_store_of_which_nothing_is_said(self) -> None:
        said = declared("orders_count_v1")
        unsaid = replace(said, formats={name: format_of(name, {}) for name in said.formats})
        facts = healthy(said)
        for policy, checks in (
            ("compact,delete", set()),
            ("delete", {"cleanup_policies_fit"}),
        ):
            changed = with_topic(facts, CHANGELOG, configs={"cleanup.policy": policy})
            assert failed(changed, unsaid).keys() == checks
        told = [v.not_judged for v in evaluate(facts, unsaid) if v.check == "cleanup_policies_fit"]
        assert told == [("the kind of store order-count-by-customer is not declared.",)]

    def test_without_a_topology_text(self) -> None:
        topics = (
            AppTopic("in", TopicRoles({TopicRole.INPUT})),
            AppTopic("shop-s-changelog", TopicRoles({TopicRole.CHANGELOG})),
        )
        said = replace(
            declared("orders_count_v1"), application=StreamsApplication("shop", topics), formats={}
        )
        facts = healthy(declared("orders_count_v1"))
        states = {t.name: replace(facts.topics[CHANGELOG], name=t.name) for t in topics}
        facts = replace(
            facts,
            topics=states,
            cluster_topics=frozenset(states),
            committed_topics=frozenset({"in"}),
            reads={TopicPartitionId("in", 0): PartitionState(0, 5, 5)},
        )
        assert failed(facts, said) == {}
        gone = without_topic(facts, "shop-s-changelog")
        only = the_one(and_topics(gone, "shop-t-changelog"), said)
        assert "store s was likely renamed to t" in only.explanation
        partitions = next(v for v in evaluate(facts, said) if v.check == "partitions_as_needed")
        assert "unknown without a text of Topology.describe()" in partitions.explanation


class TestOwner:
    """Somebody answers for the application, and says what a recovery must reach."""

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"owners": ()}, "no owner; expected: a responsible person or team. Add owners"),
            (
                {"objective_s": None, "recovery_time_s": None},
                "Add recovery_points.objective_seconds and drill.objective_seconds to the YAML.",
            ),
        ],
    )
    def test_what_is_missing(self, change: dict[str, Any], text: str) -> None:
        said: Declared = replace(declared("order_processor"), **change)
        only = the_one(healthy(said), said)
        assert only.check == "owner_and_objective_declared"
        assert only.severity is Severity.WARN
        assert text in only.explanation

    def test_one_objective_is_enough_and_the_other_is_told(self) -> None:
        said = replace(declared("order_processor"), recovery_time_s=None)
        verdict = evaluate(healthy(said), said)[-1]
        assert verdict.passed
        assert verdict.explanation == (
            "Owners: team:shop; objectives: recovery_points.objective_seconds 300."
            " Not evaluated: drill.objective_seconds is not declared."
        )


def test_an_error_is_worse_than_a_warning() -> None:
    said = declared("orders_count_v1", min_insync_replicas=2)
    facts = with_topic(healthy(said), REPARTITION, replication_factor=2, in_sync=2)
    warned = the_one(facts, said)
    assert [f.severity for f in warned.findings] == [Severity.WARN]
    assert (warned.severity, warned.is_red) == (Severity.WARN, False)
    facts = with_topic(facts, CHANGELOG, configs={"min.insync.replicas": "1"})
    both = the_one(facts, said)
    assert both.is_red
    assert both.severity is Severity.ERROR
    assert both.findings[0].subject == CHANGELOG
