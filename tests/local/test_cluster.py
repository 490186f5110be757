"""kstreams_assets/local/cluster.py, with real brokers."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
)
from confluent_kafka.cimpl import NewTopic

from kstreams_assets.errors import JarsMissingError, LocalClusterError
from kstreams_assets.local import cluster as broker_properties
from kstreams_assets.local import cluster as local_cluster
from kstreams_assets.local.cluster import LocalCluster, NodePorts, choose_ports, properties_text
from tests.local.test_process import alive
from tests.streams.cluster import unique_name
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.drill]


def admin_of(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.internal_bootstrap_servers, "log_level": 0})


def create_topic(cluster: LocalCluster, topic: str, **config: str) -> None:
    new = NewTopic(topic, num_partitions=1, config=config)
    admin = admin_of(cluster)
    admin.create_topics([new], request_timeout=20)[topic].result(timeout=30)


def produce(cluster: LocalCluster, topic: str, values: list[bytes], **settings: str) -> None:
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0} | settings)
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, _: errors.append(error) if error else None
        )
    assert producer.flush(30) == 0
    assert errors == []


def consume(cluster: LocalCluster, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("three"), nodes=3, heap_mb=256) as cluster:
        yield cluster


def test_one_node_takes_and_gives_records(kafka_cluster: LocalCluster) -> None:
    topic = unique_name("records")
    create_topic(kafka_cluster, topic)
    produce(kafka_cluster, topic, [b"a", b"b"])
    assert consume(kafka_cluster, topic, 2) == [b"a", b"b"]


def test_it_is_reachable_from_this_machine_only(kafka_cluster: LocalCluster) -> None:
    addresses = f"{kafka_cluster.bootstrap_servers},{kafka_cluster.internal_bootstrap_servers}"
    assert {address.split(":")[0] for address in addresses.split(",")} == {"127.0.0.1"}
    brokers = admin_of(kafka_cluster).list_topics(timeout=10).brokers
    assert {broker.host for broker in brokers.values()} == {"127.0.0.1"}


def test_small_defaults_and_overrides(tmp_path: Path) -> None:
    properties = {"offsets.topic.num.partitions": "3", "message.max.bytes": "2000000"}
    with LocalCluster(tmp_path, properties=properties) as cluster:
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        admin = admin_of(cluster)
        configs = admin.describe_configs([resource])[resource].result(timeout=20)
        assert configs["offsets.topic.num.partitions"].value == "3"
        assert configs["message.max.bytes"].value == "2000000"
        assert configs["transaction.state.log.num.partitions"].value == "4"
        assert configs["group.initial.rebalance.delay.ms"].value == "0"


def test_three_nodes_replicate_and_one_may_die(three_nodes: LocalCluster) -> None:
    topic = unique_name("replicated")
    admin = admin_of(three_nodes)
    assert set(admin.list_topics(timeout=10).brokers) == {1, 2, 3}
    create_topic(three_nodes, topic, **{"min.insync.replicas": "2"})

    def replicas() -> list[int]:
        partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
        return [len(partition.replicas) for partition in partitions.values()]

    assert eventually(lambda: replicas() == [3])  # metadata reaches every broker a little later
    produce(three_nodes, topic, [b"a"], acks="all")
    three_nodes.kill_node(1)
    assert three_nodes.pid(1) is None
    produce(three_nodes, topic, [b"b"], acks="all")
    three_nodes.start_node(1)
    assert eventually(lambda: set(admin.list_topics(timeout=10).brokers) == {1, 2, 3})
    assert consume(three_nodes, topic, 2) == [b"a", b"b"]


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_a_node_comes_back_on_its_ports_with_its_data(tmp_path: Path, way: str) -> None:
    with LocalCluster(tmp_path) as cluster:
        topic = unique_name("kept")
        create_topic(cluster, topic)
        produce(cluster, topic, [b"a"])
        before = (cluster.bootstrap_servers, cluster.pid(0))
        (cluster.kill_node if way == "kill" else cluster.stop_node)(0)
        assert cluster.pid(0) is None
        cluster.start_node(0)
        assert cluster.bootstrap_servers == before[0]
        assert cluster.pid(0) not in (None, before[1])
        produce(cluster, topic, [b"b"])
        assert consume(cluster, topic, 2) == [b"a", b"b"]


def test_a_cluster_that_runs_is_not_started_again(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.start()
    running = (cluster.pid(0), cluster.bootstrap_servers)
    with cluster:
        assert (cluster.pid(0), cluster.bootstrap_servers) == running
        cluster.kill_node(0)
        cluster.start()
        assert cluster.pid(0) not in (None, running[0])
        assert cluster.bootstrap_servers == running[1]
    assert cluster.pid(0) is None


def test_a_directory_that_another_cluster_uses_is_the_reason(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path),
        pytest.raises(LocalClusterError, match=r"lock .* by another process .* this directory"),
    ):
        LocalCluster(tmp_path).start()


def test_a_later_cluster_finds_the_data_of_the_directory(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as first:
        create_topic(first, "kept")
        produce(first, "kept", [b"a"])
    with LocalCluster(tmp_path) as second:
        assert consume(second, "kept", 1) == [b"a"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda each: each.name)
def test_no_broker_outlives_its_owner(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
import pathlib, time
from kstreams_assets.local.cluster import LocalCluster
cluster = LocalCluster(pathlib.Path({str(tmp_path)!r}))
cluster.start()
print(cluster.pid(0), flush=True)
time.sleep(300)
"""
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as owner:
        assert owner.stdout is not None
        broker = int(owner.stdout.readline())
        assert alive(broker)
        owner.send_signal(number)
        owner.wait(timeout=20)
    assert eventually(lambda: not alive(broker))


