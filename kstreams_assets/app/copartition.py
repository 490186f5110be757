"""Which topics need equally many partitions: those whose records meet in one store.

Kafka Streams itself demands it of joins and cogroups and refuses to start otherwise; of several
topics that fill one store in another way it does not, and then one key lies in several tasks.
"""

from collections.abc import Iterator

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.app.resolution import Resolution
from kstreams_assets.app.topology import Processor, Source, SubTopology


def copartitioned_topics(
    resolution: Resolution, application: StreamsApplication
) -> tuple[frozenset[str], ...]:
    """Groups of two or more topics of the application; who reads a global table needs nothing."""
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
    """Sets that share a topic become one."""
    groups: list[frozenset[str]] = []
    for topics in sets:
        apart = [group for group in groups if not group & topics]
        touching = [group for group in groups if group & topics]
        groups = [*apart, topics.union(*touching)]
    return groups
