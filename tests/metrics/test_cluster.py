"""Metrics of a real application on a real broker, as Prometheus reads them."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import requests

import examples
from examples.order_processor.application import OrderProcessor, create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.app.roles import application_from_topology
from kstreams_assets.app.topology import parse_topology
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.metrics.catalogue import METRICS, Source
from kstreams_assets.metrics.collect import Scrape
from kstreams_assets.metrics.exposition import Address, MetricsServer
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from scripts.reference.jmx_texts import JMX
from spark_resources.jars import class_path
from spark_resources.java import find_java
from tests.metrics.exposed import Exposed
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka

ORDERS = 600
PARTITIONS = range(4)
GENERATOR = OrderGenerator(seed=11, customers=20, invalid_share=0.1)
TOPOLOGY = Path(examples.__file__).parent / "defs" / "order_processor" / "topology.txt"


@dataclass
class Running:
    """The order processor, its settings, and an endpoint that serves its metrics."""

    settings: ApplicationSettings
    server: MetricsServer
    program: OrderProcessor
    prefix: str

    def scrape(self) -> Exposed:
        """What the endpoint says now."""
        answer = requests.get(self.server.url, timeout=30)
        assert answer.status_code == 200
        return Exposed.of_text(answer.text)

    def scrape_until(self, holds: Callable[[Exposed], bool]) -> Exposed:
        """The first scrape of which it holds, or the last one after 60 s."""
        deadline = time.monotonic() + 60
        while not holds(found := self.scrape()) and time.monotonic() < deadline:
            time.sleep(0.3)
        return found


def _settings(bootstrap_servers: str, folder: Path, prefix: str) -> ApplicationSettings:
    named = r"(?<=topics: \[)(?=orders\])|(?<=topic: )(?=customer-totals|orders-rejected)"
    text = re.sub(named, prefix, TOPOLOGY.read_text("utf-8"))
    application = application_from_topology(unique_name("metrics"), parse_topology(text))
    return ApplicationSettings(
        application=application,
        topics=application.topics,
        connection=KafkaConnection(bootstrap_servers=bootstrap_servers),
        warehouse=Warehouse(folder / "warehouse"),
        windows=WindowSchedule.every("hour", start="2026-11-01"),
    )


@pytest.fixture(scope="module")
def running(
    kafka_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Orders were sent, and one recovery point was taken."""
    folder, prefix = tmp_path_factory.mktemp("metrics"), unique_name("metrics") + "."
    servers = kafka_cluster.bootstrap_servers
    settings = _settings(servers, folder, prefix)
    create_topics(servers, topic_prefix=prefix)
    program = OrderProcessor(
        servers,
        state_dir=folder / "state",
        application_id=settings.application_id,
        topic_prefix=prefix,
        commit_interval_ms=100,
        threads=2,
    )
    with (
        program,
        MetricsServer(Address("127.0.0.1", 0), Scrape([settings], timeout_s=20)) as server,
    ):
        produce_orders(servers, GENERATOR, topic=f"{prefix}orders", count=ORDERS)
        with KafkaCluster(settings.connection) as cluster:
            Recorder(settings.application, cluster, settings.warehouse).take()
        yield Running(settings, server, program, prefix)


def test_a_live_application(running: Running) -> None:
    def is_done(found: Exposed) -> bool:
        return sum(found.all("kstreams_consumed_offsets_total", role="input")) == ORDERS

    running.scrape_until(is_done)
    found = running.scrape()  # ends of topics are read before the group, so those were older
    assert [found.one("kstreams_up", source=s) for s in ("cluster", "group", "warehouse")] == [
        1
    ] * 3
    assert found.one("kstreams_group_state", state="Stable") == 1
    assert sum(found.all("kstreams_group_state")) == 1
    assert found.one("kstreams_group_members") == 2  # its threads
    orders = f"{running.prefix}orders"
    produced = found.all("kstreams_produced_offsets_total", topic=orders)
    assert sum(produced) == ORDERS  # written without transactions: no markers
    for partition in PARTITIONS:
        labels = {"topic": orders, "partition": str(partition), "role": "input"}
        consumed = found.one("kstreams_consumed_offsets_total", **labels)
        assert found.one("kstreams_lag_offsets", **labels) == (
            found.one("kstreams_produced_offsets_total", **labels) - consumed
        )
    assert len(found.all("kstreams_lag_offsets", role="repartition")) == 4
    assert not found.all("kstreams_lag_offsets", role="output")
    assert not found.all("kstreams_lag_offsets", role="changelog")
    rejected = sum(o.rejection is not None for o in GENERATOR.orders(range(ORDERS)))
    markers = sum(
        found.all("kstreams_produced_offsets_total", topic=f"{running.prefix}orders-rejected")
    )
    assert rejected <= markers
    assert found.one("kstreams_recovery_point_timestamp_seconds", kind="newest") > time.time() - 300
    assert found.one("kstreams_scrape_duration_seconds", source="group") < 20


