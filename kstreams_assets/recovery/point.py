"""A recovery point: one cut of an application, as observed facts."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Protocol, TypeVar

from kstreams_assets.app.model import TopicRole
from kstreams_assets.offsets import OffsetRange, TopicPartitionId


class Guarantee(StrEnum):
    """What a restore from the point gives.

    `exact`: state, records in flight and offsets belong to exactly the same committed
    transactions. `at_least_once`: nothing is lost, up to one commit interval may repeat.
    """

    EXACT = "exact"
    AT_LEAST_ONCE = "at_least_once"


class Method(StrEnum):
    """How the point was taken; the order is that in which methods are tried.

    `transactions`: the committed transactions of a live exactly-once application were told apart in
    the raw logs. `sandwich`: offsets did not move while everything before them became stable.
    `quiesced`: the group was empty and nothing was undecided. `offsets_first`: committed offsets,
    then ends.
    """

    TRANSACTIONS = "transactions"
    SANDWICH = "sandwich"
    QUIESCED = "quiesced"
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
    """Where one partition stood: records in `[log_start, end)` outside `excluded` belong to it.

    `excluded` are ranges of transactions that do not belong to the point, in order. `saved_from` is
    set where records were saved with points (`recovery_point_records`): those of
    `[saved_from, end)` outside `excluded`, under the id of this point or of earlier ones. Of a
    changelog they are all of them if the point is sealed, else what the log still held.
    `topic_id` names the incarnation of the log (`topic_id_of`). `leader_epoch` is the epoch of the
    leader that reported `end`; None in points that do not know it.
    """

    topic: str
    partition: int
    topic_id: str
    log_start: int
    end: int
    roles: frozenset[TopicRole] = frozenset()
    excluded: tuple[OffsetRange, ...] = ()
    saved_from: int | None = None
    leader_epoch: int | None = None

    @property
    def id(self) -> TopicPartitionId:
        """The partition's identity."""
        return TopicPartitionId(self.topic, self.partition)

    @property
    def whole_below(self) -> int:
        """Every committed record below this offset belongs to the point (exclusive end)."""
        return self.excluded[0].start if self.excluded else self.end

    def holds(self, offset: int) -> bool:
        """Whether a record at this offset belongs to the point."""
        return self.log_start <= offset < self.end and not any(
            bad.start <= offset < bad.end for bad in self.excluded
        )


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """One cut of an application.

    Times are epoch milliseconds. `taken_at_ms` is the beginning of the attempt that took it, which
    lasted `took_ms`: its positions were read in between. `reason` says why the guarantee is not
    better, or what was seen. `absent_topics` are declared topics that were not seen on the cluster.
    `undeclared_topics` were there, but not declared, so that the point has nothing of them:
    internal topics of the application by their names, and topics that the group had committed
    offsets of; None in points of earlier releases, which did not look. A point that lacks a topic
    like these, or whose records in flight were too many to be saved, is taken as `at_least_once`;
    `cut_guarantee` is the guarantee of what it has, once backups hold it.
    `closes_window_end_ms` is set on a point that was taken late, on
    behalf of a window that had closed without one: it then bounds that window (exclusive end).
    `sealed`: the changelog records up to its ends were saved with it or lay in backups that were
    read before it, so that compaction cannot change it any more; `unsealed_because` says why not.
    `attempts` counts the cuts that were tried, `in_flight` the records of repartition topics that
    belong to it and were not yet processed. `sequence` counts the points of the application and
    orders them, whatever the clocks said; `ledger_version` is the version of the table `windows`
    before the cut: what was recorded by then was read before the cut. Both are None in points of
    earlier releases. `saved_version` is the version of the table `recovery_point_records` with what
    was saved of the point in it; None where nothing was, and in points of earlier releases.
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
    unsealed_because: str = ""
    absent_topics: tuple[str, ...] = ()
    attempts: int = 1
    in_flight: int = 0
    sequence: int | None = None
    ledger_version: int | None = None
    undeclared_topics: tuple[str, ...] | None = None
    cut_guarantee: Guarantee | None = None
    saved_version: int | None = None
    damaged: bool = False
    """Its row was changed since it was stored; nothing it says may be relied on."""
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

    @property
    def ended_at_ms(self) -> int:
        """When all of its positions had been read (epoch milliseconds): no record of it that the
        brokers stamped is younger."""
        return self.taken_at_ms + self.took_ms

    @property
    def guarantee_of_cut(self) -> Guarantee:
        """The guarantee of what the point has, whatever topics it lacks."""
        return self.cut_guarantee or self.guarantee

    @property
    def unknown_topics(self) -> tuple[str, ...]:
        """Topics that nobody had declared; of an earlier release's point those with offsets."""
        if self.undeclared_topics is not None:
            return self.undeclared_topics
        known = {cut.topic for cut in self.partitions} | {*self.absent_topics}
        return tuple(sorted({offset.topic for offset in self.group_offsets} - known))

    def narrowed(self, cuts: Iterable["PartitionCut"]) -> "RecoveryPoint":
        """The point as far as these partitions go: what it lacks besides does not count."""
        return replace(
            self,
            partitions=tuple(cuts),
            guarantee=self.guarantee_of_cut,
            absent_topics=(),
            undeclared_topics=(),
        )

    def why_absent(self, topic: str) -> str:
        """What it means that a topic is among `absent_topics`, and what to do."""
        return (
            f"topic {topic} is declared, but was not seen on the cluster when the point was taken:"
            " if it is there, give the recorder DESCRIBE and READ on it; if it was deleted for"
            " good, take it out of the YAML (topology text, topics, stores)"
        )

    def why_unknown(self, topic: str) -> str:
        """What it means that a topic is among `unknown_topics`, and what to do."""
        read = any(offset.topic == topic for offset in self.group_offsets)
        evidence = "the group has committed offsets of it" if read else "its name says so"
        return (
            f"topic {topic} belongs to the application ({evidence}), but was not declared, so that"
            " the point has nothing of it: declare it (a new topology text, or topics), or list it"
            " under not_mine if the application does not use it"
        )

    def cut(self, partition: TopicPartitionId) -> PartitionCut | None:
        """The cut of one partition, None when the point does not know it."""
        return self._by_id.get(partition)


