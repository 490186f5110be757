"""The raw log of real brokers: transactions, compression, compaction, retention, failover."""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kstreams_assets.errors import (
    ClusterUnavailableError,
    OffsetOutOfRangeError,
    RawReadTimeoutError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_batch import RawBatch, content_of_range
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.topics import TopicSpec
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from tests.streams.cluster import unique_name
from tests.timing import eventually

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def partition(cluster: KafkaCluster) -> TopicPartitionId:
    """The only partition of a new topic."""
    return _new_partition(cluster)


def _new_partition(
    cluster: KafkaCluster, *, replication_factor: int = 1, **configs: str
) -> TopicPartitionId:
    name = unique_name("raw")
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    cluster.create_topics([TopicSpec(name, 1, replication_factor, settings)])
    return TopicPartitionId(name, 0)


def _producer(servers: str, **settings: object) -> Producer:
    names = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": servers, "log_level": 0, **names})


def _send(producer: Producer, partition: TopicPartitionId, *values: bytes) -> None:
    for value in values:
        producer.produce(partition.topic, value, key=value[:4], partition=partition.partition)
    assert producer.flush(20) == 0


def _consumed(
    servers: str, partition: TopicPartitionId, end: int, isolation: str = "read_committed"
) -> list[int]:
    """The offsets an ordinary consumer gets below `end`."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": unique_name("group"),
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(partition.topic, partition.partition, 0)])
    offsets: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            break
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)
    consumer.close()
    return [offset for offset in offsets if offset < end]


def _offsets(batches: list[RawBatch]) -> list[int]:
    return [
        offset
        for batch in batches
        for offset in batch.record_offsets or range(batch.base_offset, batch.last_offset + 1)
    ]


class TestTransactions:
    """Committed, aborted and open transactions, interleaved in one partition."""

    @pytest.fixture
    def transactional(self, connection: KafkaConnection) -> Callable[[], Producer]:
        """Makes producers that have begun a transaction."""

        def make() -> Producer:
            producer = _producer(connection.bootstrap_servers, transactional_id=unique_name("tx"))
            producer.init_transactions(10)
            producer.begin_transaction()
            return producer

        return make

    def test_interleaved(
        self,
        connection: KafkaConnection,
        cluster: KafkaCluster,
        reader: RawLogReader,
        partition: TopicPartitionId,
        transactional: Callable[[], Producer],
    ) -> None:
        plain = _producer(connection.bootstrap_servers)
        good, bad, hanging = transactional(), transactional(), transactional()
        _send(good, partition, b"g1", b"g2")  # 0, 1
        _send(bad, partition, b"b1")  # 2
        _send(plain, partition, b"p1")  # 3
        _send(good, partition, b"g3")  # 4
        bad.abort_transaction(10)  # 5
        self._await_end(cluster, partition, 6)
        good.commit_transaction(10)  # 6
        self._await_end(cluster, partition, 7)
        bad.begin_transaction()
        _send(bad, partition, b"b2")  # 7
        bad.commit_transaction(10)  # 8
        self._await_end(cluster, partition, 9)
        _send(hanging, partition, b"h1")  # 9
        _send(plain, partition, b"p2")  # 10
        late = transactional()
        _send(late, partition, b"l1")  # 11
        late.abort_transaction(10)  # 12
        end = self._await_end(cluster, partition, 13)
        stable = cluster.last_stable_offsets([partition])[partition]
        assert (end, stable) == (13, 9)

        batches = list(reader.scan(partition, 0, end, deadline_s=DEADLINE_S))

        by_base = {batch.base_offset: batch for batch in batches}
        assert [b.base_offset for b in batches] == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
        aborted = {base: batch.aborted for base, batch in by_base.items() if not batch.is_control}
        assert aborted == {0: False, 2: True, 3: False, 4: False, 7: False} | {
            9: None,
            10: False,  # not transactional: visible whatever happens before it
            11: None,
        }
        kinds = {base: batch.control_type for base, batch in by_base.items() if batch.is_control}
        assert kinds == {5: "abort", 6: "commit", 8: "commit", 12: "abort"}
        assert by_base[3].producer_id != by_base[0].producer_id == by_base[4].producer_id
        assert not by_base[3].is_transactional
        assert by_base[6].producer_id == by_base[0].producer_id  # the marker of `good`
        assert by_base[6].producer_epoch >= by_base[0].producer_epoch

        content = content_of_range(batches, 0, stable)
        consumed = _consumed(connection.bootstrap_servers, partition, end)
        assert content.visible == len(consumed) == 5
        assert (content.aborted, content.markers, content.undecided) == (1, 3, 0)
        assert content.holes == 0
        assert content_of_range(batches, 0, end).undecided == 2

        hanging.commit_transaction(10)
        self._await_end(cluster, partition, 14)
        again = list(reader.scan(partition, 9, end, deadline_s=DEADLINE_S))
        assert [batch.aborted for batch in again if not batch.is_control] == [False, False, True]

    def _await_end(self, cluster: KafkaCluster, partition: TopicPartitionId, end: int) -> int:
        """Markers are written after a commit has returned."""
        assert eventually(lambda: cluster.high_watermarks([partition])[partition] >= end)
        return cluster.high_watermarks([partition])[partition]

    def test_abort_that_began_before_the_range(
        self,
        cluster: KafkaCluster,
        connection: KafkaConnection,
        reader: RawLogReader,
        partition: TopicPartitionId,
        transactional: Callable[[], Producer],
    ) -> None:
        bad = transactional()
        for value in (b"b0", b"b1", b"b2"):
            _send(bad, partition, value)
        bad.abort_transaction(10)
        self._await_end(cluster, partition, 4)
        batches = list(reader.scan(partition, 2, 4, deadline_s=DEADLINE_S))
        assert [(batch.base_offset, batch.aborted) for batch in batches] == [(2, True), (3, False)]
        assert batches[1].control_type == "abort"


@pytest.mark.parametrize("codec", CODECS)
def test_every_compression(
    connection: KafkaConnection,
    cluster: KafkaCluster,
    reader: RawLogReader,
    partition: TopicPartitionId,
    codec: str,
) -> None:
    producer = _producer(connection.bootstrap_servers, compression_type=codec, linger_ms=50)
    _send(producer, partition, *(b"%04d" % n + b"x" * 500 for n in range(300)))
    batches = list(reader.scan(partition, 0, 300, deadline_s=DEADLINE_S))
    assert sum(batch.record_count for batch in batches) == 300
    assert len(batches) < 300
    assert all(batch.record_offsets is None for batch in batches)
    assert _offsets(batches) == list(range(300))
    assert abs(batches[-1].max_timestamp / 1000 - time.time()) < 60


def test_range_in_the_middle_of_many_fetches(
    connection: KafkaConnection, reader: RawLogReader, partition: TopicPartitionId
) -> None:
    producer = _producer(connection.bootstrap_servers, linger_ms=5)
    _send(producer, partition, *(b"%04d" % (n % 9000) + b"x" * 1000 for n in range(8000)))
    everything = list(reader.scan(partition, 0, 8000, deadline_s=DEADLINE_S))
    assert _offsets(everything) == list(range(8000))
    # the range cuts its first and its last batch, so both must hold more than one record
    wide = [n for n, batch in enumerate(everything) if batch.record_count > 1]
    first, last = wide[1], wide[-2]
    start, end = everything[first].base_offset + 1, everything[last].last_offset
    middle = list(reader.scan(partition, start, end, deadline_s=DEADLINE_S))
    assert middle == everything[first : last + 1]
    assert content_of_range(middle, start, end).visible == end - start
    assert list(reader.scan(partition, 5, 5, deadline_s=DEADLINE_S)) == []


def test_batch_larger_than_a_fetch(
    connection: KafkaConnection, cluster: KafkaCluster, reader: RawLogReader
) -> None:
    partition = _new_partition(cluster, max_message_bytes="9000000")
    producer = _producer(connection.bootstrap_servers, message_max_bytes=9_000_000)
    for _ in range(3):
        _send(producer, partition, b"k" * 5_000_000)
    batches = list(reader.scan(partition, 0, 3, deadline_s=DEADLINE_S))
    assert [batch.base_offset for batch in batches] == [0, 1, 2]


class TestBounds:
    """Ranges the log does not hold."""

    def test_deleted_records(
        self,
        connection: KafkaConnection,
        cluster: KafkaCluster,
        reader: RawLogReader,
        partition: TopicPartitionId,
    ) -> None:
        producer = _producer(connection.bootstrap_servers)
        for n in range(6):
            _send(producer, partition, b"%04d" % n)
        cluster.delete_records({partition: 4})
        with pytest.raises(OffsetOutOfRangeError) as caught:
            list(reader.scan(partition, 3, 6, deadline_s=DEADLINE_S))
        assert (caught.value.offset, caught.value.log_start, caught.value.log_end) == (3, 4, 6)
        assert str(partition) in str(caught.value)
        assert len(list(reader.scan(partition, 4, 6, deadline_s=DEADLINE_S))) == 2

    def test_everything_deleted(
        self,
        connection: KafkaConnection,
        cluster: KafkaCluster,
        reader: RawLogReader,
        partition: TopicPartitionId,
    ) -> None:
        _send(_producer(connection.bootstrap_servers), partition, b"a", b"b")
        cluster.delete_records({partition: 2})
        assert list(reader.scan(partition, 2, 2, deadline_s=DEADLINE_S)) == []
        with pytest.raises(OffsetOutOfRangeError):
            list(reader.scan(partition, 0, 2, deadline_s=DEADLINE_S))

    def test_end_beyond_the_log(
        self, connection: KafkaConnection, reader: RawLogReader, partition: TopicPartitionId
    ) -> None:
        _send(_producer(connection.bootstrap_servers), partition, b"a")
        started = time.monotonic()
        with pytest.raises(RawReadTimeoutError) as caught:
            list(reader.scan(partition, 0, 9, deadline_s=1.0))
        assert 0.9 < time.monotonic() - started < 8  # a request may take ten
        assert (caught.value.reached, caught.value.end) == (1, 9)
        assert str(partition) in str(caught.value)

    def test_missing_topic_and_partition(
        self, reader: RawLogReader, partition: TopicPartitionId
    ) -> None:
        for absent in (TopicPartitionId("missing", 0), TopicPartitionId(partition.topic, 5)):
            with pytest.raises(TopicNotFoundError):
                list(reader.scan(absent, 0, 1, deadline_s=DEADLINE_S))


class TestThreeBrokers:
    """Compaction (with a quick cleaner) and the death of a leader."""

    @pytest.fixture(scope="class")
    def brokers(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
        """Three brokers with a cleaner that never rests."""
        directory = tmp_path_factory.mktemp("three")
        properties = {"log.cleaner.backoff.ms": "200", "log.initial.task.delay.ms": "100"}
        with LocalCluster(directory, nodes=3, properties=properties, heap_mb=384) as cluster:
            yield cluster

    @pytest.fixture
    def connection(self, brokers: LocalCluster) -> KafkaConnection:
        """A connection to all three."""
        return KafkaConnection(
            bootstrap_servers=brokers.bootstrap_servers, request_timeout_seconds=10
        )

    def test_compacted_batches_of_every_compression(
        self, connection: KafkaConnection, cluster: KafkaCluster, reader: RawLogReader
    ) -> None:
        servers = connection.bootstrap_servers
        partitions = {}
        for codec in CODECS:
            partition = _new_partition(
                cluster,
                cleanup_policy="compact",
                segment_ms="200",
                min_cleanable_dirty_ratio="0.001",
                max_compaction_lag_ms="200",
            )
            producer = _producer(servers, compression_type=codec, linger_ms=200)
            value = b"v" * 100
            _send(producer, partition, *(b"%04d" % n + value for n in range(40)))
            _send(producer, partition, *(b"%04d" % n + value for n in range(0, 40, 2)))
            # keys 0 to 9 twice in a batch of which nothing survives
            _send(producer, partition, *(b"%04d" % n + value for n in range(50, 60)))
            _send(producer, partition, *(b"%04d" % n + value for n in range(50, 60)))
            partitions[codec] = partition
        time.sleep(0.3)
        for codec, partition in partitions.items():  # a new segment makes the others cleanable
            _send(_producer(servers, compression_type=codec), partition, b"last")
        for codec, partition in partitions.items():
            batches = self._await_compaction(reader, partition)
            present = _consumed(servers, partition, 81, "read_uncommitted")
            assert _offsets(batches) == present, codec
            read = reader.read({partition: OffsetRange(0, 81)}, deadline_s=DEADLINE_S)[partition]
            assert [batch.header for batch in read.batches] == batches, codec
            records = [record for batch in read.batches for record in batch.records()]
            assert [record.offset for record in records] == present, codec
            assert all((record.value or b"")[:4] == record.key for record in records), codec
            partial = [b for b in batches if b.record_offsets is not None]
            assert partial, codec
            content = content_of_range(batches, 0, 81)
            assert content.visible == len(present)
            assert content.holes == 81 - len(present)
            assert content_of_range(batches, 60, 70).holes == 10

    def _await_compaction(
        self, reader: RawLogReader, partition: TopicPartitionId
    ) -> list[RawBatch]:
        batches: list[RawBatch] = []

        def is_compacted() -> bool:
            batches[:] = reader.scan(partition, 0, 81, deadline_s=DEADLINE_S)
            return len(_offsets(batches)) == 51

        assert eventually(is_compacted), f"not compacted: {len(_offsets(batches))} records"
        return batches

    def test_death_of_leaders_while_many_partitions_are_read(
        self,
        brokers: LocalCluster,
        connection: KafkaConnection,
        cluster: KafkaCluster,
        reader: RawLogReader,
    ) -> None:
        name = unique_name("raw")
        cluster.create_topics([TopicSpec(name, 6, 3, {"min.insync.replicas": "2"})])
        partitions = [TopicPartitionId(name, number) for number in range(6)]
        producer = _producer(connection.bootstrap_servers, linger_ms=5, acks="all")
        for partition in partitions:
            _send(producer, partition, *(b"%04d" % n for n in range(300)))
        ranges = {partition: OffsetRange(0, 300) for partition in partitions}
        before = reader.read(ranges, deadline_s=DEADLINE_S)
        led = reader._leaders.of(partitions, operation="test", timeout_s=DEADLINE_S)
        assert len(set(led.values())) == 3  # three requests, side by side
        node = led[partitions[0]] - 1
        brokers.kill_node(node)
        try:
            assert reader.read(ranges, deadline_s=60) == before
            after = reader._leaders.of(partitions, operation="test", timeout_s=DEADLINE_S)
            assert node + 1 not in after.values()
        finally:
            brokers.start_node(node)
        for partition, read in before.items():
            keys = [record.key for batch in read.batches for record in batch.records()]
            assert keys == [b"%04d" % n for n in range(300)], partition

    def test_death_of_the_leader_during_a_scan(
        self,
        brokers: LocalCluster,
        connection: KafkaConnection,
        cluster: KafkaCluster,
        reader: RawLogReader,
    ) -> None:
        partition = _new_partition(cluster, replication_factor=3, min_insync_replicas="2")
        producer = _producer(connection.bootstrap_servers, linger_ms=5, acks="all")
        _send(producer, partition, *(b"%04d" % n + b"x" * 1000 for n in range(6000)))
        scan = reader.scan(partition, 0, 6000, deadline_s=60)
        batches = [next(scan)]
        node = (
            reader._leaders.of([partition], operation="test", timeout_s=DEADLINE_S)[partition] - 1
        )
        brokers.kill_node(node)
        try:
            batches += scan
            assert _offsets(batches) == list(range(6000))
            again = reader.read({partition: OffsetRange(0, 6000)}, deadline_s=60)[partition]
            assert [batch.header for batch in again.batches] == batches
            assert all(a.last_offset < b.base_offset for a, b in pairwise(batches))
            assert cluster.high_watermarks([partition]) == {partition: 6000}
            assert eventually(lambda: _has_coordinator(cluster, unique_name("group")))
        finally:
            brokers.start_node(node)


def _has_coordinator(cluster: KafkaCluster, group: str) -> bool:
    try:
        return cluster.group_offsets(group) == {}
    except ClusterUnavailableError:
        return False
