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
    """The guarantee of a restore from the point.

    `exact`: state, records in flight and offsets belong to exactly the same committed
    transactions. `at_least_once`: nothing is lost, up to one commit interval may repeat.
    """

    EXACT = "exact"
    AT_LEAST_ONCE = "at_least_once"


class Method(StrEnum):
    """How the point was taken, in the order in which methods are tried.

    `transactions`: the committed transactions of a live exactly-once application were identified in
    the raw logs. `sandwich`: a stable read; offsets did not move while everything before them
    became stable. `quiesced`: the group was empty and nothing was undecided. `journal`:
    ends that the companion of a live at-least-once application recorded at its commits.
    `barrier`: the companion stopped all threads at their commits. `passive_commits`: ends of the
    logs at commits, without a companion; these three are tried only if the caller can wait for
    commits. `offsets_first`: committed offsets, then ends.
    """

    TRANSACTIONS = "transactions"
    SANDWICH = "sandwich"
    QUIESCED = "quiesced"
    JOURNAL = "journal"
    BARRIER = "barrier"
    PASSIVE_COMMITS = "passive_commits"
    OFFSETS_FIRST = "offsets_first"

    @property
    def is_at_commits(self) -> bool:
        """Whether the cut consists of commits of a running at-least-once application."""
        return self in (Method.JOURNAL, Method.BARRIER, Method.PASSIVE_COMMITS)