class Taken(Protocol):
    """What orders points: `sequence` (None: an earlier release took it), then the clock."""

    @property
    def sequence(self) -> int | None: ...

    @property
    def taken_at_ms(self) -> int: ...

    @property
    def id(self) -> str: ...


def in_order(point: Taken) -> tuple[int, int, str]:
    """Sorts points in the order in which they were taken, whatever the clocks said."""
    return (-1 if point.sequence is None else point.sequence, point.taken_at_ms, point.id)


class Instant(Taken, Protocol):
    """When a point was taken, and the instant it counts for (epoch milliseconds)."""

    @property
    def effective_at_ms(self) -> int: ...


P = TypeVar("P", bound=Instant)

CLOCK_STEP_MS = 60_000
"""Clocks may be so far apart, or be set back by that much, without being called wrong."""
_TRUNCATED = "~"  # Kafka's notation of a topic id has no such character


def truncated_incarnation(topic_id: str, leader_epoch: int) -> str:
    """The incarnation of a partition whose log was truncated, as first seen in a leader epoch.

    What was noted of the log before does not belong to it, as with a topic that was recreated.
    """
    return f"{topic_id_of(topic_id)}{_TRUNCATED}{leader_epoch}"


def topic_id_of(incarnation: str) -> str:
    """The topic id, in Kafka's own notation, of an incarnation of a partition's log."""
    return incarnation.partition(_TRUNCATED)[0]


def in_force(points: Iterable[P]) -> list[P]:
    """The points that can bound windows, in the order in which they count.

    A point taken late on behalf of a closed window stands further on than points that were taken
    before it in the next window. Those would give a window an end before its start. So would a
    point that a wrong clock stamped in the future, once later points are there.
    """
    chosen: list[P] = []
    for point in sorted(points, key=lambda p: (p.effective_at_ms, p.taken_at_ms)):
        if not chosen or in_order(point)[:2] >= in_order(chosen[-1])[:2]:
            chosen.append(point)
    return chosen


def iso_time(epoch_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(epoch_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


@lru_cache(maxsize=4096)
def taken_at_of(point_id: str) -> int | None:
    """When a point was taken (epoch milliseconds), by an id of `new_point_id`; else None."""
    try:
        moment = datetime.strptime(point_id.partition("Z-")[0], "%Y%m%dT%H%M%S.%f")
    except ValueError:
        return None
    return round(moment.replace(tzinfo=UTC).timestamp() * 1000)


def new_point_id(taken_at_ms: int) -> str:
    """An id that sorts by the time the point was taken, such as `20261121T114003.250Z-9f3a1c`."""
    moment = datetime.fromtimestamp(taken_at_ms / 1000, tz=UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{taken_at_ms % 1000:03d}Z-{secrets.token_hex(3)}"
