"""The application may not write an internal topic any more."""

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from pydantic import SecretStr

from kstreams_assets.errors import KStreamsAssetsError, ProcessError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.repository.repository import Repository
from spark_resources.resource import SparkSessionResource
from tests.backup.acls import PASSWORD, Acls, secure_cluster
from tests.failures.applications import COUNTS, running_with
from tests.failures.conftest import Record
from tests.failures.seen import checks_of, plain, points_of, restored_and_compared, rules_of
from tests.failures.stage import Stage, await_end, exceptions, running
from tests.streams.cluster import connection_to

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

__all__ = ["secure_cluster"]

MECHANISM = "SCRAM-SHA-512"


def point_as_the_application(stage: Stage, servers: str) -> str:
    """What becomes of a point that is taken with the rights of the application."""
    sasl = {"mechanism": MECHANISM, "username": "bob", "password": SecretStr(PASSWORD)}
    connection = KafkaConnection.model_validate(
        {
            "bootstrap_servers": servers,
            "security_protocol": "SASL_PLAINTEXT",
            "request_timeout_seconds": 10,
            "sasl": sasl,
        }
    )
    with KafkaCluster(connection) as cluster:
        try:
            point = recorder_of(stage.settings, cluster).take()
        except KStreamsAssetsError as error:
            named = "names the topic" if stage.changelog in str(error) else plain(stage, str(error))
            return f"refused ({type(error).__name__}, {named})"
    (status,) = Repository.open(stage.settings).reading(stage.settings).statuses([point])
    named = all(stage.changelog in reason for reason in (point.reason, status.reason))
    what = (
        f"taken as {point.guarantee.value}, a restore of it would give {status.restorability.value}"
    )
    return f"{what}; names the topic" if named else what


def test_the_right_to_an_internal_topic_is_missing(
    secure_cluster: LocalCluster,
    kafka_cluster: LocalCluster,
    spark: SparkSessionResource,
    outcome: Record,
    tmp_path: Path,
) -> None:
    inner, outer = secure_cluster.internal_bootstrap_servers, secure_cluster.bootstrap_servers
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    secured = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": f'{login} username="bob" password="{PASSWORD}";',
    }
    with KafkaCluster(connection_to(inner)) as cluster:
        stage, acls = Stage.of(COUNTS, cluster, tmp_path), Acls(inner)
        name, every = stage.settings.application_id, AclOperation.ALL
        acls.allow(ResourceType.TOPIC, stage.prefix, every, prefixed=True)
        acls.allow(ResourceType.TRANSACTIONAL_ID, name, every, prefixed=True)
        acls.allow(ResourceType.GROUP, name, every)
        acls.allow(ResourceType.TOPIC, stage.repartition, every)
        acls.allow(ResourceType.TOPIC, stage.changelog, every)
        application = running_with(COUNTS, secured).application(
            outer, name, stage.prefix, stage.state_dir()
        )
        with running(application), stage.feed() as feed:
            stage.await_results()
            time.sleep(1)
            stage.take("before")
            acls.withdraw(stage.changelog, every)
            await_end(application)
            why = [e for e in exceptions(application) if "Authorization" in e]
            refused = point_as_the_application(stage, outer)
            stage.take("while the right is missing")
            with pytest.raises(ProcessError):
                application.start()
            acls.allow(ResourceType.TOPIC, stage.changelog, every)
            application.start()
            feed.stop()
            stage.source.drain()
            last = stage.take("at rest")
            application.stop()
        backup = stage.back_up(last, spark)
        control = stage.source.ended(stage.points)
    target = connection_to(kafka_cluster.bootstrap_servers)
    outcome(
        "internal-topic-acl-missing",
        stage.name,
        happens={
            "the application": f"ends ({why[0] if why else 'unknown'}), at each start again",
            "with the right": "goes on",
            "a recovery point with the application's own rights": refused,
        },
        checks=rules_of(stage, stage.points["while the right is missing"], spark)
        | checks_of(stage, backup)
        | points_of(stage),
        restores=restored_and_compared(
            stage, control, spark, "before", "while the right is missing", target=target
        ),
    )
