"""What the order processor keeps for each customer; and a run of it that nothing interrupts."""

import json
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from examples.demo.live import DemoError, await_drained
from examples.demo.place import CONFIG
from examples.order_processor.application import OrderProcessor, create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import CustomerTotal, OrderGenerator
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings

_READ_TIMEOUT_S: Final = 30.0
_OUTPUT: Final = "customer-totals"


def uninterrupted(
    folder: Path, settings: ApplicationSettings, generator: OrderGenerator, count: int
) -> dict[str, CustomerTotal]:
    """The totals of an order processor that got all orders, on a cluster of its own."""
    with LocalCluster(folder / "kafka") as cluster:
        create_topics(cluster.bootstrap_servers)
        with (
            OrderProcessor(
                cluster.bootstrap_servers,
                state_dir=folder / "state",
                application_id=settings.application_id,
                config=CONFIG,
            ),
            KafkaCluster(KafkaConnection(bootstrap_servers=cluster.bootstrap_servers)) as asked,
        ):
            produce_orders(cluster.bootstrap_servers, generator, count=count)
            await_drained(settings, asked)
            return totals(asked)


def totals(cluster: KafkaCluster) -> dict[str, CustomerTotal]:
    """The newest record of each customer in the application's output topic."""
    partitions = cluster.metadata().topics[_OUTPUT].partitions
    ids = [TopicPartitionId(_OUTPUT, number) for number in range(partitions)]
    ends = cluster.last_stable_offsets(ids)
    open_ids = {id_ for id_ in ids if ends[id_] > 0}
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.connection.bootstrap_servers,
            "group.id": "demo-totals",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: dict[str, CustomerTotal] = {}
    try:
        consumer.assign([TopicPartition(i.topic, i.partition, 0) for i in open_ids])
        while open_ids:
            messages = consumer.consume(10_000, _READ_TIMEOUT_S)
            if not messages:
                raise DemoError(f"{_OUTPUT} could not be read within {_READ_TIMEOUT_S:.0f} s.")
            for message in messages:
                if message.error():  # the end of a partition
                    open_ids.discard(TopicPartitionId(_OUTPUT, message.partition() or 0))
                    continue
                value = json.loads(message.value() or b"")
                total = CustomerTotal(value["count"], value["total_cents"])
                found[(message.key() or b"").decode()] = total
    finally:
        consumer.close()
    return found
