"""Starts and stops VectorApp.java, makes its topics, and sends its orders."""

import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from examples.streams.process import StreamsProcess
from kstreams_assets.app.model import (
    AppTopic,
    Store,
    StreamsApplication,
    TopicEdge,
    TopicRole,
    TopicRoles,
)
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from spark_resources.java import JavaProgram

PROGRAM: Final = JavaProgram(Path(__file__).with_name("VectorApp.java"))
PARTITIONS: Final = 4
CUSTOMERS: Final = 200


def application_of(
    application_id: str,
    topics: Mapping[str, tuple[TopicRole, tuple[int, ...]]],
    stores: tuple[Store, ...],
    edges: tuple[TopicEdge, ...],
) -> StreamsApplication:
    """An application; `topics` have a role, and the sub-topologies that read or own them."""
    found = tuple(
        AppTopic(name, TopicRoles({role}), subtopologies=numbers)
        for name, (role, numbers) in sorted(topics.items())
    )
    return StreamsApplication(application_id, found, stores, edges)


@dataclass(frozen=True, slots=True)
class VectorTopics:
    """The names of every topic of one VectorApp."""

    application_id: str
    prefix: str = ""

    @property
    def orders(self) -> str:
        """Input: value "customer,partition,id"."""
        return f"{self.prefix}orders"

    @property
    def regions(self) -> str:
        """A global table, with the property `with.regions`."""
        return f"{self.prefix}regions"

    @property
    def by_customer(self) -> str:
        """Orders by customer: a vector with one 1."""
        return f"{self.application_id}-by-customer-repartition"

    @property
    def totals(self) -> str:
        """Changelog: the vector of each customer."""
        return f"{self.application_id}-totals-changelog"

    @property
    def by_group(self) -> str:
        """Changes of totals, by group."""
        return f"{self.application_id}-by-group-repartition"

    @property
    def groups(self) -> str:
        """Changelog: the vector of each group, which is one customer."""
        return f"{self.application_id}-groups-changelog"

    @property
    def customer_totals(self) -> str:
        """Output of totals."""
        return f"{self.prefix}customer-totals"

    @property
    def group_totals(self) -> str:
        """Output of groups."""
        return f"{self.prefix}group-totals"

    @property
    def written(self) -> tuple[str, ...]:
        """All topics that the application writes."""
        return (
            self.by_customer,
            self.totals,
            self.customer_totals,
            self.by_group,
            self.groups,
            self.group_totals,
        )

    @property
    def application(self) -> StreamsApplication:
        """The application as this project sees it."""
        of = {
            self.orders: (TopicRole.INPUT, (0,)),
            self.by_customer: (TopicRole.REPARTITION, (1,)),
            self.totals: (TopicRole.CHANGELOG, (1,)),
            self.customer_totals: (TopicRole.OUTPUT, ()),
            self.by_group: (TopicRole.REPARTITION, (2,)),
            self.groups: (TopicRole.CHANGELOG, (2,)),
            self.group_totals: (TopicRole.OUTPUT, ()),
        }
        edges = (
            TopicEdge(self.orders, self.by_customer),
            TopicEdge(self.by_customer, self.totals),
            TopicEdge(self.by_customer, self.customer_totals),
            TopicEdge(self.by_customer, self.by_group),
            TopicEdge(self.by_group, self.groups),
            TopicEdge(self.by_group, self.group_totals),
        )
        stores = (Store("groups", self.groups), Store("totals", self.totals))
        return application_of(self.application_id, of, stores, edges)

    def create(self, cluster: KafkaCluster) -> None:
        """Create inputs and outputs."""
        names = (self.orders, self.customer_totals, self.group_totals)
        cluster.create_topics([TopicSpec(name, PARTITIONS) for name in names])


class VectorApp(StreamsProcess):
    """One instance of the application, as a context manager; `config` are Streams properties."""

    def __init__(
        self,
        bootstrap_servers: str,
        topics: VectorTopics,
        *,
        state_dir: Path,
        config: Mapping[str, str] | None = None,
        program: JavaProgram = PROGRAM,
    ) -> None:
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "application.id": topics.application_id,
            "state.dir": str(state_dir.absolute()),
            "commit.interval.ms": "1000",
            "num.stream.threads": "2",
            "repartition.purge.interval.ms": "86400000",
            **(config or {}),
        }
        arguments = [topics.prefix, *(text for pair in settings.items() for text in pair)]
        log_file = state_dir.parent / f"{state_dir.name}-vector-app.log"
        super().__init__(program, arguments, log_file=log_file, heap_mb=256)


@contextmanager
def orders(bootstrap_servers: str, topics: VectorTopics, *, rate: float) -> Iterator[None]:
    """Send orders from a thread for the time of the block."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "log_level": 0})
    source, over = random.Random(7), threading.Event()

    def run() -> None:
        sent, started = 0, time.monotonic()
        while not over.wait(0.02):
            for _ in range(sent, int(rate * (time.monotonic() - started))):
                partition = source.randrange(PARTITIONS)
                value = f"c{source.randrange(CUSTOMERS)},{partition},{sent}"
                producer.produce(topics.orders, value=value, partition=partition)
                sent += 1
            producer.poll(0)

    thread = threading.Thread(target=run, name="vector-orders", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        producer.flush(30)
