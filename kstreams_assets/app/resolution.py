"""Resolve the names and patterns of a topology text to topics of a cluster."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kstreams_assets.app.declarations import ApplicationDraft, Declarations
from kstreams_assets.app.names import BROKER_TOPICS, internal_topic, is_repartition_name, owner_of
from kstreams_assets.app.topology import Source, Topology

# Constructs that have another meaning in Python than in Java: nested classes and intersections.
_JAVA_ONLY = re.compile(r"&&|\[[^\]]*(?<!\\)\[")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)")
_NAMED_GROUP = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")


def compile_java_pattern(pattern: str) -> re.Pattern[str] | None:
    """The Java regex for use with `fullmatch`, as Kafka's consumer uses it.

    None if Python cannot parse it or would interpret it differently.
    """
    translated = _QUOTED.sub(lambda quoted: re.escape(quoted.group(1)), pattern)
    translated = _NAMED_GROUP.sub(r"(?P<\1>", translated)
    if _JAVA_ONLY.search(translated):
        return None
    try:
        return re.compile(translated, re.ASCII)
    except re.error:
        return None


@dataclass(frozen=True, slots=True)
class Resolution:
    """A topology whose topics all have their names on the cluster."""

    topology: Topology
    prefix: str
    """Prefix of internal topics: the application id (and the name of a named topology)."""
    reads: Mapping[tuple[int, str], tuple[str, ...]]
    """Topics of each source node, by sub-topology id and node name."""
    writes: Mapping[tuple[int, str], str]
    """Topic of each sink node with a fixed topic."""
    internal: frozenset[str]
    """Topics between two sub-topologies that Kafka Streams creates itself."""

    @property
    def topics(self) -> frozenset[str]:
        """Every topic that is read or written."""
        return frozenset(t for topics in self.reads.values() for t in topics) | frozenset(
            self.writes.values()
        )


def resolve(
    draft: ApplicationDraft,
    topology: Topology,
    declarations: Declarations,
    cluster_topics: Mapping[str, int] | None,
    application_ids: Collection[str],
    group_topics: Collection[str] = (),
) -> Resolution:
    """Find the name of every topic on the cluster, and add findings to `draft`.

    Without a cluster internal topics are recognised by their names, and a pattern matches declared
    inputs only. `application_ids` are all known ones, including this application's. A pattern that
    cannot be parsed matches the topics of `group_topics` (with committed offsets) that nothing else
    explains.
    """
    id_ = draft.application_id
    prefix = id_ if topology.name is None else internal_topic(id_, topology.name)
    read, written = _names_in(topology)
    internal = {
        name: internal_topic(prefix, name)
        for name in sorted(read & written)
        if _is_internal(name, internal_topic(prefix, name), declarations, cluster_topics)
    }
    patterns = _PatternReader(
        draft=draft,
        declarations=declarations,
        cluster_topics=cluster_topics,
        application_ids=application_ids,
        taken=read | frozenset(internal.values()),
        group_topics=frozenset(group_topics),
        understood=tuple(
            compiled
            for block in topology.subtopologies
            for source in block.sources
            if source.pattern is not None
            if (compiled := compile_java_pattern(source.pattern)) is not None
        ),
    )
    reads: dict[tuple[int, str], tuple[str, ...]] = {}
    writes: dict[tuple[int, str], str] = {}
    for block in topology.subtopologies:
        for source in block.sources:
            named = tuple(internal.get(name, name) for name in source.topics)
            reads[block.id, source.name] = named + patterns.topics_of(source)
        for sink in block.sinks:
            if sink.topic is not None:
                writes[block.id, sink.name] = internal.get(sink.topic, sink.topic)
    return Resolution(
        topology=topology,
        prefix=prefix,
        reads=reads,
        writes=writes,
        internal=frozenset(internal.values()),
    )


def _names_in(topology: Topology) -> tuple[frozenset[str], frozenset[str]]:
    blocks = topology.subtopologies
    read = {name for block in blocks for source in block.sources for name in source.topics}
    written = {sink.topic for block in blocks for sink in block.sinks if sink.topic is not None}
    return frozenset(read), frozenset(written)


def _is_internal(
    name: str, decorated: str, declarations: Declarations, cluster: Mapping[str, int] | None
) -> bool:
    """Whether a name that is both read and written means the internal topic `decorated`."""
    if decorated in declarations.topics | declarations.not_mine:
        return True
    if name in declarations.topics | declarations.not_mine:
        return False
    if cluster is not None and decorated in cluster:
        return True
    if cluster is not None and name in cluster:
        return False
    return is_repartition_name(name)  # no cluster, or the application never ran on it


@dataclass(frozen=True, slots=True)
class _PatternReader:
    draft: ApplicationDraft
    declarations: Declarations
    cluster_topics: Mapping[str, int] | None
    application_ids: Collection[str]
    taken: frozenset[str]
    group_topics: frozenset[str]
    understood: tuple[re.Pattern[str], ...]
    """The other patterns of the topology."""

    def topics_of(self, source: Source) -> tuple[str, ...]:
        """Topics that the pattern of a source matches; declared inputs match even if internal."""
        if source.pattern is None:
            return ()
        compiled = compile_java_pattern(source.pattern)
        declared = self.declarations.declared_inputs - self.taken
        if compiled is None:
            self._report_not_understood(source)
            candidates = declared | (self.group_topics & self._on_cluster())
            return tuple(sorted(t for t in candidates if not self._is_explained(t)))
        candidates = declared | self._on_cluster()
        matched = tuple(sorted(name for name in candidates if compiled.fullmatch(name)))
        self._report(source, matched)
        return matched

    def _is_explained(self, topic: str) -> bool:
        return any(pattern.fullmatch(topic) for pattern in self.understood)

    def _on_cluster(self) -> frozenset[str]:
        return frozenset(
            topic
            for topic in self.cluster_topics or ()
            if topic not in self.taken
            and topic not in BROKER_TOPICS
            and topic not in self.declarations.not_mine
            and owner_of(topic, self.application_ids) is None
        )

    def _report_not_understood(self, source: Source) -> None:
        self.draft.add_finding(
            source.name,
            f"The pattern {source.pattern!r} uses Java syntax that is not supported here; only"
            " declared inputs, and topics with committed offsets, count as its topics.",
            "List the topics it matches under inputs.",
        )

    def _report(self, source: Source, matched: tuple[str, ...]) -> None:
        if self.cluster_topics is None:
            self.draft.add_finding(
                source.name,
                f"Without a cluster the matches of the pattern {source.pattern!r} are unknown; only"
                f" declared inputs count ({', '.join(matched) or 'none'}).",
                "List the topics it matches under inputs.",
            )
        elif not matched:
            self.draft.add_finding(
                source.name,
                f"The pattern {source.pattern!r} matches no topic of the cluster.",
                "Create the topics, or correct the topology text if it is outdated.",
            )
