"""A recovery point: one cut of an application, as observed facts. Row classes, without Arrow."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final, NamedTuple, Protocol, TypeVar

from kstreams_assets.app.model import NO_ROLES, TopicRoles
from kstreams_assets.app.names import is_internal_name
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.column import ApplicationId, Column, Int32
from kstreams_assets.model.groups import ConsumerGroup, GroupOffset
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.public_form import DAGSTER, TABLE, Form, Timestamp, Value, only


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


PartitionLife = tuple[str, int, str]
"""Topic, partition, and the id of the incarnation of its log."""


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
    partition: Int32
    topic_id: str
    log_start: int
    end: int
    roles: TopicRoles = NO_ROLES
    excluded: tuple[OffsetRange, ...] = ()
    saved_from: int | None = None
    leader_epoch: Int32 | None = None

    @property
    def id(self) -> TopicPartitionId:
        """The partition's identity."""
        return TopicPartitionId(self.topic, self.partition)

    @property
    def life(self) -> "PartitionLife":
        """The partition in one incarnation of its log: offsets mean the same in all of it."""
        return self.topic, self.partition, self.topic_id

    @property
    def whole_below(self) -> int:
        """Every committed record below this offset belongs to the point (exclusive end)."""
        return self.excluded[0].start if self.excluded else self.end

    def holds(self, offset: int) -> bool:
        """Whether a record at this offset belongs to the point."""
        return self.log_start <= offset < self.end and not any(
            offset in bad for bad in self.excluded
        )

    def whole_from(self, roles: TopicRoles, committed: int | None) -> int:
        """The offset from which on the point needs every record of a topic with these roles.

        Of the records below it the last one of each key is enough: they are state, or history.
        `committed` is the offset of the group, which reads on from there.
        """
        if roles.is_read_by_group or not (roles.rebuilds_store or roles.written_only):
            return min(self.end, max(self.log_start, committed or 0))
        return self.end

    def records_from(self, start: int) -> RangeSet:
        """Offsets from `start` on that belong to the point."""
        return RangeSet.of(start, self.end, without=self.excluded)

    @property
    def saved(self) -> RangeSet:
        """Offsets whose records were saved with points; none without `saved_from`."""
        return RangeSet() if self.saved_from is None else self.records_from(self.saved_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPoint:
    """One cut of an application, a row of the table `recovery_points`.

    Its positions were read in the `took_ms` after `taken_at_ms`. A point that lacks a declared or
    an undeclared topic, or whose records in flight were too many to be saved, is taken as
    `at_least_once`; `cut_guarantee` is the guarantee of what it has, once backups hold it. It is
    sealed when the changelog records up to its ends were saved with it or lay in backups that were
    read before it, so that compaction cannot change it any more. `digest` is set when it is stored.
    """

    application_id: ApplicationId
    id: Annotated[str, Column("Sorts by the time the point was taken.")]
    cluster_id: Annotated[str, Column("Id of the Kafka cluster.")]
    taken_at_ms: Annotated[int, Column("When it was taken, epoch milliseconds.")]
    closes_window_end_ms: Annotated[
        int | None,
        Column(
            "Set on a point taken late, for a window that closed without one: exclusive end of"
            " that window."
        ),
    ] = None
    method: Annotated[Method, Column("How it was taken.")]
    guarantee: Annotated[
        Guarantee,
        Column("What it was taken with: see [concepts](../concepts.md#recovery-point)."),
    ]
    sealed: Annotated[bool, Column("Whether its changelogs are safe from compaction.")] = False
    reason: Annotated[str, Column("Why it has this guarantee and no better one.")]
    took_ms: Annotated[int, Column("How long it took.")]
    attempts: Annotated[int, Column("Number of cuts that were tried.", type="int32")] = 1
    in_flight: Annotated[
        int,
        Column("Records of repartition topics that belong to it and were not yet processed."),
    ] = 0
    unsealed_because: Annotated[str, Column("Why it is not sealed; empty when it is.")] = ""
    absent_topics: Annotated[
        tuple[str, ...],
        Column("Declared topics that were not on the cluster, or not visible."),
    ] = ()
    partitions: Annotated[
        tuple[PartitionCut, ...],
        Column(
            "Of each partition: log start offset and exclusive `end`; ranges `excluded` from"
            " it; `saved_from`: its records from there on are in `recovery_point_records`,"
            " under this id or earlier ones; `leader_epoch` of the leader that reported `end`."
        ),
    ]
    group_offsets: Annotated[
        tuple[GroupOffset, ...],
        Column("Committed offsets of the application's own group, with metadata unchanged."),
    ]
    other_groups: Annotated[
        tuple[ConsumerGroup, ...],
        Column(
            "Other groups, each with its committed offsets before the cut; null: none was"
            " recorded.",
            nullable=True,
            last=True,
        ),
    ] = ()
    sequence: Annotated[
        int | None,
        Column(
            "Number of the point among those of the application: orders them, whatever the"
            " clocks said; null: taken by an earlier release."
        ),
    ] = None
    ledger_version: Annotated[
        int | None,
        Column(
            "Version of the table `windows` before the cut: what it held was read before"
            " the cut; null: not known."
        ),
    ] = None
    undeclared_topics: Annotated[
        tuple[str, ...] | None,
        Column(
            "Topics of the application (by their names, with offsets of its group, or written in"
            " its transactions) that nobody had declared; null: not known."
        ),
    ] = None
    cut_guarantee: Annotated[
        Guarantee | None,
        Column("Guarantee of what the point has, whatever topics it lacks; null: as `guarantee`."),
    ] = None
    digest: Annotated[
        str | None,
        Column(
            "SHA-256 of the rest of the row as JSON (keys in order, without nulls); compared"
            " whenever the row is read. Null in rows of earlier releases."
        ),
    ] = field(default=None, repr=False, compare=False)
    saved_version: Annotated[
        int | None,
        Column(
            "Version of the table `recovery_point_records` with what was saved of the point in"
            " it; an older table is refused. Null: nothing was saved, or not known."
        ),
    ] = None
    runs_at: Annotated[
        Guarantee | None,
        Column(
            "Guarantee of the application itself, as its newest records showed it when the point"
            " was taken; null: nothing showed it."
        ),
    ] = None
    damaged: bool = False
    """Its row was changed since it was stored; nothing it says may be relied on."""
    groups: tuple[ConsumerGroup, ...] = field(init=False, repr=False, compare=False)
    """All groups whose offsets it holds, the application's own first."""
    _by_id: dict[TopicPartitionId, PartitionCut] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._by_id.update({cut.id: cut for cut in self.partitions})
        own = ConsumerGroup(self.application_id, self.group_offsets)
        object.__setattr__(self, "groups", (own, *self.other_groups))

    @property
    def group(self) -> ConsumerGroup:
        """The application's own group."""
        return self.groups[0]

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
    def repeats_at_most(self) -> Mapping[str, int]:
        """How many records a restore may process a second time at most, by topic that is read.

        Those between the committed offset and the end: state and outputs may hold their effects
        already. Nothing at an exact point. What the application makes of a repeated record is
        repeated as well: one input record may become several of a repartition topic.
        """
        if self.guarantee_of_cut is Guarantee.EXACT:
            return {}
        found: dict[str, int] = {}
        for cut in self.partitions:
            if cut.roles.is_read_by_group:
                start = max(cut.log_start, self.group.offset_in(cut) or 0)
                repeats = sum(one.end - one.start for one in cut.records_from(start))
                found[cut.topic] = found.get(cut.topic, 0) + repeats
        return found

    @property
    def unknown_topics(self) -> tuple[str, ...]:
        """Topics that nobody had declared; of an earlier release's point those with offsets."""
        if self.undeclared_topics is not None:
            return self.undeclared_topics
        known = {cut.topic for cut in self.partitions} | {*self.absent_topics}
        return tuple(sorted(self.group.topics - known))

    @property
    def written_topics(self) -> tuple[str, ...]:
        """Undeclared topics that only the application's transactions have shown."""
        return tuple(
            topic
            for topic in self.undeclared_topics or ()
            if topic not in self.group.topics and not is_internal_name(self.application_id, topic)
        )

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
        evidence = "its name says so"
        if topic in self.group.topics:
            evidence = "the group has committed offsets of it"
        if topic in self.written_topics:
            evidence = "its transactions wrote it, so that it may be missing in outputs"
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


def no_point(application_id: str, point_id: str) -> KStreamsAssetsError:
    """The error for an id that no recovery point has."""
    return KStreamsAssetsError(
        f"{application_id} has no recovery point {point_id!r}.",
        remedy="Look ids up: kstreams-assets recovery-points list.",
    )


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


@dataclass(frozen=True, slots=True)
class WantedPartition:
    """The source offsets `ranges` (in order, disjoint) of a partition, and what is committed."""

    cut: PartitionCut
    ranges: Sequence[OffsetRange]
    committed: GroupOffset | None = None


@dataclass(frozen=True, slots=True)
class PointInstant:
    """When a point counts, and what decides whether it is kept.

    Enough to choose among many without reading their positions.
    """

    id: str
    taken_at_ms: int
    effective_at_ms: int
    sealed: bool = False
    exact: bool = False
    took_ms: int = 0
    sequence: int | None = None
    cluster_id: str = ""
    runs_at: Guarantee | None = None

    @property
    def ended_at_ms(self) -> int:
        """See `RecoveryPoint.ended_at_ms`."""
        return self.taken_at_ms + self.took_ms

    @property
    def closes_window(self) -> bool:
        """Whether it was taken late, on behalf of a window that had closed without one."""
        return self.effective_at_ms != self.taken_at_ms


class PointVersions(NamedTuple):
    """The number of a point, and the versions of tables that it was taken at; None: not known."""

    id: str
    sequence: int | None
    ledger_version: int | None
    saved_version: int | None


@dataclass(frozen=True, slots=True)
class Pin:
    """A row of the table of pins: a point that stays until it is unpinned."""

    application_id: ApplicationId
    recovery_point_id: Annotated[str, Column("The point that stays.")]
    pinned_at_ms: Annotated[int, Column("When it was pinned, epoch milliseconds.")]
    reason: Annotated[str, Column("Why, in the words of who pinned it.")]


def positions(point: RecoveryPoint) -> list[tuple[PartitionCut, int | None]]:
    """Of each partition where it stood, and what the application's group had committed there."""
    return [(cut, point.group.offset_in(cut)) for cut in point.partitions]


def input_lags(point: RecoveryPoint) -> dict[str, int]:
    """Offsets of each input topic that the application had not processed, in order of topics.

    Of a partition without a committed offset it has processed nothing.
    """
    lags: dict[str, int] = {}
    for cut, committed in positions(point):
        # Points of the first release do not have roles.
        if cut.roles.is_input if cut.roles else committed is not None:
            start = cut.log_start if committed is None else committed
            lags[cut.topic] = lags.get(cut.topic, 0) + max(0, cut.end - start)
    return dict(sorted(lags.items()))


POSITION: Final = Form(
    tuple,
    Value("topic", of=lambda row: row[0].topic),
    Value("partition", int, lambda row: row[0].partition),
    Value(
        "log_start",
        int,
        lambda row: row[0].log_start,
        heading="log start",
        text="First offset that Kafka held",
    ),
    Value("end", int, lambda row: row[0].end, text="Exclusive end of what belongs to the point"),
    Value(
        "committed",
        int,
        lambda row: row[1],
        text="Committed offset of the application's group",
    ),
    Value("saved_from", of=lambda row: row[0].saved_from, heading="saved from", where=TABLE),
)
"""What `positions` returns."""
_LAG: Final = Form(
    tuple,
    Value("topic", of=lambda row: row[0]),
    Value(
        "offset_lag", int, lambda row: row[1], text="Offsets that the application has not processed"
    ),
)
POINT: Final = Form(
    RecoveryPoint,
    *only(
        DAGSTER,
        "recovery_point=id",
        Value("taken_at", Timestamp, "taken_at_ms"),
        "method guarantee reason",
        Value("repeats_at_most", of=lambda point: sum(point.repeats_at_most.values())),
        "sealed in_flight",
        Value("offset_lag", of=lambda point: sum(input_lags(point).values())),
        Value("input_lag", of=lambda point: [*input_lags(point).items()], form=_LAG),
        "took_ms attempts",
        Value("positions", of=positions, form=POSITION),
        Value("unsealed_because", of=lambda point: point.unsealed_because or None),
    ),
)
"""A point that was taken."""


CHANGED = "its row does not match the digest that was noted when it was taken"
"""What is wrong with a point that is `damaged`."""
