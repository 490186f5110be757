"""Writes test records: plain, in transactions, and as raw batches that no producer would send."""

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import google_crc32c
import numpy as np
from confluent_kafka import Producer
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from kstreams_assets.kafka.channel import Channels, receive_produce, send_produce
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.leaders import PartitionLeaders
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import TopicPartitionId
from tests.streams.cluster import unique_name
from tests.streams.workbench import Workbench

_LIMIT_S = 60.0


@dataclass(frozen=True)
class RawRecord:
    """A record with a timestamp that producers refuse or replace."""

    timestamp_ms: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


def producer(servers: str, **settings: object) -> Producer:
    """A producer; settings with underscores for dots."""
    names = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": servers, "log_level": 0, **names})


def write(workbench: Workbench, topic: str, count: int, *, partition: int = 0) -> None:
    """Write that many small records to a partition."""
    sender = producer(workbench.bootstrap_servers, linger_ms=5)
    for number in range(count):
        sender.produce(topic, b"value %d" % number, key=b"%d" % number, partition=partition)
    assert sender.flush(_LIMIT_S) == 0


def open_transaction(workbench: Workbench) -> Producer:
    """A producer that has begun a transaction."""
    sender = producer(workbench.bootstrap_servers, transactional_id=unique_name("tx"))
    sender.init_transactions(_LIMIT_S)
    sender.begin_transaction()
    return sender


def send(sender: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    """Write values, each in a batch of its own."""
    for value in values:
        sender.produce(topic, value, key=value[:1], partition=partition)
        assert sender.flush(_LIMIT_S) == 0


def await_end(workbench: Workbench, topic: str, end: int, partitions: int = 1) -> None:
    """Wait until the log ends there: markers are written after a commit has returned."""
    wanted = {TopicPartitionId(topic, number): end for number in range(partitions)}
    deadline = time.monotonic() + _LIMIT_S
    while (found := workbench.cluster.high_watermarks(wanted)) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def write_raw(servers: str, topic: str, partition: int, records: Iterable[RawRecord]) -> None:
    """Write one batch whose timestamps nobody checks on the way."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=2**24)
    for record in records:
        builder.append(
            timestamp=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
    builder.close()
    data = ProduceRequest.TopicProduceData
    entry = data.PartitionProduceData(index=partition, records=builder.buffer())
    connection = KafkaConnection(bootstrap_servers=servers, request_timeout_seconds=_LIMIT_S)
    wire = WireClient(connection, timeout_s=_LIMIT_S)
    try:
        response = wire.request(
            lambda: ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=10_000,
                topic_data=[data(name=topic, partition_data=[entry])],
                max_version=9,
            ),
            operation="produce",
        )
    finally:
        wire.close()
    assert response.responses[0].partition_responses[0].error_code == 0, response


def write_batch(
    workbench: Workbench, partition: TopicPartitionId, data: bytes, *, checksum: bool = True
) -> None:
    """Send one batch (`batch_bytes`) as it is, with its checksum."""
    batch = bytearray(data)
    if checksum:
        crc = google_crc32c.value(np.frombuffer(bytes(batch[21:]), np.uint8))
        batch[17:21] = crc.to_bytes(4, "big")
    connection = workbench.cluster.connection
    with closing(WireClient(connection, timeout_s=_LIMIT_S)) as wire:
        leaders = PartitionLeaders(wire).of([partition], operation="produce", timeout_s=_LIMIT_S)
        with Channels(wire, timeout_s=_LIMIT_S) as channels:
            node = leaders[partition]
            channel = channels.to(node, operation="produce", timeout_s=_LIMIT_S)
            send_produce(channel, partition, [bytes(batch)], timeout_s=_LIMIT_S)
            assert receive_produce(channel).error_code == 0
