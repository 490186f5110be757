"""Two independent views of the same records: a plain Kafka consumer, and deltalake."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow.dataset as ds
from confluent_kafka import Consumer, KafkaError, TopicPartition

from kstreams_assets.repository.delta_log import delta_table
from kstreams_assets.repository.records import file_actions
from tests.streams.cluster import unique_name
from tests.streams.workbench import Workbench

_LIMIT_S = 60.0
_SPARK_TIMESTAMP_TYPE = {1: 0, 2: 1}  # librdkafka's numbers, and Kafka's own


def newest_files(records: Path, topic: str) -> list[Path]:
    """The files of a topic in a table of records, those of the newest window first."""
    rows = [row for row in file_actions(records).to_pylist() if row["topic"] == topic]
    rows.sort(key=lambda row: (row["window"], row["first"]), reverse=True)
    return [records / unquote(row["path"]) for row in rows]


class Record(NamedTuple):
    """Everything of a record; `headers` None when there is none."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None


def consume(servers: str, topic: str, partitions: int = 1) -> list[Record]:
    """What a plain consumer of committed records gets, sorted by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": unique_name("reader"),
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8_000_000,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    records: list[Record] = []
    ended: set[int] = set()
    deadline = time.monotonic() + _LIMIT_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"read {len(records)} records, ended {ended}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(partition)
            continue
        assert offset is not None
        kind, timestamp_ms = message.timestamp()
        if kind == 0:  # librdkafka's word for a timestamp of -1
            kind, timestamp_ms = 1, -1
        headers = message.headers()
        records.append(
            Record(
                partition,
                offset,
                timestamp_ms,
                _SPARK_TIMESTAMP_TYPE[kind],
                message.key(),
                message.value(),
                None if headers is None else tuple(headers),  # pyright: ignore[reportArgumentType]
            )
        )
    consumer.close()
    return sorted(records, key=lambda r: (r.partition, r.offset))


def stored(
    workbench: Workbench, topic: str, windows: Collection[str] | None = None
) -> list[Record]:
    """What deltalake reads from the backup, sorted by partition and offset."""
    condition = ds.field("topic") == topic
    if windows is not None:
        condition &= ds.field("window").isin(list(windows))
    dataset = delta_table(workbench.records_path).to_pyarrow_dataset()
    records = [
        Record(
            row["partition"],
            row["offset"],
            row["timestamp_ms"],
            row["timestamp_type"],
            row["key"],
            row["value"],
            None
            if row["headers"] is None
            else tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in dataset.to_table(filter=condition).to_pylist()
    ]
    return sorted(records, key=lambda r: (r.partition, r.offset))


def offsets(records: Collection[Record], partition: int = 0) -> list[int]:
    """The offsets among these of one partition."""
    return [record.offset for record in records if record.partition == partition]
