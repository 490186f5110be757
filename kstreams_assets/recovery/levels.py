"""The levels of a topology, readers first: the order in which passive cuts use commits. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from kstreams_assets.app.model import AppTopic, StreamsApplication
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId


@dataclass(frozen=True, slots=True)
class Level:
    """Sub-topologies that do not read what another one of them writes.

    `reads` and `writes` are topics, `writes` without changelogs. `changelogs` names, for each
    changelog, the topics that its sub-topology reads: the same task has the same partition number.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    changelogs: Mapping[str, frozenset[str]]

    @property
    def written(self) -> frozenset[str]:
        """All topics that this level writes."""
        return self.writes | self.changelogs.keys()

    def tasks(self, partitions: Iterable[TopicPartitionId]) -> list[TopicPartitionId]:
        """Return those of a thread's partitions that this level reads: its tasks."""
        return [p for p in partitions if p.topic in self.reads]


@dataclass(frozen=True, slots=True)
class NoOrder:
    """Why the sub-topologies of an application have no order for a passive cut."""

    reason: str


def offsets_of_others(
    levels: Iterable[Level], offsets: Mapping[TopicPartitionId, CommittedOffset]
) -> Mapping[TopicPartitionId, CommittedOffset]:
    """Return the offsets of topics that no level reads."""
    read = {topic for level in levels for topic in level.reads}
    return {p: offset for p, offset in offsets.items() if p.topic not in read}


def levels_of(application: StreamsApplication) -> tuple[Level, ...] | NoOrder:
    """Return the levels, readers first and writers last.

    A topic that two levels write has no right order: one producer writes it for both, and the
    records of the two do not differ. A cycle has none either.
    """
    if application.omitted_edges:
        edge = application.omitted_edges[0]
        return NoOrder(f"the application writes back to {edge.target} (from {edge.source})")
    readers: dict[str, int] = {}
    for topic in application.topics:
        if topic.roles.is_read_by_group:
            if len(topic.subtopologies) != 1:
                return NoOrder(
                    f"the sub-topology that reads {topic.name} is unknown: give the text of the"
                    " topology"
                )
            readers[topic.name] = topic.subtopologies[0]
    writers: defaultdict[str, set[int]] = defaultdict(set)
    for topic in application.topics:
        if _is_own_changelog(topic):
            writers[topic.name].update(topic.subtopologies)
    for edge in application.edges:
        if _is_own_changelog(application.topic(edge.target)):
            continue
        if edge.source in readers:
            writers[edge.target].add(readers[edge.source])
        else:  # from a store: only its own sub-topology reads it
            writers[edge.target].update(application.topic(edge.source).subtopologies)
    for topic in application.topics:
        is_written = _is_own_changelog(topic) or topic.roles.is_repartition or topic.roles.is_output
        if is_written and not writers[topic.name]:
            return NoOrder(
                f"the sub-topology that writes {topic.name} is unknown: give the text of the"
                " topology"
            )
    ordered = _ordered(readers, writers)
    if isinstance(ordered, NoOrder):
        return ordered
    return tuple(_level(application, readers, writers, group) for group in ordered)


def _is_own_changelog(topic: AppTopic) -> bool:
    roles = topic.roles
    return roles.is_changelog and not roles.is_source and not roles.is_output


def _ordered(
    readers: Mapping[str, int], writers: Mapping[str, set[int]]
) -> list[frozenset[int]] | NoOrder:
    """Return groups of sub-topologies; every reader of a topic comes before its writers."""
    before: dict[int, set[int]] = {one: set() for one in readers.values()}
    for topic, of_topic in writers.items():
        for writer in of_topic:
            before.setdefault(writer, set())
            if topic in readers:
                before[writer].add(readers[topic])
    sorter = TopologicalSorter(before)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1]
        names = ", ".join(str(one) for one in sorted(set(cycle)))
        return NoOrder(f"the sub-topologies {names} read what they write themselves (a cycle)")
    rank: dict[int, int] = {}
    while sorter.is_active():
        for one in sorter.get_ready():
            rank[one] = 1 + max((rank[other] for other in before[one]), default=-1)
            sorter.done(one)
    # Sub-topologies that write the same topic must be on one level: the later one's.
    raised = True
    while raised:
        raised = False
        for of_topic in writers.values():
            highest = max((rank[one] for one in of_topic), default=0)
            for one in of_topic:
                raised |= rank[one] < highest
                rank[one] = highest
        for one, others in before.items():
            lowest = 1 + max((rank[other] for other in others), default=-1)
            raised |= rank[one] < lowest
            rank[one] = max(rank[one], lowest)
        if max(rank.values(), default=0) > len(rank):  # pushed up without end
            return NoOrder(_written_twice(readers, writers, before))
    groups: defaultdict[int, set[int]] = defaultdict(set)
    for one, level in rank.items():
        groups[level].add(one)
    return [frozenset(groups[level]) for level in sorted(groups)]


def _written_twice(
    readers: Mapping[str, int], writers: Mapping[str, set[int]], before: Mapping[int, set[int]]
) -> str:
    def upstream_of(one: int) -> set[int]:
        found = {writer for writer, others in before.items() if one in others}
        return found.union(*(upstream_of(other) for other in found))

    for topic, of_topic in sorted(writers.items()):
        for one in sorted(of_topic):
            other = sorted(of_topic & upstream_of(one))
            if other:
                return f"two levels write {topic} (sub-topologies {other[0]} and {one})"
    return f"two levels write one of {', '.join(sorted(writers.keys() - readers.keys()))}"


def _level(
    application: StreamsApplication,
    readers: Mapping[str, int],
    writers: Mapping[str, set[int]],
    group: Iterable[int],
) -> Level:
    members = set(group)
    written = {topic for topic, of_topic in writers.items() if of_topic & members}
    changelogs = {topic for topic in written if _is_own_changelog(application.topic(topic))}
    return Level(
        reads=frozenset(topic for topic, reader in readers.items() if reader in members),
        writes=frozenset(written - changelogs),
        changelogs={
            topic: frozenset(t for t, reader in readers.items() if reader in writers[topic])
            for topic in changelogs
        },
    )