def test_a_wrong_property_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        LocalClusterError, match=r"Invalid value many .* num\.io\.threads"
    ) as caught:
        LocalCluster(tmp_path, properties={"num.io.threads": "many"}).start()
    assert caught.value.log_file.exists()


def test_a_property_that_only_the_running_broker_refuses_is_named(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, properties={"authorizer.class.name": "no.such.Authorizer"})
    with pytest.raises(LocalClusterError, match=r"no\.such\.Authorizer"):
        cluster.start()
    assert cluster.pid(0) is None


def ports_with(taken: int) -> tuple[NodePorts, ...]:
    free = choose_ports(1)[0]
    return (NodePorts(client=taken, internal=free.internal, controller=free.controller),)


def test_a_lost_race_for_a_port_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", 0))
        rival.listen()
        taken = rival.getsockname()[1]
        answers = [ports_with(taken), choose_ports(1)]
        monkeypatch.setattr(local_cluster, "choose_ports", lambda _: answers.pop(0))
        with LocalCluster(tmp_path) as cluster:
            assert str(taken) not in cluster.bootstrap_servers
        assert answers == []


def test_a_port_that_stays_taken_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", 0))
        rival.listen()
        taken = rival.getsockname()[1]
        monkeypatch.setattr(local_cluster, "choose_ports", lambda _: ports_with(taken))
        with pytest.raises(LocalClusterError, match=f"{taken}.*Address already in use"):
            LocalCluster(tmp_path).start()


def test_missing_jars_are_an_error_that_says_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTREAMS_ASSETS_JARS", str(tmp_path / "none"))
    with pytest.raises(JarsMissingError, match=r"kstreams-assets jars fetch kafka"):
        LocalCluster(tmp_path / "data").start()


def sasl(password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": password,
    }


def test_scram_users_and_acls(tmp_path: Path) -> None:
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    with LocalCluster(
        tmp_path,
        properties=properties,
        client_protocol="SASL_PLAINTEXT",
        scram_users={"alice": "secret]= x"},
    ) as cluster:
        create_topic(cluster, "mine")  # the internal listener's user may do everything
        address = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
        right = AdminClient(address | sasl("secret]= x"))
        assert right.list_topics(timeout=10).brokers.keys() == {1}
        assert "mine" not in right.list_topics(timeout=10).topics  # no right DESCRIBE
        with pytest.raises(KafkaException):
            AdminClient(address | sasl("wrong")).list_topics(timeout=3)


def test_chosen_ports_are_distinct_and_below_the_range_of_outgoing_connections() -> None:
    ports = [p for node in choose_ports(3) for p in (node.client, node.internal, node.controller)]
    assert len(set(ports)) == 9
    assert all(12000 <= port < 32000 for port in ports)


def test_a_port_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = choose_ports(1)
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", first.client))
        monkeypatch.setattr(broker_properties, "_PORTS", range(first.client, first.client + 400))
        assert first.client not in [
            p for node in choose_ports(3) for p in (node.client, node.internal, node.controller)
        ]


def test_properties_are_escaped() -> None:
    assert properties_text([("a b", "c=d\\ä\n")]) == "a\\ b=c\\=d\\\\\\u00e4\\n\n"


def test_nothing_is_left_after_the_with_block(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        broker = cluster.pid(0)
        assert broker is not None
    with pytest.raises(ProcessLookupError):
        os.kill(broker, 0)
