"""Judges cuts of a VectorApp from its whole logs: what a restore would repeat, and what it loses.

One task reads one partition in order, so in a state the count of an input partition is a prefix of
it. State plus what is in flight, minus the inputs below the committed offsets, is above 0 for a
repeat and below 0 for a loss: for each customer and each input partition by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from tests.streams.vector_app import CUSTOMERS, PARTITIONS, VectorTopics

Vectors = npt.NDArray[np.int64]
_CHANGE_OF_BOTH, _NEW = 2, 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many records a restore of the cut repeats and loses; for the worse of both levels."""

    repeats: int
    losses: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class VectorHistory:
    """Customer and vector of every record of each partition, by offset.

    `again` says of orders which ones the application has written itself (`with.feedback`).
    """

    topics: VectorTopics
    customers: Mapping[TopicPartitionId, npt.NDArray[np.int32]]
    vectors: Mapping[TopicPartitionId, Vectors]
    again: Mapping[TopicPartitionId, npt.NDArray[np.bool_]]

    def judge(
        self,
        ends: Mapping[TopicPartitionId, int],
        committed: Mapping[TopicPartitionId, CommittedOffset],
        excluded: Mapping[TopicPartitionId, tuple[OffsetRange, ...]] | None = None,
    ) -> Verdict:
        """Judge one cut of an application that has repeated nothing itself."""
        of_totals, of_groups, unread = self.differences(ends, committed, excluded)
        return Verdict(
            repeats=max(int(one[one > 0].sum()) for one in (of_totals, of_groups)),
            losses=max(int(-one[one < 0].sum()) for one in (of_totals, of_groups)),
            in_flight=unread,
        )

    def differences(
        self,
        ends: Mapping[TopicPartitionId, int],
        committed: Mapping[TopicPartitionId, CommittedOffset],
        excluded: Mapping[TopicPartitionId, tuple[OffsetRange, ...]] | None = None,
    ) -> tuple[Vectors, Vectors, int]:
        """Return what both levels count beyond the inputs, and how many records are in flight.

        After a kill of an instance these are the application's own repeats.
        """

        def held(p: TopicPartitionId) -> npt.NDArray[np.bool_]:
            offsets = np.arange(len(self.customers[p]))
            found = offsets < ends[p]
            for one in (excluded or {}).get(p, ()):
                found &= (offsets < one.start) | (offsets >= one.end)
            return found

        def offset(p: TopicPartitionId) -> int:
            return committed[p].offset if p in committed else 0

        def state(topic: str) -> Vectors:
            found = np.zeros((CUSTOMERS, PARTITIONS), np.int64)
            for number in range(PARTITIONS):
                p = TopicPartitionId(topic, number)
                positions = np.nonzero(held(p))[0]
                last = np.full(CUSTOMERS, -1)
                last[self.customers[p][positions]] = positions
                there = last >= 0
                found[there] = self.vectors[p][last[there]]
            return found

        def total(topic: str, *, unread: bool) -> Vectors:
            found = np.zeros((CUSTOMERS, PARTITIONS), np.int64)
            for number in range(PARTITIONS):
                p = TopicPartitionId(topic, number)
                offsets = np.arange(len(self.customers[p]))
                chosen = held(p) & (offsets >= offset(p)) if unread else offsets < offset(p)
                np.add.at(found, self.customers[p][chosen], self.vectors[p][chosen])
            return found

        topics = self.topics
        inputs = total(topics.orders, unread=False)
        first = total(topics.by_customer, unread=True)
        second = total(topics.by_group, unread=True)
        of_totals = state(topics.totals) + first - inputs
        of_groups = state(topics.groups) + second + first - inputs
        unread = sum(
            int((held(p) & (np.arange(len(self.customers[p])) >= offset(p))).sum())
            for topic in (topics.by_customer, topics.by_group)
            for p in (TopicPartitionId(topic, number) for number in range(PARTITIONS))
        )
        return of_totals, of_groups, unread


def read_vectors(cluster: KafkaCluster, topics: VectorTopics) -> VectorHistory:
    """Read all logs of an application; nothing of them may have been deleted."""
    partitions = [
        TopicPartitionId(topic, number)
        for topic in (topics.orders, *topics.written)
        for number in range(PARTITIONS)
    ]
    ends = cluster.high_watermarks(partitions)
    customers: dict[TopicPartitionId, Any] = {}
    vectors: dict[TopicPartitionId, Any] = {}
    again: dict[TopicPartitionId, Any] = {}
    with cluster.raw_log() as reader:
        for p in partitions:
            customer = np.full(ends[p], -1, np.int32)
            vector = np.zeros((ends[p], PARTITIONS), np.int64)
            written = np.zeros(ends[p], np.bool_)
            for batch in reader.read({p: OffsetRange(0, ends[p])}, deadline_s=60)[p]:
                for record in batch.records():
                    if record.offset >= ends[p]:
                        break
                    value = record.value or b""
                    if p.topic == topics.orders:
                        name, number, id_ = value.decode().split(",")
                        vector[record.offset, int(number)] = 1
                        written[record.offset] = id_ == "again"
                    else:
                        name = (record.key or b"").decode().removeprefix("g")
                        is_change = p.topic == topics.by_group
                        vector[record.offset] = _change(value) if is_change else _vector(value)
                    customer[record.offset] = int(name[1:])
            customers[p], vectors[p], again[p] = customer, vector, written
    return VectorHistory(topics, customers, vectors, again)


def _vector(data: bytes) -> Vectors:
    return np.frombuffer(data, ">i8").astype(np.int64)


def _change(data: bytes) -> Vectors:
    """What a Change adds: new minus old (ChangedSerializer, with both, the new or the old one)."""
    kind = data[-1]
    if kind == _CHANGE_OF_BOTH:
        length = data[0] >> 1  # a zigzag varint below 64
        return _vector(data[1 : 1 + length]) - _vector(data[1 + length : 1 + 2 * length])
    vector = _vector(data[: 8 * PARTITIONS])
    return vector if kind == _NEW else -vector
