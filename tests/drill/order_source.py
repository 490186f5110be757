"""What an order processor leaves behind: a warehouse with two recovery points, its cluster gone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from examples.order_processor.application import create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import CustomerTotal, OrderGenerator, customer_totals
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.settings import ApplicationSettings
from spark_resources.work import Spark
from tests.restore.control import newest, read
from tests.restore.trial import Source
from tests.streams.cluster import connection_to, passing_cluster
from tests.streams.orders import PARTITIONS, OrderTopics, order_processor

ROOT: Final = Path(__file__).parents[2]
APPLICATION_ID: Final = "order-processor"


@dataclass(frozen=True, slots=True)
class OrderSource:
    """`quiet` holds nothing that was not processed; at `waiting` orders wait.

    `settings` have a drill of the order processor; `seen` are the totals at `quiet`, `all_` those
    of all orders.
    """

    settings: ApplicationSettings
    topics: OrderTopics
    quiet: RecoveryPoint
    waiting: RecoveryPoint
    seen: Mapping[str, CustomerTotal]
    all_: Mapping[str, CustomerTotal]
    processed: int
    waiting_orders: int

    def with_drill(self, **changes: object) -> ApplicationSettings:
        """The settings with another drill, and without rules: evaluating them takes a while."""
        drill = self.settings.drill.model_copy(update=changes)
        return replace(self.settings, drill=drill, completeness=(), recomputed=())


def make_order_source(
    folder: Path, spark: Spark, *, processed: int, waiting: int, customers: int = 200
) -> OrderSource:
    """Run the order processor on a cluster of its own, take points, back up, stop everything."""
    topics = OrderTopics(APPLICATION_ID, "")
    generator = OrderGenerator(seed=5, customers=customers)
    with (
        passing_cluster(folder / "source") as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
    ):
        servers = local.bootstrap_servers
        create_topics(servers, partitions=PARTITIONS)
        source = Source(_settings(servers, folder), cluster)
        with order_processor(servers, topics, folder / "state"):
            produce_orders(servers, generator, topic=topics.orders, count=processed)
            source.drain()
            quiet = source.take()
        produce_orders(
            servers, generator, topic=topics.orders, first_index=processed, count=waiting
        )
        last = source.take()
        source.back_up(last, spark)
    return OrderSource(
        settings=source.settings,
        topics=topics,
        quiet=quiet,
        waiting=last,
        seen=customer_totals(generator.orders(range(processed))),
        all_=customer_totals(generator.orders(range(processed + waiting))),
        processed=processed,
        waiting_orders=waiting,
    )


def totals_on(connection: KafkaConnection, topics: OrderTopics) -> dict[str, CustomerTotal]:
    """What the changelog of the store says of every customer."""
    records = read(connection, [topics.changelog])[topics.changelog]
    return {
        (key or b"").decode(): CustomerTotal(**json.loads(written.value or b""))
        for key, written in newest(records).items()
    }


def _settings(servers: str, folder: Path) -> ApplicationSettings:
    """Those of the worked example, with its rules and its drill."""
    settings = load_settings(
        ROOT / "examples/defs/order_processor/defs.yaml",
        application_id=None,
        bootstrap_servers=servers,
        warehouse=str(folder / "warehouse"),
    )
    drill = settings.drill.model_copy(
        update={
            "start_timeout_seconds": 150.0,
            "catch_up_timeout_seconds": 150.0,
            "objective_seconds": 600.0,
        }
    )
    return replace(settings, connection=connection_to(servers), drill=drill)
