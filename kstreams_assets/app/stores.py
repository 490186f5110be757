"""What can rebuild each store of a topology, and which processors write it."""

import re
from collections.abc import Collection

from kstreams_assets.app.declarations import Declarations
from kstreams_assets.app.draft import ApplicationDraft
from kstreams_assets.app.model import Store, TopicRole
from kstreams_assets.app.names import changelog_of
from kstreams_assets.app.resolution import Resolution
from kstreams_assets.app.topology import Processor, Source, SubTopology

_GENERATED = re.compile(r"((?:KSTREAM|KTABLE|COGROUPKSTREAM)-[A-Z-]+)-([0-9]{10})")
# Operators of user code: whether they write a store they were given is not in their name.
_USER_CODE = frozenset({"KSTREAM-PROCESSOR", "KSTREAM-TRANSFORM", "KSTREAM-TRANSFORMVALUES"})
# Join processors read the other side's store.
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
# The same processors when the join was given a name.
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
) -> None:
    """Add every store of the topology to `draft`, with what can rebuild it.

    Without a cluster a store that is not global is taken to have its changelog.
    """
    for block in resolution.topology.subtopologies:
        for name in sorted({store for node in block.processors for store in node.stores}):
            changelog = _changelog(draft, resolution, declarations, cluster_topics, block, name)
            store = Store(name=name, changelog=changelog, is_global=block.is_global)
            draft.add_store(store, subtopology=block.id)


def _changelog(
    draft: ApplicationDraft,
    resolution: Resolution,
    declarations: Declarations,
    cluster_topics: Collection[str] | None,
    block: SubTopology,
    store: str,
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
    source_topic = _source_topic(resolution, block, store)
    if source_topic is not None and not declarations.denies(source_topic, TopicRole.CHANGELOG):
        draft.add_finding(
            store,
            f"There is no topic {by_rule}; {source_topic}, which the store's table reads, is taken"
            " as its changelog (optimised topology). This needs confirmation.",
            "Declare the store with source_topic, or with logging_disabled if it has no changelog;"
            " if the application never ran on this cluster, start it once.",
        )
        return source_topic
    draft.add_finding(
        store,
        f"There is no topic {by_rule}; logging of the store is taken as disabled, so that only a"
        " rebuild from the inputs can restore it. This needs confirmation.",
        "Declare the store with logging_disabled or with its changelog; if the application never"
        " ran on this cluster, start it once.",
    )
    return None


def _source_topic(resolution: Resolution, block: SubTopology, store: str) -> str | None:
    """The topic that may serve as changelog: the only one of the store's only table source.

    A repartition topic never does (it is purged), nor does a topic behind an operator of KStream,
    nor one behind a join that only looks the store up (the answers of a foreign-key join).
    """
    topics = {
        resolution.reads[block.id, parent.name][0]
        for node in block.processors
        if store in node.stores and not _is_stream_operator(node) and not _only_reads(node.name)
        for parent in _only_parent(block, node)
        if len(parent.topics) == 1
    }
    return topics.pop() if len(topics) == 1 and not topics & resolution.internal else None


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

    The text says which processors use a store, not which of them write it. In the DSL exactly one
    does, and the others are joins: these are told by their names, and the writer by being the
    table's source or the operator created first (lowest number). Where names say nothing (named
    operators, Processor API) all that remain are taken to write it.
    """
    users = tuple(node for node in block.processors if store in node.stores)
    if len(users) == 1:
        return users, True
    candidates = tuple(node for node in users if not _only_reads(node.name))
    if len(candidates) <= 1:
        # None left: both sides of an outer join write their shared store.
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
