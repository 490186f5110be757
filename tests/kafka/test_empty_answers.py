"""One partition, read by answers that hold nothing although the log has something, and others."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import google_crc32c
import numpy as np
import pytest

from kstreams_assets.backup.accounting import LogInspection, explain
from kstreams_assets.errors import CorruptBatchError
from kstreams_assets.kafka import raw_log
from kstreams_assets.kafka.channel import FetchAnswer
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_batch import RangeTally, RawRecord, Tallies
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.model.spans import GapCause, SpanPlan, Window
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.span_tasks import committed
from spark_resources.work import ReadRange
from tests.kafka.batch_bytes import batch_bytes
from tests.kafka.fake_leaders import FakeWire
from tests.kafka.test_raw_bulk import COMPACT, NEVER_COMPACTED
from tests.timing import Clock

pytestmark = pytest.mark.usefixtures("clock")

PARTITION = TopicPartitionId("orders", 0)
TRANSACTIONAL = 0x10


class FakeBroker:
    """The log of one partition in batches of ten; the first `late` answers hold nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, attributes: int = 0) -> None:
        self.log = [_batch(base, attributes) for base in range(0, 100, 10)]
        self.wire = FakeWire({})
        self.late = 0
        self.high_watermark = self.stable = 100
        self.asked: list[tuple[int, int]] = []
        self.answers_all = False
        """Each answer has every batch, wherever it lies."""
        monkeypatch.setattr(raw_log, "send_fetch", self._ask)
        monkeypatch.setattr(raw_log, "receive_fetch", self._answer)

    def _ask(self, _: object, __: object, position: int, **request: Any) -> None:
        self.asked.append((position, request["isolation"].value))

    def _answer(self, _: object) -> FetchAnswer:
        position, committed_only = self.asked[-1]
        here = [
            data
            for base, data in zip(range(0, 1_000, 10), self.log, strict=False)
            if self.answers_all
            or (data and base + 10 > position and (base < self.stable or not committed_only))
        ]
        records = b"" if len(self.asked) <= self.late else b"".join(here)
        return FetchAnswer(0, 0, self.high_watermark, self.stable, (), memoryview(records))

    def reader(self) -> RawLogReader:
        """A reader of this log."""
        leaders = SimpleNamespace(of=lambda ids, **_: dict.fromkeys(ids, 0), forget=lambda _: None)
        shared = cast(Any, (self.wire, leaders))
        reader = RawLogReader(cast(KafkaConnection, None), shared=shared)
        channel = SimpleNamespace(limit=lambda _: None)
        reader._cluster.channels = cast(
            Any,
            SimpleNamespace(to=lambda *_, **__: channel, drop=lambda _: None, close=lambda: None),
        )
        return reader

    def offsets(self, start: int = 0, end: int = 100, deadline_s: float = 5.0) -> list[int]:
        """What is read of a range."""
        return [*self._offsets(RangeTally(start, end), deadline_s)]

    def _offsets(self, tally: RangeTally, deadline_s: float) -> Iterator[int]:
        wanted = ReadRange(PARTITION, tally.start, tally.end)
        for records in committed(
            self.reader(), wanted, Tallies([tally]), idle_timeout_s=deadline_s
        ):
            yield from records.column("offset").to_pylist()


def _batch(base: int, attributes: int = 0) -> bytes:
    records = [RawRecord(base + n, 1_000, 0, b"k", b"v", ()) for n in range(10)]
    data = bytearray(batch_bytes(records, base_offset=base, attributes=attributes))
    crc = google_crc32c.value(np.frombuffer(bytes(data[21:]), np.uint8))
    data[17:21] = crc.to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("attributes", [0, TRANSACTIONAL])
@pytest.mark.parametrize("configs", [COMPACT, *NEVER_COMPACTED])
def test_late_answers_lose_nothing(
    monkeypatch: pytest.MonkeyPatch, configs: dict[str, str], attributes: int
) -> None:
    broker = FakeBroker(monkeypatch, attributes=attributes)
    broker.wire.configs = configs
    broker.late = 5
    assert broker.offsets() == [*range(100)]


@pytest.mark.parametrize("stable", [50, 100])
def test_compaction_may_empty_the_tail(monkeypatch: pytest.MonkeyPatch, stable: int) -> None:
    monkeypatch.setattr(raw_log, "EMPTY_S", 0.2)
    broker = FakeBroker(monkeypatch)
    broker.wire.configs = COMPACT
    broker.log, broker.stable = broker.log[:3], stable
    assert broker.offsets() == [*range(30)]


def test_five_seconds_are_waited(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    broker = FakeBroker(monkeypatch)
    broker.wire.configs = COMPACT
    broker.log = []
    began = clock.now_s
    assert broker.offsets(deadline_s=30.0) == []
    assert 5.0 <= clock.now_s - began < 7.0


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_hole_is_explained_where_compaction_makes_holes(is_compacted: bool) -> None:
    tally = RangeTally(0, 100)
    tally.finish()
    plan = SpanPlan(Window(0, 10, "w"), PARTITION, "id", 0, 100, 0, True)
    (gap,) = explain(plan, 0, LogInspection(tally), is_compacted=is_compacted)
    assert gap.cause is (GapCause.COMPACTED if is_compacted else GapCause.UNEXPLAINED)
    assert gap.offsets == 100


class TestCorrupt:
    """What lies before a batch that cannot be read is read; one behind the end does no harm."""

    @pytest.fixture(params=["checksum", "format", "compression"])
    def broker(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
        broker = FakeBroker(monkeypatch)
        batch = bytearray(broker.log[5])
        if request.param == "checksum":
            batch[-3] ^= 0xFF
        elif request.param == "format":
            batch[16] = 1
        else:
            batch[22] |= 4  # zstd, which it is not
            batch[17:21] = google_crc32c.value(np.frombuffer(bytes(batch[21:]), np.uint8)).to_bytes(
                4, "big"
            )
        broker.log[5] = bytes(batch)
        return broker

    def test_what_lies_before(self, broker: FakeBroker) -> None:
        found: list[int] = []
        with pytest.raises(CorruptBatchError) as caught:
            found.extend(broker._offsets(RangeTally(0, 100), 5.0))
        assert found == [*range(50)]
        assert caught.value.offset == 50

    def test_behind_the_end(self, broker: FakeBroker) -> None:
        assert broker.offsets(0, 50) == [*range(50)]
        assert broker.offsets(60, 100)[:1] == [60]
