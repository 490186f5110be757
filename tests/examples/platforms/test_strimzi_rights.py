"""The rights of examples/strimzi are enough for a backup and its restore, on real brokers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from confluent_kafka.admin import (
    AclBinding,  # pyright: ignore[reportPrivateImportUsage]
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    AclPermissionType,  # pyright: ignore[reportPrivateImportUsage]
    AdminClient,
    ResourcePatternType,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from pydantic import SecretStr

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.completeness.on_restores import evaluate_restore, require_complete
from kstreams_assets.errors import AuthorizationFailedError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.restore.group_offsets import restore_previous_offsets
from kstreams_assets.restore.job import RestoreJob, RunContext
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import ApplicationSettings
from spark_resources.resource import SparkSessionResource
from tests.backup.writing import producer
from tests.examples.platforms.strimzi import FOLDER, resources, rights
from tests.streams.cluster import connection_to, passing_cluster, unique_name
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PASSWORD = "strimzi-made-it"
RECORDS = 12
_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "AlterConfigs": AclOperation.ALTER_CONFIGS,
}


@dataclass(frozen=True)
class Stage:
    """A source and a target, each with one user that has the rights of its `KafkaUser` alone."""

    source: LocalCluster
    target: LocalCluster
    settings: ApplicationSettings

    def as_user(self, cluster: LocalCluster, user: str) -> KafkaConnection:
        """A connection of the user."""
        sasl = {"mechanism": "SCRAM-SHA-512", "username": user, "password": SecretStr(PASSWORD)}
        return KafkaConnection.model_validate(
            {
                "bootstrap_servers": cluster.bootstrap_servers,
                "security_protocol": "SASL_PLAINTEXT",
                "sasl": sasl,
            }
        )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Both clusters; the source has the topics, with records and group offsets."""
    folder = tmp_path_factory.mktemp("strimzi")
    options = {
        "client_protocol": "SASL_PLAINTEXT",
        "properties": {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    }
    backup, restore = {"kstreams-backup": PASSWORD}, {"kstreams-restore": PASSWORD}
    with (
        passing_cluster(folder / "source", scram_users=backup, **options) as source,
        passing_cluster(folder / "target", scram_users=restore, **options) as target,
    ):
        settings = load_settings(FOLDER / "defs.yaml", warehouse=str(folder / "warehouse"))
        made = Stage(source, target, settings)
        connection = made.as_user(source, "kstreams-backup")
        made = replace(made, settings=replace(settings, connection=connection))
        _prepare(made)
        _grant(source, "kstreams-backup", "user-backup.yaml")
        _grant(target, "kstreams-restore", "user-restore.yaml")
        yield made


def _prepare(stage: Stage) -> None:
    """Create topics as Strimzi and Kafka Streams do, and write to them."""
    declared = {t["metadata"]["name"]: t["spec"] for t in resources("topics.yaml")}
    partitions = max(spec["partitions"] for spec in declared.values())
    internal = stage.source.internal_bootstrap_servers
    topics = [topic.name for topic in stage.settings.application.topics]
    with KafkaCluster(connection_to(internal)) as cluster:
        cluster.create_topics([TopicSpec(topic, partitions, 1) for topic in topics])
        sender = producer(internal, linger_ms=5)
        for topic in topics:
            for number in range(RECORDS):
                sender.produce(topic, b"{}", key=b"%d" % number, partition=number % partitions)
        assert sender.flush(20) == 0
        committed = {TopicPartitionId("orders", 0): CommittedOffset(2, "")}
        cluster.commit_group_offsets(stage.settings.application_id, committed)


def _grant(cluster: LocalCluster, user: str, file: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap_servers})
    bindings = [
        AclBinding(
            _KINDS[right.kind],
            right.name,
            ResourcePatternType.PREFIXED if right.is_prefix else ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            _OPERATIONS[right.operation],
            AclPermissionType.ALLOW,
        )
        for right in rights(file)
    ]
    for future in admin.create_acls(bindings, request_timeout=30).values():
        future.result(30)


@pytest.fixture(scope="module")
def point(stage: Stage, spark: SparkSessionResource) -> RecoveryPoint:
    """A recovery point that the user of backups took and backed up."""
    settings = stage.settings
    with KafkaCluster(settings.connection) as cluster:
        # The brokers learn of the rights a moment later.
        topics = {topic.name for topic in settings.application.topics}
        assert eventually(lambda: topics <= cluster.topics().keys())
        taken = recorder_of(settings, cluster).take()
    window = Window(taken.taken_at_ms - 1, taken.taken_at_ms + 1, "w0000")
    backup = BackupJob(settings, spark, unique_name("backup")).run([window])
    assert backup.records == len(topics) * RECORDS
    return taken


def test_a_point_names_no_missing_right(point: RecoveryPoint) -> None:
    assert (point.absent_topics, point.unknown_topics) == ((), ())
    assert "right" not in point.reason.lower()


def test_the_user_of_backups_writes_nothing(stage: Stage, point: RecoveryPoint) -> None:
    del point
    with (
        KafkaCluster(stage.settings.connection) as cluster,
        pytest.raises(AuthorizationFailedError),
    ):
        cluster.create_topics([TopicSpec("order-processor-another", 1)])


def test_it_is_restored_with_the_rights_of_a_restore(
    stage: Stage, point: RecoveryPoint, spark: SparkSessionResource
) -> None:
    target = stage.as_user(stage.target, "kstreams-restore")
    request = RestoreRequest(point_id=point.id, accept=Restorability.UNPROVEN, replication_factor=1)
    job = RestoreJob(evaluate_restore, require_complete)
    plan = job.plan(stage.settings, request, target)
    assert plan.blockers == ()
    context = RunContext(stage.settings, target, spark, unique_name("run"))
    result = job.run(context, plan, lambda _progress: None)
    assert result.committed is not None
    assert result.committed.state is RestoreState.COMMITTED
    with KafkaCluster(target) as cluster:
        orders = TopicPartitionId("orders", 0)
        assert cluster.group_offsets(plan.group)[orders].offset == 2
        restore_previous_offsets(stage.settings, result.committed, cluster)
        assert cluster.group_offsets(plan.group) == {}
