"""Answers that no broker should give: the right error, at once, whatever their bytes say."""

import socket
import struct
import threading
from types import SimpleNamespace
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kstreams_assets.errors import (
    ClusterUnavailableError,
    CoordinatorRecordError,
    CorruptBatchError,
)
from kstreams_assets.kafka.channel import (
    Channel,
    receive_fetch,
    receive_produce,
    send_fetch,
    send_produce,
)
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.coordinator_log import offset_commit, transaction_state
from kstreams_assets.kafka.leaders import Isolation
from kstreams_assets.kafka.raw_batch import RawRecord, parse_batches
from kstreams_assets.kafka.record_columns import columns_of
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from tests.kafka.batch_bytes import CODECS, batch_bytes
from tests.kafka.test_empty_answers import FakeBroker
from tests.kafka.test_raw_bulk import FIRST, fake_cluster

ORDERS = TopicPartitionId("orders", 0)
FUZZ = settings(
    max_examples=150,
    deadline=20_000,  # a count that is believed takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NUMBERS = st.sampled_from([0, 1, -1, 2, -2, 127, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31)])


def _batch(base: int = 0, *, codec: str = "none", missing: int = 0) -> bytes:
    """A batch of ten offsets, of which the last `missing` but one hold nothing."""
    numbers = [n for n in range(10) if n == 9 or n < 9 - missing]
    records = [RawRecord(base + n, 1_000, 0, b"key", b"value", (("h", b"x"),)) for n in numbers]
    return batch_bytes(records, base_offset=base, codec=codec)


def _fetched(records: bytes) -> bytes:
    """An answer to Fetch (version 11) with two aborted transactions."""
    return b"".join(
        [
            struct.pack(">ihii", 0, 0, 0, 1),
            struct.pack(">h6s", 6, b"orders"),
            struct.pack(">iihqqqi", 1, 0, 0, 10, 10, 0, 2),
            struct.pack(">qqqq", 1, 0, 2, 5),
            struct.pack(">ii", -1, len(records)),
            records,
        ]
    )


def _produced() -> bytes:
    """An answer to Produce (version 8) that refuses a record."""
    return b"".join(
        [
            struct.pack(">ih6s", 1, 6, b"orders"),
            struct.pack(">iihqqq", 1, 0, 87, -1, -1, 0),
            struct.pack(">iih3s", 1, 2, 3, b"bad"),
            struct.pack(">h4si", 4, b"more", 0),
        ]
    )


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes that are cut off, or in which numbers of two, four or eight bytes are others."""
    changed = bytearray(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from([">b", ">h", ">i", ">q"]))
        if len(changed) >= struct.calcsize(kind):
            at = draw(st.integers(0, len(changed) - struct.calcsize(kind)))
            lowest = -(1 << 8 * struct.calcsize(kind) - 1)
            number = max(lowest, min(-lowest - 1, draw(NUMBERS)))
            struct.pack_into(kind, changed, at, number)
    return bytes(changed)


def _received(body: bytes, receive: Any, send: Any) -> Any:
    ours, theirs = socket.socketpair()
    with theirs, Channel(ours, timeout_s=5) as channel:
        send(channel)
        theirs.sendall(struct.pack(">ii", 4 + len(body), 1) + body)
        return receive(channel)


def _ask_fetch(channel: Channel) -> None:
    send_fetch(channel, ORDERS, 0, max_bytes=1, isolation=Isolation.READ_COMMITTED)


def _ask_produce(channel: Channel) -> None:
    send_produce(channel, ORDERS, [b"batch"], timeout_s=1)


def test_undamaged_answers_are_read() -> None:
    answer = _received(_fetched(b"records"), receive_fetch, _ask_fetch)
    assert (bytes(answer.records), len(answer.aborted_transactions)) == (b"records", 2)
    refused = _received(_produced(), receive_produce, _ask_produce)
    assert (refused.error_code, refused.refused, refused.message) == (87, 2, "bad")


@FUZZ
@given(damaged(_fetched(_batch())))
def test_fetch(body: bytes) -> None:
    try:
        _received(body, receive_fetch, _ask_fetch)
    except OSError:
        return


def test_an_answer_that_is_cut_off_is_never_read() -> None:
    body = _fetched(b"records")
    for size in range(len(body)):
        with pytest.raises(ConnectionError):
            _received(body[:size], receive_fetch, _ask_fetch)


@FUZZ
@given(damaged(_produced()))
def test_produce(body: bytes) -> None:
    try:
        _received(body, receive_produce, _ask_produce)
    except OSError:
        return


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("missing", [0, 4])
@FUZZ
@given(data=st.data())
def test_batches(codec: str, missing: int, data: st.DataObject) -> None:
    """Headers and records, with a checksum that is right."""
    changed = bytearray(data.draw(damaged(_batch(codec=codec, missing=missing))))
    if len(changed) >= 61:
        crc = google_crc32c.value(np.frombuffer(bytes(changed[21:]), np.uint8))
        changed[17:21] = crc.to_bytes(4, "big")
    view = memoryview(bytes(changed))
    try:
        for batch in parse_batches(view, partition="orders-0"):
            assert 0 <= batch.base_offset <= batch.last_offset + (batch.record_count == 0)
            assert 0 <= batch.record_count <= batch.last_offset - batch.base_offset + 1
        if len(view) >= 61:
            list(columns_of([view], partition="orders-0"))
    except CorruptBatchError:
        return


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("log", [[0, 10, 0, 30], [50], [20, 10, 0]])
@pytest.mark.parametrize("reader", ["stream", "read"])
def test_batches_before_the_offset_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, reader: str, log: list[int]
) -> None:
    """It was a division by zero: nothing is read, however much is answered."""
    if reader == "stream":
        broker = FakeBroker(monkeypatch)
        broker.log = [broker.log[base // 10] for base in log] + broker.log[:1]
        broker.answers_all = True
        with pytest.raises(CorruptBatchError, match="has a batch that ends at"):
            broker.offsets(60 if log == [50] else 0, 100, deadline_s=2)
        return
    cluster = fake_cluster(FIRST)
    for _ in range(10):
        cluster.logs[FIRST].append(10)
    batches = cluster.logs[FIRST].batches
    monkeypatch.setattr(
        cluster.wire, "_visible", lambda *_: (batches[base // 10][2] for base in [*log, 0])
    )
    with pytest.raises(CorruptBatchError, match="has a batch that ends at"):
        cluster.read({FIRST: OffsetRange(60 if log == [50] else 0, 100)}, deadline_s=2)


@pytest.mark.parametrize(
    "topics",
    [
        pytest.param(None, id="no array"),
        pytest.param([], id="no topic"),
        pytest.param([SimpleNamespace(topic="t", partitions=None)], id="no partitions"),
        pytest.param(
            [SimpleNamespace(topic="x", partitions=[SimpleNamespace(partition_index=7)])],
            id="another partition",
        ),
    ],
)
def test_answers_that_do_not_mention_what_was_asked_for(topics: Any) -> None:
    cluster = fake_cluster(FIRST, batches=1)
    nonsense = SimpleNamespace(throttle_time_ms=0, error_code=0, responses=topics)
    fetch, answers = cluster.wire._fetch, [nonsense, nonsense]

    def answer(request: Any, node: int) -> Any:
        return answers.pop() if answers else fetch(request, node)

    cluster.wire._fetch = answer
    found = cluster.read({FIRST: OffsetRange(0, 2)})
    assert len(found[FIRST]) == 1


COMMIT = struct.pack(">hh3sh6si", 1, 3, b"app", 6, b"orders", 0)
OFFSET = struct.pack(">hqih4sq", 3, 17, -1, 4, b"AgAB", 1_000)
STATE = struct.pack(">hqhibih6siiqq", 0, 7, 1, 60_000, 1, 1, 6, b"orders", 1, 0, 1, 1)


@FUZZ
@given(damaged(COMMIT), damaged(OFFSET), damaged(STATE))
def test_coordinators(key: bytes, value: bytes, state: bytes) -> None:
    for read, of_key, of_value in (
        (offset_commit, key, OFFSET),
        (offset_commit, COMMIT, value),
        (transaction_state, struct.pack(">hh3s", 0, 3, b"app"), state),
    ):
        try:
            read(RawRecord(5, 1_000, 0, of_key, of_value, ()))
        except CoordinatorRecordError:
            continue


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(struct.pack(">i", -1), id="negative size"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="2 GiB"),
        pytest.param(struct.pack(">ii", 4, 99), id="another correlation id"),
        pytest.param(struct.pack(">iihi", 10, 1, 0, 2**31 - 1), id="more than there is"),
        pytest.param(struct.pack(">iihi", 10, 1, 0, -5), id="a negative count"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="HTTP"),
        pytest.param(struct.pack(">i", 0), id="nothing"),
    ],
)
def test_a_server_that_is_no_broker(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_done = threading.Event()

        def serve() -> None:
            server.settimeout(0.1)
            while not is_done.is_set():
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                with peer:
                    peer.settimeout(1)
                    try:
                        peer.recv(1_000)
                        peer.sendall(answer)
                    except OSError:
                        continue

        serving = threading.Thread(target=serve)
        serving.start()
        port = server.getsockname()[1]
        wire = WireClient(
            KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}", request_timeout_seconds=1),
            timeout_s=1,
        )
        try:
            with pytest.raises(ClusterUnavailableError):
                wire.metadata(None, operation="metadata")
        finally:
            is_done.set()
            serving.join()
            wire.close()
