"""Facts of a healthy cluster for an application, and what is declared of it."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import examples
from kstreams_assets.app.governance import Governance
from kstreams_assets.app.model import AppTopic, TopicRole
from kstreams_assets.app.roles import application_from_topology
from kstreams_assets.app.store_format import StoreFormat, StoreKind, format_of
from kstreams_assets.app.topology import parse_topology
from kstreams_assets.checks import Evaluation
from kstreams_assets.governance import run
from kstreams_assets.governance.evaluation import evaluate
from kstreams_assets.governance.facts import Declared, GovernanceFacts, PartitionState, TopicState
from kstreams_assets.offsets import TopicPartitionId

EXAMPLES = (
    "browser_actions",
    "fraud_detector",
    "order_processor",
    "orders_count_v1",
    "orders_count_v2",
    "orders_risk_scoring",
    "parcel_tracker",
)
PARTITIONS = 4
V1 = "orders-count-v1"
V1_FILE = Path(examples.__file__).parent / "defs" / "orders_count_v1" / "defs.yaml"
CHANGELOG = f"{V1}-order-count-by-customer-changelog"
REPARTITION = f"{V1}-orders-by-customer-repartition"
ORDERS = "orders.created.v1"
DAY_MS = 86_400_000
WINDOW_MS = 3_600_000
KINDS = {
    "browser-windows": StoreFormat(kind=StoreKind.WINDOW, retention_ms=DAY_MS),
    "captcha-this-join-store": StoreFormat(kind=StoreKind.JOIN_WINDOW, retention_ms=660_000),
    "captcha-outer-other-join-store": StoreFormat(kind=StoreKind.JOIN_WINDOW, retention_ms=660_000),
    "session-count-store": StoreFormat(kind=StoreKind.SESSION, retention_ms=330_000),
    "tariffs": StoreFormat(kind=StoreKind.VERSIONED, retention_ms=120_000),
    "scans-per-window": StoreFormat(kind=StoreKind.WINDOW, retention_ms=12_000),
    "scans-at-close": StoreFormat(kind=StoreKind.WINDOW, retention_ms=7_200_000),
    "handover-outer-this-join-store": StoreFormat(kind=StoreKind.JOIN_WINDOW, retention_ms=42_000),
    "handover-outer-other-join-store": StoreFormat(kind=StoreKind.JOIN_WINDOW, retention_ms=42_000),
    "closed-windows-store": StoreFormat(kind=StoreKind.SUPPRESS),
}
"""Stores that are not of kind key_value, as the examples declare them."""


def declared(example: str, **governance: Any) -> Declared:
    """An example, known by its topology text, with everything that can be judged declared."""
    folder = Path(examples.__file__).parent / "defs" / example
    text = (folder / "topology.txt").read_text("utf-8")
    application = application_from_topology(example.replace("_", "-"), parse_topology(text))
    names = {store.name for store in application.stores}
    formats = {name: KINDS.get(name, StoreFormat()) for name in names}
    return Declared(
        application=application,
        governance=Governance(**governance),
        formats={name: format_of(name, formats) for name in names},
        owners=("team:shop",),
        objective_s=300,
        recovery_time_s=900,
        window_ms=WINDOW_MS,
        backed_up_topics=frozenset(topic.name for topic in application.topics),
    )


def healthy(declared: Declared) -> GovernanceFacts:
    """Three brokers with every topic as Kafka Streams makes it, and a group that keeps up."""
    application = declared.application
    reads = declared.names(TopicRole.INPUT, TopicRole.REPARTITION)
    return GovernanceFacts(
        bootstrap_servers="kafka:9092",
        cluster_id="cluster",
        taken_at_ms=1_763_800_000_000,
        brokers=3,
        topics={topic.name: _state(declared, topic) for topic in application.topics},
        cluster_topics=frozenset({*(t.name for t in application.topics), "of-somebody-else"}),
        reads={
            TopicPartitionId(topic, number): PartitionState(0, 1000, 1000)
            for topic in reads
            for number in range(PARTITIONS)
        },
        committed_topics=frozenset(reads),
    )


def facts_are(facts: GovernanceFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a look at the cluster find these facts; they are judged and recorded as any are."""
    monkeypatch.setattr(run, "KafkaCluster", lambda _: nullcontext())
    monkeypatch.setattr(run, "require_lineage", lambda *_: None)
    monkeypatch.setattr(run, "gather", lambda *_: facts)


def _state(declared: Declared, topic: AppTopic) -> TopicState:
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": str(7 * DAY_MS),
        "retention.bytes": "-1",
        "min.insync.replicas": "2",
        "min.compaction.lag.ms": "0",
    }
    kinds = [declared.formats[store] for store in topic.stores]
    if TopicRole.REPARTITION in topic.roles:
        configs["retention.ms"] = "-1"
    elif not kinds:
        pass
    elif kinds[0].kind in (StoreKind.WINDOW, StoreKind.SESSION):
        configs["cleanup.policy"] = "compact,delete"
        configs["retention.ms"] = str((kinds[0].retention_ms or 0) + DAY_MS)
    elif kinds[0].kind is StoreKind.JOIN_WINDOW:
        configs["retention.ms"] = str((kinds[0].retention_ms or 0) + DAY_MS)
    else:
        configs["cleanup.policy"] = "compact"
    if kinds and kinds[0].kind is StoreKind.VERSIONED:
        configs["min.compaction.lag.ms"] = str((kinds[0].retention_ms or 0) + DAY_MS)
    return TopicState(topic.name, PARTITIONS, 3, 3, configs)


def with_topic(facts: GovernanceFacts, name: str, **changes: Any) -> GovernanceFacts:
    """The same, with a topic changed; `configs` are added to those it has."""
    topic = facts.topics[name]
    if "configs" in changes:
        changes["configs"] = {**topic.configs, **changes["configs"]}
    return replace(facts, topics={**facts.topics, name: replace(topic, **changes)})


def without_topic(facts: GovernanceFacts, name: str) -> GovernanceFacts:
    """The same, without a topic."""
    return replace(
        facts,
        topics={key: topic for key, topic in facts.topics.items() if key != name},
        cluster_topics=facts.cluster_topics - {name},
        reads={part: state for part, state in facts.reads.items() if part.topic != name},
    )


def and_topics(facts: GovernanceFacts, *names: str) -> GovernanceFacts:
    """The same, with further topics on the cluster."""
    return replace(facts, cluster_topics=facts.cluster_topics | set(names))


def topic(name: str, **changes: Any) -> Callable[[GovernanceFacts], GovernanceFacts]:
    """A change of a topic."""
    return lambda facts: with_topic(facts, name, **changes)


def configs(name: str, **said: object) -> Callable[[GovernanceFacts], GovernanceFacts]:
    """A change of a topic's configs; `_` in their names stands for a dot."""
    return topic(name, configs={key.replace("_", "."): str(v) for key, v in said.items()})


def failed(facts: GovernanceFacts, said: Declared) -> dict[str, Evaluation]:
    """The checks that did not pass."""
    return {v.check: v for v in evaluate(facts, said) if v.findings}


def the_one(facts: GovernanceFacts, said: Declared) -> Evaluation:
    """The only check that did not pass."""
    (only,) = failed(facts, said).values()
    return only
