"""Offset commits in `__consumer_offsets`: every version by hand, and what a broker writes."""

import struct

import pytest
from confluent_kafka import Consumer, TopicPartition

from kstreams_assets.errors import CoordinatorRecordError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.coordinator_log import (
    CONSUMER_OFFSETS,
    GroupCommit,
    group_commits,
    mentions_group,
    offset_commit,
)
from kstreams_assets.kafka.raw_batch import RawRecord, parse_batches
from kstreams_assets.kafka.raw_log import LoadedBatch, RawLogReader
from kstreams_assets.offsets import TopicPartitionId
from tests.kafka.batch_bytes import CODECS, batch_bytes
from tests.kafka.transacting import (
    await_assignment,
    internal_batches,
    transact,
    transactional_producer,
)
from tests.streams.cluster import unique_name
from tests.timing import eventually

PARTITION = TopicPartitionId(CONSUMER_OFFSETS, 3)
LATER = struct.pack(">q", 1_700_000_000_000)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _key(group: str = "group", *, version: int = 1, topic: str = "topic") -> bytes:
    return struct.pack(">h", version) + _text(group) + _text(topic) + struct.pack(">i", 4)


def _value(version: int, metadata: str = "AgAB") -> bytes:
    offset, epoch = struct.pack(">hq", version, 2**33), struct.pack(">i", 6)
    if version in (0, 2):
        return offset + _text(metadata) + LATER
    if version == 1:
        return offset + _text(metadata) + LATER + LATER
    if version == 3:
        return offset + epoch + _text(metadata) + LATER
    text = bytes([len(metadata.encode()) + 1]) + metadata.encode()
    return offset + epoch + text + LATER + b"\x01\x00\x10" + bytes(16)  # one tag, the topic id


def _record(key: bytes | None, value: bytes | None, offset: int = 9) -> RawRecord:
    return RawRecord(offset, 1_000, 0, key, value, ())


@pytest.mark.parametrize("key_version", [0, 1])
@pytest.mark.parametrize("version", range(5))
def test_every_version(key_version: int, version: int) -> None:
    for metadata in ("", "AgAB", "ü\0"):
        record = _record(_key(version=key_version), _value(version, metadata))
        epoch = 6 if version >= 3 else None
        expected = GroupCommit("group", "topic", 4, 2**33, metadata, 9, epoch)
        assert offset_commit(record) == expected


def test_long_metadata_in_the_flexible_version() -> None:
    metadata = "m" * 300
    value = struct.pack(">hqi", 4, 7, -1) + b"\xad\x02" + metadata.encode() + LATER + b"\x00"
    commit = offset_commit(_record(_key(), value))
    assert commit is not None
    assert (commit.metadata, commit.offset, commit.leader_epoch) == (metadata, 7, None)


def test_deleted_offset() -> None:
    assert offset_commit(_record(_key(), None)) == GroupCommit("group", "topic", 4, None, "", 9)


def test_other_records_of_groups() -> None:
    group_metadata = struct.pack(">h", 2) + _text("group")
    streams_metadata = struct.pack(">h", 17) + _text("group")
    for key in (group_metadata, streams_metadata, None):
        assert offset_commit(_record(key, b"\x00\x03...")) is None


def test_unknown_version() -> None:
    with pytest.raises(CoordinatorRecordError, match="version 5 of a commit") as caught:
        offset_commit(_record(_key(), _value(0).replace(b"\0\0", b"\0\5", 1)))
    assert (caught.value.topic, caught.value.offset) == (CONSUMER_OFFSETS, 9)


def test_records_cut_short() -> None:
    for version in range(5):
        value = _value(version, "AgAB")
        needed = len(value) - {0: 8, 1: 16, 2: 8, 3: 8, 4: 27}[version]
        for cut in range(needed):
            with pytest.raises(CoordinatorRecordError):
                offset_commit(_record(_key(), value[:cut]))
    for cut in range(len(_key())):
        with pytest.raises(CoordinatorRecordError):
            offset_commit(_record(_key()[:cut], _value(3)))


