"""examples/order_processor: the application against what follows from the generated orders."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

import examples
from examples.order_processor.application import OrderProcessor, create_topics, describe_topology
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import CustomerTotal, OrderGenerator, customer_totals
from kstreams_assets.errors import ProcessError
from kstreams_assets.local.cluster import LocalCluster
from tests.streams.cluster import unique_name
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.kafka

PARTITIONS = 4


def read_topic(cluster: LocalCluster, topic: str) -> Iterator[Message]:
    """Yield every committed record of a topic up to its present end."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    open_partitions = set(range(PARTITIONS))
    deadline = time.monotonic() + DEADLINE_S
    while open_partitions:
        assert time.monotonic() < deadline
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            yield message
        elif message is not None:
            open_partitions.discard(message.partition())
    consumer.close()


def totals_in(cluster: LocalCluster, topic: str) -> dict[str, CustomerTotal]:
    totals: dict[str, CustomerTotal] = {}
    for message in read_topic(cluster, topic):
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        totals[key.decode()] = CustomerTotal(**json.loads(value))
    return totals


def await_totals(
    cluster: LocalCluster, topic: str, expected: dict[str, CustomerTotal]
) -> dict[str, CustomerTotal]:
    """Return the totals once they are the expected ones, or what they are after 60 s."""
    deadline = time.monotonic() + 60
    while (found := totals_in(cluster, topic)) != expected and time.monotonic() < deadline:
        time.sleep(0.3)
    return found


def test_totals_and_rejected_orders(kafka_cluster: LocalCluster, tmp_path: Path) -> None:
    prefix = unique_name("totals") + "."
    create_topics(kafka_cluster.bootstrap_servers, topic_prefix=prefix)
    generator = OrderGenerator(seed=7, customers=50, invalid_share=0.1)
    with OrderProcessor(
        kafka_cluster.bootstrap_servers,
        state_dir=tmp_path / "state",
        application_id=unique_name("app"),
        topic_prefix=prefix,
        commit_interval_ms=100,
    ):
        sent = produce_orders(
            kafka_cluster.bootstrap_servers, generator, topic=prefix + "orders", count=2000
        )
        orders = list(generator.orders(sent.indices))
        expected = customer_totals(orders)
        assert await_totals(kafka_cluster, prefix + "customer-totals", expected) == expected
    rejected = {
        message.key(): (message.value(), message.headers())
        for message in read_topic(kafka_cluster, prefix + "orders-rejected")
    }
    assert rejected == {
        order.key: (order.value, [("reason", order.rejection.encode())])
        for order in orders
        if order.rejection is not None
    }
    reasons = Counter(order.rejection for order in orders)
    assert set(reasons) == {None, "no customer", "no positive amount", "not JSON"}


def test_totals_survive_a_stop_and_a_start(kafka_cluster: LocalCluster, tmp_path: Path) -> None:
    prefix = unique_name("restart") + "."
    create_topics(kafka_cluster.bootstrap_servers, topic_prefix=prefix)
    generator = OrderGenerator(seed=8, customers=20)
    application = OrderProcessor(
        kafka_cluster.bootstrap_servers,
        state_dir=tmp_path / "state",
        application_id=unique_name("app"),
        topic_prefix=prefix,
        commit_interval_ms=100,
    )
    sent = 0
    for _ in range(2):
        with application:
            sent += produce_orders(
                kafka_cluster.bootstrap_servers,
                generator,
                topic=prefix + "orders",
                count=300,
                first_index=sent,
            ).count
            expected = customer_totals(generator.orders(range(sent)))
            assert await_totals(kafka_cluster, prefix + "customer-totals", expected) == expected
        assert not application.running


def test_missing_topics_are_one_clear_error(kafka_cluster: LocalCluster, tmp_path: Path) -> None:
    application = OrderProcessor(
        kafka_cluster.bootstrap_servers,
        state_dir=tmp_path / "state",
        application_id=unique_name("app"),
        topic_prefix=unique_name("missing"),
    )
    with pytest.raises(ProcessError, match=r"(?s)not RUNNING.*check that its topics exist"):
        application.start()
    assert not application.running


def test_describe_equals_the_text_kept_beside_the_component() -> None:
    kept = Path(examples.__file__).parent / "defs" / "order_processor" / "topology.txt"
    assert describe_topology() == kept.read_text("utf-8")
    assert "topics: [eu.orders]" in describe_topology(topic_prefix="eu.")
