"""Reading a real broker's records as columns: nothing lost, nothing changed, bounded."""

import time
from collections.abc import Iterator
from itertools import chain

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    ConfigurationError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.clients import LibrdkafkaConfig, librdkafka_config
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.topics import TopicSpec
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.comparison import RecordColumns
from spark_resources.kafka_reader import KafkaReader
from tests.backup.acls import Acls
from tests.backup.writing import RawRecord, write_raw
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka

CREATE_TIME, LOG_APPEND_TIME = 1, 2


@pytest.fixture
def cluster(kafka_cluster: LocalCluster) -> Iterator[KafkaCluster]:
    """The shared broker."""
    connection = KafkaConnection(
        bootstrap_servers=kafka_cluster.bootstrap_servers, request_timeout_seconds=20
    )
    with KafkaCluster(connection) as found:
        yield found


@pytest.fixture
def reader(cluster: KafkaCluster) -> Iterator[KafkaReader]:
    """A reader of the shared broker."""
    with KafkaReader(librdkafka_config(cluster.connection), idle_timeout_s=20) as found:
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


def read(reader: KafkaReader, partition: TopicPartitionId, start: int, stop: int) -> RecordColumns:
    """All that is read, in one piece."""
    chunks = list(reader.read(partition, start, stop))
    return RecordColumns._make(list(chain(*columns)) for columns in zip(*chunks, strict=True))


