"""The producer of restores: each record once and in order, whatever happens on the way."""

import random
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import chain

import pyarrow as pa
import pytest

from kstreams_assets.errors import AuthorizationFailedError, KStreamsAssetsError, OvertakenError
from kstreams_assets.kafka import record_writer
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.channel import Channel, ProduceAnswer, receive_produce
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.record_columns import COLUMNS
from kstreams_assets.kafka.record_writer import RecordWriter, WriterLimits
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from tests.backup.reading import consume
from tests.streams.cluster import unique_name
from tests.streams.guarded import connection_of

pytestmark = pytest.mark.kafka

SMALL_BATCHES = WriterLimits(delivery_timeout_s=60, max_message_bytes=5_000)


def records(count: int, *, first: int = 0, at_once: int = 1_000) -> Iterator[pa.RecordBatch]:
    """Numbered records whose source offsets are ten times as large."""
    for start in range(first, first + count, at_once):
        numbers = range(start, min(start + at_once, first + count))
        yield pa.RecordBatch.from_pydict(
            {
                "offset": [10 * number for number in numbers],
                "timestamp_ms": [1_700_000_000_000 + number for number in numbers],
                "timestamp_type": [0] * len(numbers),
                "headers": [None] * len(numbers),
                "key": [b"k"] * len(numbers),
                "value": [b"%d" % number for number in numbers],
            },
            schema=COLUMNS,
        )


def connection_to(local: LocalCluster) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=local.bootstrap_servers, request_timeout_seconds=20)


def topic_on(
    local: LocalCluster,
    *,
    partitions: int = 1,
    replicas: int = 1,
    configs: Mapping[str, str] = {},
) -> str:
    name = unique_name("written")
    with KafkaCluster(connection_to(local)) as cluster:
        kept = {"retention.ms": "-1", **configs}  # the records are years old
        cluster.create_topics([TopicSpec(name, partitions, replicas, kept)])
    return name


def written(local: LocalCluster, topic: str) -> list[tuple[int, bytes | None]]:
    return [(r.offset, r.value) for r in consume(local.bootstrap_servers, topic)]


def numbered(count: int) -> list[tuple[int, bytes | None]]:
    return [(number, b"%d" % number) for number in range(count)]


