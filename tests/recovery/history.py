"""Reads the whole history of an OracleApp, once, after its run."""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from kstreams_assets.offsets import TopicPartitionId
from tests.recovery.oracle import History, RawPartitions
from tests.recovery.oracle_records import Record
from tests.streams.oracle_app import OracleTopics

_BATCH: Final = 10_000


def read_topics(
    bootstrap_servers: str, topics: Sequence[str], *, timeout_s: float = 300.0
) -> dict[TopicPartitionId, list[Record]]:
    """Read every committed record of some topics, about 200,000 in a second.

    Every partition has an entry; topics that do not exist have none. Fails when a partition no
    longer begins at offset 0: its history is not whole.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "oracle-history",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 65536,
            "log_level": 0,
        }
    )
    try:
        partitions = _partitions(consumer, topics)
        for each in partitions:
            assert _log_start(consumer, each) == 0, f"records of {each} were deleted"
        consumer.assign([TopicPartition(each.topic, each.partition, 0) for each in partitions])
        return _read_to_end(consumer, partitions, time.monotonic() + timeout_s)
    finally:
        consumer.close()


def read_history(
    bootstrap_servers: str,
    topics: OracleTopics,
    *,
    repartition_purged: bool = False,
    changelog_complete: bool = True,
) -> History:
    """Read what the oracle needs of an application; `changelog_complete` goes to `History`.

    With `repartition_purged` the repartition topic is not read. It is whole only if the
    application did not purge it during the run (`repartition.purge.interval.ms`).
    """
    named = {
        "inputs": topics.orders,
        "repartition": topics.repartition,
        "changelog": topics.changelog,
        "outputs": topics.totals,
        "ticks_changelog": topics.ticks_changelog,
        "ticks_outputs": topics.ticks,
    }
    if repartition_purged:
        del named["repartition"]
    found = read_topics(bootstrap_servers, list(named.values()))

    def of(role: str) -> RawPartitions:
        return {each: found[each] for each in found if each.topic == named[role]}

    return History.of(
        inputs=of("inputs"),
        repartition=None if repartition_purged else of("repartition"),
        changelog=of("changelog"),
        outputs=of("outputs"),
        ticks_changelog=of("ticks_changelog"),
        ticks_outputs=of("ticks_outputs"),
        changelog_complete=changelog_complete,
    )


def _partitions(consumer: Consumer, topics: Iterable[str]) -> list[TopicPartitionId]:
    known = consumer.list_topics(timeout=30).topics
    return [
        TopicPartitionId(topic, partition)
        for topic in topics
        if topic in known
        for partition in sorted(known[topic].partitions)
    ]


def _log_start(consumer: Consumer, partition: TopicPartitionId) -> int:
    topic_partition = TopicPartition(partition.topic, partition.partition)
    watermarks = consumer.get_watermark_offsets(topic_partition, timeout=30)
    assert watermarks is not None, f"no log start of {partition}"
    return watermarks[0]


def _read_to_end(
    consumer: Consumer, partitions: Sequence[TopicPartitionId], deadline: float
) -> dict[TopicPartitionId, list[Record]]:
    read: dict[TopicPartitionId, list[Record]] = {each: [] for each in partitions}
    lists: dict[tuple[str | None, int | None], list[Record]] = {
        (each.topic, each.partition): records for each, records in read.items()
    }
    unfinished = set(lists)
    while unfinished:
        assert time.monotonic() < deadline, f"not read to the end in time: {unfinished}"
        for message in consumer.consume(_BATCH, timeout=0.2):
            where = (message.topic(), message.partition())
            error = message.error()
            if error is None:
                offset = message.offset()
                assert offset is not None
                lists[where].append((offset, message.key(), message.value()))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unfinished.discard(where)
    return read
