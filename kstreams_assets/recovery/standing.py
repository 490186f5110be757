"""What of an application stands on its cluster when a recovery point is taken."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kstreams_assets.app.model import StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.topics import TopicIdentity
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.cut import Written
from kstreams_assets.warehouse.point import PartitionCut, topic_id_of, truncated_incarnation


@dataclass(frozen=True, slots=True)
class Truncation:
    """A log that had reached `end` at a recovery point, and keeps of that what lies below `at`."""

    partition: TopicPartitionId
    at: int
    end: int

    def __str__(self) -> str:
        return (
            f"the log of {self.partition} was truncated: it had reached offset {self.end}, and of"
            f" that only what lies below offset {self.at} is left (unclean leader election)"
        )


@dataclass(frozen=True, slots=True)
class Incarnations:
    """The incarnation of each partition's log now, and the logs truncated since the point."""

    now: Mapping[TopicPartitionId, str]
    truncated: tuple[Truncation, ...] = ()


def incarnations(
    cluster: KafkaCluster, topic_ids: Mapping[str, str], known: Iterable[PartitionCut]
) -> Incarnations:
    """The incarnation of each partition that earlier cuts know, of topics that still have their id.

    Only as good as the leaders that answer: `KafkaCluster.leader_doubt` has to find nothing
    afterwards. A cut without a leader epoch shows a truncation only while the log ends below it.
    """
    cuts = {cut.id: cut for cut in known if topic_ids.get(cut.topic) == topic_id_of(cut.topic_id)}
    if not cuts:
        return Incarnations({})
    reached = dict(cluster.high_watermarks(cuts))
    epochs = {p: cut.leader_epoch for p, cut in cuts.items() if cut.leader_epoch is not None}
    reached |= cluster.epoch_ends(epochs)
    truncated = {
        p: Truncation(p, max(reached[p], 0), cut.end)
        for p, cut in cuts.items()
        if reached[p] < cut.end
    }
    now = {
        p: truncated_incarnation(cut.topic_id, cluster.reported_epoch(p) or 0)
        if p in truncated
        else cut.topic_id
        for p, cut in cuts.items()
    }
    return Incarnations(now, tuple(truncated.values()))


@dataclass(frozen=True)
class Standing:
    """The application's topics as the cluster describes them, by what a cut does with them.

    `absent_topics` are declared and not there. An intermediate topic, both written and read by the
    application, counts as an output, also where it serves as the changelog of a table
    (`topology.optimization`). One that the application does not write is an input.
    """

    application: StreamsApplication
    described: Mapping[str, TopicIdentity]
    absent_topics: tuple[str, ...]
    logs: Incarnations = field(default_factory=lambda: Incarnations({}))

    def incarnation(self, partition: TopicPartitionId) -> str:
        """The incarnation of the partition's log: the topic's id, unless it was truncated."""
        return self.logs.now.get(partition) or self.described[partition.topic].topic_id

    @cached_property
    def partitions(self) -> Sequence[TopicPartitionId]:
        """Every partition, in order."""
        return partitions_of(self.described.values())

    @cached_property
    def needed_but_absent(self) -> Sequence[str]:
        """Absent topics without which the application could not be restored; outputs are not."""
        written_only = TopicRoles({TopicRole.OUTPUT})
        return [topic for topic in self.absent_topics if self._roles[topic] != written_only]

    @cached_property
    def changelogs(self) -> Sequence[TopicPartitionId]:
        """Changelogs that only the application writes."""
        return self._with(lambda roles: roles.is_changelog and not roles.is_source)

    @cached_property
    def repartitions(self) -> Sequence[TopicPartitionId]:
        """Repartition topics."""
        return self._with(lambda roles: roles.is_repartition)

    @cached_property
    def outputs(self) -> Sequence[TopicPartitionId]:
        """Topics that the application writes for others, or for itself."""
        taken = {*self.internal}
        outputs = self._with(lambda roles: roles.is_output)
        return [partition for partition in outputs if partition not in taken]

    @cached_property
    def inputs(self) -> Sequence[TopicPartitionId]:
        """Topics that others alone write: sources and global tables."""
        return [partition for partition in self.partitions if partition not in self.written]

    @cached_property
    def internal(self) -> Sequence[TopicPartitionId]:
        """Changelogs and repartition topics: nobody but the application writes them."""
        return sorted({*self.changelogs, *self.repartitions})

    @cached_property
    def written(self) -> Mapping[TopicPartitionId, Written]:
        """Every partition the application writes."""
        return {
            **dict.fromkeys(self.outputs, Written.BY_ANYBODY),
            **dict.fromkeys(self.internal, Written.BY_APPLICATION),
        }

    @cached_property
    def read(self) -> Sequence[TopicPartitionId]:
        """Every partition whose offsets the group commits."""
        return self._with(lambda roles: roles.is_read_by_group)

    def roles(self, partition: TopicPartitionId) -> TopicRoles:
        """The roles of the partition's topic."""
        return self._roles[partition.topic]

    @cached_property
    def _roles(self) -> Mapping[str, TopicRoles]:
        return {topic.name: topic.roles for topic in self.application.topics}

    def _with(self, fits: Callable[[TopicRoles], bool]) -> Sequence[TopicPartitionId]:
        return [one for one in self.partitions if fits(self._roles[one.topic])]


def partitions_of(topics: Iterable[TopicIdentity]) -> Sequence[TopicPartitionId]:
    """Every partition of these topics, in order."""
    return sorted(
        TopicPartitionId(topic.name, number)
        for topic in topics
        for number in range(topic.partitions)
    )
