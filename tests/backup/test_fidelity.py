"""A backup holds every byte of every record, however odd, as a plain consumer sees it."""

import time
from uuid import uuid4

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Producer

from kstreams_assets.kafka.raw_batch import RawRecord as RawLogRecord
from kstreams_assets.kafka.raw_batch import header_name
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.delta_log import delta_table
from kstreams_assets.restore.request import RestoreRequest
from tests.backup.reading import Record, consume, stored
from tests.backup.writing import RawRecord, producer, write_batch, write_raw
from tests.kafka.batch_bytes import batch_bytes
from tests.restore.killing import restore
from tests.streams.workbench import Workbench

pytestmark = [
    *(pytest.mark.kafka, pytest.mark.spark, pytest.mark.cluster, pytest.mark.on_store),
    pytest.mark.usefixtures("on_spark"),
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ANY_TIME = {
    "retention.ms": "-1",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "max.message.bytes": "4000000",
}
LATEST_MS = 9_223_372_036_854_775  # Spark counts microseconds in 63 bits
BINARY = bytes(range(256))
HEADERS: list[list[tuple[str, bytes | None]]] = [
    [],
    [("a", b"1"), ("a", b"2"), ("b", b""), ("a", b"1")],
    [("z", b"last first"), ("a", None), ("a", b""), ("", b"no name")],
    [("größe-\u4e2d\u6587-\U0001f389", BINARY)],
    [(f"h{number}", b"v" * number) for number in range(100)],
]


def _write_payloads(sender: Producer, topic: str, partition: int) -> None:
    """Every kind of key with every kind of value."""
    values = (None, b"", b"text", BINARY, b"\x00" * 7, BINARY * 4096)
    for key in (None, b"", b"key", BINARY):
        for value in values:
            sender.produce(topic, value, key, partition=partition)
    assert sender.flush(30) == 0


def test_every_oddity_survives(workbench: Workbench) -> None:
    topic = workbench.topic("odd", partitions=6, configs=ANY_TIME)
    servers = workbench.bootstrap_servers
    for partition, codec in enumerate(CODECS):
        sender = producer(servers, compression_type=codec, linger_ms=20, message_max_bytes=3000000)
        _write_payloads(sender, topic, partition)
        for number, headers in enumerate(HEADERS):
            sender.produce(topic, b"headers", b"%d" % number, partition, headers=[*headers])
        assert sender.flush(30) == 0
    times = (0, -1, 1, 999, 1_700_000_000_123, -1, 253_402_300_799_999, LATEST_MS)
    raw = [RawRecord(time_ms, b"%d" % time_ms, b"time", HEADERS[2]) for time_ms in times]
    write_raw(servers, topic, 5, raw)
    window = workbench.close_window()

    backups = workbench.back_up(window)

    expected = consume(servers, topic, partitions=6)
    assert len(expected) == 5 * (24 + len(HEADERS)) + len(times)
    assert stored(workbench, topic) == expected
    assert tuple(r.timestamp_ms for r in expected if r.partition == 5) == times
    assert all(verdict.passed for verdict in workbench.verdicts(backups).values())
    _assert_counts(workbench, topic, expected)


def _assert_counts(workbench: Workbench, topic: str, expected: list[Record]) -> None:
    for entry in workbench.ledger.entries(topics={topic}):
        records = [r for r in expected if r.partition == entry.result.partition.partition]
        content = entry.result.content
        assert content.records == len(records)
        assert content.tombstones == sum(r.value is None for r in records)
        assert content.null_keys == sum(r.key is None for r in records)
        assert content.non_positive_timestamps == sum(r.timestamp_ms <= 0 for r in records)
        assert content.min_timestamp_ms == min(r.timestamp_ms for r in records)
        assert content.max_timestamp_ms == max(r.timestamp_ms for r in records)
        payload = sum(
            len(part)
            for r in records
            for part in (
                r.key,
                r.value,
                *(text for name, v in r.headers or () for text in (name.encode(), v)),
            )
            if part is not None
        )
        assert payload <= content.bytes <= payload + 60 * len(records) + 1100 * 8


def _header_bytes(record: Record) -> list[bytes | None]:
    return [part for name, value in record.headers or () for part in (name.encode(), value)]


def test_log_append_time_is_told_apart(workbench: Workbench) -> None:
    configs = {"message.timestamp.type": "LogAppendTime"}
    topic = workbench.topic("appended", configs=configs)
    sender = producer(workbench.bootstrap_servers, compression_type="gzip")
    for number in range(20):
        sender.produce(topic, b"%d" % number, timestamp=1_000 + number)
    assert sender.flush(20) == 0
    window = workbench.close_window()
    workbench.back_up(window)
    records = stored(workbench, topic)
    assert records == consume(workbench.bootstrap_servers, topic)
    assert {r.timestamp_type for r in records} == {1}
    assert min(r.timestamp_ms for r in records) >= window.start_ms - 1_000


def test_header_names_that_are_no_text(workbench: Workbench) -> None:
    """As sarama, librdkafka and franz-go may send them; brokers and Java's consumers take them."""
    odd, other = workbench.topic("odd-names"), workbench.topic("plain-names")
    names = (b"trace", b"\xfftrac", b"\xc3", b"")
    headers = tuple((header_name(name), b"v") for name in names)
    data = batch_bytes(
        [RawLogRecord(0, round(1000 * time.time()), 0, b"k", b"v", headers)], producer=(-1, -1)
    )
    write_batch(workbench, TopicPartitionId(odd, 0), data)
    sender = producer(workbench.bootstrap_servers)
    sender.produce(other, b"v")
    assert sender.flush(20) == 0
    window = workbench.close_window()

    backups = workbench.back_up(window)

    assert all(verdict.passed for verdict in workbench.verdicts(backups).values())
    assert len(stored(workbench, other)) == 1
    dataset = delta_table(workbench.records_path).to_pyarrow_dataset()
    (row,) = dataset.to_table(filter=ds.field("topic") == odd).to_pylist()
    found = [(header["key"], header["key_bytes"]) for header in row["headers"]]
    assert found == [("trace", None), ("\ufffdtrac", names[1]), ("\ufffd", names[2]), ("", None)]

    request = RestoreRequest(
        prefix=f"again-{uuid4().hex[:8]}.",
        application_id=f"again-{uuid4().hex[:8]}",
        accept=Restorability.AT_LEAST_ONCE,
    )
    restored = restore(
        workbench.application_settings, request, workbench.cluster.connection, workbench.spark
    )

    assert restored.state is RestoreState.COMMITTED
    there = TopicPartitionId(f"{request.prefix}{odd}", 0)
    with workbench.cluster.raw_log() as reader:
        (batch,) = reader.read({there: OffsetRange(0, 1)}, deadline_s=20)[there]
    assert [record.headers for record in batch.records()] == [headers]


def test_timestamps_that_no_calendar_has(workbench: Workbench) -> None:
    topic = workbench.topic("future", configs=ANY_TIME)
    records = [RawRecord(time_ms, b"v") for time_ms in (5, LATEST_MS + 1, 2**63 - 1, -1)]
    write_raw(workbench.bootstrap_servers, topic, 0, records)
    workbench.close_window()
    workbench.back_up()
    found = [record.timestamp_ms for record in stored(workbench, topic)]
    assert found == [5, LATEST_MS + 1, 2**63 - 1, -1]