class TestGroupCommits:
    """The commits of one group in a batch."""

    def _batch(self, keys: list[bytes], *, codec: str = "none", attributes: int = 0) -> LoadedBatch:
        records = [_record(key, _value(3), n) for n, key in enumerate(keys)]
        data = memoryview(batch_bytes(records, codec=codec, attributes=attributes))
        (header,) = parse_batches(data, partition="p")
        return LoadedBatch(header, data, PARTITION)

    @pytest.mark.parametrize("codec", CODECS)
    def test_among_other_groups(self, codec: str) -> None:
        keys = [
            _key("other"),
            _key("group", topic="a"),
            struct.pack(">h", 2) + _text("group"),
            _key("groups"),
            _key("group", topic="b"),
        ]
        found = group_commits(self._batch(keys, codec=codec), "group")
        assert [(c.group, c.topic, c.record_offset) for c in found] == [
            ("group", "a", 1),
            ("group", "b", 4),
        ]

    def test_batches_of_others_are_not_decoded(self) -> None:
        data = bytearray(self._batch([_key("other")]).data)
        data[61] += 2  # the length of the first record is wrong
        (header,) = parse_batches(memoryview(data), partition="p")
        batch = LoadedBatch(header, memoryview(data), PARTITION)
        assert group_commits(batch, "group") == []

    def test_group_that_is_mentioned_only(self) -> None:
        group_metadata = struct.pack(">h", 2) + _text("group")
        batch = self._batch([_key("other", topic="group"), _key("a group"), group_metadata])
        assert not mentions_group(batch, "group")
        assert group_commits(batch, "group") == []

    def test_group_in_the_metadata_of_another(self) -> None:
        value = _value(3, _key("group").decode())
        data = memoryview(batch_bytes([_record(_key("other"), value, 0)]))
        (header,) = parse_batches(data, partition="p")
        batch = LoadedBatch(header, data, PARTITION)
        assert mentions_group(batch, "group")  # so it looks
        assert group_commits(batch, "group") == []

    def test_marker(self) -> None:
        marker = self._batch([struct.pack(">hh", 0, 1)], attributes=0x30)
        assert marker.header.is_control
        assert not mentions_group(marker, "")
        assert group_commits(marker, "") == []


@pytest.mark.kafka
class TestBroker:
    """What a real coordinator writes."""

    def test_transactional_commits(
        self, connection: KafkaConnection, cluster: KafkaCluster, reader: RawLogReader
    ) -> None:
        topic, group = unique_name("in"), unique_name("group")
        cluster.create_topics([TopicSpec(topic, 2)])
        first, second = TopicPartitionId(topic, 0), TopicPartitionId(topic, 1)
        producer = transactional_producer(connection.bootstrap_servers, unique_name("tx"))
        transact(producer, group, {first: (5, "one"), second: (2**40, "größe")})
        transact(producer, group, {first: (99, "never")}, commit=False)
        transact(producer, group, {first: (7, "")})
        other = unique_name("group")
        transact(producer, other, {first: (1, "other")})

        batches = internal_batches(cluster, reader, CONSUMER_OFFSETS, group)
        found = [(c, b.header) for b in batches for c in group_commits(b, group)]

        nul = "\0"  # confluent-kafka sends the end of its C string too
        assert [(c.topic, c.partition, c.offset, c.metadata) for c, _ in found] == [
            (topic, 0, 5, "one" + nul),
            (topic, 1, 2**40, "größe" + nul),
            (topic, 0, 99, "never" + nul),
            (topic, 0, 7, found[-1][0].metadata),
        ]
        assert found[-1][0].metadata in ("", nul)
        assert all(
            header.base_offset <= c.record_offset <= header.last_offset for c, header in found
        )
        assert all(header.is_transactional and header.aborted is None for _, header in found)
        producer_ids = {header.producer_id for _, header in found}
        assert len(producer_ids) == 1
        markers = [
            b.header.control_type
            for b in batches
            if b.header.is_control and b.header.producer_id in producer_ids
        ]
        assert markers[:3] == ["commit", "abort", "commit"]

        committed = cluster.group_offsets(group)
        assert {p: (c.offset, c.metadata) for p, c in committed.items()} == {
            first: (7, found[-1][0].metadata),
            second: (2**40, "größe" + nul),
        }

    def test_plain_commits_membership_and_deletion(
        self, connection: KafkaConnection, cluster: KafkaCluster, reader: RawLogReader
    ) -> None:
        topic, group = unique_name("in"), unique_name("group")
        cluster.create_topics([TopicSpec(topic, 1)])
        consumer = Consumer(
            {"bootstrap.servers": connection.bootstrap_servers, "group.id": group, "log_level": 0}
        )
        consumer.subscribe([topic])
        await_assignment(consumer)
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        consumer.close()
        cluster.delete_topics([topic])  # Kafka deletes the offsets of deleted topics
        batches: list[LoadedBatch] = []

        def committed() -> list[GroupCommit]:
            batches[:] = internal_batches(cluster, reader, CONSUMER_OFFSETS, group)
            return [c for b in batches for c in group_commits(b, group)]

        assert eventually(lambda: len(committed()) > 1)
        found = committed()
        assert [(c.topic, c.partition, c.offset) for c in found] == [
            (topic, 0, 3),
            (topic, 0, None),
        ]
        name = group.encode()
        keys = [r.key for b in batches if not b.header.is_control for r in b.records()]
        assert any(
            key is not None and name in key and key[1] not in (0, 1) for key in keys
        )  # its membership is there, and is no commit
