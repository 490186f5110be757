"""Repartition records that a cut keeps survive a purge, and are read once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kstreams_assets.errors import OffsetOutOfRangeError
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_log import LoadedBatch
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.recovery.kept_records import KeptRecords

P, OTHER = TopicPartitionId("app-by-customer-repartition", 0), TopicPartitionId("out", 0)


def batch(first: int, last: int) -> LoadedBatch:
    header = RawBatch(first, last, last - first + 1, 1, 0, False, False, None, 0)
    return LoadedBatch(header, memoryview(b"records"), P)


@dataclass
class Log:
    """Answers like a RawLogReader of equal logs; records below `log_start` are purged."""

    batches: list[LoadedBatch]
    log_start: int = 0
    asked: list[OffsetRange] = field(default_factory=list)

    def read(
        self, asked: Mapping[TopicPartitionId, OffsetRange], **_limits: object
    ) -> dict[TopicPartitionId, tuple[LoadedBatch, ...]]:
        for p, one in asked.items():
            if one and one.start < self.log_start:
                raise OffsetOutOfRangeError(
                    partition=str(p), offset=one.start, log_start=self.log_start, log_end=99
                )
            self.asked += [one] if one else []
        return {
            p: tuple(
                b
                for b in self.batches
                if b.header.base_offset < one.end and b.header.last_offset >= one.start
            )
            for p, one in asked.items()
        }


@dataclass
class Watched:
    """The parts of a scene that are used here."""

    reader: Log
    repartitions: tuple[TopicPartitionId, ...] = (P,)


def kept_of(log: Log) -> KeptRecords:
    scene: Any = Watched(log)
    return KeptRecords(scene, every_s=0.0)


def bases(batches: Mapping[TopicPartitionId, Any], p: TopicPartitionId = P) -> list[int]:
    return [one.header.base_offset for one in batches[p]]


def test_records_are_kept_from_the_readers_offsets_on_and_survive_a_purge() -> None:
    log = Log([batch(0, 1), batch(2, 3), batch(4, 5), batch(6, 7)])
    kept = kept_of(log)
    kept.start({P: 3, OTHER: 1})
    kept.extend({P: 6})
    log.log_start = 6
    kept.extend({P: 8})
    assert bases(kept.batches) == [2, 4, 6]
    assert bases(kept.read({P: OffsetRange(3, 8)})) == [2, 4, 6]
    assert bases(kept.read({P: OffsetRange(5, 6)})) == [4]
    assert log.asked == [OffsetRange(3, 6), OffsetRange(6, 8)]


def test_what_was_not_kept_is_read() -> None:
    log = Log([batch(0, 1), batch(2, 3), batch(4, 5), batch(6, 7)])
    kept = kept_of(log)
    kept.start({P: 2})
    kept.extend({P: 4})
    found = kept.read({P: OffsetRange(3, 8), OTHER: OffsetRange(0, 2)})
    assert bases(found) == [2, 4, 6]
    assert bases(found, OTHER) == [0]
    assert bases(kept.read({P: OffsetRange(1, 4)})) == [0, 2]
    assert log.asked == [OffsetRange(2, 4), OffsetRange(4, 8), OffsetRange(0, 2), OffsetRange(1, 4)]
