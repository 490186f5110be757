"""Transactions that stay open for long and write little, on a real broker.

librdkafka keeps one producer epoch for many transactions, which only its markers show.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.scene import NotTaken, Positions, Scene
from kstreams_assets.recovery.transactions import TransactionsMethod
from tests.kafka.transacting import TIMEOUT_S, settled_end, transact, transactional_producer
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka


class Application:
    """One producer as a stream thread has it, that punctuates a changelog and an output."""

    def __init__(self, servers: str) -> None:
        self.id = unique_name("app")
        self.connection = KafkaConnection(bootstrap_servers=servers, request_timeout_seconds=10)
        self.changelog = TopicPartitionId(f"{self.id}-store-changelog", 0)
        self.output = TopicPartitionId(unique_name("output"), 0)
        self.producer: Producer | None = None
        self.calls: list[str] = []

    @contextmanager
    def cluster(self) -> Iterator[KafkaCluster]:
        """The cluster, which notes what is asked of transactions."""
        with KafkaCluster(self.connection) as cluster:
            for name in ("transactional_ids", "ongoing_producers"):
                setattr(cluster, name, self._noted(name, getattr(cluster, name)))
            yield cluster

    def begin(self) -> Producer:
        """Commit one transaction, then open one that has written to the output."""
        with self.cluster() as cluster:
            cluster.create_topics([TopicSpec(p.topic, 1) for p in (self.changelog, self.output)])
            servers = self.connection.bootstrap_servers
            # another application, so that there is a topic of offsets
            elsewhere = TopicPartitionId(unique_name("elsewhere"), 0)
            cluster.create_topics([TopicSpec(elsewhere.topic, 1)])
            other = unique_name("other")
            transact(transactional_producer(servers, other), other, {elsewhere: (0, "")})
            producer = transactional_producer(servers, f"{self.id}-{uuid.uuid4()}-1")
            producer.begin_transaction()
            for partition in (self.changelog, self.output):
                producer.produce(partition.topic, b"v", partition=0)
            producer.commit_transaction(TIMEOUT_S)
            settled_end(cluster, self.output)
            producer.begin_transaction()
            producer.produce(self.output.topic, b"v", partition=0)
            assert producer.flush(TIMEOUT_S) == 0
        return producer

    def take(self, between=lambda _step: None) -> Positions | NotTaken:
        """One try of the method."""
        roles = {self.changelog: TopicRole.CHANGELOG, self.output: TopicRole.OUTPUT}
        topics = tuple(AppTopic(p.topic, TopicRoles({role})) for p, role in sorted(roles.items()))
        application = StreamsApplication(self.id, topics)
        with self.cluster() as cluster, RawLogReader(self.connection) as reader:
            present = cluster.metadata().topics
            scene = Scene(application, cluster, reader, present, between=between)
            return TransactionsMethod(scene).take()

    def _noted(self, name: str, ask):
        def noted(*arguments: object) -> object:
            self.calls.append(name)
            return ask(*arguments)

        return noted


@pytest.fixture
def application(kafka_cluster: LocalCluster) -> Application:
    return Application(kafka_cluster.bootstrap_servers)


def test_an_open_one_is_decided_by_one_question(application: Application) -> None:
    producer = application.begin()
    positions = application.take()
    assert isinstance(positions, Positions), positions
    assert positions.ends[application.output] == 2  # a record and its marker
    assert application.calls.count("ongoing_producers") == 1
    producer.commit_transaction(TIMEOUT_S)


def test_one_that_writes_on_raises_no_question(application: Application) -> None:
    producer = application.begin()

    def write(step: str) -> None:
        if step == "second look at the last stable offsets":
            producer.produce(application.output.topic, b"v", partition=0)
            producer.flush(TIMEOUT_S)

    assert isinstance(application.take(write), Positions)
    assert "ongoing_producers" not in application.calls
    producer.abort_transaction(TIMEOUT_S)


def test_one_that_ended_meanwhile_is_told_by_its_history(application: Application) -> None:
    producer = application.begin()

    def commit(step: str) -> None:
        if step == "raw logs":
            producer.commit_transaction(TIMEOUT_S)

    positions = application.take(commit)
    assert isinstance(positions, Positions), positions
    assert application.calls.count("ongoing_producers") == 1
    assert positions.ends[application.output] == 2