PartitionIncarnation = tuple[str, int, str]
"""Topic, partition, and the id of the incarnation of its log."""


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """The position of one partition: records in `[log_start, end)` outside `excluded` belong to it.

    `excluded` are ranges of transactions that do not belong to the point, in order. `saved_from` is
    set if records were saved with points (`recovery_point_records`): those of `[saved_from, end)`
    outside `excluded`, under the id of this point or of earlier ones. For a changelog these are all
    records if the point is sealed, else those that the log still contained. `topic_id` names the
    incarnation of the log (`topic_id_of`). `leader_epoch` is the epoch of the leader that reported
    `end`; None if the point does not have it.
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
    def life(self) -> "PartitionIncarnation":
        """The partition of one topic incarnation, in which offsets keep their meaning."""
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
        """The lowest offset from which the point needs every record of a topic with these roles.

        Of lower records the last one of each key is enough: they are state, or history. `committed`
        is the offset of the group, which continues reading there.
        """
        if roles.is_read_by_group or not (roles.rebuilds_store or roles.written_only):
            return min(self.end, max(self.log_start, committed or 0))
        return self.end

    def records_from(self, start: int) -> RangeSet:
        """Offsets from `start` on that belong to the point."""
        return RangeSet.of(start, self.end, without=self.excluded)

    @property
    def saved(self) -> RangeSet:
        """Offsets whose records were saved with points; empty without `saved_from`."""
        return RangeSet() if self.saved_from is None else self.records_from(self.saved_from)


@dataclass(frozen=True, slots=True)
class CommitBoundary:
    """The commit at which one thread's part of a cut ends.

    `level` 0 reads what higher levels write. `commit` is the offset of the commit in the group's
    partition of `__consumer_offsets`, or with the method `journal` in the journal. At most
    `repeats` records of the thread were written after it; 0 is the proof that the part is exact.
    """

    level: Int32
    member: str
    commit: int
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPoint:
    """One cut of an application, a row of the table `recovery_points`.

    Its positions were read within `took_ms` after `taken_at_ms`. A point without a declared or
    undeclared topic, or with too many records in flight to save, is taken as `at_least_once`;
    `cut_guarantee` is the guarantee of its existing parts, once backups cover them. It is sealed if
    the changelog records up to its ends were saved with it or were in backups that were read before
    it, so that compaction can no longer change it. `digest` is set when it is stored.
    """

    application_id: ApplicationId
    id: Annotated[str, Column("Sorts by the time at which the point was taken.")]
    cluster_id: Annotated[str, Column("Id of the Kafka cluster.")]
    taken_at_ms: Annotated[int, Column("When it was taken, epoch milliseconds.")]
    closes_window_end_ms: Annotated[
        int | None,
        Column(
            "Set on a point that was taken late, for a window that closed without one: exclusive"
            " end of that window."
        ),
    ] = None
    method: Annotated[Method, Column("How it was taken.")]
    guarantee: Annotated[
        Guarantee,
        Column("Versions and settings then: see [concepts](../concepts.md#recovery-point)."),
    ]
    sealed: Annotated[bool, Column("Whether its changelogs are safe from compaction.")] = False
    reason: Annotated[str, Column("Why it has this guarantee and not a better one.")]
    took_ms: Annotated[int, Column("Its duration.")]
    attempts: Annotated[int, Column("Number of cuts that were tried.", type="int32")] = 1
    in_flight: Annotated[
        int,
        Column("Unprocessed records of repartition topics that belong to it."),
    ] = 0
    unsealed_because: Annotated[str, Column("Why it is not sealed; empty if it is.")] = ""
    absent_topics: Annotated[
        tuple[str, ...],
        Column("Declared topics that were not on the cluster, or not visible."),
    ] = ()
    partitions: Annotated[
        tuple[PartitionCut, ...],
        Column(
            "For each partition: log start offset and exclusive `end`; ranges `excluded` from it;"
            " `saved_from`: records from there on are in `recovery_point_records`, under this id"
            " or earlier ones; `leader_epoch` of the leader that reported `end`."
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
            "Number of the point in its application; defines the order, whatever the clocks say;"
            " null: taken by an earlier release."
        ),
    ] = None
    ledger_version: Annotated[
        int | None,
        Column(
            "Version of the table `windows` before the cut: its spans were read before the cut;"
            " null: unknown."
        ),
    ] = None
    undeclared_topics: Annotated[
        tuple[str, ...] | None,
        Column(
            "Undeclared topics of the application (by their names, with offsets of its group, or"
            " written in its transactions); null: unknown."
        ),
    ] = None
    cut_guarantee: Annotated[
        Guarantee | None,
        Column("Guarantee of its existing parts, without missing topics; null: as `guarantee`."),
    ] = None
    digest: Annotated[
        str | None,
        Column(
            "SHA-256 of the rest of the row as JSON (keys in order, without nulls); verified"
            " whenever the row is read. Null in rows of earlier releases."
        ),
    ] = field(default=None, repr=False, compare=False)
    saved_version: Annotated[
        int | None,
        Column(
            "Version of the table `recovery_point_records` that contains the point's saved"
            " records; an older table is refused. Null: nothing was saved, or unknown."
        ),
    ] = None
    runs_at: Annotated[
        Guarantee | None,
        Column(
            "Guarantee of the application itself, according to its newest records when the point"
            " was taken; null: no record showed it."
        ),
    ] = None
    repeats_bound: Annotated[
        int | None,
        Column(
            "Cut at commits: at most this many records were written after its commits; 0 is the"
            " proof that it is exact. Null: another method, or unknown.",
            last=2,
        ),
    ] = None
    commits: Annotated[
        tuple[CommitBoundary, ...],
        Column(
            "Cut at commits: the commit of each thread and level (0 reads what higher levels"
            " write), as an offset of `__consumer_offsets` or of the journal (method `journal`),"
            " and at most how many records the thread had written after it (0: proven). Null:"
            " another method.",
            nullable=True,
            last=2,
        ),
    ] = ()
    damaged: bool = False
    """Its row was changed after it was stored; its contents are unreliable."""
    groups: tuple[ConsumerGroup, ...] = field(init=False, repr=False, compare=False)
    """All groups with recorded offsets, the application's own first."""
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
        """The point's evaluation time when windows look for their end."""
        if self.closes_window_end_ms is None:
            return self.taken_at_ms
        return self.closes_window_end_ms - 1

    @property
    def ended_at_ms(self) -> int:
        """When all of its positions had been read (epoch milliseconds): none of its records with a
        broker's timestamp is younger."""
        return self.taken_at_ms + self.took_ms

    @property
    def guarantee_of_cut(self) -> Guarantee:
        """The guarantee of its existing parts, without missing topics."""
        return self.cut_guarantee or self.guarantee

    @property
    def repeats_at_most(self) -> Mapping[str, int]:
        """Maximum number of records that a restore may process twice, by topic that is read.

        They are between the committed offset and the end: state and outputs may already contain
        their effects. Empty for an exact point. The results of a repeated record are repeated as
        well: one input record may become several of a repartition topic. A cut at commits has a
        bound for all topics together (`most_repeats`), which limits each of them.
        """
        if self.guarantee_of_cut is Guarantee.EXACT:
            return {}
        found: dict[str, int] = {}
        for cut in self.partitions:
            if cut.roles.is_read_by_group:
                start = max(cut.log_start, self.group.offset_in(cut) or 0)
                repeats = sum(one.end - one.start for one in cut.records_from(start))
                found[cut.topic] = found.get(cut.topic, 0) + repeats
        if self.repeats_bound is not None:
            return {topic: min(count, self.repeats_bound) for topic, count in found.items()}
        return found

    @property
    def most_repeats(self) -> int:
        """Maximum number of records that a restore may process twice, of all topics together."""
        of_all = sum(self.repeats_at_most.values())
        return of_all if self.repeats_bound is None else min(of_all, self.repeats_bound)

    @property
    def unknown_topics(self) -> tuple[str, ...]:
        """Undeclared topics; for an earlier release's point those with offsets."""
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
        """The part of the point in these partitions: other missing parts do not count."""
        return replace(
            self,
            partitions=tuple(cuts),
            guarantee=self.guarantee_of_cut,
            absent_topics=(),
            undeclared_topics=(),
        )

    def why_absent(self, topic: str) -> str:
        """The meaning of a topic in `absent_topics`, with the remedy."""
        return (
            f"topic {topic} is declared, but was not visible on the cluster when the point was"
            " taken: if it exists, give the recorder DESCRIBE and READ on it; if it was deleted"
            " for good, remove it from the YAML (topology text, topics, stores)"
        )

    def why_unknown(self, topic: str) -> str:
        """The meaning of a topic in `unknown_topics`, with the remedy."""
        evidence = "by its name"
        if topic in self.group.topics:
            evidence = "the group has committed offsets of it"
        if topic in self.written_topics:
            evidence = "its transactions wrote it, so it may be missing in outputs"
        return (
            f"topic {topic} belongs to the application ({evidence}), but was not declared, so the"
            " point does not contain it: declare it (a new topology text, or topics), or list it"
            " under not_mine if the application does not use it"
        )

    def cut(self, partition: TopicPartitionId) -> PartitionCut | None:
        """The cut of one partition, None if the point does not contain it."""
        return self._by_id.get(partition)


