"""An application without a topology text: from what a cluster shows, or from declarations alone."""

from collections.abc import Collection
from dataclasses import replace

from kstreams_assets.app.coarse_flow import coarse_edges
from kstreams_assets.app.declarations import NOTHING_DECLARED, Declarations, require_known
from kstreams_assets.app.draft import ApplicationDraft
from kstreams_assets.app.facts import ClusterFacts
from kstreams_assets.app.flow import without_cycles
from kstreams_assets.app.model import Store, StreamsApplication, TopicRole
from kstreams_assets.app.names import (
    BROKER_TOPICS,
    is_internal_name,
    owner_of,
    store_of,
)
from kstreams_assets.errors import ApplicationNotFoundError


def application_from_cluster(
    application_id: str, facts: ClusterFacts, *, declarations: Declarations = NOTHING_DECLARED
) -> StreamsApplication:
    """Roles by names, committed offsets and transactions; a streams group's own answer comes first.

    Edges are coarse, with a finding. Raises ApplicationNotFoundError when nothing on the cluster
    belongs to this id and nothing is declared, DeclaredNotFoundError for a declared topic that is
    not on the cluster.
    """
    draft = ApplicationDraft(application_id, declarations)
    named = declarations.topics | {topic for _, topic in declarations.store_topics()}
    require_known("topic", named | declarations.not_mine, facts.topics, "the cluster")
    _add_described(draft, facts, declarations)
    _add_internal(draft, facts, declarations)
    _add_external(draft, facts)
    if not draft.topics and not named:
        raise ApplicationNotFoundError(application_id=application_id)
    _add_declared_stores(draft, declarations)
    draft.apply_declarations()
    _tell_doubts(draft, facts, declarations)
    return draft.finish(without_cycles(draft, coarse_edges(draft, facts.streams_group)))


def application_from_declarations(
    application_id: str,
    declarations: Declarations,
    *,
    other_application_ids: Collection[str] = (),
) -> StreamsApplication:
    """Only what is declared: no text and no cluster were looked at; edges are coarse."""
    draft = ApplicationDraft(application_id, declarations)
    _add_declared_stores(draft, declarations)
    for topic, roles in declarations.topic_roles.items():
        store = store_of(application_id, topic)
        if TopicRole.CHANGELOG in roles and store is not None and store not in declarations.stores:
            draft.add_store(Store(name=store, changelog=topic))
    draft.apply_declarations()
    application = draft.finish(without_cycles(draft, coarse_edges(draft)))
    return replace(application, other_application_ids=frozenset(other_application_ids))


def _add_declared_stores(draft: ApplicationDraft, declarations: Declarations) -> None:
    for name, declared in declarations.stores.items():
        if declared.source_topic is not None:
            draft.add_topic(declared.source_topic, TopicRole.INPUT)
        draft.add_store(Store(name=name, changelog=declared.changelog or declared.source_topic))


def _add_described(
    draft: ApplicationDraft, facts: ClusterFacts, declarations: Declarations
) -> None:
    """What a streams group says about itself is authoritative; it names neither sinks nor globals.

    Topics that are not on the cluster (yet) are kept and told.
    """
    for block in facts.streams_group:
        id_ = int(block.id)
        for topic in block.source_topics:
            draft.add_topic(topic, TopicRole.INPUT, subtopology=id_)
        for topic in block.repartition_source_topics:
            draft.add_topic(topic, TopicRole.REPARTITION, subtopology=id_)
        for topic in block.repartition_sink_topics:
            draft.add_topic(topic, TopicRole.REPARTITION)
        for topic in block.state_changelog_topics:
            _add_changelog(draft, topic, declarations, subtopology=id_)


def _add_changelog(
    draft: ApplicationDraft,
    topic: str,
    declarations: Declarations,
    *,
    subtopology: int | None = None,
) -> None:
    """Add a changelog with its store, unless the store is declared to have none or another one."""
    store = store_of(draft.application_id, topic)
    is_source = topic in draft.topics
    if store is not None and not is_source:
        if store not in declarations.stores:
            draft.add_store(Store(name=store, changelog=topic), subtopology=subtopology)
        elif declarations.stores[store].changelog == topic:
            draft.add_topic(topic, TopicRole.CHANGELOG, subtopology=subtopology)
    else:
        draft.add_topic(topic, TopicRole.CHANGELOG, subtopology=subtopology)


def _add_internal(draft: ApplicationDraft, facts: ClusterFacts, declarations: Declarations) -> None:
    """Internal topics by their names, for groups that do not describe themselves."""
    if facts.streams_group:
        return
    for topic in _owned(draft, facts):
        if store_of(draft.application_id, topic) is not None:
            if not declarations.denies(topic, TopicRole.CHANGELOG):
                _add_changelog(draft, topic, declarations)
        elif not declarations.denies(topic, TopicRole.REPARTITION):
            draft.add_topic(topic, TopicRole.REPARTITION)


