"""Identifies the data of one transaction in different partitions. Pure.

Clients since Kafka 4.0 on brokers with transaction.version 2 (KIP-890) have a separate producer
epoch for every transaction; its markers carry the next epoch. Older clients keep one epoch for
many transactions, and their markers carry the same epoch. Which of both applies is read from the
markers, never assumed. Transactions with a shared epoch are counted by means of
`__transaction_state`.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.segments import Segment


class TransactionId(NamedTuple):
    """One transaction; ids of one producer are ordered. `ordinal` separates those of one epoch."""

    producer_id: int
    epoch: int
    ordinal: int = 0


class ProducerEpoch(NamedTuple):
    """A producer id with its epoch."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """A transaction as reported by `__transaction_state`; times are those of the records, in ms.

    `completed_ms` is None while its markers are still being written.
    """

    producer: ProducerEpoch
    committed: bool
    partitions: frozenset[TopicPartitionId]
    prepared_ms: int
    completed_ms: int | None


def shared_epochs(segments: Iterable[Segment]) -> frozenset[ProducerEpoch]:
    """Return producers with one epoch for many transactions, as their markers show."""
    return frozenset(
        ProducerEpoch(segment.producer_id, segment.epoch)
        for segment in segments
        if segment.marker is not None and segment.marker.epoch == segment.epoch
    )


@dataclass(slots=True)
class Identities:
    """Finds the transaction of a segment.

    `shared` are the producers of `shared_epochs`; `history` all their transactions, None before
    it was read. A marker at time t belongs to the one transaction with its partition and
    prepared <= t <= completed: these are disjoint, since a producer waits for all markers.
    """

    shared: frozenset[ProducerEpoch]
    history: Sequence[EndedTransaction] | None = None
    _by_producer: Mapping[ProducerEpoch, list[EndedTransaction]] = field(init=False)

    def __post_init__(self) -> None:
        by_producer: defaultdict[ProducerEpoch, list[EndedTransaction]] = defaultdict(list)
        for ended in self.history or ():
            by_producer[ended.producer].append(ended)
        for of_producer in by_producer.values():
            of_producer.sort(key=lambda ended: ended.prepared_ms)
        self._by_producer = by_producer

    def is_shared(self, segment: Segment) -> bool:
        """Whether the epoch of the segment's producer is shared by many transactions."""
        return ProducerEpoch(segment.producer_id, segment.epoch) in self.shared

    def of(self, segment: Segment) -> TransactionId | None:
        """Return the transaction of a segment, None if it cannot be determined."""
        producer = ProducerEpoch(segment.producer_id, segment.epoch)
        if producer not in self.shared:
            return TransactionId(*producer)
        marker = segment.marker
        if marker is None:
            return None
        if marker.epoch != segment.epoch:
            # the coordinator fenced the producer: this was its last one
            return TransactionId(*producer, ordinal=len(self._by_producer[producer]))
        return self._by_time(producer, segment.partition, marker.timestamp_ms)

    def ended(self, one: TransactionId) -> EndedTransaction | None:
        """Return the transaction in the history, None if it is missing there."""
        known = self._by_producer.get(ProducerEpoch(one.producer_id, one.epoch), [])
        return known[one.ordinal] if one.ordinal < len(known) else None

    def _by_time(
        self, producer: ProducerEpoch, partition: TopicPartitionId, at_ms: int
    ) -> TransactionId | None:
        ended = self._by_producer[producer]
        last = bisect_right(ended, at_ms, key=lambda one: one.prepared_ms)
        found: TransactionId | None = None
        # adjacent ones may share a millisecond, so check some before it
        for ordinal in range(max(0, last - 3), last):
            one = ended[ordinal]
            over = one.completed_ms is not None and one.completed_ms < at_ms
            if over or partition not in one.partitions:
                continue
            if found is not None:
                return None
            found = TransactionId(*producer, ordinal=ordinal)
        return found
