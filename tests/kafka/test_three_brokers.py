"""Three brokers, of which some die: what is read, written and changed meanwhile is right."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from kstreams_assets.errors import ClusterUnavailableError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_batch import RawBatch, content_of_range
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.record_writer import RecordWriter, WriterLimits
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from tests.kafka.test_raw_log import (
    CODECS,
    consumed_offsets,
    new_partition,
    offsets_of,
    producer_to,
    send,
)
from tests.kafka.test_record_writer import numbered, records, topic_on, written
from tests.kafka.test_topics import await_configs
from tests.streams.cluster import passing_cluster, unique_name
from tests.timing import eventually

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers with a cleaner that never rests; whoever kills one starts it again."""
    folder = tmp_path_factory.mktemp("three")
    properties = {"log.cleaner.backoff.ms": "200", "log.initial.task.delay.ms": "100"}
    with passing_cluster(folder, nodes=3, properties=properties, heap_mb=384) as cluster:
        yield cluster


@pytest.fixture
def connection(three_brokers: LocalCluster) -> KafkaConnection:
    """A connection to all three."""
    return KafkaConnection(
        bootstrap_servers=three_brokers.bootstrap_servers, request_timeout_seconds=10
    )


def test_compacted_batches_of_every_compression(
    connection: KafkaConnection, cluster: KafkaCluster, reader: RawLogReader
) -> None:
    servers = connection.bootstrap_servers
    partitions = {}
    for codec in CODECS:
        partition = new_partition(
            cluster,
            cleanup_policy="compact",
            segment_ms="200",
            min_cleanable_dirty_ratio="0.001",
            max_compaction_lag_ms="200",
        )
        producer = producer_to(servers, compression_type=codec, linger_ms=200)
        value = b"v" * 100
        send(producer, partition, *(b"%04d" % n + value for n in range(40)))
        send(producer, partition, *(b"%04d" % n + value for n in range(0, 40, 2)))
        # keys 0 to 9 twice in a batch of which nothing survives
        send(producer, partition, *(b"%04d" % n + value for n in range(50, 60)))
        send(producer, partition, *(b"%04d" % n + value for n in range(50, 60)))
        partitions[codec] = partition
    time.sleep(0.3)
    for codec, partition in partitions.items():  # a new segment makes the others cleanable
        send(producer_to(servers, compression_type=codec), partition, b"last")
    for codec, partition in partitions.items():
        batches = _await_compaction(reader, partition)
        present = consumed_offsets(servers, partition, 81, "read_uncommitted")
        assert offsets_of(batches) == present, codec
        read = reader.read({partition: OffsetRange(0, 81)}, deadline_s=DEADLINE_S)[partition]
        assert [batch.header for batch in read] == batches, codec
        records = [record for batch in read for record in batch.records()]
        assert [record.offset for record in records] == present, codec
        assert all((record.value or b"")[:4] == record.key for record in records), codec
        partial = [b for b in batches if b.record_offsets is not None]
        assert partial, codec
        content = content_of_range(batches, 0, 81)
        assert content.visible == len(present)
        assert content.holes == 81 - len(present)
        assert content_of_range(batches, 60, 70).holes == 10


def _await_compaction(reader: RawLogReader, partition: TopicPartitionId) -> list[RawBatch]:
    batches: list[RawBatch] = []

    def is_compacted() -> bool:
        batches[:] = reader.scan(partition, 0, 81, deadline_s=DEADLINE_S)
        return len(offsets_of(batches)) == 51

    assert eventually(is_compacted), f"not compacted: {len(offsets_of(batches))} records"
    return batches


def test_death_of_leaders_while_many_partitions_are_read(
    three_brokers: LocalCluster,
    connection: KafkaConnection,
    cluster: KafkaCluster,
    reader: RawLogReader,
) -> None:
    name = unique_name("raw")
    cluster.create_topics([TopicSpec(name, 6, 3, {"min.insync.replicas": "2"})])
    partitions = [TopicPartitionId(name, number) for number in range(6)]
    producer = producer_to(connection.bootstrap_servers, linger_ms=5, acks="all")
    for partition in partitions:
        send(producer, partition, *(b"%04d" % n for n in range(300)))
    ranges = {partition: OffsetRange(0, 300) for partition in partitions}
    before = reader.read(ranges, deadline_s=DEADLINE_S)
    led = reader._cluster.leaders.of(partitions, operation="test", timeout_s=DEADLINE_S)
    assert len(set(led.values())) == 3  # three requests, side by side
    node = led[partitions[0]] - 1
    three_brokers.kill_node(node)
    try:
        assert reader.read(ranges, deadline_s=60) == before
        after = reader._cluster.leaders.of(partitions, operation="test", timeout_s=DEADLINE_S)
        assert node + 1 not in after.values()
    finally:
        three_brokers.start_node(node)
    for partition, read in before.items():
        keys = [record.key for batch in read for record in batch.records()]
        assert keys == [b"%04d" % n for n in range(300)], partition


