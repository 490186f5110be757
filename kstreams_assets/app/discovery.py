"""An application without a topology text: from the facts of a cluster, or declarations alone."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kstreams_assets.app.declarations import (
    NOTHING_DECLARED,
    ApplicationDraft,
    Declarations,
    require_known,
)
from kstreams_assets.app.flow import without_cycles
from kstreams_assets.app.model import Store, StreamsApplication, TopicEdge, TopicRole, TopicRoles
from kstreams_assets.app.names import (
    BROKER_TOPICS,
    is_internal_name,
    is_subscription_response_name,
    owner_of,
    repartition_name,
    store_of,
)
from kstreams_assets.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class StreamsGroupSubtopology:
    """One sub-topology of a StreamsGroupDescribe answer (KIP-1071); full names of topics.

    The answer contains neither sinks to user topics nor global topics.
    """

    id: str
    source_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[str, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    state_changelog_topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Observed facts about one application id and the cluster it runs on."""

    topics: Mapping[str, int]
    """Every visible topic, with its number of partitions."""
    group_topics: frozenset[str] = frozenset()
    """Topics with committed offsets of the group `application.id`."""
    transactional_topics: frozenset[str] = frozenset()
    """Topics that the application's transactional ids have written."""
    other_application_ids: frozenset[str] = frozenset()
    """Other known application ids of the cluster, so that `orders` never claims from
    `orders-eu`."""
    streams_group: tuple[StreamsGroupSubtopology, ...] = ()
    """Empty for classic groups."""


_REPARTITION_SUFFIX = "-repartition"
_REGISTRATION_SUFFIX = "-subscription-registration-topic"
_RESPONSE_SUFFIX = "-subscription-response-topic"


def coarse_edges(
    draft: ApplicationDraft, blocks: tuple[StreamsGroupSubtopology, ...] = ()
) -> frozenset[TopicEdge]:
    """Inputs -> repartition topics -> changelogs -> outputs, with a finding that this is coarse.

    Repartition topics and changelogs are paired by name, or by sub-topology if a streams group
    describes itself (`blocks`). Between intermediate topics (read and written) and internal topics
    only the outgoing direction is assumed.
    """
    inputs = set(draft.with_role(TopicRole.INPUT))
    outputs = set(draft.with_role(TopicRole.OUTPUT)) - inputs
    inner = _described(draft, blocks) if blocks else _by_name(draft)
    begun = {edge.source for edge in inner}
    ends = {edge.target for edge in inner} - begun | (inputs - begun)
    edges = inner | _pairs(ends, outputs)
    edges = {edge for edge in edges if edge.source != edge.target}
    if edges:
        draft.add_finding(
            draft.application_id,
            "The lineage is coarse: without a topology text the relation of inputs to stores and"
            " outputs is unknown, and global tables are not visible.",
            "Give the text of Topology.describe(), or declare global topics by their role.",
        )
    return frozenset(edges)


def _pairs(sources: Iterable[str], targets: Iterable[str]) -> set[TopicEdge]:
    targets = tuple(targets)
    return {TopicEdge(source, target) for source in sources for target in targets}


def _by_name(draft: ApplicationDraft) -> set[TopicEdge]:
    """Pair by names: a repartition topic feeds the store with its name; inputs feed the rest."""
    id_ = draft.application_id
    inputs = draft.with_role(TopicRole.INPUT)
    edges: set[TopicEdge] = set()
    fed: set[str] = set()
    by_name = {
        name: topic
        for topic in draft.with_role(TopicRole.REPARTITION)
        if (name := repartition_name(id_, topic)) is not None
    }
    for changelog in draft.with_role(TopicRole.CHANGELOG):
        feeder = _feeder(by_name, store_of(id_, changelog))
        if feeder is not None:
            edges.add(TopicEdge(feeder, changelog))
            fed.add(changelog)
    for name, topic in by_name.items():
        registration = by_name.get(_registration_of(name))
        if registration is not None:
            edges.add(TopicEdge(registration, topic))
            fed.add(topic)
    internal = {*draft.with_role(TopicRole.REPARTITION), *draft.with_role(TopicRole.CHANGELOG)}
    return edges | _pairs(inputs, internal - fed - set(inputs))


def _feeder(repartitions: dict[str, str], store: str | None) -> str | None:
    if store is None:
        return None
    subscription = store.removesuffix("-subscription-store")
    if subscription != store:
        return repartitions.get(subscription + _REGISTRATION_SUFFIX)
    return repartitions.get(store + _REPARTITION_SUFFIX)


