"""Ranges of many partitions read together: brokers in memory, and a real one."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest
from confluent_kafka import Producer

from kstreams_assets.errors import (
    AuthorizationFailedError,
    KafkaRequestError,
    OffsetOutOfRangeError,
    RawReadLimitError,
    RawReadTimeoutError,
    TopicNotFoundError,
)
from kstreams_assets.kafka import raw_log as raw_bulk
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.leaders import Isolation, PartitionLeaders
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.kafka.raw_log import LoadedBatch, RawLogReader
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from tests.kafka.fake_leaders import FakeLeaders, FakeLog, FakeWire
from tests.kafka.transacting import DEADLINE_S, TIMEOUT_S, settled_end, transactional_producer
from tests.streams.cluster import unique_name
from tests.timing import Clock

FIRST, SECOND, THIRD = (TopicPartitionId("t", n) for n in range(3))
OTHER = TopicPartitionId("u", 0)
COMPACT = {"cleanup.policy": "compact"}
NEVER_COMPACTED: list[dict[str, str]] = [
    {},
    {"cleanup.policy": "delete"},
    {"cleanup.policy": "delete", "remote.storage.enable": "true"},
    {"cleanup.policy": "compact,delete", "remote.storage.enable": "true"},
]


@dataclass
class Fake:
    """A cluster in memory."""

    logs: dict[TopicPartitionId, FakeLog]
    wire: FakeWire
    leaders: FakeLeaders

    def read(
        self,
        ranges: dict[TopicPartitionId, OffsetRange],
        *,
        deadline_s: float = 5.0,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        limit_bytes: int | None = None,
    ) -> dict[TopicPartitionId, tuple[LoadedBatch, ...]]:
        """The call under test."""
        shared = cast(WireClient, self.wire), cast(PartitionLeaders, self.leaders)
        with RawLogReader(cast(KafkaConnection, None), shared=shared) as reader:
            return reader.read(
                ranges, deadline_s=deadline_s, isolation=isolation, limit_bytes=limit_bytes
            )


def fake_cluster(*partitions: TopicPartitionId, batches: int = 0, size: int = 10) -> Fake:
    logs = {partition: FakeLog() for partition in partitions}
    for log in logs.values():
        for _ in range(batches):
            log.append(2, size=size)
    return Fake(logs, FakeWire(logs), FakeLeaders(logs))


def _bases(read: Sequence[LoadedBatch]) -> list[int]:
    return [batch.header.base_offset for batch in read]


@pytest.mark.usefixtures("clock")
class TestFake:
    """What does not need a broker, and what a broker rarely does."""

    def test_one_request_for_all_partitions_of_a_leader(self) -> None:
        fake = fake_cluster(FIRST, SECOND, OTHER, batches=3)
        fake.logs[OTHER].leader = 1
        fake.logs[SECOND].log_start = 2
        ranges = {SECOND: OffsetRange(2, 5), FIRST: OffsetRange(3, 4), OTHER: OffsetRange(0, 6)}
        found = fake.read(ranges)
        assert {p: _bases(r) for p, r in found.items()} == {
            SECOND: [2, 4],
            FIRST: [2],
            OTHER: [0, 2, 4],
        }
        assert list(found) == list(ranges)
        assert sorted((node, set(asked)) for node, asked in fake.wire.asked) == [
            (0, {FIRST, SECOND}),
            (1, {OTHER}),
        ]

    def test_records_are_decoded_from_the_answer_itself(self) -> None:
        fake = fake_cluster(FIRST, batches=2)
        batches = fake.read({FIRST: OffsetRange(0, 4)})[FIRST]
        assert batches[1].records() == [
            RawRecord(2, 1_000, 0, b"k", b"v" * 10, ()),
            RawRecord(3, 1_000, 0, b"k", b"v" * 10, ()),
        ]
        assert batches[0].data.obj is batches[1].data.obj  # one buffer, nothing copied

    def test_empty_ranges_ask_nobody(self) -> None:
        fake = fake_cluster(FIRST, SECOND, batches=1)
        found = fake.read({FIRST: OffsetRange(7, 7), SECOND: OffsetRange(1, 0)})
        assert found == {FIRST: (), SECOND: ()}
        assert fake.wire.asked == []
        assert fake.read({}) == {}

    def test_limits_of_an_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(raw_bulk, "LARGEST_FETCH_BYTES", 300)
        fake = fake_cluster(FIRST, SECOND, THIRD, OTHER, batches=5, size=60)
        fake.logs[THIRD].append(2, size=5_000)  # larger than an answer may be
        fake.logs[THIRD].append(2)
        ends = {FIRST: 10, SECOND: 9, THIRD: 14, OTHER: 10}
        found = fake.read({p: OffsetRange(0, end) for p, end in ends.items()})
        for partition, end in ends.items():
            assert _bases(found[partition]) == list(range(0, end, 2))
        # who came away empty-handed was asked first the next time
        orders = [list(asked) for _, asked in fake.wire.asked]
        assert orders[0][0] != orders[1][0]

    def test_a_limit_stops_the_reading_before_more_is_asked_for(self) -> None:
        fake = fake_cluster(FIRST, SECOND, THIRD, OTHER, batches=50, size=500)
        fake.logs[OTHER].leader = 1
        batch = len(fake.logs[FIRST].batches[0][2])
        ranges = {p: OffsetRange(0, 100) for p in fake.logs}
        with pytest.raises(RawReadLimitError):
            fake.read(ranges, limit_bytes=10 * batch)
        assert 10 * batch < fake.wire.answered_bytes <= 12 * batch  # one more for each leader

    def test_what_a_limit_just_allows_is_read_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(raw_bulk, "EMPTY_S", 0.1)
        fake = fake_cluster(FIRST, SECOND, OTHER, batches=5, size=500)
        fake.wire.configs = COMPACT
        fake.logs[OTHER].leader = 1
        fake.logs[FIRST].high_watermark = 20  # compaction emptied the tail
        size = sum(len(data) for log in fake.logs.values() for _, _, data in log.batches)
        ranges = {FIRST: OffsetRange(0, 20), SECOND: OffsetRange(0, 10), OTHER: OffsetRange(0, 10)}
        found = fake.read(ranges, limit_bytes=size)
        assert [_bases(found[partition]) for partition in ranges] == [[0, 2, 4, 6, 8]] * 3
        with pytest.raises(RawReadLimitError):
            fake.read(ranges, limit_bytes=size - 1)

    def test_no_more_is_held_than_the_range_has(self) -> None:
        fake = fake_cluster(FIRST, batches=100, size=500)
        (batch,) = fake.read({FIRST: OffsetRange(0, 2)})[FIRST]
        held = batch.data.obj
        assert isinstance(held, bytes)
        assert len(held) == len(fake.logs[FIRST].batches[0][2])

    def test_throttled_answers_are_not_the_end(self) -> None:
        fake = fake_cluster(FIRST, batches=2)
        fake.wire.throttled = 3
        assert _bases(fake.read({FIRST: OffsetRange(0, 4)})[FIRST]) == [0, 2]

    @pytest.mark.parametrize("isolation", Isolation)
    @pytest.mark.parametrize("stable", [4, 20])
    def test_compaction_emptied_the_tail(
        self, monkeypatch: pytest.MonkeyPatch, clock: Clock, isolation: Isolation, stable: int
    ) -> None:
        monkeypatch.setattr(raw_bulk, "EMPTY_S", 0.2)
        fake = fake_cluster(FIRST, SECOND, batches=3)
        fake.wire.configs = COMPACT
        fake.logs[FIRST].high_watermark = 20
        fake.logs[FIRST].last_stable_offset = stable
        ranges = {FIRST: OffsetRange(0, 20), SECOND: OffsetRange(0, 6)}
        began = clock.now_s
        found = fake.read(ranges, isolation=isolation)
        assert clock.now_s - began >= 0.2
        assert _bases(found[FIRST]) == _bases(found[SECOND]) == [0, 2, 4]

    @pytest.mark.parametrize("isolation", Isolation)
    @pytest.mark.parametrize("configs", NEVER_COMPACTED)
    def test_no_records_without_compaction_are_no_end(
        self, monkeypatch: pytest.MonkeyPatch, isolation: Isolation, configs: dict[str, str]
    ) -> None:
        monkeypatch.setattr(raw_bulk, "EMPTY_S", 0.1)
        fake = fake_cluster(FIRST, batches=3)
        fake.wire.configs = configs
        fake.logs[FIRST].high_watermark = 20
        with pytest.raises(RawReadTimeoutError, match="hold no records, although"):
            fake.read({FIRST: OffsetRange(0, 20)}, isolation=isolation, deadline_s=0.6)

    @pytest.mark.parametrize("isolation", Isolation)
    @pytest.mark.parametrize("configs", [COMPACT, *NEVER_COMPACTED])
    def test_late_answers_are_waited_for(
        self, isolation: Isolation, configs: dict[str, str]
    ) -> None:
        fake = fake_cluster(FIRST, batches=3)
        fake.wire.configs = configs
        fake.wire.late = 5
        found = fake.read({FIRST: OffsetRange(0, 6)}, isolation=isolation)
        assert _bases(found[FIRST]) == [0, 2, 4]
        assert [batch.header.aborted for batch in found[FIRST]] == [False] * 3

    def test_hole_at_the_end_of_the_range(self) -> None:
        fake = fake_cluster(FIRST, batches=2)
        fake.logs[FIRST].high_watermark = 10
        fake.logs[FIRST].append(1)
        assert _bases(fake.read({FIRST: OffsetRange(0, 7)})[FIRST]) == [0, 2]
        assert len(fake.wire.asked) == 1

    def test_leader_moves_while_it_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(raw_bulk, "LARGEST_FETCH_BYTES", 300)
        fake = fake_cluster(FIRST, SECOND, batches=6, size=60)

        def move() -> None:
            if len(fake.wire.asked) == 2:
                fake.logs[FIRST].leader = None

        fake.wire.before_fetch = move

        def elect() -> None:
            if fake.logs[FIRST].leader is None and len(fake.wire.asked) > 4:
                fake.logs[FIRST].leader = 1

        fake.leaders.elect = elect
        found = fake.read({p: OffsetRange(0, 12) for p in (FIRST, SECOND)})
        assert _bases(found[FIRST]) == _bases(found[SECOND]) == [0, 2, 4, 6, 8, 10]
        assert {node for node, asked in fake.wire.asked if FIRST in asked} == {0, 1}

    def test_dead_leader_does_not_keep_others_from_being_read(self) -> None:
        fake = fake_cluster(FIRST, SECOND, batches=2)
        fake.logs[FIRST].leader = 1
        fake.wire.dead = {1}
        with pytest.raises(RawReadTimeoutError, match="the broker is dead") as caught:
            fake.read({p: OffsetRange(0, 4) for p in (FIRST, SECOND)}, deadline_s=0.3)
        assert (caught.value.partition, caught.value.reached) == (str(FIRST), 0)
        assert [set(asked) for _, asked in fake.wire.asked] == [{SECOND}]

    @pytest.mark.parametrize("code", [3, 5, 6, 56, 74, 75, 78])
    def test_errors_that_pass(self, code: int) -> None:
        fake = fake_cluster(FIRST, SECOND, batches=2)
        fake.logs[FIRST].errors = [code, code]
        found = fake.read({p: OffsetRange(0, 4) for p in (FIRST, SECOND)})
        assert _bases(found[FIRST]) == _bases(found[SECOND]) == [0, 2]

    def test_errors_that_last(self) -> None:
        fake = fake_cluster(FIRST, SECOND, batches=2)
        ranges = {p: OffsetRange(0, 4) for p in (FIRST, SECOND)}
        fake.logs[SECOND].errors = [29]
        with pytest.raises(AuthorizationFailedError) as denied:
            fake.read(ranges)
        assert (denied.value.resource, denied.value.needed) == ("topic t", "READ")
        fake.logs[SECOND].errors = [2]
        with pytest.raises(KafkaRequestError, match=r"t-1.*CorruptRecord"):
            fake.read(ranges)
        fake.logs[SECOND].log_start = 1
        with pytest.raises(OffsetOutOfRangeError) as gone:
            fake.read(ranges)
        assert (gone.value.partition, gone.value.offset, gone.value.log_start) == ("t-1", 0, 1)

    def test_out_of_range_at_a_leader_that_lags(self) -> None:
        fake = fake_cluster(FIRST, batches=2)
        fake.logs[FIRST].errors = [1, 1]
        assert _bases(fake.read({FIRST: OffsetRange(2, 4)})[FIRST]) == [2]

    def test_end_that_never_comes(self, clock: Clock) -> None:
        fake = fake_cluster(FIRST, SECOND, batches=2)
        started = clock.now_s
        with pytest.raises(RawReadTimeoutError, match="the log ends at 4") as caught:
            fake.read({FIRST: OffsetRange(0, 4), SECOND: OffsetRange(0, 5)}, deadline_s=0.3)
        assert 0.25 < clock.now_s - started < 1
        assert (caught.value.partition, caught.value.reached, caught.value.end) == ("t-1", 4, 5)

    def test_end_that_comes_while_it_is_awaited(self) -> None:
        fake = fake_cluster(FIRST, batches=2)

        def grow() -> None:
            if len(fake.wire.asked) == 2:
                fake.logs[FIRST].append(2)

        fake.wire.before_fetch = grow
        assert _bases(fake.read({FIRST: OffsetRange(0, 5)})[FIRST]) == [0, 2, 4]

    def test_committed_up_to_the_last_stable_offset_then_the_rest(self) -> None:
        fake = fake_cluster(FIRST, SECOND)
        for log in fake.logs.values():
            for _ in range(3):
                log.append(2, attributes=0x10)
        fake.logs[FIRST].last_stable_offset = 2
        ranges = {p: OffsetRange(0, 6) for p in (FIRST, SECOND)}
        committed = fake.read(ranges, isolation=Isolation.READ_COMMITTED)
        aborted = {p: [b.header.aborted for b in r] for p, r in committed.items()}
        assert aborted == {FIRST: [False, None, None], SECOND: [False, False, False]}
        for read in fake.read(ranges).values():
            assert [batch.header.aborted for batch in read] == [None, None, None]


@pytest.mark.kafka
class TestBroker:
    """A real broker."""

    def test_same_as_scan_and_as_written(
        self, connection: KafkaConnection, cluster: KafkaCluster, reader: RawLogReader
    ) -> None:
        partitions: list[TopicPartitionId] = []
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            topic = unique_name("bulk")
            times = {"message.timestamp.type": "LogAppendTime"} if codec == "none" else {}
            cluster.create_topics([TopicSpec(topic, 3, 1, times)])
            producer = Producer(
                {
                    "bootstrap.servers": connection.bootstrap_servers,
                    "compression.type": codec,
                    "linger.ms": 20,
                    "log_level": 0,
                }
            )
            for number in range(3):
                partitions.append(TopicPartitionId(topic, number))
                for n in range(1_000):
                    value = None if n % 7 == 0 else b"%d" % n * 200
                    headers = [("h", b"%d" % n), ("h", None)] if n % 2 else []
                    producer.produce(topic, value, b"k%d" % n, number, headers=headers)
            assert producer.flush(20) == 0
        before = time.time() * 1000

        found = reader.read({p: OffsetRange(100, 950) for p in partitions}, deadline_s=DEADLINE_S)

        for partition, read in found.items():
            headers = [batch.header for batch in read]
            assert headers == list(reader.scan(partition, 100, 950, deadline_s=DEADLINE_S))
            records = [r for b in read for r in b.records() if 100 <= r.offset < 950]
            assert [r.offset for r in records] == list(range(100, 950))
            for n, record in enumerate(records, 100):
                assert record.key == b"k%d" % n
                assert record.value == (None if n % 7 == 0 else b"%d" % n * 200)
                assert record.headers == ((("h", b"%d" % n), ("h", None)) if n % 2 else ())
                assert abs(record.timestamp_ms - before) < 60_000
                assert record.timestamp_type == (1 if partition in partitions[:3] else 0)

    def test_large_batches_beside_small_ones(
        self, connection: KafkaConnection, cluster: KafkaCluster, reader: RawLogReader
    ) -> None:
        names = (unique_name("bulk"), unique_name("bulk"))
        configs = {"max.message.bytes": "9000000"}
        cluster.create_topics([TopicSpec(name, 2, 1, configs) for name in names])
        producer = Producer(
            {
                "bootstrap.servers": connection.bootstrap_servers,
                "message.max.bytes": 9_000_000,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        partitions = [TopicPartitionId(name, number) for number in range(2) for name in names]
        sizes = dict(zip(partitions, (10, 3_000_000, 3_000_000, 10), strict=True))
        for _ in range(3):
            for partition, size in sizes.items():
                producer.produce(partition.topic, b"v" * size, partition=partition.partition)
                assert producer.flush(20) == 0
        found = reader.read({p: OffsetRange(0, 3) for p in partitions}, deadline_s=DEADLINE_S)
        for partition, read in found.items():
            values = [record.value for batch in read for record in batch.records()]
            assert [len(value or b"") for value in values] == [sizes[partition]] * 3

    def test_transactions(
        self, connection: KafkaConnection, cluster: KafkaCluster, reader: RawLogReader
    ) -> None:
        topic = unique_name("bulk")
        cluster.create_topics([TopicSpec(topic, 2)])
        decided, undecided = (TopicPartitionId(topic, number) for number in range(2))
        producer = transactional_producer(connection.bootstrap_servers, unique_name("tx"))
        for commit in (True, False):
            producer.begin_transaction()
            for partition in (decided, undecided):
                producer.produce(topic, b"v", partition=partition.partition)
            assert producer.flush(20) == 0  # an abort would drop what is not yet sent
            if commit:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)
            for partition in (decided, undecided):
                settled_end(cluster, partition)
        producer.begin_transaction()
        producer.produce(topic, b"v", partition=1)
        assert producer.flush(20) == 0

        ranges = {decided: OffsetRange(0, 4), undecided: OffsetRange(0, 5)}
        committed = reader.read(ranges, deadline_s=DEADLINE_S, isolation=Isolation.READ_COMMITTED)
        for partition, asked in ranges.items():
            scanned = reader.scan(partition, asked.start, asked.end, deadline_s=DEADLINE_S)
            assert [b.header for b in committed[partition]] == list(scanned)
        data = [b.header for b in committed[undecided] if not b.header.is_control]
        assert [header.aborted for header in data] == [False, True, None]
        for read in reader.read(ranges, deadline_s=DEADLINE_S).values():
            kinds = [b.header.control_type for b in read if b.header.is_control]
            assert kinds == ["commit", "abort"]
            aborted = {b.header.aborted for b in read if not b.header.is_control}
            assert aborted == {None}
        producer.abort_transaction(TIMEOUT_S)

    def test_bounds(
        self, connection: KafkaConnection, cluster: KafkaCluster, reader: RawLogReader
    ) -> None:
        topic = unique_name("bulk")
        cluster.create_topics([TopicSpec(topic, 2)])
        producer = Producer({"bootstrap.servers": connection.bootstrap_servers, "log_level": 0})
        first, second = (TopicPartitionId(topic, number) for number in range(2))
        for n in range(12):
            producer.produce(topic, b"%d" % n, partition=n % 2)
            assert producer.flush(20) == 0
        cluster.delete_records({second: 4})
        ranges = {first: OffsetRange(0, 6), second: OffsetRange(4, 6)}
        assert reader.read(ranges, deadline_s=DEADLINE_S).keys() == ranges.keys()
        with pytest.raises(OffsetOutOfRangeError) as gone:
            reader.read({**ranges, second: OffsetRange(3, 6)}, deadline_s=DEADLINE_S)
        assert (gone.value.partition, gone.value.log_start) == (str(second), 4)
        with pytest.raises(RawReadTimeoutError):
            reader.read({**ranges, first: OffsetRange(0, 7)}, deadline_s=0.5)
        with pytest.raises(TopicNotFoundError):
            reader.read({TopicPartitionId(topic, 9): OffsetRange(0, 1)}, deadline_s=DEADLINE_S)
