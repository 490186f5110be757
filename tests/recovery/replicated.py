"""Three brokers, and transactions of an application whose leaders can be paused."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.coordinator_log import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    coordinator_partition,
)
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from tests.kafka.transacting import settled_end, transactional_producer
from tests.streams.cluster import unique_name

LIMIT_S = 40.0
INPUTS = 20
"""Records of the input: committed offsets lie inside its log."""


@dataclass(slots=True)
class Replicated:
    """An application with an input and a changelog, replicated over three brokers."""

    local: LocalCluster
    group: str = ""
    input: TopicPartitionId = field(init=False)
    changelog: TopicPartitionId = field(init=False)
    _producer: Producer | None = None

    def make(self) -> "Replicated":
        """Its topics; one broker leads the changelog, others coordinate group and transactions."""
        self.input = TopicPartitionId(unique_name("in"), 0)
        self.changelog = TopicPartitionId(unique_name("changelog"), 0)
        with self.asking() as cluster:
            cluster.create_topics(
                [TopicSpec(one.topic, 1, 3) for one in (self.input, self.changelog)]
            )
        self.await_leader(self.input)
        sender = Producer({"bootstrap.servers": self.local.bootstrap_servers})
        for number in range(INPUTS):
            sender.produce(self.input.topic, b"%d" % number, partition=0)
        assert sender.flush(LIMIT_S) == 0
        leader = self.await_leader(self.changelog)
        warm_up = transactional_producer(self.local.bootstrap_servers, unique_name("warm-up"))
        consumer = self._consumer(unique_name("warm-up"))
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:  # the coordinator's topic is made by this very question
                consumer.committed([TopicPartition(self.input.topic, 0)], 20)
                break
            except KafkaException:
                assert time.monotonic() < deadline, "the group has no coordinator"
                time.sleep(0.5)
        consumer.close()
        del warm_up
        self.group = self._name("app", CONSUMER_OFFSETS, leader)
        transactional_id = self._name("tx", TRANSACTION_STATE, leader)
        # soon asks another broker when one is paused
        self._producer = transactional_producer(
            self.local.bootstrap_servers,
            transactional_id,
            socket_timeout_ms=2_000,
            request_timeout_ms=2_000,
        )
        return self

    def _name(self, prefix: str, topic: str, without: int) -> str:
        """A name whose coordinator is another broker."""
        while True:
            name = unique_name(prefix)
            partition = TopicPartitionId(topic, coordinator_partition(name, 4))
            if self.await_leader(partition) != without:
                return name

    @property
    def application(self) -> StreamsApplication:
        """The application as declared."""
        return StreamsApplication(
            self.group,
            (
                AppTopic(self.input.topic, TopicRoles({TopicRole.INPUT})),
                AppTopic(self.changelog.topic, TopicRoles({TopicRole.CHANGELOG})),
            ),
        )

    @property
    def group_log(self) -> TopicPartitionId:
        """The group's partition of the offsets topic."""
        return TopicPartitionId(CONSUMER_OFFSETS, coordinator_partition(self.group, 4))

    def transact(self, offset: int, *, records: int = 3) -> None:
        """One transaction: records in the changelog, and the committed offset of the input."""
        producer = self._producer
        assert producer is not None
        consumer = self._consumer(self.group)
        producer.begin_transaction()
        for number in range(records):
            producer.produce(self.changelog.topic, b"v", key=b"%d" % number, partition=0)
        producer.send_offsets_to_transaction(
            [TopicPartition(self.input.topic, 0, offset)], consumer.consumer_group_metadata(), 20
        )
        producer.commit_transaction(LIMIT_S)
        consumer.close()

    def settle(self, without: Sequence[int] = ()) -> dict[TopicPartitionId, int]:
        """The ends of changelog and group's log once nothing is undecided, not asked of some."""
        with self.asking(without) as cluster:
            return {p: settled_end(cluster, p) for p in (self.changelog, self.group_log)}

    @contextmanager
    def asking(self, without: Sequence[int] = ()) -> Iterator[KafkaCluster]:
        """A client of all brokers but these."""
        servers = self.servers(without)
        connection = KafkaConnection(bootstrap_servers=servers, request_timeout_seconds=30)
        with KafkaCluster(connection) as cluster:
            yield cluster

    def servers(self, without: Sequence[int] = ()) -> str:
        """The addresses of all brokers but these."""
        every = self.local.bootstrap_servers.split(",")
        return ",".join(s for broker, s in enumerate(every, start=1) if broker not in without)

    def await_leader(self, partition: TopicPartitionId, without: Sequence[int] = ()) -> int:
        """The broker that leads a partition, once it is none of these, as the others say."""
        return await_leader(
            self.servers(without), partition.topic, partition.partition, without=without
        )

    def pause(self, broker: int) -> None:
        """Stop the process of a broker where it is."""
        os.kill(self._pid(broker), signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        """Let it go on."""
        os.kill(self._pid(broker), signal.SIGCONT)

    def resume_soon(self, broker: int) -> None:
        """Let it go on when a request has had the time to reach it."""
        threading.Timer(0.5, self.resume, [broker]).start()

    def _pid(self, broker: int) -> int:
        pid = self.local.pid(broker - 1)
        assert pid is not None
        return pid

    def _consumer(self, group: str) -> Consumer:
        return Consumer({"bootstrap.servers": self.servers(), "group.id": group, "log_level": 0})


def await_leader(
    servers: str, topic: str, partition: int = 0, *, without: Sequence[int] = ()
) -> int:
    """The broker that leads a partition, once it is none of these."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    deadline = time.monotonic() + LIMIT_S
    while True:
        entry = admin.list_topics(topic, timeout=10).topics[topic].partitions.get(partition)
        if entry is not None and entry.leader > 0 and entry.leader not in without:
            return entry.leader
        assert time.monotonic() < deadline, f"{topic}-{partition} has no leader"
        time.sleep(0.1)


def await_in_sync(servers: str, topic: str, replicas: int) -> list[int]:
    """The leader of partition 0, then the other replicas, once that many are in sync."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    deadline = time.monotonic() + LIMIT_S
    while True:
        entry = admin.list_topics(topic, timeout=10).topics[topic].partitions.get(0)
        if entry is not None and entry.leader > 0 and len(entry.isrs) == replicas:
            return [entry.leader, *(r for r in entry.replicas if r != entry.leader)]
        assert time.monotonic() < deadline, f"{topic} has not {replicas} replicas in sync"
        time.sleep(0.1)
