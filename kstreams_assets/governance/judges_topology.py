"""Are topics and stores those of the topology, and those that are declared? Pure."""

import difflib
from collections.abc import Collection, Iterable, Iterator

from kstreams_assets.app.model import TopicRole
from kstreams_assets.app.names import owner_of, store_of
from kstreams_assets.governance.facts import Declared, GovernanceFacts
from kstreams_assets.governance.findings import (
    NOTHING_COMPARED,
    GovernanceFinding,
    GovernanceVerdict,
    verdict,
)
from kstreams_assets.governance.remedies import delete_topic

_ALIKE = 0.6
"""Names of stores that are at least so much alike are taken for a renamed store."""


def internal_topics_as_declared(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """No repartition topic lacks, is left over, or is missing from the declaration."""
    known = declared.names(TopicRole.REPARTITION)
    findings = [_missing_internal(topic) for topic in known if topic not in facts.topics]
    findings += [
        GovernanceFinding(
            topic,
            "an internal topic that the topology text does not have",
            "only internal topics of the topology",
            "If the application repartitions there now, put its new Topology.describe() into the"
            " topology file, and think about what the repartition costs; if nothing uses the topic"
            f" any more, delete it: {delete_topic(facts.bootstrap_servers, topic)}; if it is"
            " another application's, list it under not_mine.",
        )
        for topic in _unexpected(facts, declared)
        if store_of(declared.application_id, topic) is None
    ]
    allowed = declared.governance.internal_topics
    not_judged = []
    if allowed is None:
        not_judged.append("governance.internal_topics is not declared.")
    else:
        findings += _undeclared("internal topic", declared.internal, allowed, "internal_topics")
    looked = f"Repartition topics as in the topology: {len(known)}."
    return verdict("internal_topics_as_declared", looked, findings, not_judged)


def stores_as_declared(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """No changelog lacks or is left over; a renamed store is told once, with its likely names."""
    application_id = declared.application_id
    logs = {
        store.name: store.changelog
        for store in declared.application.stores
        if store.changelog in declared.internal
    } or {store_of(application_id, t) or t: t for t in _changelogs(declared)}
    missing = {store: log for store, log in logs.items() if log not in facts.topics}
    surplus = {
        store: topic
        for topic in _unexpected(facts, declared)
        if (store := store_of(application_id, topic)) is not None
    }
    findings: list[GovernanceFinding] = []
    for store, topic in sorted(surplus.items()):
        former = _former(store, missing, logs)
        if former is None:
            findings.append(_surplus_store(facts, store, topic))
        else:
            findings.append(_renamed(facts, store, topic, former, gone=former in missing))
            missing.pop(former, None)
    findings += [_missing_store(store, log) for store, log in sorted(missing.items()) if log]
    allowed = declared.governance.stores
    not_judged = []
    if allowed is None:
        not_judged.append("governance.stores is not declared.")
    else:
        names = {store.name for store in declared.application.stores}
        findings += _undeclared("store", names, allowed, "stores")
    looked = f"Changelogs as in the topology: {len(logs)}."
    return verdict("stores_as_declared", looked, findings, not_judged)


def topology_as_declared(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """Inputs and outputs are there and declared; the group reads what the topology says."""
    inputs = declared.names(TopicRole.INPUT, TopicRole.GLOBAL)
    outputs = declared.names(TopicRole.OUTPUT)
    findings = [
        GovernanceFinding(
            topic,
            "not on the cluster, or not visible to this user",
            f"a topic that the application {'reads' if topic in inputs else 'writes'}",
            "Create it, or grant DESCRIBE on it; or correct the topology text.",
        )
        for topic in sorted({*inputs, *outputs} - facts.topics.keys())
    ]
    findings += _not_read_by_topology(facts, declared)
    findings += _never_committed(facts, declared)
    not_judged = []
    for what, names, allowed in (
        ("input", inputs, declared.governance.inputs),
        ("output", outputs, declared.governance.outputs),
    ):
        if allowed is None:
            not_judged.append(f"governance.{what}s is not declared.")
        else:
            findings += _undeclared(what, names, allowed, f"{what}s")
    if not facts.committed_topics:
        not_judged.append(
            f"group {declared.application_id} has committed nothing: what it reads is not known."
        )
    looked = f"Inputs ({len(inputs)}) and outputs ({len(outputs)}) as in the topology."
    if not inputs and not outputs:
        looked = NOTHING_COMPARED
    return verdict("topology_as_declared", looked, findings, not_judged)


def _not_read_by_topology(
    facts: GovernanceFacts, declared: Declared
) -> Iterator[GovernanceFinding]:
    known = set(declared.names(*TopicRole))
    ids = {declared.application_id, *facts.other_application_ids}
    for topic in sorted(facts.committed_topics - known - declared.application.not_mine):
        if owner_of(topic, ids) != declared.application_id:  # else the other checks tell it
            yield GovernanceFinding(
                topic,
                f"group {declared.application_id} has committed offsets of it",
                "offsets only of topics that the topology reads",
                "If the application reads it, put its new Topology.describe() into the topology"
                " file (backups lack the topic until then). If it no longer does, delete these"
                f" offsets: kafka-consumer-groups.sh --bootstrap-server {facts.bootstrap_servers}"
                f" --group {declared.application_id} --delete-offsets --topic {topic}.",
            )


def _never_committed(facts: GovernanceFacts, declared: Declared) -> Iterator[GovernanceFinding]:
    """Of a topic with records, while the group commits others: the application does not read it."""
    if not facts.committed_topics:
        return
    for topic in declared.names(TopicRole.INPUT):
        parts = [state for p, state in facts.reads.items() if p.topic == topic]
        has_records = any(part.end > part.log_start for part in parts)
        if has_records and all(part.committed is None for part in parts):
            yield GovernanceFinding(
                topic,
                f"group {declared.application_id} has committed no offset of it, though it has"
                " records",
                "committed offsets, as of an input",
                "If the application does not read it, put its new Topology.describe() into the"
                " topology file; otherwise look into its log for why it does not get there.",
            )


def _unexpected(facts: GovernanceFacts, declared: Declared) -> list[str]:
    """Topics that by their names are the application's, which the topology does not have."""
    return sorted(
        declared.application.undeclared_internal(
            facts.cluster_topics, others=facts.other_application_ids
        )
    )


def _changelogs(declared: Declared) -> list[str]:
    return [t for t in declared.names(TopicRole.CHANGELOG) if t in declared.internal]


def _former(store: str, missing: Collection[str], stores: Collection[str]) -> str | None:
    """The store that likely was renamed to this: a missing one first, else one of a like name."""
    if len(missing) == 1:
        return next(iter(missing))
    for names in (missing, stores):
        near = difflib.get_close_matches(store, names, n=1, cutoff=_ALIKE)
        if near:
            return near[0]
    return None


def _renamed(
    facts: GovernanceFacts, store: str, topic: str, former: str, *, gone: bool
) -> GovernanceFinding:
    left = "is gone" if gone else "is still there with the former state"
    return GovernanceFinding(
        store,
        f"store {former} was likely renamed to {store}: the topology text does not have the"
        f" changelog {topic}, and that of {former} {left}",
        f"store {former}",
        "A store under a new name begins empty. Stop the application, give the store its former"
        f' name (Materialized.as("{former}")) and delete the new changelog'
        f" ({delete_topic(facts.bootstrap_servers, topic)}); or, if the new name is meant, put the"
        " new Topology.describe() into the topology file, and rebuild the store from the inputs.",
    )


def _surplus_store(facts: GovernanceFacts, store: str, topic: str) -> GovernanceFinding:
    return GovernanceFinding(
        store,
        f"a changelog ({topic}) of a store that the topology text does not have",
        "only changelogs of the topology's stores",
        "If the application has the store, put its new Topology.describe() into the topology file;"
        " if the changelog is left over, delete it:"
        f" {delete_topic(facts.bootstrap_servers, topic)}; if it is another application's, list it"
        " under not_mine.",
    )


def _missing_store(store: str, changelog: str) -> GovernanceFinding:
    return GovernanceFinding(
        store,
        f"its changelog {changelog} is not on the cluster, or not visible to this user",
        f"a changelog {changelog}",
        "If the application never ran here, start it once; if the store has no changelog, declare"
        f" it (stores.{store}.logging_disabled or source_topic); grant DESCRIBE on the topic; if"
        " somebody deleted it, the state is lost with the next restart: restore the application.",
    )


def _missing_internal(topic: str) -> GovernanceFinding:
    return GovernanceFinding(
        topic,
        "not on the cluster, or not visible to this user",
        "an internal topic of the topology",
        "If the application never ran here, start it once; if the topology has changed, put its new"
        " Topology.describe() into the topology file; grant DESCRIBE on the topic.",
    )


def _undeclared(
    what: str, names: Iterable[str], allowed: Collection[str], setting: str
) -> Iterator[GovernanceFinding]:
    for name in sorted(set(names) - set(allowed)):
        yield GovernanceFinding(
            name,
            f"the topology has this {what}, the declaration has not",
            f"one of {', '.join(sorted(allowed)) or 'none'}",
            f"If it is meant to be there, add it to governance.{setting}; otherwise change the"
            " application.",
        )
