"""Reading a real broker's committed records as columns: nothing lost or changed, all accounted."""

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from kstreams_assets.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    ClusterUnavailableError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import (
    CarriedConnection,
    KafkaConnection,
    PasswordSasl,
    Secret,
    SecurityProtocol,
)
from kstreams_assets.kafka.raw_batch import RangeTally, Tallies
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.span_tasks import committed
from spark_resources.work import ReadRange
from tests.backup.acls import Acls
from tests.backup.writing import RawRecord, write_raw
from tests.streams.cluster import unique_name
from tests.streams.guarded import PASSWORDS

pytestmark = pytest.mark.kafka

CREATE_TIME, LOG_APPEND_TIME = 0, 1


@pytest.fixture
def reader(cluster: KafkaCluster) -> Iterator[RawLogReader]:
    """A reader of the shared broker."""
    with RawLogReader(cluster.connection) as found:
        yield found


def partition_of_new_topic(cluster: KafkaCluster, **configs: str) -> TopicPartitionId:
    """The one partition of a topic of its own; settings with underscores for dots."""
    name = unique_name("read")
    relaxed = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
    named = {**relaxed, **{key.replace("_", "."): v for key, v in configs.items()}}
    cluster.create_topics([TopicSpec(name, 1, 1, named)])
    return TopicPartitionId(name, 0)


def write(cluster: KafkaCluster, partition: TopicPartitionId, *values: bytes | None) -> None:
    """Write values."""
    producer = Producer({"bootstrap.servers": cluster.connection.bootstrap_servers})
    for value in values:
        producer.produce(partition.topic, value)
        producer.poll(0)
    assert producer.flush(20) == 0


def read(
    reader: RawLogReader,
    partition: TopicPartitionId,
    start: int,
    stop: int,
    *,
    tally: RangeTally | None = None,
    idle_timeout_s: float = 20,
) -> list[dict[str, Any]]:
    """All that is read."""
    seen = Tallies([tally or RangeTally(start, stop)])
    stretch = ReadRange(partition, start, stop)
    found = committed(reader, stretch, seen, idle_timeout_s=idle_timeout_s)
    return [row for batch in found for row in batch.to_pylist()]


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def test_every_part_of_a_record_comes_as_it_was_written(
    cluster: KafkaCluster, reader: RawLogReader
) -> None:
    partition = partition_of_new_topic(cluster)
    headers = [("é", b"1"), ("a", None), ("é", b""), ("a", b"2")]
    write_raw(
        cluster.connection.bootstrap_servers,
        partition.topic,
        0,
        [
            RawRecord(5, b"value", b"key", headers),
            RawRecord(3, None, b""),
            RawRecord(0, b"", None),
            RawRecord(2**41, b"\x00\xff", b"\xff"),
        ],
    )

    told = [(row["offset"], row["timestamp_ms"]) for row in read(reader, partition, 0, 4)]
    assert told == [(0, 5), (1, 3), (2, 0), (3, 2**41)]
    found = read(reader, partition, 0, 4)
    assert [row["timestamp_type"] for row in found] == [CREATE_TIME] * 4
    assert [row["key"] for row in found] == [b"key", b"", None, b"\xff"]
    assert [row["value"] for row in found] == [b"value", None, b"", b"\x00\xff"]
    pairs = [{"key": key, "value": value, "key_bytes": None} for key, value in headers]
    assert [row["headers"] for row in found] == [pairs, None, None, None]


def test_log_append_time_is_seen(cluster: KafkaCluster, reader: RawLogReader) -> None:
    partition = partition_of_new_topic(cluster, message_timestamp_type="LogAppendTime")
    write(cluster, partition, b"x")

    (row,) = read(reader, partition, 0, 1)

    assert row["timestamp_type"] == LOG_APPEND_TIME
    assert row["timestamp_ms"] > 1_700_000_000_000


@pytest.mark.parametrize(("start", "stop"), [(0, 3_000), (0, 1), (1_234, 1_240), (2_999, 3_000)])
def test_exactly_the_offsets_asked_for_are_read(
    cluster: KafkaCluster, reader: RawLogReader, start: int, stop: int
) -> None:
    partition = partition_of_new_topic(cluster)
    write(cluster, partition, *(b"%d" % number for number in range(3_000)))

    found = read(reader, partition, start, stop)

    assert offsets(found) == list(range(start, stop))
    assert [row["value"] for row in found] == [b"%d" % number for number in range(start, stop)]


