"""Records captured right after a cut: only what belongs to it, and only if nothing is missing."""

import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from kstreams_assets.errors import OffsetOutOfRangeError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.leaders import PartitionLeaders
from kstreams_assets.kafka.raw_batch import RawRecord, parse_with_bytes
from kstreams_assets.kafka.raw_log import LoadedBatch, RawLogReader
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.recovery import completion
from kstreams_assets.recovery.completion import Captured, Extent, capture
from tests.kafka import fake_leaders
from tests.kafka.batch_bytes import batch_bytes

PARTITION = TopicPartitionId("app-totals-changelog", 0)
_TRANSACTIONAL, _CONTROL = 0x10, 0x30


@dataclass(slots=True)
class FakeLog:
    """Answers like RawLogReader, and keeps what it was asked for."""

    batches: list[LoadedBatch] = field(default_factory=list)
    log_start: int = 0
    asked: list[OffsetRange] = field(default_factory=list)
    _end: int = 0

    def data(self, producer_id: int, *offsets: int, last: int | None = None) -> None:
        """A batch; `last` if compaction removed the record there."""
        records = [RawRecord(o, 0, 0, b"k", b"v%d" % o, ()) for o in offsets]
        self._add(records, _TRANSACTIONAL, producer_id, offsets[0], last)

    def marker(self, producer_id: int, offset: int, *, commit: bool) -> None:
        """A control batch."""
        key = b"\x00\x00\x00\x01" if commit else b"\x00\x00\x00\x00"
        self._add([RawRecord(offset, 0, 0, key, b"", ())], _CONTROL, producer_id, offset, None)

    def read(
        self,
        ranges: Mapping[TopicPartitionId, OffsetRange],
        *,
        deadline_s: float,
        limit_bytes: int | None = None,
    ) -> dict[TopicPartitionId, tuple[LoadedBatch, ...]]:
        """Whole batches that have an offset in the range; limits are tested with a real reader."""
        assert deadline_s > 0
        assert limit_bytes is None
        ((partition, wanted),) = ranges.items()
        self.asked.append(wanted)
        if wanted.start < self.log_start:
            raise OffsetOutOfRangeError(
                partition=str(partition), offset=wanted.start, log_start=self.log_start, log_end=99
            )
        found = tuple(
            batch
            for batch in self.batches
            if batch.header.last_offset >= wanted.start and batch.header.base_offset < wanted.end
        )
        return {partition: found}

    def _add(
        self,
        records: Sequence[RawRecord],
        attributes: int,
        producer_id: int,
        base: int,
        last: int | None,
    ) -> None:
        data = batch_bytes(
            records,
            base_offset=base,
            last_offset=last,
            attributes=attributes,
            producer=(producer_id, 0),
        )
        ((header, view),) = parse_with_bytes(memoryview(data), partition=str(PARTITION))
        self.batches.append(LoadedBatch(header, view, PARTITION))


def _captured(
    log: FakeLog,
    start: int,
    end: int,
    *,
    decided: int = 0,
    excluded: tuple[OffsetRange, ...] = (),
) -> list[int] | str:
    """The offsets of what was captured, or what is missing."""
    extent = Extent(PARTITION, start, end, decided, excluded)
    found = capture(cast(RawLogReader, log), [extent])
    assert not found.unread
    return found.missing or [r.offset for r in (found.records or {})[PARTITION]]


@pytest.fixture
def log() -> FakeLog:
    """Committed data at 0 to 2 and 6, of an open transaction at 4 and 5; markers at 3 and 7."""
    log = FakeLog()
    log.data(1, 0, 1, 2)
    log.marker(1, 3, commit=True)
    log.data(2, 4, 5)
    log.data(3, 6)
    log.marker(3, 7, commit=True)
    return log


def test_only_what_belongs_to_the_cut_is_captured(log: FakeLog) -> None:
    assert _captured(log, 1, 4) == [1, 2]
    assert _captured(log, 3, 4) == []
    assert _captured(log, 0, 7, excluded=(OffsetRange(4, 6),)) == [0, 1, 2, 6]
    log.asked.clear()
    assert _captured(log, 7, 7, decided=9) == []
    assert log.asked == []


