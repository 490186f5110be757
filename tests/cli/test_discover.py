"""`discover` against applications that run: what its YAML says, and what points of it then are."""

import json
import time
from pathlib import Path

import pytest
import yaml

from kstreams_assets.app_file.read import load_model
from kstreams_assets.cli import discover as command
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from tests.cli.application import Program
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Record, produce
from tests.streams.oracle_app import OracleApp, OracleTopics, create_topics
from tests.streams.table_app import STORE, TableApp, TableTopics
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.alone]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _reads(cluster: KafkaCluster, group: str, topic: str) -> bool:
    return any(partition.topic == topic for partition in cluster.group_offsets(group))


def _settings(file: Path) -> ApplicationSettings:
    component = load_model(file, application_id=None, bootstrap_servers=None)
    return component.settings(file.parent, file=file.name)


def _point(settings: ApplicationSettings) -> RecoveryPoint:
    with KafkaCluster(settings.connection) as cluster:
        return recorder_of(settings, cluster).take()


def test_of_an_application_that_has_just_started(
    kafka_cluster: LocalCluster,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It knows the changelog and says so; what is taken with that YAML is not called exact."""
    monkeypatch.setattr(command, "_FIRST_COMMIT_S", 2.0)
    servers, file = kafka_cluster.bootstrap_servers, tmp_path / "app.yaml"
    topics = OracleTopics(unique_name("oracle"), unique_name("o") + ".")
    create_topics(servers, topics, partitions=2)
    arguments = ("--application-id", topics.application_id, "--bootstrap", servers)
    warehouse = ("--warehouse", str(tmp_path / "warehouse"))
    with (
        KafkaCluster(connection_to(servers)) as cluster,
        OracleApp(servers, topics, state_dir=tmp_path / "state"),
    ):
        assert eventually(lambda: topics.changelog in cluster.topics())
        found = program("discover", *arguments, *warehouse, "--output", file)
        assert found.exit_code == 0, found.err
        said = yaml.safe_load(file.read_text())["attributes"]["topics"]
        assert topics.changelog in said
        assert topics.orders not in said
        assert "has committed no offsets" in found.err
        assert "Discover again once" in found.err

        orders = [Record(n % 2, -1, now_ms(), b"o%d" % n, b"c%d,1" % (n % 7)) for n in range(500)]
        produce(servers, topics.orders, orders)
        assert eventually(lambda: _reads(cluster, topics.application_id, topics.repartition))
        settings = _settings(file)
        point = _point(settings)
        assert point.guarantee is Guarantee.AT_LEAST_ONCE
        assert topics.orders in (point.undeclared_topics or ())
        assert f"topic {topics.orders} belongs to the application" in point.reason
        (status,) = Repository.open(settings).reading(settings).statuses([point])
        assert status.restorability in (Restorability.UNPROVEN, Restorability.NOTHING)

        again = program("discover", "--app", file, "--output", file, "--force")
        assert again.exit_code == 0, again.err
        assert "has committed no offsets" not in again.err
        whole = _point(_settings(file))
        assert (whole.undeclared_topics, whole.guarantee) == ((), Guarantee.EXACT), whole.reason


def test_of_an_optimised_application_with_its_topology_text(
    kafka_cluster: LocalCluster, program: Program, tmp_path: Path
) -> None:
    """The text does not say that a table has no changelog of its own; the YAML then does."""
    servers, file, text = kafka_cluster.bootstrap_servers, tmp_path / "app.yaml", tmp_path / "t.txt"
    topics = TableTopics(unique_name("table"), unique_name("t") + ".")
    arguments = ("--application-id", topics.application_id, "--bootstrap", servers)
    with KafkaCluster(connection_to(servers)) as cluster:
        topics.create(cluster, partitions=2)
        app = TableApp(servers, topics, state_dir=tmp_path / "state")
        with app:
            text.write_text(app.topology())
            changes = [Record(n % 2, -1, now_ms(), b"c%d" % (n % 9), b"%d" % n) for n in range(200)]
            produce(servers, topics.changes, changes)
            assert eventually(lambda: _reads(cluster, topics.application_id, topics.customers))
            found = program(
                *("discover", *arguments, "--topology", text, "--output", file),
                *("--warehouse", str(tmp_path / "warehouse")),
            )
            assert found.exit_code == 0, found.err
            said = yaml.safe_load(file.read_text())["attributes"]
            (reason,) = said["stores"][STORE].pop("unconfirmed")
            assert "optimised topology" in reason
            assert said["stores"] == {STORE: {"source_topic": topics.customers}}
            settings = _settings(file)
            (guess,) = settings.application.guesses
            assert guess.setting == f"stores.{STORE}"
            expected = {topic.name: topic.roles for topic in topics.application.topics}
            assert {t.name: t.roles for t in settings.application.topics} == expected
            point = _point(settings)
            assert point.guarantee is Guarantee.EXACT, point.reason
            assert f"stores.{STORE} is unconfirmed" in point.reason

            by_hand = yaml.safe_load(file.read_text())
            del by_hand["attributes"]["stores"]
            by_hand["attributes"]["warehouse"] = str(tmp_path / "other")
            file.write_text(yaml.safe_dump(by_hand))
            refused = program("recovery-points", "take", "--app", file)
            assert refused.exit_code == 2
            assert "stores.<store>.source_topic" in refused.err
            by_hand["attributes"]["stores"] = {STORE: {"source_topic": topics.customers}}
            file.write_text(yaml.safe_dump(by_hand))
            taken = program("recovery-points", "take", "--app", file, "--json")
            assert taken.exit_code == 0, taken.err
            assert json.loads(taken.out)["guarantee"] == "exact"


def test_an_output_that_no_text_names_is_named_everywhere(
    kafka_cluster: LocalCluster, program: Program, tmp_path: Path
) -> None:
    """As a dead letter queue (KIP-1034): once written, named for as long as it is undeclared."""
    servers, file = kafka_cluster.bootstrap_servers, tmp_path / "app.yaml"
    text = tmp_path / "topology.txt"
    topics = OracleTopics(unique_name("oracle"), unique_name("o") + ".")
    create_topics(servers, topics, partitions=1)
    id_ = topics.application_id
    text.write_text(
        "Topologies:\n"
        "   Sub-topology: 0\n"
        f"    Source: s (topics: [{topics.orders}])\n      --> t\n"
        "    Sink: t (topic: by-customer-repartition)\n      <-- s\n\n"
        "  Sub-topology: 1\n"
        "    Source: r (topics: [by-customer-repartition])\n      --> p\n"
        "    Processor: p (stores: [totals])\n      --> none\n      <-- r\n"
    )
    file.write_text(
        yaml.safe_dump(
            {
                "type": "x.KafkaStreamsAppComponent",
                "attributes": {
                    "application_id": id_,
                    "connection": {"bootstrap_servers": servers},
                    "warehouse": str(tmp_path / "warehouse"),
                    "windows": {"every": "hour", "start": "2026-11-01"},
                    "topology": text.name,
                },
            }
        )
    )
    with (
        KafkaCluster(connection_to(servers)) as cluster,
        OracleApp(servers, topics, state_dir=tmp_path / "state"),
    ):
        orders = [Record(0, -1, now_ms(), b"o%d" % n, b"c%d,1" % (n % 7)) for n in range(100)]
        produce(servers, topics.orders, orders)
        assert eventually(lambda: _reads(cluster, id_, topics.repartition))
        settings = _settings(file)
        for _ in range(2):
            point = _point(settings)
            assert topics.totals in (point.undeclared_topics or ()), point.reason
            assert point.guarantee is Guarantee.AT_LEAST_ONCE
            assert f"topic {topics.totals} belongs to the application" in point.reason
            assert "its transactions wrote it" in point.reason
            time.sleep(1)
        governed = json.loads(program("governance", "--app", file, "--json").out)
        assert topics.totals in json.dumps(governed)

        found = program("discover", "--app", file, "--output", file, "--force")
        assert found.exit_code == 0, found.err
        assert f"To confirm, {topics.totals}: The application's transactions wrote it" in (
            found.err.replace("wrote the topic", "wrote it")
        )
        said = yaml.safe_load(file.read_text())["attributes"]
        assert said["outputs"] == [topics.totals]
        assert said["topology"] == text.name
        assert "unconfirmed" not in file.read_text()
        whole = _point(_settings(file))
        assert (whole.undeclared_topics, whole.guarantee) == ((), Guarantee.EXACT), whole.reason
        assert whole.took_ms < 5_000
