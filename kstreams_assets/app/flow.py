"""Edges between topics: where the records of a topology go.

Rules, for each sub-topology: a topic that is read -> the changelogs of stores written downstream of
it; a changelog -> what is downstream of the processors that use its store (sinks, and changelogs of
other stores); a topic that is read -> the sinks it reaches without passing a changelog. A store
without a changelog is passed through. Who reads a global table is not in the text: no edge.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from kstreams_assets.app.draft import ApplicationDraft
from kstreams_assets.app.model import TopicEdge, TopicRole
from kstreams_assets.app.resolution import Resolution
from kstreams_assets.app.stores import writers_of
from kstreams_assets.app.topology import Node, Processor, Sink, SubTopology


def topology_edges(draft: ApplicationDraft, resolution: Resolution) -> frozenset[TopicEdge]:
    """The edges of a classified topology (roles and stores are in `draft`), cycles included.

    Adds a finding for each store of which the text does not tell who writes it.
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
    """The flow inside one sub-topology."""

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
                _tell_unknown_writers(draft, store, writers)

    def edges(self) -> set[TopicEdge]:
        between = {
            TopicEdge(changelog, target)
            for changelog, users in self._users.items()
            for node in self._downstream(users)
            for target in self._written_by.get(node.name, ())
        }
        # Two stores each downstream of the other (user code in a row that shares both), or one
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
                # A changelog that is the read topic itself is no edge; its sinks have been added.
                own = self._users.keys() & {topic}
                edges |= {TopicEdge(topic, target) for target in targets - own}
        return edges

    def _downstream(
        self, starts: Iterable[Node], *, stop_at_changelogs: bool = False
    ) -> Iterator[Node]:
        """Nodes strictly downstream, each once; stopping means: not beyond a changelog's writer."""
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


def _tell_unknown_writers(
    draft: ApplicationDraft, store: str, writers: tuple[Processor, ...]
) -> None:
    names = ", ".join(sorted(node.name for node in writers))
    draft.add_finding(
        store,
        f"Several processors use the store ({names}) and the text does not say which of them write"
        " it; the edges assume that all do.",
        "Nothing needs to be done for backups; read these edges of the lineage with care.",
    )


def without_cycles(draft: ApplicationDraft, edges: Iterable[TopicEdge]) -> frozenset[TopicEdge]:
    """The edges without those that lead back to a topic the application reads.

    An application may write to its own input; the asset graph must stay acyclic. Of each cycle the
    edge into the input of the lowest sub-topology is left out, with a finding.
    """
    left = {edge for edge in edges if edge.source != edge.target}
    dropped = {edge for edge in edges if edge.source == edge.target}
    while cycle := _a_cycle(left):
        first = min(cycle, key=lambda edge: _upstream_rank(draft, edge.target))
        left.remove(first)
        dropped.add(first)
    for edge in sorted(dropped, key=lambda edge: (edge.target, edge.source)):
        draft.add_finding(
            edge.target,
            f"The application writes back to {edge.target}, which it reads (from {edge.source});"
            " this edge is left out of the lineage, which has no cycles.",
            "Nothing needs to be done; the topic is backed up like any other.",
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
    """Sorts first what should stay upstream: inputs, then repartition topics, then the rest."""
    roles = draft.roles_of(topic)
    upstream = (TopicRole.INPUT, TopicRole.REPARTITION)
    kind = next((i for i, role in enumerate(upstream) if role in roles), len(upstream))
    first = min(draft.subtopologies_of(topic), default=float("inf"))
    return kind, first, topic