class Taken(Protocol):
    """The order of points: `sequence` (None: taken by an earlier release), then the clock."""

    @property
    def sequence(self) -> int | None: ...

    @property
    def taken_at_ms(self) -> int: ...

    @property
    def id(self) -> str: ...


def in_order(point: Taken) -> tuple[int, int, str]:
    """Sort key: the order in which points were taken, whatever the clocks said."""
    return (-1 if point.sequence is None else point.sequence, point.taken_at_ms, point.id)


class Instant(Taken, Protocol):
    """When a point was taken, and its evaluation time (epoch milliseconds)."""

    @property
    def effective_at_ms(self) -> int: ...


P = TypeVar("P", bound=Instant)

CLOCK_STEP_MS = 60_000
"""Tolerated difference between clocks, and tolerated setting back of one."""
_TRUNCATED = "~"  # Kafka's notation of a topic id has no such character


def truncated_incarnation(topic_id: str, leader_epoch: int) -> str:
    """The incarnation of a partition whose log was truncated, as first seen in a leader epoch.

    Facts about the log before the truncation do not apply to it, as with a recreated topic.
    """
    return f"{topic_id_of(topic_id)}{_TRUNCATED}{leader_epoch}"


def topic_id_of(incarnation: str) -> str:
    """The topic id, in Kafka's own notation, of an incarnation of a partition's log."""
    return incarnation.partition(_TRUNCATED)[0]


