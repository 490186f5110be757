"""Deviations made on a live cluster: each turns its check red, no other, and green when undone.

Three brokers; the real application orders-count-v1 makes its internal topics there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    AdminClient,
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from confluent_kafka.cimpl import NewPartitions
from pydantic import SecretStr

from examples.orders_count.application import COUNTS_V2, EXAMPLE_V2, HIGH_VALUE_V2, STORE, STORE_V2
from examples.orders_created.orders import TOPIC, events
from examples.streams.load import send
from kstreams_assets.errors import AuthorizationFailedError, ClusterUnavailableError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from tests.backup.acls import Acls
from tests.governance.live import (
    APP,
    CHANGELOG,
    PASSWORD,
    REPARTITION,
    Live,
    become,
    create,
    delete,
    look,
    of_check,
    reassign,
    run_application,
    set_config,
)

pytestmark = pytest.mark.kafka

Application = Callable[[Live], ApplicationSettings]


def counts(live: Live) -> ApplicationSettings:
    """The application that has run."""
    return live.counts


def fraud(live: Live) -> ApplicationSettings:
    """The application with a session store."""
    return live.fraud


@dataclass(frozen=True, slots=True)
class Deviation:
    """How it is made and undone, which check tells it and with what words."""

    of: Application
    make: Callable[[Live], None]
    undo: Callable[[Live], None]
    check: str
    texts: tuple[str, ...]


DEVIATIONS = {
    "unexpected internal topic": Deviation(
        counts,
        create(f"{APP}-orders-by-day-repartition"),
        delete(f"{APP}-orders-by-day-repartition"),
        "internal_topics_as_declared",
        (f"{APP}-orders-by-day-repartition: an internal topic", "kafka-topics.sh", "--delete"),
    ),
    "replication factor": Deviation(
        counts,
        reassign(1, 2),
        reassign(1, 2, 3),
        "changelogs_replicated",
        (
            f"{CHANGELOG}: replication factor 2; expected: at least 3, as declared",
            "kafka-reassign-partitions.sh",
        ),
    ),
    "retention of an input too short": Deviation(
        counts,
        set_config(TOPIC, retention_ms="86400000"),
        set_config(TOPIC, retention_ms=None),
        "inputs_kept_for_rebuild",
        (f"{TOPIC}: retention.ms 86400000 ms (1 d)", "--add-config retention.ms=604800000"),
    ),
}


def test_a_healthy_application_is_green(live: Live) -> None:
    report = look(live.counts)
    assert [v.explanation for v in report.evaluations if v.findings] == []
    assert [v.explanation for v in look(live.fraud).evaluations if v.findings] == []
    assert Repository(live.counts.warehouse, APP).findings.newest() == report


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_deviation_turns_its_check_red(live: Live, name: str) -> None:
    deviation = DEVIATIONS[name]
    settings = deviation.of(live)
    deviation.make(live)
    try:
        only = of_check(become(settings, {deviation.check}), deviation.check)
    finally:
        deviation.undo(live)
    assert only.is_red
    assert len(only.findings) == 1
    for text in deviation.texts:
        assert text in only.explanation
    become(settings, set())


def test_a_renamed_store(live: Live, tmp_path: Path) -> None:
    """The same application, started with a store and outputs of other names."""
    renamed = f"{APP}-{STORE_V2}-changelog"
    send(live.servers, events(2), count=10)
    run_application(live, tmp_path / "state", EXAMPLE_V2.config, renamed, COUNTS_V2)
    report = become(live.counts, {"stores_as_declared", "topology_as_declared"})
    live.cluster.delete_topics([renamed, COUNTS_V2, HIGH_VALUE_V2])
    outputs = {found.subject for found in of_check(report, "topology_as_declared").findings}
    assert {COUNTS_V2} <= outputs <= {COUNTS_V2, HIGH_VALUE_V2}
    (finding,) = of_check(report, "stores_as_declared").findings
    assert finding.subject == STORE_V2
    assert f"store {STORE} was likely renamed to {STORE_V2}" in finding.found
    assert f'Materialized.as("{STORE}")' in finding.action
    assert f"--delete --topic {renamed}" in finding.action
    become(live.counts, set())


def test_missing_rights_are_named(live: Live) -> None:
    connection = KafkaConnection.model_validate(
        {
            "bootstrap_servers": live.brokers.bootstrap_servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl": {
                "mechanism": "SCRAM-SHA-512",
                "username": "bob",
                "password": SecretStr(PASSWORD),
            },
        }
    )
    bob = replace(live.counts, connection=connection)
    acls = Acls(live.servers)
    assert "topics" in _refused(bob, "DESCRIBE")
    for topic in bob.application.topics:
        acls.allow(ResourceType.TOPIC, topic.name, AclOperation.DESCRIBE)
    assert CHANGELOG in _refused(bob, "DESCRIBE_CONFIGS")
    for prefix in ("orders", "customer"):
        acls.allow(ResourceType.TOPIC, prefix, AclOperation.DESCRIBE_CONFIGS, prefixed=True)
    assert f"group {APP}" in _refused(bob, "DESCRIBE")
    acls.allow(ResourceType.GROUP, APP, AclOperation.DESCRIBE)
    become(bob, set())


def _refused(settings: ApplicationSettings, right: str) -> str:
    with pytest.raises(AuthorizationFailedError) as caught:
        look(settings)
    assert caught.value.needed == right
    assert caught.value.resource in str(caught.value)
    return caught.value.resource


def test_an_input_with_more_partitions(live: Live) -> None:
    """Kafka cannot undo it; `live` is not used for this application afterwards."""
    admin = AdminClient({"bootstrap.servers": live.servers})
    for future in admin.create_partitions([NewPartitions(TOPIC, 4)]).values():
        future.result(20)
    only = of_check(become(live.counts, {"partitions_as_needed"}), "partitions_as_needed")
    assert only.is_red
    assert f"{REPARTITION}: 2 partitions; expected: 4, as {TOPIC}" in only.explanation
    assert "kafka-streams-application-reset.sh" in only.explanation


def test_a_broker_that_is_down(live: Live) -> None:
    live.brokers.kill_node(2)
    only = of_check(become(live.fraud, {"changelogs_replicated"}), "changelogs_replicated")
    assert not only.is_red
    assert "as few as 2 of 3 replicas in sync" in only.explanation
    assert "repair it" in only.explanation


def test_a_cluster_that_is_down_is_one_error(live: Live) -> None:
    connection = live.fraud.connection.model_copy(
        update={"bootstrap_servers": "127.0.0.1:1", "request_timeout_seconds": 1}
    )
    down = replace(live.fraud, connection=connection)
    before = Repository(down.warehouse, "fraud-detector").findings.newest()
    with pytest.raises(ClusterUnavailableError, match=r"Kafka at 127\.0\.0\.1:1 did not answer"):
        look(down)
    assert Repository(down.warehouse, "fraud-detector").findings.newest() == before
