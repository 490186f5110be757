"""The data flow of a topology: edges between topics, changelogs of stores, copartitions."""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from kstreams_assets.app.declarations import ApplicationDraft, Declarations
from kstreams_assets.app.model import Store, StreamsApplication, TopicEdge, TopicRole
from kstreams_assets.app.names import changelog_of
from kstreams_assets.app.resolution import Resolution
from kstreams_assets.app.topology import Node, Processor, Sink, Source, SubTopology

_GENERATED = re.compile(r"((?:KSTREAM|KTABLE|COGROUPKSTREAM)-[A-Z-]+)-([0-9]{10})")
# Operators of user code: their names do not show whether they write their stores.
_USER_CODE = frozenset({"KSTREAM-PROCESSOR", "KSTREAM-TRANSFORM", "KSTREAM-TRANSFORMVALUES"})
# Join processors read the store of the other side.
_READER_KINDS = frozenset(
    {
        "KSTREAM-JOIN",
        "KSTREAM-LEFTJOIN",
        "KSTREAM-JOINTHIS",
        "KSTREAM-JOINOTHER",
        "KSTREAM-OUTERTHIS",
        "KSTREAM-OUTEROTHER",
        "KTABLE-JOINTHIS",
        "KTABLE-JOINOTHER",
        "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR",
    }
)
# The same processors if the join was named.
_READER_SUFFIXES = (
    "-join-this",
    "-join-other",
    "-this-join",
    "-other-join",
    "-subscription-join-foreign",
    "-foreign-join-subscription",
    "-subscription-response-resolver",
)


def classify_stores(
    draft: ApplicationDraft,
    resolution: Resolution,
    declarations: Declarations,
    cluster_topics: Collection[str] | None,
    group_topics: Collection[str] | None = None,
) -> None:
    """Add every store of the topology to `draft`, with its changelog.

    Without a cluster every store that is not global is assumed to have its changelog. The same
    holds for a store of a sub-topology that has not read anything yet: `group_topics` have
    committed offsets (None: unknown).
    """
    for block in resolution.topology.subtopologies:
        read = {t for s in block.sources for t in resolution.reads[block.id, s.name]}
        has_run = group_topics is None or not read.isdisjoint(group_topics)
        for name in sorted({store for node in block.processors for store in node.stores}):
            changelog = _changelog(
                draft, resolution, declarations, cluster_topics, block, name, has_run=has_run
            )
            store = Store(name=name, changelog=changelog, is_global=block.is_global)
            draft.add_store(store, subtopology=block.id)


def _changelog(
    draft: ApplicationDraft,
    resolution: Resolution,
    declarations: Declarations,
    cluster_topics: Collection[str] | None,
    block: SubTopology,
    store: str,
    *,
    has_run: bool,
) -> str | None:
    declared = declarations.stores.get(store)
    if declared is not None:
        return declared.changelog or declared.source_topic
    if block.is_global:
        # Kafka Streams refuses a global store with a changelog: its source topic is the log.
        return next((t for s in block.sources for t in resolution.reads[block.id, s.name]), None)
    by_rule = changelog_of(resolution.prefix, store)
    if not declarations.denies(by_rule, TopicRole.CHANGELOG) and (
        cluster_topics is None or by_rule in cluster_topics
    ):
        return by_rule
    if not has_run and not declarations.denies(by_rule, TopicRole.CHANGELOG):
        draft.add_finding(
            store,
            f"There is no topic {by_rule} yet: the application has not committed offsets of the"
            f" inputs of sub-topology {block.id}.",
            "Start the application, and discover again once it has processed records.",
        )
        return by_rule
    source_topic = _source_topic(resolution, block, store)
    if source_topic is not None and not declarations.denies(source_topic, TopicRole.CHANGELOG):
        draft.guess_store(
            store,
            f"There is no topic {by_rule}; {source_topic}, which the store's table reads, is"
            " assumed to be its changelog (optimised topology). This needs confirmation.",
            "Declare the store with source_topic, or with logging_disabled if it has no changelog;"
            " if the application never ran on this cluster, start it once.",
        )
        return source_topic
    read_only = sorted(_read_only_sources(resolution, block, store))
    if read_only:
        draft.guess_store(
            store,
            f"There is no topic {by_rule}; logging of the store is assumed to be disabled. A"
            f" processor writes the records of {' or '.join(read_only)} into it: if it keeps them"
            " unchanged (addReadOnlyStateStore, KIP-813), that topic is its changelog. This needs"
            " confirmation.",
            f"Declare the store with source_topic: {' or '.join(read_only)} if it is a read-only"
            " store, or with logging_disabled: true if it has no changelog.",
        )
        return None
    draft.guess_store(
        store,
        f"There is no topic {by_rule}; logging of the store is assumed to be disabled, so only a"
        " rebuild from the inputs can restore it. This needs confirmation.",
        "Declare the store with logging_disabled or with its changelog; if the application never"
        " ran on this cluster, start it once.",
    )
    return None