def _owned(draft: ApplicationDraft, facts: ClusterFacts) -> tuple[str, ...]:
    """Topics of the cluster that belong to the application by their names."""
    ids = {draft.application_id, *facts.other_application_ids}
    return tuple(t for t in sorted(facts.topics) if owner_of(t, ids) == draft.application_id)


def _add_external(draft: ApplicationDraft, facts: ClusterFacts) -> None:
    internal = {
        *_owned(draft, facts),
        *draft.with_role(TopicRole.REPARTITION),
        *draft.with_role(TopicRole.CHANGELOG),
    }
    for topic in facts.group_topics - BROKER_TOPICS:
        # Streams commits offsets of what it reads, so of repartition topics but of no changelog.
        if topic not in internal or store_of(draft.application_id, topic) is not None:
            draft.add_topic(topic, TopicRole.INPUT)
    for topic in facts.transactional_topics - BROKER_TOPICS:
        if topic not in internal:
            draft.add_topic(topic, TopicRole.OUTPUT)


def _tell_doubts(draft: ApplicationDraft, facts: ClusterFacts, declarations: Declarations) -> None:
    for topic in sorted(draft.topics - facts.topics.keys()):
        draft.add_finding(
            topic,
            "The topic is not on the cluster, or not visible to this user.",
            "Give the right DESCRIBE on it, or list it under not_mine if it was deleted.",
        )
    if facts.streams_group:
        for topic in sorted({*_owned(draft, facts)} - draft.topics - declarations.not_mine):
            draft.add_finding(
                topic,
                "By its name the topic belongs to the application, but its streams group does not"
                " list it: it is left over, or belongs to another application.",
                "Declare its role if it does belong here, otherwise list it under not_mine.",
            )
    _tell_what_is_not_seen(draft, facts)
    _tell_read_changelogs(draft, declarations)
    _tell_odd_partition_counts(draft, facts)
    if not draft.with_role(TopicRole.OUTPUT):
        draft.add_finding(
            draft.application_id,
            "No output topic is known: nothing on the cluster shows what the application writes.",
            "Declare its outputs, or give the text of Topology.describe().",
        )


def _tell_what_is_not_seen(draft: ApplicationDraft, facts: ClusterFacts) -> None:
    """What no cluster shows, and what this one does not show yet."""
    if not facts.group_topics and not draft.with_role(TopicRole.INPUT):
        draft.add_finding(
            draft.application_id,
            f"Group {draft.application_id} has committed no offsets (it has just started, or never"
            " ran): what it reads is not known. Recovery points of this definition would lack its"
            " inputs.",
            "Discover again once the application has processed records, or give the text of"
            " Topology.describe(), or declare its inputs.",
        )
    unread = [t for t in draft.with_role(TopicRole.REPARTITION) if t not in facts.group_topics]
    if facts.group_topics and unread and not facts.streams_group:
        draft.add_finding(
            draft.application_id,
            f"It has committed no offset of {', '.join(unread)}: parts of it have processed nothing"
            " yet, so that inputs may be missing.",
            "Discover again once every part has processed records, or give the text of"
            " Topology.describe().",
        )
    draft.add_finding(
        draft.application_id,
        "A cluster does not show which topics are read as global tables, which stores have no"
        " changelog or use their source topic as one, topics of which no offset was committed yet,"
        " and outputs of which no open transaction was seen.",
        "Give the text of Topology.describe() (--topology), or declare what is missing. Discover"
        " again after each change of the application.",
    )


def _tell_read_changelogs(draft: ApplicationDraft, declarations: Declarations) -> None:
    both = set(draft.with_role(TopicRole.INPUT)) & set(draft.with_role(TopicRole.CHANGELOG))
    stores = {store.changelog for store in draft.stores}
    for topic in sorted(both - declarations.topic_roles.keys()):
        if topic not in stores:
            draft.add_finding(
                topic,
                "The topic is the changelog of a store whose name the cluster does not show.",
                "Declare the store with source_topic.",
            )
        elif is_internal_name(draft.application_id, topic):
            draft.add_finding(
                topic,
                "The topic is named like a changelog of the application, but the application also"
                " reads it. This needs confirmation.",
                "Declare its roles.",
            )


def _tell_odd_partition_counts(draft: ApplicationDraft, facts: ClusterFacts) -> None:
    """A changelog has as many partitions as the largest topic its sub-topology reads."""
    read = {*draft.with_role(TopicRole.INPUT), *draft.with_role(TopicRole.REPARTITION)}
    counts = {facts.topics[topic] for topic in read if topic in facts.topics}
    for topic in draft.with_role(TopicRole.CHANGELOG):
        count = facts.topics.get(topic)
        if counts and count is not None and count not in counts:
            draft.add_finding(
                topic,
                f"It has {count} partition(s), as none of the topics that the application reads; it"
                f" may belong to another application whose id begins with {draft.application_id}-.",
                "Name that application among the other application ids, or list the topic under"
                " not_mine; declare its role if it does belong here.",
            )
