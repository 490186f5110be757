"""What an application has written, read whole, and compared with an uninterrupted run."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.librdkafka import librdkafka_config
from kstreams_assets.offsets import TopicPartitionId
from tests.streams.feed import Record

_BATCH: Final = 10_000
_FEW: Final = 3
_MARKERS: Final = 4
"""Most that may lie between a committed offset and the end without a record: one per thread."""
_STILL_S: Final = 1.0


class Written(NamedTuple):
    """One record of a key, without its place in the log."""

    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


Sequences = Mapping[bytes | None, Sequence[Written]]
"""Every record of a topic, by key, in order."""


def read(
    cluster: str | KafkaConnection,
    topics: Sequence[str],
    *,
    uncommitted: bool = False,
    timeout_s: float = 120.0,
) -> dict[str, list[Record]]:
    """Every record of these topics, from offset 0 on; those of a partition are in order.

    `cluster` are bootstrap servers, or a connection with what else it takes.
    """
    if isinstance(cluster, str):
        cluster = KafkaConnection(bootstrap_servers=cluster)
    consumer = Consumer(
        {
            **librdkafka_config(cluster),
            "group.id": "control",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted" if uncommitted else "read_committed",
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    found: dict[str | None, list[Record]] = {topic: [] for topic in topics}
    try:
        known = consumer.list_topics(timeout=30).topics
        open_ = {(topic, partition) for topic in topics for partition in known[topic].partitions}
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in open_])
        deadline = time.monotonic() + timeout_s
        while open_:
            assert time.monotonic() < deadline, f"not read to the end in time: {open_}"
            for message in consumer.consume(_BATCH, timeout=0.2):
                where = message.topic() or "", message.partition() or 0
                error = message.error()
                if error is None:
                    record = Record(
                        where[1],
                        message.offset() or 0,
                        message.timestamp()[1],
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),  # pyright: ignore[reportArgumentType]
                    )
                    found[where[0]].append(record)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    open_.discard(where)
    finally:
        consumer.close()
    return {topic: found[topic] for topic in topics}


def by_key(records: Iterable[Record]) -> Sequences:
    """The complete sequence of each key."""
    found: dict[bytes | None, list[Written]] = defaultdict(list)
    for record in records:
        found[record.key].append(Written(record.value, record.timestamp_ms, record.headers))
    return found


def newest(records: Iterable[Record]) -> dict[bytes | None, Written]:
    """The last record of each key: what a store holds, tombstones left out."""
    last = {key: sequence[-1] for key, sequence in by_key(records).items()}
    return {key: written for key, written in last.items() if written.value is not None}


def differences(control: Sequences, found: Sequences) -> list[str]:
    """Where two runs differ, the first few keys in words; empty if every sequence is the same."""
    differing = [
        key
        for key in sorted({*control, *found}, key=lambda key: key or b"")
        if list(control.get(key, ())) != list(found.get(key, ()))
    ]
    texts = [_difference(key, control.get(key, ()), found.get(key, ())) for key in differing[:_FEW]]
    more = [f"and {len(differing) - _FEW} more keys"] if len(differing) > _FEW else []
    return texts + more


def _difference(key: bytes | None, control: Sequence[Written], found: Sequence[Written]) -> str:
    pairs = enumerate(zip(control, found, strict=False))
    shorter = min(len(control), len(found))
    at = next((index for index, (one, other) in pairs if one != other), shorter)
    return (
        f"{key!r}: {len(found)} records for {len(control)}, first other at {at}:"
        f" {list(found[at : at + 1])} for {list(control[at : at + 1])}"
    )


def await_drained(
    connection: KafkaConnection,
    application_id: str,
    *,
    reads: Iterable[str],
    writes: Iterable[str],
    timeout_s: float = 120.0,
) -> None:
    """Wait until an application has committed everything it reads, and writes no more.

    Fails when that does not happen in time, as with an application that consumes nothing.
    """
    deadline = time.monotonic() + timeout_s
    with KafkaCluster(connection) as cluster:
        counts = cluster.topics()
        read_, written = (
            [TopicPartitionId(name, number) for name in names for number in range(counts[name])]
            for names in (tuple(reads), tuple(writes))
        )
        before: tuple[object, object] | None = None
        behind = read_
        still_since = time.monotonic()
        while time.monotonic() < deadline:
            ends = cluster.high_watermarks([*read_, *written])
            stable = cluster.last_stable_offsets(read_)
            committed = {
                id_: found.offset
                for id_, found in cluster.group_offsets(application_id).items()
                if id_ in stable
            }
            behind = [id_ for id_ in read_ if ends[id_] - committed.get(id_, 0) > _MARKERS]
            now = (ends, committed)
            if behind or now != before:
                before, still_since = now, time.monotonic()
            elif time.monotonic() - still_since > _STILL_S:
                return
            time.sleep(0.1)
    raise AssertionError(f"{application_id} did not come to the end of {behind}")
