"""A cluster's quotas slow every client of ours down, and break none (KIP-219, KIP-599)."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pytest
from kafka.protocol.admin import (
    AlterClientQuotasRequest,  # pyright: ignore[reportAttributeAccessIssue]
    DescribeClientQuotasRequest,  # pyright: ignore[reportAttributeAccessIssue]
)

from kstreams_assets.errors import RawReadTimeoutError
from kstreams_assets.kafka import channel, librdkafka, throttle, wire
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.channel import Channel, FetchAnswer, receive_fetch, send_fetch
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.leaders import Isolation
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.record_columns import COLUMNS
from kstreams_assets.kafka.record_writer import RecordWriter, WriterLimits
from kstreams_assets.kafka.throttle import (
    count_throttled,
    report_quota,
    throttled_s,
    unthrottled_time,
)
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from tests.kafka.test_empty_answers import FakeBroker
from tests.kafka.test_raw_bulk import COMPACT, FIRST, fake_cluster
from tests.streams.cluster import unique_name
from tests.timing import Clock, eventually

THROTTLED = FetchAnswer(300, 0, -1, -1, (), memoryview(b""))
WITH_PARTITION = THROTTLED._replace(high_watermark=100, last_stable_offset=100)
"""As other brokers than Kafka's answer."""


def _stream(monkeypatch: pytest.MonkeyPatch, answers: int) -> list[int]:
    broker = FakeBroker(monkeypatch)
    broker.wire.configs = COMPACT
    left = [THROTTLED, WITH_PARTITION] * (answers // 2 + 1)
    answered = broker._answer
    monkeypatch.setattr(
        "kstreams_assets.kafka.raw_log.receive_fetch",
        lambda *of: left.pop() if left else answered(*of),
    )
    return broker.offsets(deadline_s=0.5)


def _bulk(_: pytest.MonkeyPatch, answers: int) -> list[int]:
    cluster = fake_cluster(FIRST)
    cluster.wire.configs = COMPACT
    cluster.wire.muting = answers
    for _number in range(10):
        cluster.logs[FIRST].append(10)
    batches = cluster.read({FIRST: OffsetRange(0, 100)}, deadline_s=0.5)[FIRST]
    return [record.offset for batch in batches for record in batch.records()]


READERS = [pytest.param(_stream, id="stream"), pytest.param(_bulk, id="read")]
Reader = Callable[[pytest.MonkeyPatch, int], list[int]]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("read", READERS)
def test_throttled_answers_are_neither_a_stall_nor_the_end(
    monkeypatch: pytest.MonkeyPatch, read: Reader
) -> None:
    """A second and a half of them, where half a second without an answer is too long."""
    monkeypatch.setattr("kstreams_assets.kafka.raw_log.EMPTY_S", 0.1)
    assert read(monkeypatch, 5) == [*range(100)]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("read", READERS)
def test_a_quota_that_lets_nothing_through_is_named(
    monkeypatch: pytest.MonkeyPatch, read: Reader
) -> None:
    monkeypatch.setattr(throttle, "QUOTA_PATIENCE_S", 0.5)
    with pytest.raises(RawReadTimeoutError, match=r"a quota of the cluster .* consumer_byte_rate"):
        read(monkeypatch, 10**6)


def test_the_clock_stands_still_in_the_thread_that_waits(clock: Clock) -> None:
    began, real = unthrottled_time(), clock.now_s
    throttle.wait_throttle_time(200)
    assert clock.now_s - real >= 0.2
    assert unthrottled_time() - began < 0.1
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(throttled_s).result() == 0
    count_throttled(5)
    assert throttled_s() >= 5.2


def test_a_quota_is_reported_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(throttle, "_report", throttle._QuotaReport())
    for _ in range(5):
        report_quota(300)
    assert "delays answers to client kstreams-assets, now by 0.3 s" in caplog.text
    assert "consumer_byte_rate" in caplog.text
    assert len(caplog.records) == 1
    monkeypatch.setattr(throttle, "_TOLD_EVERY_S", 0.0)
    report_quota(900)  # a new minute, in which it has cost little
    assert len(caplog.records) == 1
    report_quota(2_000)
    assert len(caplog.records) == 2


def _answer(body: bytes) -> FetchAnswer:
    """What is made of an answer to a Fetch request for orders-0."""
    ours, theirs = socket.socketpair()
    with theirs, Channel(ours, timeout_s=5) as to_broker:
        orders = TopicPartitionId("orders", 0)
        send_fetch(to_broker, orders, 0, max_bytes=1, isolation=Isolation.READ_COMMITTED)
        theirs.sendall(struct.pack(">ii", 4 + len(body), 1) + body)
        return receive_fetch(to_broker)


def test_a_throttled_answer_has_a_time_and_no_topic() -> None:
    answer = _answer(struct.pack(">ihii", 4_321, 0, 0, 0))
    assert (answer.throttle_time_ms, answer.error_code, answer.is_throttled) == (4_321, 0, True)


def test_an_answer_without_topic_and_time_cannot_be_read() -> None:
    with pytest.raises(ConnectionError, match="does not mention orders"):
        _answer(struct.pack(">ihii", 0, 0, 0, 0))


@contextmanager
def quota(cluster: LocalCluster, client: str, **quotas: float) -> Iterator[None]:
    """Quotas of one client id while the block runs."""
    connection = KafkaConnection(
        bootstrap_servers=cluster.bootstrap_servers, request_timeout_seconds=20
    )
    _alter_quota(connection, client, quotas)
    try:
        yield
    finally:
        _alter_quota(connection, client, dict.fromkeys(quotas))


def _alter_quota(
    connection: KafkaConnection, client: str, quotas: Mapping[str, float | None]
) -> None:
    entry = AlterClientQuotasRequest.EntryData
    request = AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[entry.EntityData(entity_type="client-id", entity_name=client)],
                ops=[
                    entry.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in quotas.items()
                ],
            )
        ],
        validate_only=False,
    )
    with KafkaCluster(connection) as cluster:
        response = cluster._wire.request(lambda: request, operation="alter_client_quotas")
        assert [entry.error_code for entry in response.entries] == [0]
        known = {key: value for key, value in quotas.items() if value is not None}
        assert eventually(lambda: _quotas_of(cluster, client) == known)
    time.sleep(0.3)  # the broker knows it and is about to heed it


