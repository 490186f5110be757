"""Without the right to read Kafka's own topics a weaker method is taken, and says why."""

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from pydantic import SecretStr

from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.coordinator_log import TRANSACTION_STATE
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Method, RecoveryPoint
from tests.backup.acls import PASSWORD, Acls, secure_cluster
from tests.recovery.trial import (
    NO_PURGE,
    QUICK_SESSIONS,
    Trial,
    losing_points,
    new_trial,
    running,
    wrong_points,
)
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.drill]

__all__ = ["secure_cluster"]


def trial_of_bob(cluster: LocalCluster, folder: Path) -> Trial:
    """The application as the inner listener sees it; points are taken as bob."""
    connection = KafkaConnection.model_validate(
        {
            "bootstrap_servers": cluster.bootstrap_servers,
            "security_protocol": "SASL_PLAINTEXT",
            "request_timeout_seconds": 20,
            "sasl": {
                "mechanism": "SCRAM-SHA-512",
                "username": "bob",
                "password": SecretStr(PASSWORD),
            },
        }
    )
    trial = new_trial(cluster.internal_bootstrap_servers, folder, connection=connection)
    trial.create_topics()
    acls, group = Acls(trial.bootstrap_servers), trial.topics.application_id
    for prefix in (trial.topics.prefix, group):
        for operation in (AclOperation.READ, AclOperation.DESCRIBE_CONFIGS):
            acls.allow(ResourceType.TOPIC, prefix, operation, prefixed=True)
    acls.allow(ResourceType.GROUP, group, AclOperation.DESCRIBE)
    return trial


def fresh_points(trial: Trial, count: int) -> list[RecoveryPoint]:
    seen = len(trial.points())
    trial.take(count, every_s=0.3)
    return trial.points()[seen:]


@pytest.mark.parametrize(
    ("jar_set", "needed"),
    [
        ("kafka", ("__consumer_offsets",)),
        ("kafka39", ("__consumer_offsets", "__transaction_state")),
    ],
)
def test_rights_on_internal_topics(
    secure_cluster: LocalCluster, tmp_path: Path, jar_set: str, needed: tuple[str, ...]
) -> None:
    trial = trial_of_bob(secure_cluster, tmp_path)
    acls, group = Acls(trial.bootstrap_servers), trial.topics.application_id
    config = {**QUICK_SESSIONS, **NO_PURGE}
    every: list[RecoveryPoint] = []
    with (
        running([trial.app("i0", threads=2, jar_set=jar_set, config=config)]),
        trial.load(rate=500),
    ):
        time.sleep(3)
        for topic in needed:
            without = fresh_points(trial, 4)
            assert all(topic in point.reason for point in without), without[0].reason
            assert Method.TRANSACTIONS not in {point.method for point in without}
            every += without
            acls.allow(ResourceType.TOPIC, topic, AclOperation.READ)
            if topic == TRANSACTION_STATE:
                kind = ResourceType.TRANSACTIONAL_ID
                acls.allow(kind, group, AclOperation.DESCRIBE, prefixed=True)
        with_rights = fresh_points(trial, 6)
        every += with_rights
    for topic in needed:
        acls.withdraw(topic, AclOperation.READ)
    found = [point.method for point in with_rights]
    assert found.count(Method.TRANSACTIONS) >= 4, with_rights[0].reason
    history = trial.history()
    assert wrong_points(trial, history, every) == {}
    assert losing_points(trial, history, every) == {}


def test_topics_that_may_not_be_described_are_told_from_absent_ones(
    secure_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Both are missing in what bob may list."""
    trial = trial_of_bob(secure_cluster, tmp_path)
    hidden, absent = unique_name("hidden"), f"{trial.topics.prefix}absent"
    with KafkaCluster(KafkaConnection(bootstrap_servers=trial.bootstrap_servers)) as cluster:
        cluster.create_topics([TopicSpec(hidden, 1)])
    assert trial.connection is not None
    with KafkaCluster(trial.connection) as cluster:
        assert not {hidden, absent} & cluster.topics().keys()
        assert cluster.hidden_topics([hidden, absent, trial.topics.orders]) == {hidden}
        assert cluster.hidden_topics([]) == frozenset()
