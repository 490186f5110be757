"""Producers that write transactions with offset commits, and a look at internal topics."""

from confluent_kafka import Consumer, Producer, TopicPartition

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.coordinator_log import coordinator_partition
from kstreams_assets.kafka.raw_log import LoadedBatch, RawLogReader
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from tests.timing import eventually

DEADLINE_S = 60.0
TIMEOUT_S = 30.0


def transactional_producer(servers: str, transactional_id: str, **settings: object) -> Producer:
    """A producer that has asked for its producer id."""
    names = {key.replace("_", "."): value for key, value in settings.items()}
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "log_level": 0,
            **names,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def transact(
    producer: Producer,
    group: str,
    offsets: dict[TopicPartitionId, tuple[int, str]],
    *,
    commit: bool = True,
) -> None:
    """One transaction that writes a record to each partition and commits these offsets."""
    consumer = Consumer(
        {"bootstrap.servers": producer_servers(producer), "group.id": group, "log_level": 0}
    )
    producer.begin_transaction()
    for partition in offsets:
        producer.produce(partition.topic, b"v", partition=partition.partition)
    assert producer.flush(TIMEOUT_S) == 0  # an abort would drop what was not sent yet
    producer.send_offsets_to_transaction(
        [TopicPartition(p.topic, p.partition, o, m) for p, (o, m) in offsets.items()],
        consumer.consumer_group_metadata(),
        TIMEOUT_S,
    )
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)
    consumer.close()


def producer_servers(producer: Producer) -> str:
    """The brokers a producer knows."""
    brokers = producer.list_topics(timeout=TIMEOUT_S).brokers.values()
    return ",".join(f"{broker.host}:{broker.port}" for broker in brokers)


def internal_batches(
    cluster: KafkaCluster, reader: RawLogReader, topic: str, name: str
) -> list[LoadedBatch]:
    """Everything in the partition of an internal topic that a group or transactional id has."""
    partition = TopicPartitionId(topic, coordinator_partition(name, cluster.topics()[topic]))
    end = settled_end(cluster, partition)
    found = reader.read({partition: OffsetRange(0, end)}, deadline_s=DEADLINE_S)
    return list(found[partition])


def settled_end(cluster: KafkaCluster, partition: TopicPartitionId) -> int:
    """The high watermark once every transaction is decided: markers follow a commit."""
    ends: list[int] = []

    def is_decided() -> bool:
        ends.append(cluster.high_watermarks([partition])[partition])
        return cluster.last_stable_offsets([partition])[partition] == ends[-1]

    assert eventually(is_decided), f"{partition} stays undecided"
    return ends[-1]


def await_assignment(consumer: Consumer) -> None:
    """Wait until a consumer has joined its group."""
    assert eventually(lambda: consumer.poll(0.1) or consumer.assignment())