def _quotas_of(cluster: KafkaCluster, client: str) -> dict[str, float]:
    """The quotas of a client id that the broker knows."""
    component = DescribeClientQuotasRequest.ComponentData
    request = DescribeClientQuotasRequest(
        components=[component(entity_type="client-id", match_type=0, match=client)], strict=True
    )
    response = cluster._wire.request(lambda: request, operation="describe_client_quotas")
    return {one.key: one.value for entry in response.entries or () for one in entry.values}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> str:
    """A client id that no other test has used, as brokers remember what was read."""
    name = unique_name("throttled")
    monkeypatch.setattr(channel, "CLIENT_ID", name)
    monkeypatch.setattr(wire, "CLIENT_ID", name)
    monkeypatch.setattr(librdkafka, "CLIENT_ID", name)
    return name


COUNT, BYTES = 2_000, 1_000
RATE = 300_000
"""Ten seconds of it are let through at once."""


def _records() -> Iterator[pa.RecordBatch]:
    for start in range(0, COUNT, 250):
        numbers = range(start, start + 250)
        yield pa.RecordBatch.from_pydict(
            {
                "offset": list(numbers),
                "timestamp_ms": [1_700_000_000_000] * len(numbers),
                "timestamp_type": [0] * len(numbers),
                "headers": [None] * len(numbers),
                "key": [b"%d" % number for number in numbers],
                "value": [b"v" * BYTES] * len(numbers),
            },
            schema=COLUMNS,
        )


