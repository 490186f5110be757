"""A recovery point: one cut of an application, as observed facts."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol, TypeVar

from kstreams_assets.kafka.positions import TopicPartitionId


class Guarantee(StrEnum):
    """What a restore from the point gives.

    `exact`: state, records in flight and offsets belong to exactly the same committed
    transactions. `at_least_once`: nothing is lost, up to one commit interval may repeat.
    """

    EXACT = "exact"
    AT_LEAST_ONCE = "at_least_once"


class Method(StrEnum):
    """How the point was taken."""

    OFFSETS_FIRST = "offsets_first"


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """One committed offset of the application's consumer group.

    `metadata` is kept character for character: Kafka Streams stores the partition time in it.
    """

    topic: str
    partition: int
    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """Where one partition stood: records in `[log_start, end)` belong to the point."""

    topic: str
    partition: int
    topic_id: str
    log_start: int
    end: int

    @property
    def id(self) -> TopicPartitionId:
        """The partition's identity."""
        return TopicPartitionId(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """One cut of an application.

    Times are epoch milliseconds. `absent_topics` are topics that earlier points knew and that were
    not on the cluster. `closes_window_end_ms` is set on a point that was taken late, on
    behalf of a window that had closed without one: it then bounds that window (exclusive end).
    """

    id: str
    application_id: str
    cluster_id: str
    taken_at_ms: int
    method: Method
    guarantee: Guarantee
    reason: str
    took_ms: int
    partitions: tuple[PartitionCut, ...]
    group_offsets: tuple[GroupOffset, ...]
    closes_window_end_ms: int | None = None
    sealed: bool = False
    absent_topics: tuple[str, ...] = ()
    _by_id: dict[TopicPartitionId, PartitionCut] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._by_id.update({cut.id: cut for cut in self.partitions})

    @property
    def effective_at_ms(self) -> int:
        """The instant the point counts for when windows look for their end."""
        if self.closes_window_end_ms is None:
            return self.taken_at_ms
        return self.closes_window_end_ms - 1

    def cut(self, partition: TopicPartitionId) -> PartitionCut | None:
        """The cut of one partition, None when the point does not know it."""
        return self._by_id.get(partition)


class Instant(Protocol):
    """When a point was taken, and the instant it counts for (epoch milliseconds)."""

    @property
    def taken_at_ms(self) -> int: ...

    @property
    def effective_at_ms(self) -> int: ...


P = TypeVar("P", bound=Instant)


def in_force(points: Iterable[P]) -> list[P]:
    """The points that can bound windows, in the order in which they count.

    A point taken late on behalf of a closed window stands further on than points that were taken
    before it in the next window. Those would give a window an end before its start.
    """
    chosen: list[P] = []
    for point in sorted(points, key=lambda p: (p.effective_at_ms, p.taken_at_ms)):
        if not chosen or point.taken_at_ms >= chosen[-1].taken_at_ms:
            chosen.append(point)
    return chosen


def new_point_id(taken_at_ms: int) -> str:
    """An id that sorts by the time the point was taken, such as `20261121T114003.250Z-9f3a1c`."""
    moment = datetime.fromtimestamp(taken_at_ms / 1000, tz=UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{taken_at_ms % 1000:03d}Z-{secrets.token_hex(3)}"
