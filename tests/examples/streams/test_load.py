"""Load generators send what they say: so many, at such a rate, to topics with a prefix."""

import threading
from collections.abc import Iterable

import pytest
from click.testing import CliRunner

from examples.orders_count.load import main as orders_count
from examples.orders_created.orders import TOPIC, CreatedOrders
from examples.orders_risk_scoring.load import main as orders_risk_scoring
from examples.streams.load import Event, LoadError, send
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from tests.restore.control import read
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka


def topic_of(kafka_cluster: LocalCluster, *names: str) -> str:
    """Creates topics with a prefix of their own, and returns it."""
    prefix = f"{unique_name('load')}."
    connection = KafkaConnection(bootstrap_servers=kafka_cluster.bootstrap_servers)
    with KafkaCluster(connection) as cluster:
        cluster.create_topics([TopicSpec(prefix + name, 1) for name in names])
    return prefix


def numbered(index: int) -> Iterable[Event]:
    """A record for each of two topics."""
    yield Event("one", b"%d" % index, b"now")
    yield Event("two", None, None, 1_000 + index)


def test_records_of_an_index_go_out_together(kafka_cluster: LocalCluster) -> None:
    prefix = topic_of(kafka_cluster, "one", "two")
    servers = kafka_cluster.bootstrap_servers
    sent = send(servers, numbered, count=30, first_index=5, topic_prefix=prefix)
    assert (sent.indices, sent.records) == (30, 60)
    found = read(servers, [prefix + "one", prefix + "two"])
    assert [r.key for r in found[prefix + "one"]] == [b"%d" % index for index in range(5, 35)]
    assert all(r.timestamp_ms > 1_700_000_000_000 for r in found[prefix + "one"])
    assert [r.timestamp_ms for r in found[prefix + "two"]] == list(range(1_005, 1_035))


def test_it_keeps_the_rate_and_ends_in_time(kafka_cluster: LocalCluster) -> None:
    prefix = topic_of(kafka_cluster, "one", "two")
    servers = kafka_cluster.bootstrap_servers
    sent = send(servers, numbered, rate=100, seconds=4, topic_prefix=prefix)
    assert 100 <= sent.indices <= 401  # it may pause at the end, with the machine
    assert sent.seconds >= 4


def test_it_stops_when_told(kafka_cluster: LocalCluster) -> None:
    prefix = topic_of(kafka_cluster, "one", "two")
    stop = threading.Event()

    def last(index: int) -> Iterable[Event]:
        if index == 9:
            stop.set()
        return numbered(index)

    sent = send(kafka_cluster.bootstrap_servers, last, topic_prefix=prefix, stop=stop)
    assert sent.indices == 10


def test_what_is_not_delivered_is_an_error(kafka_cluster: LocalCluster) -> None:
    def too_large(_index: int) -> Iterable[Event]:
        yield Event("one", None, bytes(900_000_000 // 450))

    prefix = topic_of(kafka_cluster, "one")
    with pytest.raises(LoadError, match="Cannot send to one"):
        send(kafka_cluster.bootstrap_servers, too_large, count=1, topic_prefix=prefix)


@pytest.mark.parametrize("command", [orders_count, orders_risk_scoring])
def test_commands_send_the_orders_of_a_seed(command: object, kafka_cluster: LocalCluster) -> None:
    prefix = topic_of(kafka_cluster, TOPIC)
    servers = kafka_cluster.bootstrap_servers
    arguments = ["--bootstrap", servers, "--count", "20", "--seed", "4", "--topic-prefix", prefix]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)  # pyright: ignore[reportArgumentType]
    assert result.exit_code == 0, result.output
    assert "20 records" in result.output
    assert "next index 20" in result.output
    orders = map(CreatedOrders(seed=4).order, range(20))
    found = read(servers, [prefix + TOPIC])[prefix + TOPIC]
    assert [(r.key, r.value) for r in found] == [(o.key, o.value) for o in orders]


def test_a_command_without_an_end_is_refused() -> None:
    result = CliRunner().invoke(orders_count, ["--bootstrap", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "Give --seconds or --count" in result.output
