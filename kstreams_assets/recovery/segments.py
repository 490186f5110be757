"""Transactions in the log of one partition: ranges of data, closed by markers. Pure.

A marker closes the open data of its producer id in its partition (KIP-98). It may be far behind the
data, with data and markers of other producers in between. It does so whatever the epochs of the
data are (Kafka's ProducerStateManager): a coordinator that was killed between preparing a commit
and writing the markers may complete it without any (KAFKA-20734). The markers of the producer's
next transaction then decide the data that was left open.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId


class Marker(NamedTuple):
    """One control record that ends a transaction; `timestamp_ms` is when the broker wrote it."""

    producer_id: int
    epoch: int
    offset: int
    committed: bool
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The data of one transaction in one partition, in offset order.

    `marker` is None if no marker in the batches closes it.
    """

    partition: TopicPartitionId
    producer_id: int
    epoch: int
    ranges: tuple[OffsetRange, ...]
    marker: Marker | None

    @property
    def start(self) -> int:
        """Its first offset."""
        return self.ranges[0].start

    @property
    def end(self) -> int:
        """The end of its last batch (exclusive)."""
        return self.ranges[-1].end


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of one partition's log, split into transactions.

    `markers` are all markers, including those whose data is before the first batch; `plain` is data
    written outside of transactions.
    """

    partition: TopicPartitionId
    segments: tuple[Segment, ...]
    markers: tuple[Marker, ...]
    plain: tuple[OffsetRange, ...]


def tail_of(partition: TopicPartitionId, batches: Iterable[RawBatch], *, below: int) -> Tail:
    """Split the batches of a log; data at or above `below` is left out, markers are not."""
    opened: dict[int, list[list[RawBatch]]] = {}
    segments: list[Segment] = []
    markers: list[Marker] = []
    plain: list[OffsetRange] = []

    def close(producer_id: int, marker: Marker | None) -> None:
        for data in opened.pop(producer_id, ()):
            ranges = tuple(RangeSet(OffsetRange(b.base_offset, b.last_offset + 1) for b in data))
            segments.append(Segment(partition, producer_id, data[0].producer_epoch, ranges, marker))

    for batch in batches:
        producer_id = batch.producer_id
        if batch.is_control:
            marker = marker_of(batch)
            if marker is not None:
                markers.append(marker)
            close(producer_id, marker)
        elif batch.base_offset >= below:
            continue
        elif not batch.is_transactional:
            plain.append(OffsetRange(batch.base_offset, batch.last_offset + 1))
        else:
            of_producer = opened.setdefault(producer_id, [])
            if not of_producer or of_producer[-1][-1].producer_epoch != batch.producer_epoch:
                of_producer.append([])
            of_producer[-1].append(batch)
    for producer_id in list(opened):
        close(producer_id, None)
    segments.sort(key=lambda segment: segment.start)
    return Tail(partition, tuple(segments), tuple(markers), tuple(RangeSet(plain)))


def marker_of(batch: RawBatch) -> Marker | None:
    """Return the marker in a control batch, None if compaction has emptied it."""
    if batch.control_type is None:
        return None
    return Marker(
        producer_id=batch.producer_id,
        epoch=batch.producer_epoch,
        offset=batch.base_offset,
        committed=batch.control_type == "commit",
        timestamp_ms=batch.max_timestamp,
    )
