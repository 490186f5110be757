"""What of an application stands on its cluster when a recovery point is taken."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.kafka.cluster_metadata import TopicIdentity
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.cut import Written
from kstreams_assets.recovery.truncation import Incarnations

_READ = frozenset({TopicRole.INPUT, TopicRole.REPARTITION})


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
        written_only = frozenset({TopicRole.OUTPUT})
        return [topic for topic in self.absent_topics if self._roles[topic] != written_only]

    @cached_property
    def changelogs(self) -> Sequence[TopicPartitionId]:
        """Changelogs that only the application writes."""
        return self._with(lambda roles: TopicRole.CHANGELOG in roles and not _is_source(roles))

    @cached_property
    def repartitions(self) -> Sequence[TopicPartitionId]:
        """Repartition topics."""
        return self._with(lambda roles: TopicRole.REPARTITION in roles)

    @cached_property
    def outputs(self) -> Sequence[TopicPartitionId]:
        """Topics that the application writes for others, or for itself."""
        taken = {*self.internal}
        outputs = self._with(lambda roles: TopicRole.OUTPUT in roles)
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
        return self._with(lambda roles: bool(roles & _READ))

    def roles(self, partition: TopicPartitionId) -> frozenset[TopicRole]:
        """The roles of the partition's topic."""
        return self._roles[partition.topic]

    @cached_property
    def _roles(self) -> Mapping[str, frozenset[TopicRole]]:
        return {topic.name: topic.roles for topic in self.application.topics}

    def _with(self, fits: Callable[[frozenset[TopicRole]], bool]) -> Sequence[TopicPartitionId]:
        return [one for one in self.partitions if fits(self._roles[one.topic])]


def _is_source(roles: frozenset[TopicRole]) -> bool:
    return bool(roles & {TopicRole.INPUT, TopicRole.GLOBAL})


def partitions_of(topics: Iterable[TopicIdentity]) -> Sequence[TopicPartitionId]:
    """Every partition of these topics, in order."""
    return sorted(
        TopicPartitionId(topic.name, number)
        for topic in topics
        for number in range(topic.partitions)
    )