def _registration_of(name: str) -> str:
    subscription = name.removesuffix(_RESPONSE_SUFFIX)
    return subscription + _REGISTRATION_SUFFIX if subscription != name else ""


def _described(
    draft: ApplicationDraft, blocks: tuple[StreamsGroupSubtopology, ...]
) -> set[TopicEdge]:
    """Pair by sub-topologies: inputs feed its changelogs, and these the repartition topics."""
    kept = draft.topics
    edges: set[TopicEdge] = set()
    for block in blocks:
        reads = {*block.source_topics, *block.repartition_source_topics} & kept
        changelogs = {*block.state_changelog_topics} & kept
        # A source topic that is a changelog is not fed by the other inputs. The answers of a
        # foreign-key join do not feed the table that sent the request.
        answers = {topic for topic in reads if _is_answer(draft.application_id, topic)}
        edges |= _pairs(reads - answers, changelogs - reads)
        edges |= _pairs(changelogs or reads, {*block.repartition_sink_topics} & kept)
    return edges


def _is_answer(application_id: str, topic: str) -> bool:
    name = repartition_name(application_id, topic)
    return name is not None and is_subscription_response_name(name)


def application_from_cluster(
    application_id: str, facts: ClusterFacts, *, declarations: Declarations = NOTHING_DECLARED
) -> StreamsApplication:
    """Find roles by names, committed offsets and transactions; a streams group's answer wins.

    Edges are coarse, with a finding. Raises ConfigurationError if nothing on the cluster belongs to
    this id and nothing is declared, and for a declared topic that is not on the cluster.
    """
    draft = ApplicationDraft(application_id, declarations)
    named = declarations.topics | {topic for _, topic in declarations.store_topics()}
    named_at_all = named | declarations.not_mine
    keys = declarations.topic_keys
    require_known("topic", named_at_all, facts.topics, "the cluster", keys=keys)
    _add_described(draft, facts, declarations)
    _add_internal(draft, facts, declarations)
    _add_external(draft, facts)
    if not draft.topics and not named:
        raise ConfigurationError(
            "No topic and no committed offset on the cluster belongs to application"
            f" {application_id!r}.",
            remedy="Check the application.id and the rights DESCRIBE on its group and topics; start"
            " the application once; or give its topology text.",
        )
    _add_declared_stores(draft, declarations)
    draft.apply_declarations()
    _report_uncertain_topics(draft, facts, declarations)
    application = draft.finish(without_cycles(draft, coarse_edges(draft, facts.streams_group)))
    return replace(application, other_application_ids=facts.other_application_ids)


def with_observed(declarations: Declarations, facts: ClusterFacts) -> Declarations:
    """Add the roles that the cluster shows to the declared topics.

    Declarations can override roles that follow from names. They cannot override commits of the
    group and writes of transactions: a role that an earlier discovery missed would be lost for
    good.
    """
    roles: dict[str, TopicRoles] = {}
    for topic, said in declarations.topic_roles.items():
        more: set[TopicRole] = set()
        if topic in facts.group_topics and not said.is_repartition:
            more.add(TopicRole.INPUT)
        if topic in facts.transactional_topics and (said.is_source or not said.is_internal):
            more.add(TopicRole.OUTPUT)
        roles[topic] = TopicRoles(said | more)
    return replace(declarations, topic_roles=roles)


