"""Points of a running at-least-once application while brokers die and leaders move."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from kstreams_assets.errors import KafkaError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.coordinator_log import CONSUMER_OFFSETS, coordinator_partition
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, Method, RecoveryPoint
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.settings import RecoveryPointSettings
from tests.recovery.replicated import await_leader
from tests.recovery.test_barrier import control_of, on_demand
from tests.recovery.test_passive_commits import read_to_the_end, wait_for_offsets
from tests.recovery.vector_oracle import read_vectors
from tests.streams.cluster import connection_to, unique_name
from tests.streams.vector_app import PARTITIONS, VectorTopics, orders

pytestmark = [pytest.mark.kafka, pytest.mark.drill, pytest.mark.alone]

METHODS: Final = (Method.PASSIVE_COMMITS, Method.JOURNAL, Method.BARRIER)
EACH: Final = 10
LONGEST_S: Final = 600


class OneMethod(Recorder):
    """Uses one of the methods at commits after the other."""

    def _methods_at_commits(self) -> Sequence[Method]:
        return (METHODS[int(time.monotonic() / 10) % len(METHODS)],)


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[LocalCluster]:
    properties = {"group.coordinator.append.linger.ms": "20", "offsets.topic.num.partitions": "4"}
    with LocalCluster(tmp_path / "three", nodes=3, heap_mb=256, properties=properties) as local:
        yield local


@pytest.mark.timeout(1800)
def test_no_point_loses_a_record(three_brokers: LocalCluster, tmp_path: Path) -> None:
    """Only the application itself repeats records, when it loses a broker or its session."""
    servers = three_brokers.bootstrap_servers
    topics = VectorTopics(unique_name("vector"), unique_name("v") + ".")
    config = {
        "replication.factor": "3",
        "commit.interval.ms": "1000",
        "linger.ms": "100",
        "producer.request.timeout.ms": "5000",
    }
    over = threading.Event()
    killed: list[int] = []
    points: list[RecoveryPoint] = []
    refused: Counter[str] = Counter()

    def disturb() -> None:
        """Kill the broker of the group's offsets or another one; later move all leaders back."""
        source = random.Random(11)
        log = coordinator_partition(topics.application_id, 4)
        while not over.wait(source.uniform(6, 12)):
            node = await_leader(servers, CONSUMER_OFFSETS, log) - 1
            if len(killed) % 2:
                node = (node + 1) % 3
            killed.append(node)
            three_brokers.kill_node(node)
            over.wait(source.uniform(8, 15))
            three_brokers.start_node(node)
            over.wait(5)
            admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
            try:
                admin.elect_leaders(ElectionType.PREFERRED).result(30)
            except KafkaException as error:
                refused[f"election: {error}"] += 1

    def exact() -> Counter[Method]:
        return Counter(one.method for one in points if one.guarantee is Guarantee.EXACT)

    thread = threading.Thread(target=disturb, name="disturber")
    with KafkaCluster(connection_to(servers)) as cluster:
        cluster.create_topics(
            TopicSpec(name, PARTITIONS, 3)
            for name in (topics.orders, topics.customer_totals, topics.group_totals)
        )
        recorder = OneMethod(
            topics.application,
            cluster,
            Warehouse(tmp_path / "warehouse"),
            RecoveryPointSettings(control_topic=control_of(topics)),
        )
        with on_demand(servers, topics, tmp_path / "app", config):
            with orders(servers, topics, rate=500):
                wait_for_offsets(cluster, topics)
                thread.start()
                deadline = time.monotonic() + LONGEST_S
                try:
                    while any(exact()[one] < EACH for one in METHODS):
                        assert time.monotonic() < deadline, (exact(), refused)
                        try:
                            points.append(recorder.take(commit_wait_s=8))
                        except KafkaError as error:
                            refused[str(error)[:60]] += 1
                        time.sleep(1)
                finally:
                    over.set()
                    thread.join(120)
            read_to_the_end(cluster, topics)
        history = read_vectors(cluster, topics)
    print(f"{len(killed)} brokers killed, {len(points)} points, exact: {exact()}, {refused}")  # noqa: T201
    before: Sequence[np.ndarray] = ()
    for point in points:
        ends = {cut.id: cut.end for cut in point.partitions}
        excluded = {cut.id: cut.excluded for cut in point.partitions}
        repeats = history.differences(ends, point.group.committed, excluded)[:2]
        before = before or [np.zeros_like(one) for one in repeats]
        grown = [now - then for now, then in zip(repeats, before, strict=True)]
        assert all((one >= 0).all() for one in grown), point
        if point.guarantee is Guarantee.EXACT:
            before = repeats
    assert len(killed) >= 3
