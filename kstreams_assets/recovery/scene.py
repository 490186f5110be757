"""An application on its cluster while a recovery point is taken: the input of every method."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from kstreams_assets.app.model import StreamsApplication, TopicRoles
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.coordinator_log import (
    CONSUMER_OFFSETS,
    changes_membership,
    coordinator_partition,
)
from kstreams_assets.kafka.metadata import TopicIdentity
from kstreams_assets.kafka.raw_log import LoadedBatch, RawLogReader
from kstreams_assets.model.groups import ConsumerGroup
from kstreams_assets.model.point import (
    CommitBoundary,
    Guarantee,
    Method,
    PartitionCut,
    topic_id_of,
    truncated_incarnation,
)
from kstreams_assets.model.restored_ranges import RestoredRanges
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.cut import Written
from kstreams_assets.recovery.group_commits import GroupBatch, batches_of_group
from kstreams_assets.recovery.passive_commits import Assignment

Offsets = Mapping[TopicPartitionId, int]

NO_INTERNAL = "no internal topic holds a record that shows the processing guarantee"
READ_S = 15.0
READ_BYTES = 64 * 1024**2
"""Limit of one read of a cut, and of the repartition records that it keeps."""


@dataclass(frozen=True, slots=True)
class Incarnations:
    """The current incarnation of each partition's log, and the truncated ones in words.

    `left` is the offset below which a truncated log is unchanged.
    """

    now: Mapping[TopicPartitionId, str] = field(default_factory=dict)
    truncated: Mapping[TopicPartitionId, str] = field(default_factory=dict)
    left: Mapping[TopicPartitionId, int] = field(default_factory=dict)


def incarnations(
    cluster: KafkaCluster, topic_ids: Mapping[str, str], known: Iterable[PartitionCut]
) -> Incarnations:
    """Return the incarnation of each partition of earlier cuts, if its topic still has its id.

    Only as good as the leaders that answer: `KafkaCluster.stale_leader_check` must find nothing
    afterwards. A cut without a leader epoch shows a truncation only while the log ends below it.
    """
    cuts = {cut.id: cut for cut in known if topic_ids.get(cut.topic) == topic_id_of(cut.topic_id)}
    if not cuts:
        return Incarnations()
    reached = dict(cluster.high_watermarks(cuts))
    epochs = {p: cut.leader_epoch for p, cut in cuts.items() if cut.leader_epoch is not None}
    reached |= cluster.epoch_ends(epochs)
    truncated = {
        p: f"the log of {p} was truncated: it had reached offset {cut.end}, of which only"
        f" offsets below {max(reached[p], 0)} are left (unclean leader election)"
        for p, cut in cuts.items()
        if reached[p] < cut.end
    }
    now = {
        p: truncated_incarnation(cut.topic_id, cluster.reported_epoch(p) or 0)
        if p in truncated
        else cut.topic_id
        for p, cut in cuts.items()
    }
    return Incarnations(now, truncated, {p: max(reached[p], 0) for p in truncated})


@dataclass(frozen=True)
class Scene:
    """The input of a method: the application's topics, by their role in a cut.

    `present` are all topics of the cluster. `between` is called between the steps of a method, with
    the name of the next one. `exact_ends` are the ends of the logs at an earlier exact point. An
    intermediate topic, both written and read by the application, counts as an output, even if it
    serves as the changelog of a table (`topology.optimization`). A topic that the application does
    not write is an input.
    """

    application: StreamsApplication
    cluster: KafkaCluster
    reader: RawLogReader
    present: Mapping[str, TopicIdentity]
    lookback_s: float = 60.0
    between: Callable[[str], None] = lambda _step: None
    logs: Incarnations = field(default_factory=Incarnations)
    exact_ends: Offsets = field(default_factory=dict)
    restored: RestoredRanges = field(default_factory=RestoredRanges)
    """What restores of the warehouse wrote on this cluster: no evidence about the application."""
    other_groups: tuple[ConsumerGroup, ...] = ()
    """Offsets that other groups had committed before a method was tried."""

    @property
    def group(self) -> str:
        """The application's consumer group."""
        return self.application.application_id

    @cached_property
    def group_log(self) -> TopicPartitionId | None:
        """The group's partition of `__consumer_offsets`, None if it is not visible."""
        topic = self.present.get(CONSUMER_OFFSETS)
        if topic is None:
            return None
        number = coordinator_partition(self.group, topic.partitions)
        return TopicPartitionId(CONSUMER_OFFSETS, number)

    @cached_property
    def described(self) -> Mapping[str, TopicIdentity]:
        """The application's existing topics."""
        names = (topic.name for topic in self.application.topics)
        return {name: self.present[name] for name in names if name in self.present}

    @cached_property
    def absent_topics(self) -> tuple[str, ...]:
        """Declared topics that do not exist."""
        return tuple(sorted(self._roles.keys() - self.described.keys()))

    @property
    def needed_but_absent(self) -> Sequence[str]:
        """Absent topics that a restore of the application needs; outputs are not."""
        return [topic for topic in self.absent_topics if not self._roles[topic].written_only]

    def roles(self, partition: TopicPartitionId) -> TopicRoles:
        """Return the roles of the partition's topic."""
        return self._roles[partition.topic]

    def incarnation(self, partition: TopicPartitionId) -> str:
        """Return the incarnation of the partition's log: the topic's id, unless truncated."""
        return self.logs.now.get(partition) or self.described[partition.topic].topic_id

    @cached_property
    def partitions(self) -> Sequence[TopicPartitionId]:
        """Every partition, in order."""
        return sorted(
            TopicPartitionId(topic.name, number)
            for topic in self.described.values()
            for number in range(topic.partitions)
        )

    @cached_property
    def changelogs(self) -> Sequence[TopicPartitionId]:
        """Changelogs that only the application writes."""
        return self._with(lambda roles: roles.is_changelog and not roles.is_source)

    @cached_property
    def repartitions(self) -> Sequence[TopicPartitionId]:
        """Repartition topics."""
        return self._with(lambda roles: roles.is_repartition)

    @cached_property
    def internal(self) -> Sequence[TopicPartitionId]:
        """Changelogs and repartition topics: only the application writes them."""
        return sorted({*self.changelogs, *self.repartitions})

    @cached_property
    def outputs(self) -> Sequence[TopicPartitionId]:
        """Topics that the application writes for others, or for itself."""
        internal = {*self.internal}
        return [p for p in self._with(lambda roles: roles.is_output) if p not in internal]

    @cached_property
    def written(self) -> Mapping[TopicPartitionId, Written]:
        """Every partition the application writes."""
        return {
            **dict.fromkeys(self.outputs, Written.BY_ANYBODY),
            **dict.fromkeys(self.internal, Written.BY_APPLICATION),
        }

    @cached_property
    def inputs(self) -> Sequence[TopicPartitionId]:
        """Topics that only others write: sources and global tables."""
        return [partition for partition in self.partitions if partition not in self.written]

    @cached_property
    def read(self) -> Sequence[TopicPartitionId]:
        """Every partition whose offsets the group commits."""
        return self._with(lambda roles: roles.is_read_by_group)

    @cached_property
    def _roles(self) -> Mapping[str, TopicRoles]:
        return {topic.name: topic.roles for topic in self.application.topics}

    def _with(self, fits: Callable[[TopicRoles], bool]) -> Sequence[TopicPartitionId]:
        return [one for one in self.partitions if fits(self.roles(one))]

    def committed_offsets(
        self, before_retry: Callable[[], None] | None = None
    ) -> Mapping[TopicPartitionId, CommittedOffset]:
        """Return the offsets of the group, also for undeclared topics; named ones last.

        The application's own partitions are requested by name: a partition whose very first offset
        is still in an open transaction would otherwise be silently left out.
        """
        if self.group_log is not None:
            self.cluster.high_watermarks([self.group_log])  # records the epoch of its leader
        others = self.cluster.group_offsets(self.group, before_retry=before_retry)
        if not self.read:
            return others
        named = self.cluster.group_offsets(
            self.group, partitions=self.read, before_retry=before_retry
        )
        asked = set(self.read)
        return {**{p: o for p, o in others.items() if p not in asked}, **named}

    def members(self) -> "Assignment | NotTaken":
        """Return the partitions of each member that reads any; together they read all."""
        members = self.cluster.group_members(self.group)
        if members is None:
            return NotTaken("the group is not stable", again=True)
        unread = sorted({*self.read} - {p for of in members.values() for p in of})
        if unread:
            return NotTaken(f"no member of the group reads {unread[0]}", again=True)
        return {member: partitions for member, partitions in members.items() if partitions}

    def commits_between(
        self, log: TopicPartitionId, start: int, end: int
    ) -> "Sequence[GroupBatch] | NotTaken":
        """Return the group's commits in a range of its log, during which it must not rebalance."""
        if start >= end:
            return ()
        asked = {log: OffsetRange(start, end)}
        batches = self.reader.read(asked, deadline_s=READ_S, limit_bytes=READ_BYTES)[log]
        batches = [one for one in batches if start <= one.header.base_offset < end]
        if any(changes_membership(one, self.group) for one in batches):
            return NotTaken("the group rebalanced during the cut", again=True)
        return batches_of_group(batches, self.group)

    def restored_end(self, partition: TopicPartitionId, end: int) -> int:
        """Return the end of restored records in a partition that ends at `end`, or 0."""
        written = self.restored.of(partition, self.incarnation(partition))
        # A log that ends below the restored records was truncated: it may have other writers since.
        return max((one.end for one in written if one.end <= end), default=0)

    def is_restored_offset(self, partition: TopicPartitionId, offset: int, metadata: str) -> bool:
        """Whether a restore has committed exactly this offset for the group."""
        return (partition, offset, metadata) in self._restored_offsets

    @cached_property
    def _restored_offsets(self) -> Set[tuple[TopicPartitionId, int, str]]:
        return {
            (one.id, one.offset, one.metadata)
            for restore in self.restored.committed_for(self.group)
            for one in restore.group.offsets
        }


@dataclass(frozen=True, slots=True)
class Positions:
    """The result of a method: ends (exclusive) of all that the application writes, and offsets.

    `high_watermarks` bound a raw read in which every record below the ends is decided.
    `shows_transactions`: the group's newest commits were seen to be transactions. `kept`: batches
    of repartition topics that were read before the application could purge them. `repeats_bound`
    and `commits` are those of a cut at commits, see `RecoveryPoint`.
    """

    method: Method
    guarantee: Guarantee
    ends: Offsets
    committed: Mapping[TopicPartitionId, CommittedOffset]
    high_watermarks: Offsets
    excluded: Mapping[TopicPartitionId, tuple[OffsetRange, ...]] = field(default_factory=dict)
    note: str = ""
    shows_transactions: bool = False
    kept: Mapping[TopicPartitionId, Sequence[LoadedBatch]] = field(default_factory=dict)
    repeats_bound: int | None = None
    commits: tuple[CommitBoundary, ...] = ()


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Why a method found no positions, and whether another try may."""

    reason: str
    again: bool = False
