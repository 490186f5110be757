"""Every deviation turns its check red and no other; nothing wrong turns none red."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kstreams_assets.governance.evaluation import CHECKS, evaluate
from kstreams_assets.governance.facts import GovernanceFacts, PartitionState
from kstreams_assets.offsets import TopicPartitionId
from tests.governance.samples import (
    CHANGELOG,
    DAY_MS,
    EXAMPLES,
    ORDERS,
    REPARTITION,
    V1,
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

EVENTS = "browser-actions-events-by-browser-repartition"
WINDOWS = "browser-actions-browser-windows-changelog"
JOINED = "browser-actions-captcha-this-join-store-changelog"
TARIFFS = "parcel-tracker-tariffs-changelog"

Change = Callable[[GovernanceFacts], GovernanceFacts]


def _gone(topic: str) -> Change:
    return lambda facts: without_topic(facts, topic)


def _more(*topics: str) -> Change:
    return lambda facts: and_topics(facts, *topics)


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_healthy_application_passes_every_check(example: str) -> None:
    said = declared(example)
    verdicts = evaluate(healthy(said), said)
    assert [verdict.check for verdict in verdicts] == list(CHECKS)
    assert [verdict.explanation for verdict in verdicts if verdict.findings] == []


DEVIATIONS: dict[str, tuple[str, Change, str, tuple[str, ...]]] = {
    "repartition topic left over": (
        "orders_count_v1",
        _more(f"{V1}-x-repartition"),
        "internal_topics_as_declared",
        (f"{V1}-x-repartition: an internal topic that", f"--delete --topic {V1}-x-repartition"),
    ),
    "repartition topic missing": (
        "orders_count_v1",
        _gone(REPARTITION),
        "internal_topics_as_declared",
        (f"{REPARTITION}: not on the cluster", "start it once"),
    ),
    "store renamed, the old changelog deleted": (
        "orders_count_v1",
        lambda facts: and_topics(without_topic(facts, CHANGELOG), f"{V1}-counts-changelog"),
        "stores_as_declared",
        (
            "store order-count-by-customer was likely renamed to counts",
            "that of order-count-by-customer is gone",
            'Materialized.as("order-count-by-customer")',
        ),
    ),
    "store renamed, the old changelog still there": (
        "orders_count_v1",
        _more(f"{V1}-order-count-by-customer-v2-changelog"),
        "stores_as_declared",
        (
            "store order-count-by-customer was likely renamed to order-count-by-customer-v2",
            "is still there with the former state",
            f"--delete --topic {V1}-order-count-by-customer-v2-changelog",
        ),
    ),
    "changelog of another store": (
        "orders_count_v1",
        _more(f"{V1}-x-changelog"),
        "stores_as_declared",
        (
            f"x: a changelog ({V1}-x-changelog) of a store that",
            f"--delete --topic {V1}-x-changelog",
        ),
    ),
    "changelog missing": (
        "orders_count_v1",
        _gone(CHANGELOG),
        "stores_as_declared",
        ("order-count-by-customer: its changelog", "restore the application"),
    ),
    "input missing": (
        "orders_count_v1",
        _gone(ORDERS),
        "topology_as_declared",
        (f"{ORDERS}: not on the cluster", "a topic that the application reads", "Create it"),
    ),
    "the group reads another topic": (
        "orders_count_v1",
        lambda facts: replace(facts, committed_topics=facts.committed_topics | {"returns"}),
        "topology_as_declared",
        (
            f"returns: group {V1} has committed offsets of it",
            f"--group {V1} --delete-offsets --topic returns",
        ),
    ),
    "input enlarged": (
        "orders_count_v1",
        topic(ORDERS, partitions=6),
        "partitions_as_needed",
        (
            f"{REPARTITION}: 4 partitions; expected: 6, as {ORDERS}",
            f"application-reset.sh --bootstrap-server kafka:9092 --application-id {V1} ",
            f"governance.partitions: {{{REPARTITION}: 4}}",
        ),
    ),
    "changelog of another size": (
        "orders_count_v1",
        topic(CHANGELOG, partitions=3),
        "partitions_as_needed",
        (f"{CHANGELOG}: 3 partitions; expected: 4, as {REPARTITION}", "invalid partitions"),
    ),
    "joined topic of another size": (
        "browser_actions",
        topic(EVENTS, partitions=2),
        "partitions_as_needed",
        (f"{EVENTS}: 2 partitions; expected: 4, as captchas-solved",),
    ),
    "joined inputs differ": (
        "parcel_tracker",
        topic("slots", partitions=3),
        "partitions_as_needed",
        (
            "parcels, slots: different numbers of partitions (parcels has 4, slots has 3)",
            "--alter --topic slots --partitions 4",
        ),
    ),
    "one replica too few": (
        "orders_count_v1",
        topic(CHANGELOG, replication_factor=2, in_sync=2, configs={"min.insync.replicas": "1"}),
        "changelogs_replicated",
        (
            f"{CHANGELOG}: replication factor 2; expected: at least 3",
            "kafka-reassign-partitions.sh",
        ),
    ),
    "min.insync.replicas too low": (
        "orders_count_v1",
        configs(CHANGELOG, min_insync_replicas=1),
        "changelogs_replicated",
        (
            f"{CHANGELOG}: min.insync.replicas 1; expected: at least 2 of 3 replicas",
            f"--entity-name {CHANGELOG} --add-config min.insync.replicas=2",
        ),
    ),
    "min.insync.replicas as many as there are": (
        "orders_count_v1",
        configs(CHANGELOG, min_insync_replicas=3),
        "changelogs_replicated",
        ("min.insync.replicas 3 with 3 replicas", "as soon as one broker is down"),
    ),
    "a replica out of sync": (
        "orders_count_v1",
        topic(CHANGELOG, in_sync=2, lagging=(1, 3)),
        "changelogs_replicated",
        ("partitions 1, 3 have as few as 2 of 3 replicas in sync; expected", "repair it"),
    ),
    "writes are refused": (
        "orders_count_v1",
        topic(CHANGELOG, in_sync=1, lagging=(1,)),
        "changelogs_replicated",
        ("in sync, so that writes are refused",),
    ),
    "changelog deletes": (
        "orders_count_v1",
        configs(CHANGELOG, cleanup_policy="compact,delete"),
        "cleanup_policies_fit",
        (
            f"{CHANGELOG}: cleanup.policy compact,delete; expected: compact for a store of kind"
            " key_value",
            f"--entity-name {CHANGELOG} --add-config cleanup.policy=compact.",
        ),
    ),
    "window changelog never deletes": (
        "browser_actions",
        configs(WINDOWS, cleanup_policy="compact"),
        "cleanup_policies_fit",
        ("Expired windows never leave", "--add-config cleanup.policy=[compact,delete]"),
    ),
    "join window is compacted": (
        "browser_actions",
        configs(JOINED, cleanup_policy="compact"),
        "cleanup_policies_fit",
        ("expected: delete for a store of kind join_window",),
    ),
    "repartition topic is compacted": (
        "orders_count_v1",
        configs(REPARTITION, cleanup_policy="compact"),
        "cleanup_policies_fit",
        ("not processed yet", "cleanup.policy=delete,retention.ms=-1,retention.bytes=-1"),
    ),
    "repartition topic forgets": (
        "orders_count_v1",
        configs(REPARTITION, retention_ms=1000),
        "cleanup_policies_fit",
        (f"{REPARTITION}: cleanup.policy delete, retention.ms 1000",),
    ),
    "global table forgets": (
        "fraud_detector",
        configs("risk-scores", cleanup_policy="delete"),
        "cleanup_policies_fit",
        ("risk-scores: cleanup.policy delete with retention.ms 604800000 ms (7 d)",),
    ),
    "versions are compacted too early": (
        "parcel_tracker",
        configs(TARIFFS, min_compaction_lag_ms=1000),
        "cleanup_policies_fit",
        (f"{TARIFFS}: min.compaction.lag.ms 1000 ms", "min.compaction.lag.ms=86520000"),
    ),
    "windows go before the store's": (
        "browser_actions",
        configs(WINDOWS, retention_ms=DAY_MS),
        "retention_covers_windows",
        (
            f"{WINDOWS}: retention.ms 86400000 ms (1 d); expected: at least 93600000 ms",
            "missing after a restore",
            f"--entity-name {WINDOWS} --add-config retention.ms={2 * DAY_MS}",
        ),
    ),
    "input goes before the backup": (
        "orders_count_v1",
        configs(ORDERS, retention_ms=60_000),
        "retention_covers_windows",
        (f"{ORDERS}: retention.ms 60000 ms (1 min)", "--add-config retention.ms=7200000"),
    ),
    "deleted before it was processed": (
        "orders_count_v1",
        lambda facts: replace(
            facts,
            reads={**facts.reads, TopicPartitionId(ORDERS, 2): PartitionState(900, 1000, 700)},
        ),
        "lag_within_limits",
        (f"{ORDERS}: deleted before", "partition 2: offsets 700 to 900", "from the backups"),
    ),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_deviation_turns_exactly_its_check_red(name: str) -> None:
    example, change, check, texts = DEVIATIONS[name]
    said = declared(example)
    only = the_one(change(healthy(said)), said)
    assert only.check == check
    assert len(only.findings) == 1
    for text in texts:
        assert text in only.explanation


def test_a_count_that_the_application_sets_itself_is_declared() -> None:
    said = declared("orders_count_v1", partitions={REPARTITION: 8})
    facts = with_topic(healthy(said), REPARTITION, partitions=8)
    facts = with_topic(facts, CHANGELOG, partitions=8)
    assert failed(facts, said) == {}


def test_topics_that_meet_in_no_store_may_differ() -> None:
    said = declared("browser_actions")
    facts = with_topic(healthy(said), "user-actions", partitions=2)
    assert failed(facts, said) == {}


def test_names_of_others_are_left_alone() -> None:
    said = declared("orders_count_v1")
    mine = replace(said.application, not_mine=frozenset({f"{V1}-a-changelog"}))
    said = replace(said, application=mine)
    facts = and_topics(healthy(said), f"{V1}-a-changelog", f"{V1}-eu-b-changelog")
    assert failed(facts, said).keys() == {"stores_as_declared"}
    other = frozenset({f"{V1}-eu"})
    assert failed(replace(facts, other_application_ids=other), said) == {}
    also = replace(said, application=replace(mine, other_application_ids=other))
    assert failed(facts, also) == {}