def test_death_of_the_leader_during_a_scan(
    three_brokers: LocalCluster,
    connection: KafkaConnection,
    cluster: KafkaCluster,
    reader: RawLogReader,
) -> None:
    partition = new_partition(cluster, replication_factor=3, min_insync_replicas="2")
    producer = producer_to(connection.bootstrap_servers, linger_ms=5, acks="all")
    send(producer, partition, *(b"%04d" % n + b"x" * 1000 for n in range(6000)))
    scan = reader.scan(partition, 0, 6000, deadline_s=60)
    batches = [next(scan)]
    leaders = reader._cluster.leaders
    node = leaders.of([partition], operation="test", timeout_s=DEADLINE_S)[partition] - 1
    three_brokers.kill_node(node)
    try:
        batches += scan
        assert offsets_of(batches) == list(range(6000))
        again = reader.read({partition: OffsetRange(0, 6000)}, deadline_s=60)[partition]
        assert [batch.header for batch in again] == batches
        assert all(a.last_offset < b.base_offset for a, b in pairwise(batches))
        assert cluster.high_watermarks([partition]) == {partition: 6000}
        assert eventually(lambda: _has_coordinator(cluster, unique_name("group")))
    finally:
        three_brokers.start_node(node)


def _has_coordinator(cluster: KafkaCluster, group: str) -> bool:
    try:
        return cluster.group_offsets(group) == {}
    except ClusterUnavailableError:
        return False


def test_leaders_that_die_while_a_restore_writes_change_nothing(
    three_brokers: LocalCluster, connection: KafkaConnection
) -> None:
    topic = topic_on(three_brokers, replicas=3, configs={"min.insync.replicas": "2"})
    partition = TopicPartitionId(topic, 0)
    ended = threading.Event()
    killed: list[int] = []

    def kill_leaders() -> None:
        admin = AdminClient({"bootstrap.servers": three_brokers.bootstrap_servers, "log_level": 0})
        while not ended.wait(1.0) and len(killed) < 3:
            leader = admin.list_topics(topic, 20).topics[topic].partitions[0].leader
            if leader > 0:
                killed.append(leader - 1)
                three_brokers.kill_node(leader - 1)
                time.sleep(2)
                three_brokers.start_node(leader - 1)

    killer = threading.Thread(target=kill_leaders, daemon=True)

    def slowly() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(records(100_000)):
            if number == 10:
                killer.start()
            if number > 10 and killer.is_alive():
                time.sleep(0.3)
            yield batch

    limits = WriterLimits(delivery_timeout_s=60, max_message_bytes=20_000)
    try:
        with RecordWriter(connection, limits) as writer:
            for _ in writer.write(partition, slowly(), first=0):
                pass
    finally:
        ended.set()
        killer.join(60)

    assert len(killed) >= 2
    assert written(three_brokers, topic) == numbered(100_000)


def test_topics_are_changed_while_a_broker_is_dead(
    three_brokers: LocalCluster, connection: KafkaConnection
) -> None:
    """The others name it as the controller now and then, until they fence it after 9 s."""
    names = [unique_name("changed") for _ in range(5)]
    patient = connection.model_copy(update={"request_timeout_seconds": 30.0})
    with KafkaCluster(patient) as cluster:
        cluster.create_topics([TopicSpec(unique_name("before"), 3, replication_factor=3)])
        three_brokers.kill_node(2)
        try:
            for name in names:
                cluster.create_topics([TopicSpec(name, 1, replication_factor=2)])
                cluster.alter_topic_configs({name: {"retention.ms": "-1"}})
                await_configs(cluster, name, {"retention.ms": "-1"})
            cluster.delete_topics(names)
        finally:
            three_brokers.start_node(2)


def test_topics_are_created_while_a_dead_broker_is_named_as_the_controller(tmp_path: Path) -> None:
    """Answers of brokers name it in one of three cases; here nobody fences it."""
    properties = {"broker.session.timeout.ms": "120000"}
    with passing_cluster(tmp_path, nodes=3, properties=properties, heap_mb=384) as brokers:
        connection = KafkaConnection(
            bootstrap_servers=brokers.bootstrap_servers, request_timeout_seconds=20
        )
        names = [unique_name("created") for _ in range(6)]
        with KafkaCluster(connection) as cluster:
            cluster.create_topics([TopicSpec(unique_name("before"), 3, replication_factor=3)])
        brokers.kill_node(2)
        for name in names:
            with KafkaCluster(connection) as cluster:
                cluster.create_topics([TopicSpec(name, 1, replication_factor=2)])
        with KafkaCluster(connection) as cluster:
            assert cluster.describe_topics(names).keys() == set(names)


def test_topics_are_described_and_changed_while_a_broker_is_paused(
    three_brokers: LocalCluster, connection: KafkaConnection
) -> None:
    """It accepts connections and says nothing, until the others fence it after 9 s."""
    name, pid = unique_name("paused"), three_brokers.pid(1)
    assert pid is not None
    patient = connection.model_copy(update={"request_timeout_seconds": 30.0})
    with KafkaCluster(patient) as before:
        before.create_topics([TopicSpec(name, 1, replication_factor=3)])
    os.kill(pid, signal.SIGSTOP)
    try:
        with KafkaCluster(patient) as cluster:  # which may ask the paused one first
            assert cluster.describe_topics([name])[name].replication_factor == 3
            cluster.alter_topic_configs({name: {"retention.ms": "-1"}})
    finally:
        os.kill(pid, signal.SIGCONT)
