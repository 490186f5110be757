"""Three brokers with a real application's topics, to make deviations on."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from kafka.protocol.admin import AlterPartitionReassignmentsRequest

import examples
from examples.orders_count.application import COUNTS, EXAMPLE, EXAMPLE_V2, STORE
from examples.orders_created.orders import TOPIC, events
from examples.streams.application import ExampleApplication
from examples.streams.load import send
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.checks import Evaluation
from kstreams_assets.governance.run import check_governance
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.governance_report import GovernanceReport
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings
from tests.streams.cluster import passing_cluster

PASSWORD = "bob-secret"
APP = EXAMPLE.application_id
CHANGELOG = f"{APP}-{STORE}-changelog"
REPARTITION = f"{APP}-orders-by-customer-repartition"
SESSIONS = "fraud-detector-session-count-store-changelog"
PARTITIONS = 2
ORDERS = 200
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Live:
    """A cluster of three brokers where the applications' topics are."""

    brokers: LocalCluster
    cluster: KafkaCluster
    counts: ApplicationSettings
    fraud: ApplicationSettings

    @property
    def servers(self) -> str:
        """The listener that needs no password."""
        return self.brokers.internal_bootstrap_servers


def settings_of(example: str, folder: Path, servers: str) -> ApplicationSettings:
    """The example as it is shipped, on three brokers."""
    shipped = Path(examples.__file__).parent / "defs" / example
    document = yaml.safe_load((shipped / "defs.yaml").read_text("utf-8"))
    document["attributes"]["governance"] |= {"replication_factor": 3, "min_insync_replicas": 2}
    folder.mkdir()
    (folder / "topology.txt").write_text((shipped / "topology.txt").read_text("utf-8"))
    (folder / "defs.yaml").write_text(yaml.safe_dump(document))
    warehouse = str(folder / "warehouse")
    return load_settings(folder / "defs.yaml", bootstrap_servers=servers, warehouse=warehouse)


def run_application(
    live: Live, folder: Path, config: Mapping[str, str], topic: str, output: str
) -> None:
    """Run a version until `topic`, which it makes, is there and it has written `output`; stop."""
    application = ExampleApplication(
        EXAMPLE,
        live.servers,
        state_dir=folder,
        commit_interval_ms=100,
        config={"replication.factor": "3", "topic.min.insync.replicas": "2", **config},
    )
    with application:
        deadline = time.monotonic() + 2 * WAIT_S
        written = [TopicPartitionId(output, number) for number in range(PARTITIONS)]
        while not (
            topic in live.cluster.topics()
            and _all_read(live)
            and any(live.cluster.last_stable_offsets(written).values())
        ):
            assert time.monotonic() < deadline, application.log_file.read_text()[-3000:]
            time.sleep(0.2)


def _all_read(live: Live) -> bool:
    parts = [TopicPartitionId(TOPIC, number) for number in range(PARTITIONS)]
    committed = live.cluster.group_offsets(APP)
    ends = live.cluster.last_stable_offsets(parts)
    return all(part in committed and committed[part].offset == ends[part] for part in parts)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The application has counted some orders and is stopped; bob has hardly any rights."""
    folder = tmp_path_factory.mktemp("governance")
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with passing_cluster(
        folder / "kafka",
        nodes=3,
        heap_mb=256,
        client_protocol="SASL_PLAINTEXT",
        scram_users={"bob": PASSWORD},
        properties={"authorizer.class.name": authorizer, "min.insync.replicas": "2"},
    ) as brokers:
        servers = brokers.internal_bootstrap_servers
        connection = KafkaConnection(bootstrap_servers=servers, request_timeout_seconds=20)
        with KafkaCluster(connection) as cluster:
            live = Live(
                brokers,
                cluster,
                settings_of("orders_count_v1", folder / "counts", servers),
                settings_of("fraud_detector", folder / "fraud", servers),
            )
            for example in (EXAMPLE, EXAMPLE_V2):
                example.create_topics(servers, partitions=PARTITIONS, replication_factor=3)
            send(servers, events(1), count=ORDERS)
            run_application(live, folder / "state", {}, CHANGELOG, COUNTS)
            cluster.create_topics(fraud_topics())
            yield live


def fraud_topics() -> list[TopicSpec]:
    """The topics of the fraud detector, internal ones as Kafka Streams makes them."""
    configs: dict[str, dict[str, str]] = {
        "transactions": {},
        "fraud-alerts": {},
        "risk-scores": {"cleanup.policy": "compact"},
        "fraud-detector-suspicious-by-user-repartition": {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
        },
        SESSIONS: {"cleanup.policy": "compact,delete", "retention.ms": "86730000"},
    }
    return [TopicSpec(name, PARTITIONS, 3, said) for name, said in configs.items()]


def look(settings: ApplicationSettings) -> GovernanceReport:
    """All checks, as they come out now."""
    return check_governance(settings, run_id="test")[0]


def failing(report: GovernanceReport) -> set[str]:
    """The checks that are not green."""
    return {verdict.check for verdict in report.evaluations if verdict.findings}


def of_check(report: GovernanceReport, check: str) -> Evaluation:
    """How one check came out."""
    (found,) = (one for one in report.evaluations if one.check == check)
    return found


def become(settings: ApplicationSettings, checks: set[str]) -> GovernanceReport:
    """Look until exactly these checks are not green: changes hold a moment later."""
    deadline = time.monotonic() + WAIT_S
    while True:
        report = look(settings)
        if failing(report) == checks:
            return report
        told = [v.explanation for v in report.evaluations if v.findings]
        assert time.monotonic() < deadline, told
        time.sleep(0.3)


def set_config(topic: str, **configs: str | None) -> Callable[[Live], None]:
    """A change of a topic's configs; `_` in their names stands for a dot."""
    said = {key.replace("_", "."): value for key, value in configs.items()}
    return lambda live: live.cluster.alter_topic_configs({topic: said})


def reassign(*brokers: int) -> Callable[[Live], None]:
    """Put every partition of the changelog onto these brokers."""

    def change(live: Live) -> None:
        request = AlterPartitionReassignmentsRequest
        parts = [
            request.ReassignableTopic.ReassignablePartition(
                partition_index=number, replicas=list(brokers)
            )
            for number in range(PARTITIONS)
        ]
        topics = [request.ReassignableTopic(name=CHANGELOG, partitions=parts)]
        wire = WireClient(live.cluster.connection, timeout_s=20)
        try:
            answer = wire.request(
                lambda: request(timeout_ms=10_000, topics=topics), operation="reassign"
            )
        finally:
            wire.close()
        assert answer.error_code == 0, answer

    return change


def create(topic: str) -> Callable[[Live], None]:
    """Create a topic."""
    return lambda live: live.cluster.create_topics([TopicSpec(topic, PARTITIONS, 3)])


def delete(topic: str) -> Callable[[Live], None]:
    """Delete a topic."""
    return lambda live: live.cluster.delete_topics([topic])
