"""Build the model of an application: the roles of its topics and the changelogs of its stores.

There are three sources: a topology text (with or without a cluster's topic list), the facts of a
live cluster, or declarations alone. The user's declarations take precedence over all of them.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from kstreams_assets.app.declarations import (
    NOTHING_DECLARED,
    ApplicationDraft,
    Declarations,
    StoreDeclaration,
    require_known,
)
from kstreams_assets.app.discovery import (
    ClusterFacts,
    StreamsGroupSubtopology,
    application_from_cluster,
    application_from_declarations,
)
from kstreams_assets.app.flow import (
    classify_stores,
    copartitioned_topics,
    topology_edges,
    without_cycles,
)
from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.app.names import BROKER_TOPICS, owner_of
from kstreams_assets.app.resolution import Resolution, compile_java_pattern, resolve
from kstreams_assets.app.topology import Topology

__all__ = [
    "ClusterFacts",
    "Declarations",
    "StoreDeclaration",
    "StreamsGroupSubtopology",
    "application_from_cluster",
    "application_from_declarations",
    "application_from_topology",
]


def application_from_topology(
    application_id: str,
    topology: Topology,
    *,
    declarations: Declarations = NOTHING_DECLARED,
    cluster_topics: Mapping[str, int] | None = None,
    hidden_topics: Collection[str] = (),
    other_application_ids: Collection[str] = (),
    group_topics: Collection[str] | None = None,
    transactional_topics: Collection[str] = (),
) -> StreamsApplication:
    """Find roles, stores and edges from the topology text.

    With `cluster_topics` (name -> number of partitions) the classification is exact, apart from
    findings that need confirmation. Without it, so that definitions load without a broker, internal
    topics are recognised by name and each store is assumed to have its changelog. The same holds
    for a store whose changelog is among `hidden_topics`, which the user may not describe: it may
    exist. `group_topics` have committed offsets of the group (None: unknown).
    `transactional_topics` were written in the application's transactions: those that are not in the
    text become outputs.

    Raises ConfigurationError for a declared topic or store that is neither in the text nor on the
    cluster. A topic of the text that is missing on the cluster is a finding.
    """
    draft = ApplicationDraft(application_id, declarations)
    ids = {application_id, *other_application_ids}
    resolution = resolve(draft, topology, declarations, cluster_topics, ids, group_topics or ())
    _add_read_and_written(draft, resolution)
    visible = None if cluster_topics is None else cluster_topics.keys() | {*hidden_topics}
    classify_stores(draft, resolution, declarations, visible, group_topics)
    _check_declarations(draft, resolution, declarations, cluster_topics)
    seen = _add_seen_outputs(draft, resolution, declarations, transactional_topics, ids)
    _report_dynamic_sinks(draft, topology, declarations, resolution, seen)
    _report_collisions(draft, resolution, ids, on_cluster=cluster_topics is not None)
    if cluster_topics is not None:
        _report_unknown_reads(draft, declarations, group_topics or (), ids)
    draft.apply_declarations()
    edges = without_cycles(draft, topology_edges(draft, resolution))
    if cluster_topics is not None:
        _report_cluster_differences(draft, resolution, declarations, cluster_topics, ids)
    application = draft.finish(edges)
    return replace(
        application,
        copartitioned=copartitioned_topics(resolution, application),
        other_application_ids=frozenset(other_application_ids),
    )


def _add_read_and_written(draft: ApplicationDraft, resolution: Resolution) -> None:
    for block in resolution.topology.subtopologies:
        for source in block.sources:
            for topic in resolution.reads[block.id, source.name]:
                role = TopicRole.GLOBAL if block.is_global else TopicRole.INPUT
                role = TopicRole.REPARTITION if topic in resolution.internal else role
                draft.add_topic(topic, role, subtopology=block.id)
        for sink in block.sinks:
            topic = resolution.writes.get((block.id, sink.name))
            if topic is not None:
                internal = topic in resolution.internal
                draft.add_topic(topic, TopicRole.REPARTITION if internal else TopicRole.OUTPUT)


def _add_seen_outputs(
    draft: ApplicationDraft,
    resolution: Resolution,
    declarations: Declarations,
    written: Collection[str],
    application_ids: Collection[str],
) -> list[str]:
    """Add topics that the application's transactions wrote but the text omits as new outputs.

    For example a dead letter queue (KIP-1034), topics that a sink selects at run time, or topics of
    the application's own producer.
    """
    internal = resolution.internal | {
        store.changelog for store in draft.stores if store.changelog not in resolution.topics
    }
    outputs = {*draft.with_role(TopicRole.OUTPUT)} | declarations.outputs
    new: list[str] = []
    for topic in sorted({*written} - internal - outputs - declarations.not_mine - BROKER_TOPICS):
        if topic not in draft.topics and owner_of(topic, application_ids) is not None:
            continue  # has the name of an internal topic that is not in the text
        if declarations.denies(topic, TopicRole.OUTPUT):
            draft.add_finding(
                topic,
                "The application's transactions wrote the topic, but it is declared without the"
                " role output.",
                f"Add the role output, too (topics.{topic}.roles).",
            )
            continue
        known = topic in draft.topics
        draft.add_topic(topic, TopicRole.OUTPUT)
        new.append(topic)
        draft.add_finding(
            topic,
            "The application's transactions wrote the topic, and the topology text does not say so"
            + (
                " (it only reads it there)."
                if known
                else ": a dead letter queue, a sink that picks its topics, or an outdated text."
            ),
            "It is assumed to be an output. List it under not_mine if the application does not"
            " need it.",
        )
    return new


def _report_unknown_reads(
    draft: ApplicationDraft,
    declarations: Declarations,
    group_topics: Collection[str],
    application_ids: Collection[str],
) -> None:
    unknown = {*group_topics} - draft.topics - declarations.topics - declarations.not_mine
    for topic in sorted(unknown):
        if owner_of(topic, application_ids) is None:
            draft.add_finding(
                topic,
                "The group has committed offsets of it, but the topology text does not read it: the"
                " text is outdated, or the application no longer reads the topic.",
                "Update the topology text or list the topic under inputs; if the application no"
                " longer reads it, list it under not_mine.",
            )


def _check_declarations(
    draft: ApplicationDraft,
    resolution: Resolution,
    declarations: Declarations,
    cluster_topics: Mapping[str, int] | None,
) -> None:
    """Check that every declared name exists; inputs and outputs need a cluster for that."""
    stores = {store.name for store in draft.stores}
    require_known("store", declarations.stores.keys(), stores, "the topology text", keys=["stores"])
    store_topics = {topic for _, topic in declarations.store_topics()}
    sources = {d.source_topic for d in declarations.stores.values() if d.source_topic is not None}
    in_text = draft.topics - store_topics | resolution.topics
    if cluster_topics is not None:
        named = declarations.topics | declarations.not_mine | store_topics
        known = in_text | cluster_topics.keys()
        where = "the topology text or on the cluster"
        require_known("topic", named, known, where, keys=declarations.topic_keys)
        return
    additions = declarations.inputs | declarations.outputs
    # not_mine contains what the text omits: leftover changelogs, unused topics.
    named = declarations.topic_roles.keys() | sources
    unknown = {t for t in named if not _matches_a_pattern(resolution.topology, t)}
    known = in_text | additions | store_topics - sources
    where = "the topology text (additions go to inputs or outputs)"
    require_known("topic", unknown, known, where, keys=declarations.topic_keys)


def _matches_a_pattern(topology: Topology, topic: str) -> bool:
    for block in topology.subtopologies:
        for source in block.sources:
            compiled = None if source.pattern is None else compile_java_pattern(source.pattern)
            if source.pattern is not None and (compiled is None or compiled.fullmatch(topic)):
                return True
    return False


def _report_dynamic_sinks(
    draft: ApplicationDraft,
    topology: Topology,
    declarations: Declarations,
    resolution: Resolution,
    seen: Collection[str],
) -> None:
    if declarations.outputs - resolution.topics:
        return
    found = f" Seen so far: {', '.join(seen)}." if seen else ""
    for block in topology.subtopologies:
        for sink in block.sinks:
            if sink.extractor is not None:
                draft.add_finding(
                    sink.name,
                    "The sink selects its topics at run time; the text does not show them." + found,
                    "Declare the topics that it writes under outputs.",
                )


def _report_collisions(
    draft: ApplicationDraft,
    resolution: Resolution,
    application_ids: Collection[str],
    *,
    on_cluster: bool,
) -> None:
    """The text names its internal topics exactly, which takes precedence over a longer id.

    On a cluster this decides, and becomes a guess to confirm.
    """
    report = draft.guess_topic if on_cluster else draft.add_finding
    changelogs = {store.changelog for store in draft.stores if store.changelog is not None}
    for topic in sorted(resolution.internal | (changelogs - resolution.topics)):
        owner = owner_of(topic, application_ids)
        if owner is not None and owner != draft.application_id:
            report(
                topic,
                f"According to the topology text it belongs to {draft.application_id}, but its name"
                f" also matches application {owner}. This needs confirmation.",
                f"List it under not_mine if it belongs to {owner}; otherwise declare its roles.",
            )


def _report_cluster_differences(
    draft: ApplicationDraft,
    resolution: Resolution,
    declarations: Declarations,
    cluster_topics: Mapping[str, int],
    application_ids: Collection[str],
) -> None:
    for topic in sorted(draft.topics - cluster_topics.keys()):
        draft.add_finding(
            topic,
            "The topic is not on the cluster, or not visible to this user.",
            "Create it or start the application once; grant DESCRIBE on it; or correct the"
            " topology text.",
        )
    for topic in sorted(cluster_topics.keys() - draft.topics - declarations.not_mine):
        if owner_of(topic, application_ids) == draft.application_id:
            draft.add_finding(
                topic,
                "By its name the topic belongs to the application, but it is not in the topology"
                " text: the text is outdated, the topic is a leftover, or it belongs to an"
                f" application whose id starts with {draft.application_id}-.",
                "Update the topology text, or list the topic under not_mine.",
            )
    _report_partition_counts(draft, resolution, cluster_topics)


def _report_partition_counts(
    draft: ApplicationDraft, resolution: Resolution, cluster_topics: Mapping[str, int]
) -> None:
    """A changelog has as many partitions as the largest topic that its sub-topology reads."""
    for block in resolution.topology.subtopologies:
        if block.is_global:
            continue
        read = {t for source in block.sources for t in resolution.reads[block.id, source.name]}
        expected = max((cluster_topics[t] for t in read if t in cluster_topics), default=None)
        for topic in sorted({*draft.with_role(TopicRole.CHANGELOG)} - read):
            count = cluster_topics.get(topic)
            mine = block.id in draft.subtopologies_of(topic)
            if mine and None not in (expected, count) and count != expected:
                draft.guess_topic(
                    topic,
                    f"It has {count} partition(s), but sub-topology {block.id} reads topics with up"
                    f" to {expected}: it belongs to another application, or the input was"
                    " enlarged.",
                    "List it under not_mine if it does not belong to this application; otherwise"
                    " repair the application's topics before you rely on a restore.",
                )