def test_only_committed_records_are_read_and_their_gaps_passed_over(
    cluster: KafkaCluster, reader: RawLogReader
) -> None:
    partition = partition_of_new_topic(cluster)
    producer = Producer(
        {
            "bootstrap.servers": cluster.connection.bootstrap_servers,
            "transactional.id": unique_name("tx"),
        }
    )
    producer.init_transactions(20)
    for end in (producer.commit_transaction, producer.abort_transaction) * 2:
        producer.begin_transaction()
        producer.produce(partition.topic, b"x")
        producer.flush(20)
        end(20)
    # offsets: data, marker, aborted, marker, data, marker, aborted, marker
    tally = RangeTally(0, 8)
    assert offsets(read(reader, partition, 0, 8, tally=tally)) == [0, 4]
    assert (tally.visible, tally.aborted, tally.markers, tally.holes) == (2, 2, 4, 0)
    assert offsets(read(reader, partition, 0, 3)) == [0]
    producer.begin_transaction()
    producer.produce(partition.topic, b"open")
    assert producer.flush(20) == 0

    with pytest.raises(OffsetOutOfRangeError, match="holds offsets 0 to 8, not 8"):
        read(reader, partition, 0, 9)

    producer.abort_transaction(20)


def test_one_reader_reads_many_stretches_quickly(
    cluster: KafkaCluster, reader: RawLogReader
) -> None:
    partitions = [partition_of_new_topic(cluster) for _ in range(2)]
    for partition in partitions:
        write(cluster, partition, *(b"%d" % number for number in range(100)))
    read(reader, partitions[0], 0, 100)

    began = time.monotonic()
    for start in range(0, 100, 4):
        for partition in partitions:
            found = read(reader, partition, start, start + 4)
            assert [row["value"] for row in found] == [
                b"%d" % number for number in range(start, start + 4)
            ]

    # A fetch that waits at a log's end holds the next one up: 50 times the default of 500 ms.
    assert time.monotonic() - began < 15


def test_large_records_do_not_pile_up(cluster: KafkaCluster, reader: RawLogReader) -> None:
    partition = partition_of_new_topic(cluster, max_message_bytes="5000000")
    write(cluster, partition, *(b"x" for _ in range(600)))
    write(cluster, partition, *(bytes(900_000) for _ in range(200)))

    stretch = ReadRange(partition, 0, 800)
    found = committed(reader, stretch, Tallies([]), idle_timeout_s=20)
    sizes = [batch.nbytes for batch in found]

    assert sum(sizes) > 600 + 200 * 900_000
    assert max(sizes) < 30_000_000


def test_an_offset_that_the_log_lost_is_an_error(
    cluster: KafkaCluster, reader: RawLogReader
) -> None:
    partition = partition_of_new_topic(cluster)
    write(cluster, partition, *(b"x" for _ in range(20)))
    cluster.delete_records({partition: 7})

    with pytest.raises(OffsetOutOfRangeError, match="holds offsets 7 to 20, not 0"):
        read(reader, partition, 0, 20)


def test_a_topic_that_is_not_there_is_an_error(reader: RawLogReader) -> None:
    with pytest.raises(TopicNotFoundError, match="absent-topic"):
        read(reader, TopicPartitionId("absent-topic", 0), 0, 20)


def test_it_gives_up_when_no_broker_answers() -> None:
    connection = KafkaConnection(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1)
    began = time.monotonic()

    with (
        RawLogReader(connection) as reader,
        pytest.raises(ClusterUnavailableError, match=r"fetch orders-3 from offset 7.*REFUSED"),
    ):
        read(reader, TopicPartitionId("orders", 3), 7, 20, idle_timeout_s=1.5)

    assert time.monotonic() - began < 15  # by default a client tries for 30 s and more


def test_the_right_to_read_the_topic_is_all_it_needs(
    guarded_cluster: LocalCluster, tmp_path: Path
) -> None:
    inner = KafkaConnection(bootstrap_servers=guarded_cluster.internal_bootstrap_servers)
    with KafkaCluster(inner) as cluster:
        allowed, denied = (partition_of_new_topic(cluster) for _ in range(2))
        write(cluster, allowed, b"x", b"y")
    acls = Acls(guarded_cluster.internal_bootstrap_servers)
    acls.allow(ResourceType.TOPIC, allowed.topic, AclOperation.READ)
    password = tmp_path / "password"
    password.write_text(PASSWORDS["bob"])
    connection = KafkaConnection(
        bootstrap_servers=guarded_cluster.bootstrap_servers,
        security_protocol=SecurityProtocol.SASL_PLAINTEXT,
        sasl=PasswordSasl(
            mechanism="SCRAM-SHA-512", username="bob", password=Secret(file=str(password))
        ),
        request_timeout_seconds=5,
    )
    carried = CarriedConnection.of(connection)
    assert PASSWORDS["bob"] not in repr(carried)
    # As tasks get it, where the file may not be.
    password.unlink()
    sent: CarriedConnection = pickle.loads(pickle.dumps(carried))  # noqa: S301 (our own)

    with RawLogReader(sent.opened()) as reader:
        assert [row["value"] for row in read(reader, allowed, 0, 2)] == [b"x", b"y"]
        with pytest.raises(AuthorizationFailedError, match=f"topic {denied.topic}"):
            read(reader, denied, 0, 2)
    password.write_text("wrong-one")
    with (
        RawLogReader(CarriedConnection.of(connection).opened()) as reader,
        pytest.raises(AuthenticationFailedError, match=r"(?i)authentication") as refused,
    ):
        read(reader, allowed, 0, 2)
    assert "wrong-one" not in str(refused.value)
