"""The raw log of real brokers: transactions, compression, compaction, retention, failover."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_batch import RawBatch, content_of_range
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.offsets import TopicPartitionId
from tests.streams.cluster import unique_name
from tests.timing import eventually

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def partition(cluster: KafkaCluster) -> TopicPartitionId:
    """The only partition of a new topic."""
    return new_partition(cluster)


def new_partition(
    cluster: KafkaCluster, *, replication_factor: int = 1, **configs: str
) -> TopicPartitionId:
    name = unique_name("raw")
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    cluster.create_topics([TopicSpec(name, 1, replication_factor, settings)])
    return TopicPartitionId(name, 0)


def producer_to(servers: str, **settings: object) -> Producer:
    names = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": servers, "log_level": 0, **names})


def send(producer: Producer, partition: TopicPartitionId, *values: bytes) -> None:
    for value in values:
        producer.produce(partition.topic, value, key=value[:4], partition=partition.partition)
    assert producer.flush(20) == 0


def consumed_offsets(
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


def offsets_of(batches: list[RawBatch]) -> list[int]:
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
            producer = producer_to(connection.bootstrap_servers, transactional_id=unique_name("tx"))
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
        plain = producer_to(connection.bootstrap_servers)
        good, bad, hanging = transactional(), transactional(), transactional()
        send(good, partition, b"g1", b"g2")  # 0, 1
        send(bad, partition, b"b1")  # 2
        send(plain, partition, b"p1")  # 3
        send(good, partition, b"g3")  # 4
        bad.abort_transaction(10)  # 5
        self._await_end(cluster, partition, 6)
        good.commit_transaction(10)  # 6
        self._await_end(cluster, partition, 7)
        bad.begin_transaction()
        send(bad, partition, b"b2")  # 7
        bad.commit_transaction(10)  # 8
        self._await_end(cluster, partition, 9)
        send(hanging, partition, b"h1")  # 9
        send(plain, partition, b"p2")  # 10
        late = transactional()
        send(late, partition, b"l1")  # 11
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
        consumed = consumed_offsets(connection.bootstrap_servers, partition, end)
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
            send(bad, partition, value)
        bad.abort_transaction(10)
        self._await_end(cluster, partition, 4)
        batches = list(reader.scan(partition, 2, 4, deadline_s=DEADLINE_S))
        assert [(batch.base_offset, batch.aborted) for batch in batches] == [(2, True), (3, False)]
        assert batches[1].control_type == "abort"


def test_range_in_the_middle_of_many_fetches(
    connection: KafkaConnection, reader: RawLogReader, partition: TopicPartitionId
) -> None:
    producer = producer_to(connection.bootstrap_servers, linger_ms=5)
    send(producer, partition, *(b"%04d" % (n % 9000) + b"x" * 1000 for n in range(8000)))
    everything = list(reader.scan(partition, 0, 8000, deadline_s=DEADLINE_S))
    assert offsets_of(everything) == list(range(8000))
    # the range cuts its first and its last batch, so both must hold more than one record
    wide = [n for n, batch in enumerate(everything) if batch.record_count > 1]
    first, last = wide[1], wide[-2]
    start, end = everything[first].base_offset + 1, everything[last].last_offset
    middle = list(reader.scan(partition, start, end, deadline_s=DEADLINE_S))
    assert middle == everything[first : last + 1]
    assert content_of_range(middle, start, end).visible == end - start
    assert list(reader.scan(partition, 5, 5, deadline_s=DEADLINE_S)) == []