@pytest.mark.kafka
@pytest.mark.usefixtures("client")
class TestBroker:
    """A real broker; requests of ours may take two seconds, and a quota makes them take longer."""

    @pytest.fixture
    def connection(self, kafka_cluster: LocalCluster) -> KafkaConnection:
        return KafkaConnection(
            bootstrap_servers=kafka_cluster.bootstrap_servers, request_timeout_seconds=2
        )

    @pytest.fixture
    def partition(self, connection: KafkaConnection) -> TopicPartitionId:
        topic = unique_name("throttled")
        with KafkaCluster(connection) as cluster:
            cluster.create_topics([TopicSpec(topic, 1, 1, {"retention.ms": "-1"})])
        return TopicPartitionId(topic, 0)

    def _write(self, connection: KafkaConnection, partition: TopicPartitionId) -> int:
        with RecordWriter(connection, WriterLimits(2, 100_000)) as writer:
            written = writer.write(partition, _records(), first=0)
            return sum(len(acknowledged.sources) for acknowledged in written)

    def test_readers(
        self,
        kafka_cluster: LocalCluster,
        connection: KafkaConnection,
        partition: TopicPartitionId,
        client: str,
    ) -> None:
        """Both readers at once, and requests of the same client beside them."""
        assert self._write(connection, partition) == COUNT
        asked: list[int] = []
        waited: list[float] = []
        is_done = threading.Event()

        def stream() -> list[RawBatch]:
            with RawLogReader(connection) as reader:
                found = [*reader.scan(partition, 0, COUNT, deadline_s=2, by_progress=True)]
            waited.append(throttled_s())
            return found

        def bulk(cluster: KafkaCluster) -> list[RawBatch]:
            with RawLogReader(connection, shared=(cluster._wire, cluster._leaders)) as reader:
                read = reader.read({partition: OffsetRange(0, COUNT)}, deadline_s=2)
            waited.append(throttled_s())
            return [batch.header for batch in read[partition]]

        def ask(cluster: KafkaCluster) -> None:
            while not is_done.is_set():
                asked.append(cluster.high_watermarks([partition])[partition])
                time.sleep(0.05)

        with (
            quota(kafka_cluster, client, consumer_byte_rate=RATE),
            KafkaCluster(connection) as cluster,
            ThreadPoolExecutor(3) as pool,
        ):
            reads = [pool.submit(stream), pool.submit(bulk, cluster)]
            asking = pool.submit(ask, cluster)
            for read in reads:
                assert sum(batch.record_count for batch in read.result()) == COUNT
            is_done.set()
            asking.result()
        assert set(asked) == {COUNT}
        assert max(waited) > 0.5

    @pytest.mark.drill
    def test_writer(
        self,
        kafka_cluster: LocalCluster,
        connection: KafkaConnection,
        partition: TopicPartitionId,
        client: str,
    ) -> None:
        with quota(kafka_cluster, client, producer_byte_rate=RATE / 2):
            began = time.monotonic()
            assert self._write(connection, partition) == COUNT
            assert time.monotonic() - began > 2

    @pytest.mark.drill
    def test_requests(
        self,
        kafka_cluster: LocalCluster,
        connection: KafkaConnection,
        partition: TopicPartitionId,
        client: str,
    ) -> None:
        with (
            quota(kafka_cluster, client, request_percentage=0.01),
            KafkaCluster(connection) as cluster,
        ):
            before, deadline = throttled_s(), time.monotonic() + 60
            while throttled_s() == before:  # requests that cost little take a while to add up
                assert time.monotonic() < deadline
                assert cluster.high_watermarks([partition]) == {partition: 0}

    @pytest.mark.drill
    def test_topics(
        self, kafka_cluster: LocalCluster, connection: KafkaConnection, client: str
    ) -> None:
        specs = [TopicSpec(unique_name("throttled"), 1) for _ in range(8)]
        with (
            quota(kafka_cluster, client, controller_mutation_rate=0.5),
            KafkaCluster(connection) as cluster,
        ):
            before = throttled_s()
            for some in (specs[:6], specs[6:]):
                cluster.create_topics(some)
            cluster.delete_topics(spec.name for spec in specs)
            assert throttled_s() > before