def test_every_part_of_a_record_comes_as_it_was_written(
    cluster: KafkaCluster, reader: KafkaReader
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

    assert read(reader, partition, 0, 4) == RecordColumns(
        offsets=[0, 1, 2, 3],
        times=[(CREATE_TIME, 5), (CREATE_TIME, 3), (CREATE_TIME, 0), (CREATE_TIME, 2**41)],
        keys=[b"key", b"", None, b"\xff"],
        values=[b"value", None, b"", b"\x00\xff"],
        headers=[headers, None, None, None],
    )


def test_log_append_time_is_seen(cluster: KafkaCluster, reader: KafkaReader) -> None:
    partition = partition_of_new_topic(cluster, message_timestamp_type="LogAppendTime")
    write(cluster, partition, b"x")

    ((kind, _),) = read(reader, partition, 0, 1).times

    assert kind == LOG_APPEND_TIME


@pytest.mark.parametrize(("start", "stop"), [(0, 3_000), (0, 1), (1_234, 1_240), (2_999, 9_999)])
def test_exactly_the_offsets_asked_for_are_read(
    cluster: KafkaCluster, reader: KafkaReader, start: int, stop: int
) -> None:
    partition = partition_of_new_topic(cluster)
    write(cluster, partition, *(b"%d" % number for number in range(3_000)))

    found = read(reader, partition, start, stop)

    assert found.offsets == list(range(start, min(stop, 3_000)))
    assert found.values == [b"%d" % number for number in found.offsets]


def test_only_committed_records_are_read_and_their_gaps_passed_over(
    cluster: KafkaCluster, reader: KafkaReader
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
    assert read(reader, partition, 0, 8).offsets == [0, 4]
    assert read(reader, partition, 0, 3).offsets == [0]
    producer.begin_transaction()
    producer.produce(partition.topic, b"open")
    assert producer.flush(20) == 0

    assert read(reader, partition, 0, 9).offsets == [0, 4]

    producer.abort_transaction(20)


def test_one_reader_reads_many_stretches_quickly(
    cluster: KafkaCluster, reader: KafkaReader
) -> None:
    partitions = [partition_of_new_topic(cluster) for _ in range(2)]
    for partition in partitions:
        write(cluster, partition, *(b"%d" % number for number in range(100)))
    read(reader, partitions[0], 0, 100)

    began = time.monotonic()
    for start in range(0, 100, 10):
        for partition in partitions:
            values = read(reader, partition, start, start + 10).values
            assert values == [b"%d" % number for number in range(start, start + 10)]

    # A fetch that waits at a log's end holds the next one up: 20 times the default of 500 ms.
    assert time.monotonic() - began < 5


def test_large_records_do_not_pile_up(cluster: KafkaCluster, reader: KafkaReader) -> None:
    partition = partition_of_new_topic(cluster, max_message_bytes="5000000")
    write(cluster, partition, *(b"x" for _ in range(600)))
    write(cluster, partition, *(bytes(900_000) for _ in range(200)))

    sizes = [sum(map(len, filter(None, chunk.values))) for chunk in reader.read(partition, 0, 800)]

    assert sum(sizes) == 600 + 200 * 900_000
    assert max(sizes) < 100_000_000


def test_an_offset_that_the_log_lost_is_an_error(
    cluster: KafkaCluster, reader: KafkaReader
) -> None:
    partition = partition_of_new_topic(cluster)
    write(cluster, partition, *(b"x" for _ in range(20)))
    cluster.delete_records({partition: 7})

    with pytest.raises(OffsetOutOfRangeError, match="holds offsets 7 to 20, not 0"):
        read(reader, partition, 0, 20)


def test_a_topic_that_is_not_there_is_an_error(reader: KafkaReader) -> None:
    with pytest.raises(TopicNotFoundError, match="absent-topic"):
        read(reader, TopicPartitionId("absent-topic", 0), 0, 20)


def test_it_gives_up_when_no_broker_answers() -> None:
    config: LibrdkafkaConfig = {"bootstrap.servers": "127.0.0.1:1"}
    began = time.monotonic()

    with (
        KafkaReader(config, idle_timeout_s=1.5) as reader,
        pytest.raises(ClusterUnavailableError, match=r"fetch orders-3 from offset 7.*refused"),
    ):
        read(reader, TopicPartitionId("orders", 3), 7, 20)

    assert time.monotonic() - began < 10


def test_settings_that_librdkafka_refuses_are_told() -> None:
    with pytest.raises(ConfigurationError, match="librdkafka refuses"):
        KafkaReader({"bootstrap.servers": "127.0.0.1:1", "no.such": "x"}, idle_timeout_s=1)


PASSWORD = "bob-secret"


@pytest.fixture(scope="module")
def secure_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker that asks bob for his password and his rights."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with LocalCluster(
        tmp_path_factory.mktemp("rights"),
        client_protocol="SASL_PLAINTEXT",
        scram_users={"bob": PASSWORD},
        properties={"authorizer.class.name": authorizer, "super.users": "User:ANONYMOUS"},
    ) as cluster:
        yield cluster


def test_the_right_to_read_the_topic_is_all_it_needs(secure_cluster: LocalCluster) -> None:
    inner = KafkaConnection(bootstrap_servers=secure_cluster.internal_bootstrap_servers)
    with KafkaCluster(inner) as cluster:
        allowed, denied = (partition_of_new_topic(cluster) for _ in range(2))
        write(cluster, allowed, b"x", b"y")
    acls = Acls(secure_cluster.internal_bootstrap_servers)
    acls.allow(ResourceType.TOPIC, allowed.topic, AclOperation.READ)
    config: LibrdkafkaConfig = {
        "bootstrap.servers": secure_cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "bob",
        "sasl.password": PASSWORD,
    }

    with KafkaReader(config, idle_timeout_s=20) as reader:
        assert read(reader, allowed, 0, 2).values == [b"x", b"y"]
        with pytest.raises(AuthorizationFailedError, match=f"READ on topic {denied.topic}"):
            read(reader, denied, 0, 2)
    with (
        KafkaReader({**config, "sasl.password": "wrong"}, idle_timeout_s=2) as reader,
        pytest.raises(ClusterUnavailableError, match=r"(?i)authentication") as refused,
    ):
        read(reader, allowed, 0, 2)
    assert "wrong" not in str(refused.value)