def effective_points(points: Iterable[P]) -> list[P]:
    """The points that can bound windows, in the order of their evaluation times.

    A point that was taken late for a closed window comes after points that were taken before it in
    the next window. Those would give a window an end before its start. The same holds for a point
    that a wrong clock stamped in the future, once later points exist.
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
        remedy="List the ids: kstreams-assets recovery-points list.",
    )


@lru_cache(maxsize=4096)
def taken_at_of(point_id: str) -> int | None:
    """When a point was taken (epoch milliseconds), from an id of `new_point_id`; else None."""
    try:
        moment = datetime.strptime(point_id.partition("Z-")[0], "%Y%m%dT%H%M%S.%f")
    except ValueError:
        return None
    return round(moment.replace(tzinfo=UTC).timestamp() * 1000)


def new_point_id(taken_at_ms: int) -> str:
    """An id that sorts by the time at which the point was taken, such as
    `20261121T114003.250Z-9f3a1c`."""
    moment = datetime.fromtimestamp(taken_at_ms / 1000, tz=UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{taken_at_ms % 1000:03d}Z-{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class WantedPartition:
    """The source offsets `ranges` (in order, disjoint) of a partition, and its committed offset."""

    cut: PartitionCut
    ranges: Sequence[OffsetRange]
    committed: GroupOffset | None = None


@dataclass(frozen=True, slots=True)
class PointInstant:
    """A point's evaluation time, and the facts that decide whether it is kept.

    This is enough to choose among many points without reading their positions.
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
        """Whether it was taken late, for a window that had closed without a point."""
        return self.effective_at_ms != self.taken_at_ms


class PointVersions(NamedTuple):
    """The number of a point, and the table versions at which it was taken; None: unknown."""

    id: str
    sequence: int | None
    ledger_version: int | None
    saved_version: int | None


@dataclass(frozen=True, slots=True)
class Pin:
    """A row of the table of pins: a point that is kept until it is unpinned."""

    application_id: ApplicationId
    recovery_point_id: Annotated[str, Column("The point that is kept.")]
    pinned_at_ms: Annotated[int, Column("When it was pinned, epoch milliseconds.")]
    reason: Annotated[str, Column("The reason, in the user's words.")]


def positions(point: RecoveryPoint) -> list[tuple[PartitionCut, int | None]]:
    """Each partition's position, and the application's committed offset there."""
    return [(cut, point.group.offset_in(cut)) for cut in point.partitions]


def input_lags(point: RecoveryPoint) -> dict[str, int]:
    """Unprocessed offsets of each input topic, in order of topics.

    A partition without a committed offset counts as completely unprocessed.
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
        text="First offset in Kafka",
    ),
    Value("end", int, lambda row: row[0].end, text="Exclusive end of the point's records"),
    Value(
        "committed",
        int,
        lambda row: row[1],
        text="Committed offset of the application's group",
    ),
    Value("saved_from", of=lambda row: row[0].saved_from, heading="saved from", where=TABLE),
)
"""The public form of `positions`."""
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
        Value("repeats_at_most", of="most_repeats"),
        "sealed in_flight",
        Value("offset_lag", of=lambda point: sum(input_lags(point).values())),
        Value("input_lag", of=lambda point: [*input_lags(point).items()], form=_LAG),
        "took_ms attempts",
        Value("positions", of=positions, form=POSITION),
        Value("unsealed_because", of=lambda point: point.unsealed_because or None),
    ),
)
"""The public form of a new point."""


CHANGED = "its row does not match the digest that was recorded when it was taken"
"""The problem of a point that is `damaged`."""