def test_lost_answers_change_nothing(
    kafka_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has taken a batch, and its answer is lost: the batch is sent again."""
    partition = TopicPartitionId(topic_on(kafka_cluster), 0)
    chance, lost = random.Random(3), 0

    def loses(channel: Channel) -> ProduceAnswer:
        nonlocal lost
        answer = receive_produce(channel)
        if chance.random() < 0.2:
            lost += 1
            raise ConnectionError("lost")
        return answer

    monkeypatch.setattr(record_writer, "receive_produce", loses)
    with RecordWriter(connection_to(kafka_cluster), SMALL_BATCHES) as writer:
        done = list(writer.write(partition, records(20_000), first=0))

    assert lost > 20
    assert written(kafka_cluster, partition.topic) == numbered(20_000)
    # What is told in the end is where each record lies.
    told = [
        (int(source), one.first + index) for one in done for index, source in enumerate(one.sources)
    ]
    assert told == [(10 * number, number) for number in range(20_000)]


def test_one_writer_of_several_partitions_and_of_one_again(kafka_cluster: LocalCluster) -> None:
    topic = topic_on(kafka_cluster, partitions=2)
    first, second = (TopicPartitionId(topic, number) for number in range(2))
    with RecordWriter(connection_to(kafka_cluster), SMALL_BATCHES) as writer:
        for partition, start in ((first, 0), (second, 0), (first, 3_000)):
            for _ in writer.write(partition, records(3_000, first=start), first=start):
                pass
        assert (writer.end(first), writer.end(second)) == (6_000, 3_000)

    found = consume(kafka_cluster.bootstrap_servers, topic, partitions=2)
    assert [r.value for r in found if r.partition == 0] == [b"%d" % n for n in range(6_000)]
    assert [r.value for r in found if r.partition == 1] == [b"%d" % n for n in range(3_000)]


def test_somebody_else_who_writes_is_noticed(kafka_cluster: LocalCluster) -> None:
    partition = TopicPartitionId(topic_on(kafka_cluster), 0)
    connection = connection_to(kafka_cluster)
    with (
        RecordWriter(connection, SMALL_BATCHES) as writer,
        RecordWriter(connection, SMALL_BATCHES) as other,
    ):
        writing = writer.write(partition, records(5_000), first=0)
        next(writing)
        while other.end(partition) < 200:
            next(writing)
        end = other.end(partition)
        both = chain(other.write(partition, records(1), first=end), writing)
        with pytest.raises(KStreamsAssetsError, match="instead of"):
            list(both)


def test_the_right_to_write_is_named(guarded_cluster: LocalCluster) -> None:
    inner = KafkaConnection(bootstrap_servers=guarded_cluster.internal_bootstrap_servers)
    topic = unique_name("denied")
    with KafkaCluster(inner) as cluster:
        cluster.create_topics([TopicSpec(topic, 1, 1, {"retention.ms": "-1"})])
    limits = WriterLimits(delivery_timeout_s=5, max_message_bytes=5_000)
    bob = connection_of(guarded_cluster, "bob")
    with RecordWriter(bob, limits) as writer, pytest.raises(AuthorizationFailedError) as denied:
        for _ in writer.write(TopicPartitionId(topic, 0), records(1), first=0):
            pass
    assert denied.value.resource in (f"topic {topic}", "the cluster")


def test_a_writer_that_was_paused_and_replaced_writes_nothing_more(
    kafka_cluster: LocalCluster,
) -> None:
    """Its host hangs; another one writes the same; then it goes on, in the middle or at the end."""
    for there in (2_000, 5_000):
        partition = TopicPartitionId(topic_on(kafka_cluster), 0)
        connection = connection_to(kafka_cluster)
        with RecordWriter(connection, SMALL_BATCHES) as first:
            other = RecordWriter(connection, SMALL_BATCHES, first.producer())

            def replaced(
                partition: TopicPartitionId = partition,
                other: RecordWriter = other,
                there: int = there,
            ) -> Iterator[pa.RecordBatch]:
                yield from records(1_000)
                while other.end(partition) < 990:  # a batch or two are on their way
                    time.sleep(0.01)
                begin = other.end(partition)
                rest = records(there - begin, first=begin, at_once=77)
                for _ in other.write(partition, rest, first=begin):
                    pass
                yield from records(4_000, first=1_000)

            shared = RecordWriter(connection, SMALL_BATCHES, first.producer())
            with other, shared, pytest.raises(OvertakenError, match="Another attempt"):
                for _ in shared.write(partition, replaced(), first=0):
                    pass
            begin = first.end(partition)
            assert begin == there
            with RecordWriter(connection, SMALL_BATCHES, first.producer()) as third:
                for _ in third.write(partition, records(5_000 - there, first=there), first=there):
                    pass
        assert written(kafka_cluster, partition.topic) == numbered(5_000)


def test_writers_with_one_producer_id_write_each_record_once_and_in_order(
    kafka_cluster: LocalCluster,
) -> None:
    """Both live, as where only the way to the engine is lost; whoever is overtaken looks again."""
    partition = TopicPartitionId(topic_on(kafka_cluster), 0)
    connection = connection_to(kafka_cluster)
    overtaken: list[int] = []
    with RecordWriter(connection, SMALL_BATCHES) as first:
        producer = first.producer()

        def attempt(seed: int) -> None:
            with RecordWriter(connection, SMALL_BATCHES, producer) as writer:
                while (begin := writer.end(partition)) < 20_000:
                    rest = records(20_000 - begin, first=begin, at_once=seed)
                    try:
                        for _ in writer.write(partition, rest, first=begin):
                            pass
                    except OvertakenError:
                        overtaken.append(seed)

        threads = [threading.Thread(target=attempt, args=(seed,)) for seed in (97, 131, 1_009)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert overtaken
    assert written(kafka_cluster, partition.topic) == numbered(20_000)
