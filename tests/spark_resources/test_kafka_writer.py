"""One partition is written as it was, once, in order, up to the first record that is refused."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from kstreams_assets.errors import (
    ClusterUnavailableError,
    KStreamsAssetsError,
    OvertakenError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.record_writer import Acknowledged, RecordWriter, WriterLimits
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.restores import PartitionProduced
from kstreams_assets.offsets import TopicPartitionId
from spark_resources import kafka_writer
from spark_resources.kafka_writer import produce_partition
from spark_resources.partition_records import PartitionWork, work_records
from tests.backup.reading import consume
from tests.restore.span_files import Stored, span_file, work_of
from tests.streams.cluster import connection_to, passing_cluster, unique_name

pytestmark = pytest.mark.kafka

ANY_TIME = {
    "retention.ms": "-1",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "max.message.bytes": "4000000",
}
BINARY = bytes(range(256))
HEADERS: list[list[tuple[str, bytes | None]] | None] = [
    None,
    [("a", b"1"), ("a", b"2"), ("b", b""), ("a", b"1")],
    [("z", b"last first"), ("a", None), ("a", b""), ("", b"no name")],
    [("größe-\u4e2d\u6587-\U0001f389", BINARY)],
    [(f"h{number}", b"v" * number) for number in range(100)],
]


class Target:
    """A broker to restore to."""

    def __init__(self, local: LocalCluster) -> None:
        self.servers = local.bootstrap_servers
        self.connection = connection_to(self.servers)

    def topic(self, configs: Mapping[str, str] = ANY_TIME, partitions: int = 1) -> str:
        name = unique_name("restored")
        with KafkaCluster(self.connection) as cluster:
            cluster.create_topics([TopicSpec(name, partitions, 1, configs)])
        return name

    def produce(
        self,
        work: PartitionWork,
        *,
        timeout_s: float = 30.0,
        max_bytes: int = 4_000_000,
        compression: str = "none",
    ) -> PartitionProduced:
        limits = WriterLimits(timeout_s, max_bytes, compression)
        with RecordWriter(self.connection, limits) as writer:
            return produce_partition(work, writer, settled_end=0)

    def write_foreign(self, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(topic, b"foreign", partition=0)
        assert producer.flush(20) == 0

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value for record in consume(self.servers, topic)]


@pytest.fixture
def target(kafka_cluster: LocalCluster) -> Target:
    return Target(kafka_cluster)


def _numbered(path: Path, count: int, *, bad: Mapping[int, Stored] = {}) -> Path:
    records = [bad.get(n, Stored(n, b"%d" % n)) for n in range(count)]
    return span_file(path, records)


def _between_batches(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], *, after: int = 0
) -> None:
    """Do something once so many batches are acknowledged."""
    original = kafka_writer.work_records
    write = RecordWriter.write

    def acting(
        writer: RecordWriter,
        partition: TopicPartitionId,
        records: Iterable[pa.RecordBatch],
        *,
        first: int,
    ) -> Iterator[Acknowledged]:
        for number, batch in enumerate(records):
            yield from write(writer, partition, [batch], first=first)
            if number == after:
                act()
            first += batch.num_rows

    def small(work: PartitionWork, *, skip: int = 0) -> Iterator[pa.RecordBatch]:
        for batch in original(work, skip=skip):
            for start in range(0, batch.num_rows, 100):
                yield batch[start : start + 100]

    monkeypatch.setattr(kafka_writer, "work_records", small)
    monkeypatch.setattr(RecordWriter, "write", acting)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_oddity_arrives(target: Target, tmp_path: Path, compression: str) -> None:
    records = [
        Stored(0, value, key, 1_000 + index, HEADERS[index % len(HEADERS)])
        for index, (key, value) in enumerate(
            (key, value)
            for key in (None, b"", b"key", BINARY)
            for value in (None, b"", b"text", BINARY, b"\x00" * 7, BINARY * 4096)
        )
    ]
    times = (-1, 0, 1, 999, 1_700_000_000_123, -7, 253_402_300_799_999, 2**63 - 1)
    records += [Stored(0, b"time", b"%d" % time_ms, time_ms) for time_ms in times]
    offsets = [n * 3 if n < 10 else n * 3 + 100 for n in range(len(records))]
    records = [
        Stored(offset, r.value, r.key, r.timestamp_ms, r.headers)
        for offset, r in zip(offsets, records, strict=True)
    ]
    topic = target.topic(partitions=3)
    path = span_file(tmp_path / "f", records, partition=2)
    work = work_of(TopicPartitionId(topic, 2), [path], [(0, 1000)], len(records))

    produced = target.produce(work, compression=compression)

    arrived = consume(target.servers, topic, partitions=3)
    assert [(r.partition, r.offset) for r in arrived] == [(2, n) for n in range(len(records))]
    for record, stored in zip(arrived, records, strict=True):
        headers = None if stored.headers is None else tuple(stored.headers)
        assert (record.value, record.key) == (stored.value, stored.key)
        assert record.headers == headers
        if stored.timestamp_ms >= -1:  # a consumer of confluent-kafka shows no others
            assert record.timestamp_ms == stored.timestamp_ms
    assert list(produced.runs) == [(offset, n, 1) for n, offset in enumerate(offsets)]
    assert (produced.records, produced.resumed, produced.end) == (32, 0, 32)


def test_a_second_call_goes_on_where_the_first_one_ended(target: Target, tmp_path: Path) -> None:
    topic = TopicPartitionId(target.topic(), 0)
    path = _numbered(tmp_path / "f", 3_000)
    for count in (1_000, 1_000, 3_000):
        ranges = [(0, 500), (600, count + 100)] if count < 3_000 else [(0, 500), (600, 3_000)]
        records = min(count, 2_900)
        produced = target.produce(work_of(topic, [path], ranges, records))
    assert (produced.records, produced.resumed, produced.end) == (2_900, 1_000, 2_900)
    assert list(produced.runs) == [(0, 0, 500), (600, 500, 2_400)]
    expected = [b"%d" % n for n in range(3_000) if not 500 <= n < 600]
    assert target.values(topic.topic) == expected


def test_a_refused_timestamp_is_named_and_nothing_follows_it(
    target: Target, tmp_path: Path
) -> None:
    twenty_years_ms = 631_152_000_000
    topic = target.topic({"message.timestamp.before.max.ms": str(twenty_years_ms)})
    old = Stored(10_007, b"old", timestamp_ms=1_000)
    path = _numbered(tmp_path / "f", 30_000, bad={10_007: old})
    work = work_of(TopicPartitionId(topic, 0), [path], [(0, 30_000)], 30_000)
    refused = f"{topic}-0 refused the record with source offset 10007: INVALID_TIMESTAMP"
    with pytest.raises(KStreamsAssetsError, match=refused):
        target.produce(work)
    there = target.values(topic)
    assert there == [b"%d" % n for n in range(len(there))]
    assert len(there) <= 10_007


def test_a_record_too_large_is_named_and_nothing_follows_it(target: Target, tmp_path: Path) -> None:
    topic = target.topic({"max.message.bytes": "20000"})
    large = Stored(5_000, b"x" * 20_000)
    path = _numbered(tmp_path / "f", 9_000, bad={5_000: large})
    work = work_of(TopicPartitionId(topic, 0), [path], [(0, 9_000)], 9_000)
    with pytest.raises(KStreamsAssetsError, match="source offset 5000: MESSAGE_SIZE_TOO_LARGE"):
        target.produce(work, max_bytes=20_000)
    assert target.values(topic) == [b"%d" % n for n in range(5_000)]


def test_records_larger_than_a_batch(target: Target, tmp_path: Path) -> None:
    topic = target.topic()
    bad = {n: Stored(n, b"%d" % n * 2_500_000) for n in (3, 7)}
    path = _numbered(tmp_path / "f", 2_000, bad=bad)
    target.produce(work_of(TopicPartitionId(topic, 0), [path], [(0, 2_000)], 2_000))
    lengths = [value and len(value) for value in target.values(topic)]
    assert lengths[:9] == [1] * 3 + [2_500_000] + [1] * 3 + [2_500_000, 1]
    assert len(lengths) == 2_000


def test_records_of_somebody_else_are_noticed(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _numbered(tmp_path / "f", 500)
    before = target.topic()
    for _ in range(501):
        target.write_foreign(before)
    with pytest.raises(KStreamsAssetsError, match=f"{before}-0 .*ends at 501, beyond 500"):
        target.produce(work_of(TopicPartitionId(before, 0), [path], [(0, 500)], 500))

    between = target.topic()
    _between_batches(monkeypatch, lambda: target.write_foreign(between))
    with pytest.raises(KStreamsAssetsError, match="offset 100 got offset 101 instead of 100"):
        target.produce(work_of(TopicPartitionId(between, 0), [path], [(0, 500)], 500))


def test_a_topic_below_its_base_is_another_one(target: Target, tmp_path: Path) -> None:
    path = _numbered(tmp_path / "f", 5)
    work = work_of(TopicPartitionId(target.topic(), 0), [path], [(0, 5)], 5, base_offset=7)
    with pytest.raises(KStreamsAssetsError, match="ends at 0, below 7"):
        target.produce(work)


def test_a_topic_that_is_not_there(target: Target, tmp_path: Path) -> None:
    path = _numbered(tmp_path / "f", 5)
    with pytest.raises(TopicNotFoundError, match="nowhere"):
        target.produce(work_of(TopicPartitionId("nowhere", 0), [path], [(0, 5)], 5))


def test_a_backup_short_of_records_is_an_error(target: Target, tmp_path: Path) -> None:
    path = _numbered(tmp_path / "f", 5)
    with pytest.raises(KStreamsAssetsError, match="has 5 records, the plan 6"):
        target.produce(work_of(TopicPartitionId(target.topic(), 0), [path], [(0, 6)], 6))


def test_a_broker_that_dies_ends_the_restore_in_time_and_a_second_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _numbered(tmp_path / "f", 2_000)
    with passing_cluster(tmp_path / "kafka") as local:
        target = Target(local)
        topic = target.topic()
        work = work_of(TopicPartitionId(topic, 0), [path], [(0, 2_000)], 2_000)
        with monkeypatch.context() as patched:
            _between_batches(patched, lambda: local.kill_node(0), after=3)
            with pytest.raises(ClusterUnavailableError, match="from source offset 400") as caught:
                target.produce(work, timeout_s=6)
        assert caught.value.timeout_s == 6
        assert "refused" in caught.value.reason.lower()
        local.start_node(0)
        produced = target.produce(work)
        assert produced.resumed == 400
        assert target.values(topic) == [b"%d" % n for n in range(2_000)]
        assert list(produced.runs) == [(0, 0, 2_000)]


class _Zombie:
    """The task of a lost executor, which still writes the same records."""

    def __init__(self, target: Target, work: PartitionWork, writer: RecordWriter) -> None:
        self.target, self.work, self.producer = target, work, writer.producer()
        self.looks = 0

    def writes_after_each_look(self, monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
        look = kafka_writer.records_there

        def looks(*arguments: Any, **named: Any) -> int:
            found = look(*arguments, **named)
            self.looks += 1
            if self.looks <= times:
                self.write(found, 100)
            return found

        monkeypatch.setattr(kafka_writer, "records_there", looks)

    def write(self, first: int, count: int) -> None:
        limits = WriterLimits(30, 4_000_000)
        with RecordWriter(self.target.connection, limits, self.producer) as writer:
            batch = next(work_records(self.work, skip=first))[:count]
            for _ in writer.write(self.work.target, [batch], first=first):
                pass


@pytest.mark.parametrize("is_second", [True, False])
def test_beside_a_lost_attempt_that_still_writes(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_second: bool
) -> None:
    """The later attempt goes on behind it; an earlier one gives up. Nothing is there twice."""
    monkeypatch.setattr(kafka_writer, "is_second_attempt", lambda: is_second)
    path = _numbered(tmp_path / "f", 3_000)
    topic = TopicPartitionId(target.topic(), 0)
    work = work_of(topic, [path], [(0, 3_000)], 3_000)
    with RecordWriter(target.connection, WriterLimits(30, 4_000_000)) as owner:
        zombie = _Zombie(target, work, owner)
        zombie.writes_after_each_look(monkeypatch, times=2)
        limits = WriterLimits(30, 4_000_000)
        with RecordWriter(target.connection, limits, owner.producer()) as writer:
            if is_second:
                produced = produce_partition(work, writer, settled_end=0)
                assert (produced.resumed, produced.end) == (200, 3_000)
                assert list(produced.runs) == [(0, 0, 3_000)]
            else:
                with pytest.raises(OvertakenError):
                    produce_partition(work, writer, settled_end=0)
    values = target.values(topic.topic)
    assert values == [b"%d" % n for n in range(3_000 if is_second else 100)]


def test_a_later_attempt_does_not_go_round_and_round_over_somebody_elses_record(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_writer, "is_second_attempt", lambda: True)
    path = _numbered(tmp_path / "f", 3_000)
    topic = TopicPartitionId(target.topic(), 0)
    work = work_of(topic, [path], [(0, 3_000)], 3_000)
    with RecordWriter(target.connection, WriterLimits(30, 4_000_000)) as owner:
        _Zombie(target, work, owner).write(0, 100)
        target.write_foreign(topic.topic)
        limits = WriterLimits(30, 4_000_000)
        with (
            RecordWriter(target.connection, limits, owner.producer()) as writer,
            pytest.raises(OvertakenError),
        ):
            produce_partition(work, writer, settled_end=0)
    assert len(target.values(topic.topic)) == 101
