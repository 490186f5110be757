"""States in `__transaction_state`: both versions by hand, and what a broker writes."""

import struct
import time

import pytest

from kstreams_assets.errors import CoordinatorRecordError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.coordinator_log import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    TransactionStateRecord,
    TransactionStatus,
    coordinator_partition,
    transaction_state,
)
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from tests.kafka.transacting import internal_batches, transact, transactional_producer
from tests.streams.cluster import unique_name
from tests.timing import eventually

TIMES = struct.pack(">qq", 1_700_000_000_001, 1_700_000_000_000)
KEY = struct.pack(">hh", 0, 6) + b"orders"


def _record(key: bytes | None, value: bytes | None) -> RawRecord:
    return RawRecord(12, 5_000, 0, key, value, ())


def _head(version: int, status: int) -> bytes:
    return struct.pack(">hqhib", version, 2**40, 8, 10_000, status)


def _plain(status: int, partitions: dict[str, list[int]] | None) -> bytes:
    if partitions is None:
        return _head(0, status) + struct.pack(">i", -1) + TIMES
    body = struct.pack(">i", len(partitions))
    for topic, numbers in partitions.items():
        body += struct.pack(">h", len(topic)) + topic.encode()
        body += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return _head(0, status) + body + TIMES


def _flexible(status: int, partitions: dict[str, list[int]] | None, tags: bytes) -> bytes:
    body = bytes([0 if partitions is None else len(partitions) + 1])
    for topic, numbers in (partitions or {}).items():
        body += bytes([len(topic) + 1]) + topic.encode()
        body += bytes([len(numbers) + 1]) + struct.pack(f">{len(numbers)}i", *numbers) + b"\x00"
    return _head(1, status) + body + TIMES + tags


PARTITIONS = {"out": [0, 70_000], CONSUMER_OFFSETS: [33]}
FOUND = frozenset(
    {
        TopicPartitionId("out", 0),
        TopicPartitionId("out", 70_000),
        TopicPartitionId(CONSUMER_OFFSETS, 33),
    }
)


@pytest.mark.parametrize("status", TransactionStatus)
def test_both_versions(status: TransactionStatus) -> None:
    expected = TransactionStateRecord("orders", 2**40, 8, status, FOUND, 5_000)
    for value in (_plain(status, PARTITIONS), _flexible(status, PARTITIONS, b"\x00")):
        assert transaction_state(_record(KEY, value)) == expected


def test_without_partitions() -> None:
    for partitions in (None, {}):
        for value in (_plain(4, partitions), _flexible(4, partitions, b"\x00")):
            state = transaction_state(_record(KEY, value))
            assert state is not None
            assert state.partitions == frozenset()


def test_tagged_fields() -> None:
    tags = b"\x04"
    tags += b"\x00\x08" + struct.pack(">q", 77)
    tags += b"\x01\x08" + struct.pack(">q", -1)
    tags += b"\x02\x02" + struct.pack(">h", 2)
    tags += b"\x03\x02" + struct.pack(">h", 5)
    state = transaction_state(_record(KEY, _flexible(2, PARTITIONS, tags)))
    assert state is not None
    assert state.partitions == FOUND


def test_what_is_no_state() -> None:
    assert transaction_state(_record(KEY, None)) is None  # the id has expired
    assert transaction_state(_record(None, b"")) is None
    assert transaction_state(_record(b"\x00\x01" + KEY[2:], _plain(1, {}))) is None


def test_unknown_version_and_status() -> None:
    with pytest.raises(CoordinatorRecordError, match="version 2 of a state") as caught:
        transaction_state(_record(KEY, b"\x00\x02" + _plain(1, {})[2:]))
    assert (caught.value.topic, caught.value.offset) == (TRANSACTION_STATE, 12)
    with pytest.raises(CoordinatorRecordError, match="8 is not a valid TransactionStatus"):
        transaction_state(_record(KEY, _plain(8, {})))


def test_records_cut_short() -> None:
    for value in (_plain(1, PARTITIONS), _flexible(1, PARTITIONS, b"\x01\x02\x02\x00\x02")):
        for cut in range(len(value)):
            with pytest.raises(CoordinatorRecordError):
                transaction_state(_record(KEY, value[:cut]))


@pytest.mark.kafka
def test_what_a_broker_writes(kafka_cluster: LocalCluster) -> None:
    connection = KafkaConnection(
        bootstrap_servers=kafka_cluster.bootstrap_servers, request_timeout_seconds=10
    )
    topic, group, name = unique_name("in"), unique_name("group"), unique_name("tx")
    written = TopicPartitionId(topic, 1)
    with KafkaCluster(connection) as cluster, RawLogReader(connection) as reader:
        cluster.create_topics([TopicSpec(topic, 2)])
        before_ms = time.time() * 1000
        producer = transactional_producer(connection.bootstrap_servers, name)
        transact(producer, group, {written: (5, "")})
        transact(producer, group, {written: (6, "")}, commit=False)
        offsets = coordinator_partition(group, cluster.topics()[CONSUMER_OFFSETS])
        states: list[TransactionStateRecord] = []

        def is_aborted() -> bool:
            batches = internal_batches(cluster, reader, TRANSACTION_STATE, name)
            found = (transaction_state(record) for b in batches for record in b.records())
            states[:] = [s for s in found if s is not None and s.transactional_id == name]
            return bool(states) and states[-1].status is TransactionStatus.COMPLETE_ABORT

        assert eventually(is_aborted), states
    both = frozenset({written, TopicPartitionId(CONSUMER_OFFSETS, offsets)})
    decided = [s for s in states if s.status.name.startswith("PREPARE")]
    assert [(s.status.name, s.partitions) for s in decided] == [
        ("PREPARE_COMMIT", both),
        ("PREPARE_ABORT", both),
    ]
    ends = [s for s in states if s.status.name.startswith("COMPLETE")]
    assert [s.status.name for s in ends] == ["COMPLETE_COMMIT", "COMPLETE_ABORT"]
    assert states[0].status is TransactionStatus.EMPTY
    assert len({s.producer_id for s in states}) == 1
    times = [s.append_time_ms for s in states]
    assert times == sorted(times)
    assert before_ms - 1 <= times[0] <= times[-1] <= time.time() * 1000 + 1
