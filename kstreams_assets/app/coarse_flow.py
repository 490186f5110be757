"""Edges when no topology text is known: the obvious direction, no more."""

from collections.abc import Iterable

from kstreams_assets.app.draft import ApplicationDraft
from kstreams_assets.app.facts import StreamsGroupSubtopology
from kstreams_assets.app.model import TopicEdge, TopicRole
from kstreams_assets.app.names import (
    is_subscription_response_name,
    repartition_name,
    store_of,
)

_REPARTITION_SUFFIX = "-repartition"
_REGISTRATION_SUFFIX = "-subscription-registration-topic"
_RESPONSE_SUFFIX = "-subscription-response-topic"


def coarse_edges(
    draft: ApplicationDraft, blocks: tuple[StreamsGroupSubtopology, ...] = ()
) -> frozenset[TopicEdge]:
    """Inputs -> repartition topics -> changelogs -> outputs, with a finding that this is coarse.

    Repartition topics and changelogs are paired by name, or by sub-topology where a streams group
    describes itself (`blocks`). Between intermediate topics (read and written) and internal topics
    only the direction out of them is taken.
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
            "The lineage is coarse: without a topology text it is not known which input feeds which"
            " store and output, and global tables are not seen.",
            "Give the text of Topology.describe(), or declare global topics by their role.",
        )
    return frozenset(edges)


def _pairs(sources: Iterable[str], targets: Iterable[str]) -> set[TopicEdge]:
    targets = tuple(targets)
    return {TopicEdge(source, target) for source in sources for target in targets}


def _by_name(draft: ApplicationDraft) -> set[TopicEdge]:
    """By names: a repartition topic feeds the store it is named after, inputs feed the rest."""
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
    """By sub-topologies: what is read feeds its changelogs, these the repartition topics."""
    kept = draft.topics
    edges: set[TopicEdge] = set()
    for block in blocks:
        reads = {*block.source_topics, *block.repartition_source_topics} & kept
        changelogs = {*block.state_changelog_topics} & kept
        # A source topic that is a changelog is not fed by what is read beside it; the answers of
        # a foreign-key join do not feed the table that asked.
        answers = {topic for topic in reads if _is_answer(draft.application_id, topic)}
        edges |= _pairs(reads - answers, changelogs - reads)
        edges |= _pairs(changelogs or reads, {*block.repartition_sink_topics} & kept)
    return edges


def _is_answer(application_id: str, topic: str) -> bool:
    name = repartition_name(application_id, topic)
    return name is not None and is_subscription_response_name(name)