def _source_topic(resolution: Resolution, block: SubTopology, store: str) -> str | None:
    """The topic that may be the changelog: the only one of the store's only table source.

    Only tables of the DSL reuse their source: another processor may write anything into its store.
    A repartition topic is never a changelog (it is purged).
    """
    topics = {
        resolution.reads[block.id, parent.name][0]
        for node in block.processors
        if store in node.stores and _is_table(block, node)
        for parent in _only_parent(block, node)
        if len(parent.topics) == 1
    }
    return topics.pop() if len(topics) == 1 and not topics & resolution.internal else None


def _is_table(block: SubTopology, node: Processor) -> bool:
    """Whether the DSL created the processor for `builder.table`, by its or its source's name."""
    generated = _GENERATED.fullmatch(node.name)
    if generated is None:
        return _is_named_table(block, node)
    return generated.group(1) == "KTABLE-SOURCE"


def _read_only_sources(resolution: Resolution, block: SubTopology, store: str) -> set[str]:
    """Topics that a read-only store (KIP-813) may copy.

    Its processor has one source with one topic, only this store, and forwards nothing.
    """
    return {
        resolution.reads[block.id, parent.name][0]
        for node in block.processors
        if node.stores == (store,) and not node.successors and not _is_stream_operator(node)
        for parent in _only_parent(block, node)
        if len(parent.topics) == 1
    } - resolution.internal


def _only_parent(block: SubTopology, node: Processor) -> tuple[Source, ...]:
    if len(node.predecessors) != 1:
        return ()
    parent = block.node(node.predecessors[0])
    return (parent,) if isinstance(parent, Source) else ()


def _is_stream_operator(node: Processor) -> bool:
    generated = _GENERATED.fullmatch(node.name)
    return generated is not None and not node.name.startswith("KTABLE-")


def writers_of(block: SubTopology, store: str) -> tuple[tuple[Processor, ...], bool]:
    """The processors that write a store, and whether that is certain.

    The text lists the processors that use a store, not those that write it. In the DSL exactly one
    writes it, and the others are joins. Joins are recognised by their names; the writer is the
    table's source or the operator that was created first (lowest number). If names do not decide
    (named operators, Processor API), all remaining processors are assumed to write it.
    """
    users = tuple(node for node in block.processors if store in node.stores)
    if len(users) == 1:
        return users, True
    candidates = tuple(node for node in users if not _only_reads(node.name))
    if len(candidates) <= 1:
        # If none is left, both sides of an outer join write their shared store.
        return candidates or users, True
    tables = tuple(node for node in candidates if _is_named_table(block, node))
    if len(tables) == 1:
        return tables, True
    numbered = [
        (int(match.group(2)), node)
        for node in candidates
        if (match := _GENERATED.fullmatch(node.name)) and match.group(1) not in _USER_CODE
    ]
    if numbered:
        return (min(numbered, key=lambda pair: pair[0])[1],), True
    return candidates, False


def _only_reads(name: str) -> bool:
    generated = _GENERATED.fullmatch(name)
    if generated is not None:
        return generated.group(1) in _READER_KINDS
    return name.endswith(_READER_SUFFIXES)


def _is_named_table(block: SubTopology, node: Processor) -> bool:
    """`builder.table(topic, Consumed.as(name))` names processor `name` and source `name-source`."""
    return any(parent.name == f"{node.name}-source" for parent in _only_parent(block, node))


def topology_edges(draft: ApplicationDraft, resolution: Resolution) -> frozenset[TopicEdge]:
    """The edges of a classified topology (roles and stores are in `draft`), cycles included.

    Adds a finding for each store whose writer the text does not show.
    """
    kept = draft.topics
    changelogs = {
        store.name: store.changelog
        for store in draft.stores
        if store.changelog is not None and store.changelog in kept
    }
    edges: set[TopicEdge] = set()
    for block in resolution.topology.subtopologies:
        if not block.is_global:
            edges |= _BlockFlow(draft, resolution, block, changelogs).edges()
    return frozenset(edge for edge in edges if edge.source in kept and edge.target in kept)