def test_what_was_aborted_is_left_out_if_its_marker_lies_beyond_the_end(log: FakeLog) -> None:
    log.marker(2, 8, commit=False)
    assert _captured(log, 0, 7, decided=9) == [0, 1, 2, 6]
    assert log.asked == [OffsetRange(0, 9)]
    assert _captured(log, 5, 7, decided=9) == [6]  # its batch begins before the extent


def test_what_compaction_or_a_purge_removed_is_missed(log: FakeLog) -> None:
    compacted = FakeLog()
    compacted.data(1, 0, 2, last=2)
    compacted.marker(1, 3, commit=True)
    missing = _captured(compacted, 0, 4)
    assert "app-totals-changelog-0 has lost offset 1" in missing
    del log.batches[2]
    assert "offset 4" in _captured(log, 0, 7)
    assert _captured(log, 6, 7) == [6]  # gone below the extent
    log.log_start = 2
    missing = _captured(log, 1, 4)
    assert "holds offsets 2 to 99, not 1" in missing
    assert isinstance(missing, str)
    assert not missing.endswith(".")


@dataclass(slots=True)
class Brokers:
    """Changelog partitions of brokers in memory, read by the reader that real ones are read by."""

    logs: dict[TopicPartitionId, fake_leaders.FakeLog]
    wire: fake_leaders.FakeWire = field(init=False)

    def __post_init__(self) -> None:
        self.wire = fake_leaders.FakeWire(self.logs)

    def what_is_left(self, limit_bytes: int) -> Captured:
        """What a capture holds of all that the logs should have."""
        shared = (
            cast(WireClient, self.wire),
            cast(PartitionLeaders, fake_leaders.FakeLeaders(self.logs)),
        )
        reader = RawLogReader(KafkaConnection(bootstrap_servers="fake:9092"), shared=shared)
        extents = [
            Extent(partition, 0, log.high_watermark, log.high_watermark)
            for partition, log in self.logs.items()
        ]
        return capture(reader, extents, limit_bytes)


def _brokers(partitions: int, *, batches: int, size: int, codec: str = "none") -> Brokers:
    """Logs of the same content, which takes memory only once."""
    content: list[tuple[int, int, bytes]] = []
    for base in range(0, 4 * batches, 4):
        records = [RawRecord(base + n, 0, 0, b"k", bytes(size), ()) for n in range(4)]
        content.append((base, base + 3, batch_bytes(records, base_offset=base, codec=codec)))
    return Brokers(
        {
            TopicPartitionId("app-totals-changelog", number): fake_leaders.FakeLog(
                content, leader=number % 3, high_watermark=4 * batches
            )
            for number in range(partitions)
        }
    )


def test_memory_is_bounded_by_the_limit_however_many_partitions_there_are() -> None:
    limit = 500_000
    brokers = _brokers(60, batches=100, size=1_000)  # 24 MB
    tracemalloc.start()
    try:
        found = brokers.what_is_left(limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == Captured(None, "there are more than 500000 bytes to save", unread=True)
    assert brokers.wire.answered_bytes < limit + 3 * 5_000
    assert peak < 4 * limit


def test_compressed_records_count_with_what_they_take_in_memory() -> None:
    brokers = _brokers(1, batches=10, size=50_000, codec="gzip")  # 2 MB, compressed to some KB
    assert brokers.what_is_left(1_900_000).unread
    found = brokers.what_is_left(2_100_000)
    assert [len(records) for records in (found.records or {}).values()] == [40]
    assert brokers.wire.answered_bytes < 20_000


def test_what_the_limit_allows_is_read_whole() -> None:
    found = _brokers(6, batches=10, size=100).what_is_left(6 * 10 * 600)
    assert (found.missing, found.unread) == ("", False)
    assert [len(records) for records in (found.records or {}).values()] == [40] * 6


def test_what_takes_too_long_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_READ_S", 0.1)
    brokers = _brokers(2, batches=10, size=10)
    brokers.wire.dead = {1}
    found = brokers.what_is_left(1_000_000)
    assert found.unread
    assert "app-totals-changelog-1 was read up to offset 0 of 40 within 0.1 s" in found.missing