def application_from_declarations(
    application_id: str,
    declarations: Declarations,
    *,
    other_application_ids: Collection[str] = (),
) -> StreamsApplication:
    """Build the application from declarations only, without text and cluster; edges are coarse."""
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
    """A streams group's description of itself is authoritative; without sinks and global topics.

    Topics that are not (yet) on the cluster are kept, with a finding.
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
    """Add a changelog with its store, unless the declared store has none or another one."""
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
    """Find internal topics by their names, for groups that do not describe themselves."""
    if facts.streams_group:
        return
    for topic in _owned(draft, facts):
        if store_of(draft.application_id, topic) is not None:
            if not declarations.denies(topic, TopicRole.CHANGELOG):
                _add_changelog(draft, topic, declarations)
        elif not declarations.denies(topic, TopicRole.REPARTITION):
            draft.add_topic(topic, TopicRole.REPARTITION)


def _owned(draft: ApplicationDraft, facts: ClusterFacts) -> tuple[str, ...]:
    """Topics of the cluster whose names belong to the application."""
    ids = {draft.application_id, *facts.other_application_ids}
    return tuple(t for t in sorted(facts.topics) if owner_of(t, ids) == draft.application_id)


def _add_external(draft: ApplicationDraft, facts: ClusterFacts) -> None:
    internal = {
        *_owned(draft, facts),
        *draft.with_role(TopicRole.REPARTITION),
        *draft.with_role(TopicRole.CHANGELOG),
    }
    for topic in facts.group_topics - BROKER_TOPICS:
        # Streams commits offsets of the topics it reads: repartition topics, but no changelogs.
        if topic not in internal or store_of(draft.application_id, topic) is not None:
            draft.add_topic(topic, TopicRole.INPUT)
    for topic in facts.transactional_topics - BROKER_TOPICS:
        if topic not in internal:
            draft.add_topic(topic, TopicRole.OUTPUT)


def _report_uncertain_topics(
    draft: ApplicationDraft, facts: ClusterFacts, declarations: Declarations
) -> None:
    for topic in sorted(draft.topics - facts.topics.keys()):
        draft.add_finding(
            topic,
            "The topic is not on the cluster, or not visible to this user.",
            "Grant DESCRIBE on it, or list it under not_mine if it was deleted.",
        )
    if facts.streams_group:
        for topic in sorted({*_owned(draft, facts)} - draft.topics - declarations.not_mine):
            draft.add_finding(
                topic,
                "By its name the topic belongs to the application, but its streams group does not"
                " list it: it is a leftover, or belongs to another application.",
                "Declare its role if it belongs to this application; otherwise list it under"
                " not_mine.",
            )
    _report_invisible_parts(draft, facts)
    _report_read_changelogs(draft, declarations)
    _report_unexpected_partition_counts(draft, facts)
    if not draft.with_role(TopicRole.OUTPUT):
        draft.add_finding(
            draft.application_id,
            "No output topic is known: the cluster does not show which topics the application"
            " writes.",
            "Declare its outputs, or give the text of Topology.describe().",
        )


def _report_invisible_parts(draft: ApplicationDraft, facts: ClusterFacts) -> None:
    """Report what no cluster shows, and what this one does not show yet."""
    if not facts.group_topics and not draft.with_role(TopicRole.INPUT):
        draft.add_finding(
            draft.application_id,
            f"Group {draft.application_id} has committed no offsets (it has just started, or never"
            " ran), so its inputs are unknown. Recovery points of this definition would miss its"
            " inputs.",
            "Discover again once the application has processed records, or give the text of"
            " Topology.describe(), or declare its inputs.",
        )
    unread = [t for t in draft.with_role(TopicRole.REPARTITION) if t not in facts.group_topics]
    if facts.group_topics and unread and not facts.streams_group:
        draft.add_finding(
            draft.application_id,
            f"It has committed no offset of {', '.join(unread)}: parts of it have not processed any"
            " records yet, so inputs may be missing.",
            "Discover again once every part has processed records, or give the text of"
            " Topology.describe().",
        )
    draft.add_finding(
        draft.application_id,
        "A cluster does not show which topics are read as global tables, which stores have no"
        " changelog or use their source topic as one, topics without a committed offset, and"
        " outputs without an open transaction.",
        "Give the text of Topology.describe() (--topology), or declare what is missing. Discover"
        " again after each change of the application.",
    )


def _report_read_changelogs(draft: ApplicationDraft, declarations: Declarations) -> None:
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
            draft.guess_topic(
                topic,
                "The topic is named like a changelog of the application, but the application also"
                " reads it. This needs confirmation.",
                "Declare its roles.",
            )


def _report_unexpected_partition_counts(draft: ApplicationDraft, facts: ClusterFacts) -> None:
    """A changelog has as many partitions as the largest topic that its sub-topology reads."""
    read = {*draft.with_role(TopicRole.INPUT), *draft.with_role(TopicRole.REPARTITION)}
    counts = {facts.topics[topic] for topic in read if topic in facts.topics}
    for topic in draft.with_role(TopicRole.CHANGELOG):
        count = facts.topics.get(topic)
        if counts and count is not None and count not in counts:
            draft.guess_topic(
                topic,
                f"It has {count} partition(s), unlike all topics that the application reads; it may"
                f" belong to another application whose id starts with {draft.application_id}-.",
                "Name that application among the other application ids, or list the topic under"
                " not_mine; declare its role if it belongs to this application.",
            )