class _BlockFlow:
    """The data flow inside one sub-topology."""

    def __init__(
        self,
        draft: ApplicationDraft,
        resolution: Resolution,
        block: SubTopology,
        changelogs: Mapping[str, str],
    ) -> None:
        self._resolution = resolution
        self._block = block
        self._nodes: dict[str, Node] = {node.name: node for node in block.nodes}
        self._users: dict[str, list[Processor]] = {}
        self._written_by: dict[str, set[str]] = {}
        for store, changelog in changelogs.items():
            users = [node for node in block.processors if store in node.stores]
            if not users:
                continue
            self._users.setdefault(changelog, []).extend(users)
            writers, certain = writers_of(block, store)
            for node in writers:
                self._written_by.setdefault(node.name, set()).add(changelog)
            if not certain:
                _report_unknown_writers(draft, store, writers)

    def edges(self) -> set[TopicEdge]:
        between = {
            TopicEdge(changelog, target)
            for changelog, users in self._users.items()
            for node in self._downstream(users)
            for target in self._written_by.get(node.name, ())
        }
        # Two stores downstream of each other (user code in a row that shares both), or one
        # downstream of itself, have no direction.
        edges = {e for e in between if TopicEdge(e.target, e.source) not in between}
        edges |= {
            TopicEdge(changelog, target)
            for changelog, users in self._users.items()
            for target in self._sink_topics(self._downstream(users))
        }
        for source in self._block.sources:
            reachable = list(self._downstream([source]))
            direct = self._downstream([source], stop_at_changelogs=True)
            targets = {t for node in reachable for t in self._written_by.get(node.name, ())}
            targets.update(self._sink_topics(direct))
            for topic in self._resolution.reads[self._block.id, source.name]:
                # A changelog that is also the read topic needs no edge; its sinks have been added.
                own = self._users.keys() & {topic}
                edges |= {TopicEdge(topic, target) for target in targets - own}
        return edges

    def _downstream(
        self, starts: Iterable[Node], *, stop_at_changelogs: bool = False
    ) -> Iterator[Node]:
        """Nodes strictly downstream, each once; do not continue after a changelog's writer if
        stopping."""
        waiting = [successor for node in starts for successor in node.successors]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self._nodes[name]
            yield node
            if not (stop_at_changelogs and name in self._written_by):
                waiting.extend(node.successors)

    def _sink_topics(self, nodes: Iterable[Node]) -> Iterator[str]:
        for node in nodes:
            topic = self._resolution.writes.get((self._block.id, node.name))
            if isinstance(node, Sink) and topic is not None:
                yield topic


def _report_unknown_writers(
    draft: ApplicationDraft, store: str, writers: tuple[Processor, ...]
) -> None:
    names = ", ".join(sorted(node.name for node in writers))
    draft.add_finding(
        store,
        f"Several processors use the store ({names}) and the text does not say which of them write"
        " it; the edges assume that all do.",
        "Backups are not affected; these edges of the lineage may be too many.",
    )


def without_cycles(draft: ApplicationDraft, edges: Iterable[TopicEdge]) -> frozenset[TopicEdge]:
    """Remove the edges that lead back to a topic that the application reads.

    An application may write to its own input, but the asset graph must be acyclic. From each cycle
    the edge into the input of the lowest sub-topology is removed, with a finding.
    """
    left = {edge for edge in edges if edge.source != edge.target}
    dropped = {edge for edge in edges if edge.source == edge.target}
    while cycle := _a_cycle(left):
        first = min(cycle, key=lambda edge: _upstream_rank(draft, edge.target))
        left.remove(first)
        dropped.add(first)
    for edge in sorted(dropped, key=lambda edge: (edge.target, edge.source)):
        draft.omit_edge(edge)
        draft.add_finding(
            edge.target,
            f"The application writes back to {edge.target}, which it reads (from {edge.source});"
            " this edge is omitted from the lineage, which has no cycles.",
            "You need not do anything; the topic is backed up like any other.",
        )
    return frozenset(left)


def _a_cycle(edges: set[TopicEdge]) -> list[TopicEdge]:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for edge in sorted(edges, key=lambda edge: (edge.source, edge.target)):
        sorter.add(edge.target, edge.source)
    try:
        sorter.prepare()
    except CycleError as error:
        nodes: list[str] = error.args[1]  # each an immediate predecessor of the next, closed
        return [TopicEdge(source, target) for source, target in itertools.pairwise(nodes)]
    return []


def _upstream_rank(draft: ApplicationDraft, topic: str) -> tuple[int, float, str]:
    """Sort topics that should stay upstream first: inputs, then repartition topics, then the
    rest."""
    roles = draft.roles_of(topic)
    upstream = (TopicRole.INPUT, TopicRole.REPARTITION)
    kind = next((i for i, role in enumerate(upstream) if role in roles), len(upstream))
    first = min(draft.subtopologies_of(topic), default=float("inf"))
    return kind, first, topic


def copartitioned_topics(
    resolution: Resolution, application: StreamsApplication
) -> tuple[frozenset[str], ...]:
    """Groups of two or more topics of the application; global tables need no copartitioning."""
    kept = {topic.name for topic in application.topics}
    groups: list[frozenset[str]] = []
    for block in resolution.topology.subtopologies:
        if block.is_global:
            continue
        by_store: dict[str, set[str]] = {}
        for source in block.sources:
            for store in _stores_below(block, source):
                by_store.setdefault(store, set()).update(resolution.reads[block.id, source.name])
        groups += _joined([frozenset(topics & kept) for topics in by_store.values()])
    return tuple(sorted((g for g in groups if len(g) > 1), key=sorted))


def _stores_below(block: SubTopology, source: Source) -> Iterator[str]:
    seen: set[str] = set()
    todo = list(source.successors)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        node = block.node(name)
        todo += node.successors
        if isinstance(node, Processor):
            yield from node.stores


def _joined(sets: list[frozenset[str]]) -> list[frozenset[str]]:
    """Merge sets that share a topic."""
    groups: list[frozenset[str]] = []
    for topics in sets:
        apart = [group for group in groups if not group & topics]
        touching = [group for group in groups if group & topics]
        groups = [*apart, topics.union(*touching)]
    return groups