def test_every_topic_of_the_application(running: Running) -> None:
    found = running.scrape()
    for topic in running.settings.application.topics:
        role = "+".join(sorted(topic.roles))
        assert found.one("kstreams_topic_present", topic=topic.name, role=role) == 1
        assert found.one("kstreams_topic_partitions", topic=topic.name, role=role) == 4
        assert found.all("kstreams_log_start_offset", topic=topic.name)[0] >= 0


def test_all_that_brokers_can_tell_is_there(running: Running) -> None:
    elsewhere = (Source.WAREHOUSE, Source.SECOND_COPY)
    of_brokers = {m.name for m in METRICS.values() if m.source not in elsewhere}
    assert of_brokers - running.scrape().names == set()


def test_what_the_reference_says_of_the_applications_jmx(running: Running) -> None:
    found = _jmx_names(running.program)
    for what, bean, attribute in JMX:
        pattern = re.escape(f"{bean}:{attribute}").replace(r"\*", "[^,:]+")
        assert any(re.fullmatch(pattern, name) for name in found), (what, bean, attribute)


def _jmx_names(program: OrderProcessor) -> set[str]:
    """`MBean:attribute` of everything that Kafka's clients in the application register."""
    compiler = find_java(compiler=True).compiler
    assert compiler is not None
    jcmd = [str(compiler.with_name("jcmd")), str(program.pid)]
    _output([*jcmd, "ManagementAgent.start_local"])
    url = re.search(r"service:jmx:\S+", _output([*jcmd, "ManagementAgent.status"]))
    assert url is not None
    tool = [str(find_java().executable), "-Xmx64m", "-cp", class_path("kafka")]
    tool += ["org.apache.kafka.tools.JmxTool", "--one-time", "--report-format", "properties"]
    names = [f"kafka.{domain}:*" for domain in ("streams", "consumer", "producer")]
    beans = [word for name in names for word in ("--object-name", name)]
    lines = _output([*tool, "--jmx-url", url[0], *beans]).splitlines()
    # The value, which may hold anything, begins after the attribute.
    return {found[0] for line in lines if (found := re.match(r"kafka\.[^:]+:[^:]+:[\w-]+", line))}


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_a_topic_that_is_gone_and_one_never_read(running: Running, tmp_path: Path) -> None:
    application = running.settings.application
    absent, unread = unique_name("absent"), f"{running.prefix}orders-rejected"
    topics = (
        AppTopic(absent, TopicRoles({TopicRole.INPUT})),
        AppTopic(unread, TopicRoles({TopicRole.INPUT})),
    )
    settings = replace(running.settings, application=replace(application, topics=topics))
    found = Exposed.of(Scrape([settings], timeout_s=20))
    assert found.one("kstreams_topic_present", topic=absent) == 0
    assert not found.all("kstreams_topic_partitions", topic=absent)
    assert not found.all("kstreams_consumed_offsets_total")
    with KafkaCluster(settings.connection) as cluster:
        ends = cluster.last_stable_offsets([TopicPartitionId(unread, n) for n in PARTITIONS])
    assert sum(found.all("kstreams_lag_offsets", topic=unread)) == sum(ends.values()) > 0


def test_a_group_that_never_was(running: Running) -> None:
    application = replace(running.settings.application, application_id=unique_name("nobody"))
    found = Exposed.of(Scrape([replace(running.settings, application=application)], timeout_s=20))
    assert found.one("kstreams_group_state", state="Absent") == 1
    assert found.one("kstreams_group_members") == 0


def test_an_application_that_stopped(running: Running) -> None:
    """Last: it stops the application that the others look at."""
    running.program.stop()
    orders = f"{running.prefix}orders"
    servers = running.settings.connection.bootstrap_servers
    before = sum(running.scrape().all("kstreams_lag_offsets", topic=orders))
    produce_orders(servers, GENERATOR, topic=orders, count=50, first_index=ORDERS)
    after = sum(running.scrape().all("kstreams_lag_offsets", topic=orders))
    assert after == before + 50
