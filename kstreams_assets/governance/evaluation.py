"""Governance checks of an application. Pure."""

import difflib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.app.names import BROKER_TOPICS, owner_of, store_of
from kstreams_assets.app.store_format import StoreKind
from kstreams_assets.checks import Evaluation, Finding, Severity
from kstreams_assets.governance.facts import Declared, GovernanceFacts, TopicState
from kstreams_assets.model.governance_report import NOTHING_COMPARED, evaluation_of

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one check compared, its findings, and what it could not evaluate with the reason."""

    compared: str
    findings: Iterable[Finding] = ()
    not_evaluated: Iterable[str] = ()


def set_configs(bootstrap_servers: str, topic: str, **configs: str | int) -> str:
    """Return the command that sets configs of a topic; `_` in their names replaces a dot."""
    assignments = ",".join(
        f"{name.replace('_', '.')}=" + (f"[{value}]" if "," in str(value) else str(value))
        for name, value in configs.items()
    )
    return (
        f"kafka-configs.sh --bootstrap-server {bootstrap_servers} --alter --entity-type topics"
        f" --entity-name {topic} --add-config {assignments}"
    )


def delete_topic(bootstrap_servers: str, topic: str) -> str:
    """Return the command that deletes a topic."""
    return f"kafka-topics.sh --bootstrap-server {bootstrap_servers} --delete --topic {topic}"


def add_partitions(bootstrap_servers: str, topic: str, partitions: int) -> str:
    """Return the command that adds partitions to a topic."""
    return (
        f"kafka-topics.sh --bootstrap-server {bootstrap_servers} --alter --topic {topic}"
        f" --partitions {partitions}"
    )


def duration(milliseconds: int) -> str:
    """Format milliseconds, with the largest suitable unit in brackets."""
    if milliseconds < 0:
        return "unlimited"
    for length, unit in _UNITS:
        if milliseconds >= length:
            return f"{milliseconds} ms ({milliseconds / length:.3g} {unit})"
    return f"{milliseconds} ms"


_ALIKE = 0.6
"""Minimum similarity of the names of a renamed store."""


def internal_topics_as_declared(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Check for missing, surplus and undeclared repartition topics."""
    known = declared.names(TopicRole.REPARTITION)
    findings = [_missing_internal(topic) for topic in known if topic not in facts.topics]
    findings += [
        Finding(
            topic,
            "an internal topic that the topology text does not have",
            "only internal topics of the topology",
            "If the application repartitions there now, put its new Topology.describe() into the"
            " topology file, and consider the cost of the repartition. If the topic is unused,"
            f" delete it: {delete_topic(facts.bootstrap_servers, topic)}. If it belongs to another"
            " application, list it under not_mine.",
        )
        for topic in _unexpected(facts, declared)
        if store_of(declared.application_id, topic) is None
    ]
    allowed = declared.governance.internal_topics
    not_evaluated = []
    if allowed is None:
        not_evaluated.append("governance.internal_topics is not declared.")
    else:
        findings += _undeclared("internal topic", declared.internal, allowed, "internal_topics")
    compared = f"Repartition topics as in the topology: {len(known)}."
    return Comparison(compared, findings, not_evaluated)


def stores_as_declared(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Check for missing, surplus and renamed changelogs; a renamed store is reported once."""
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
    findings: list[Finding] = []
    for store, topic in sorted(surplus.items()):
        former = _former(store, missing, logs)
        if former is None:
            findings.append(_surplus_store(facts, store, topic))
        else:
            findings.append(_renamed(facts, store, topic, former, gone=former in missing))
            missing.pop(former, None)
    findings += [_missing_store(store, log) for store, log in sorted(missing.items()) if log]
    allowed = declared.governance.stores
    not_evaluated = []
    if allowed is None:
        not_evaluated.append("governance.stores is not declared.")
    else:
        names = {store.name for store in declared.application.stores}
        findings += _undeclared("store", names, allowed, "stores")
    compared = f"Changelogs as in the topology: {len(logs)}."
    return Comparison(compared, findings, not_evaluated)


def topology_as_declared(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Check that inputs and outputs exist and are declared, and that the group reads the inputs."""
    inputs = declared.names(TopicRole.INPUT, TopicRole.GLOBAL)
    outputs = declared.names(TopicRole.OUTPUT)
    findings = [
        Finding(
            topic,
            "not on the cluster, or not visible to this user",
            f"a topic that the application {'reads' if topic in inputs else 'writes'}",
            "Create it, grant DESCRIBE on it, or correct the topology text.",
        )
        for topic in sorted({*inputs, *outputs} - facts.topics.keys())
    ]
    findings += _not_read_by_topology(facts, declared)
    findings += _never_committed(facts, declared)
    findings += _written_undeclared(facts, declared)
    not_evaluated = [f"{guess} {guess.remedy}" for guess in declared.application.guesses]
    for what, names, allowed in (
        ("input", inputs, declared.governance.inputs),
        ("output", outputs, declared.governance.outputs),
    ):
        if allowed is None:
            not_evaluated.append(f"governance.{what}s is not declared.")
        else:
            findings += _undeclared(what, names, allowed, f"{what}s")
    if not facts.committed_topics:
        not_evaluated.append(
            f"group {declared.application_id} has not committed offsets, so its inputs are unknown."
        )
    compared = f"Inputs ({len(inputs)}) and outputs ({len(outputs)}) as in the topology."
    if not inputs and not outputs:
        compared = NOTHING_COMPARED
    return Comparison(compared, findings, not_evaluated)


def _not_read_by_topology(facts: GovernanceFacts, declared: Declared) -> Iterator[Finding]:
    known = set(declared.names(*TopicRole))
    ids = {declared.application_id, *facts.other_application_ids}
    for topic in sorted(facts.committed_topics - known - declared.application.not_mine):
        if owner_of(topic, ids) != declared.application_id:  # else other checks report it
            yield Finding(
                topic,
                f"group {declared.application_id} has committed offsets of it",
                "offsets only of topics that the topology reads",
                "If the application reads it, put its new Topology.describe() into the topology"
                " file (until then, backups do not contain the topic). If it no longer reads it,"
                " delete these offsets: kafka-consumer-groups.sh --bootstrap-server"
                f" {facts.bootstrap_servers} --group {declared.application_id} --delete-offsets"
                f" --topic {topic}.",
            )


def _written_undeclared(facts: GovernanceFacts, declared: Declared) -> Iterator[Finding]:
    """Yield undeclared outputs, such as dead letter queues and topics chosen at run time."""
    ids = {declared.application_id, *facts.other_application_ids}
    known = {*declared.names(*TopicRole)} | declared.application.not_mine | BROKER_TOPICS
    for topic in sorted(facts.written_topics - known):
        if owner_of(topic, ids) is None:  # else other checks report it
            yield Finding(
                topic,
                "transactions of the application wrote to it",
                "only outputs in the topology or in the declaration",
                "Add it to outputs in the YAML (until then, backups and restores do not contain"
                " the topic), or list it under not_mine if the application does not need it.",
            )


def _never_committed(facts: GovernanceFacts, declared: Declared) -> Iterator[Finding]:
    """Yield inputs with records but without committed offsets, while others are committed."""
    if not facts.committed_topics:
        return
    for topic in declared.names(TopicRole.INPUT):
        parts = [state for p, state in facts.reads.items() if p.topic == topic]
        has_records = any(part.end > part.log_start for part in parts)
        if has_records and all(part.committed is None for part in parts):
            yield Finding(
                topic,
                f"group {declared.application_id} has committed no offset of it, though it has"
                " records",
                "committed offsets, as of an input",
                "If the application does not read it, put its new Topology.describe() into the"
                " topology file. Otherwise look for the reason in the log of the application.",
            )


def _unexpected(facts: GovernanceFacts, declared: Declared) -> list[str]:
    """Return topics with names of the application that the topology does not contain."""
    return sorted(
        declared.application.undeclared_internal(
            facts.cluster_topics, others=facts.other_application_ids
        )
    )


def _changelogs(declared: Declared) -> list[str]:
    return [t for t in declared.names(TopicRole.CHANGELOG) if t in declared.internal]


def _former(store: str, missing: Collection[str], stores: Collection[str]) -> str | None:
    """Return the likely former name of a store: the missing one, else a similar name."""
    if len(missing) == 1:
        return next(iter(missing))
    for names in (missing, stores):
        near = difflib.get_close_matches(store, names, n=1, cutoff=_ALIKE)
        if near:
            return near[0]
    return None


def _renamed(facts: GovernanceFacts, store: str, topic: str, former: str, *, gone: bool) -> Finding:
    left = "is gone" if gone else "is still there with the former state"
    return Finding(
        store,
        f"store {former} was likely renamed to {store}: the topology text does not have the"
        f" changelog {topic}, and that of {former} {left}",
        f"store {former}",
        "A store under a new name starts empty. Stop the application, give the store its former"
        f' name (Materialized.as("{former}")) and delete the new changelog'
        f" ({delete_topic(facts.bootstrap_servers, topic)}). If the new name is intended, put the"
        " new Topology.describe() into the topology file, and rebuild the store from the inputs.",
    )


def _surplus_store(facts: GovernanceFacts, store: str, topic: str) -> Finding:
    return Finding(
        store,
        f"a changelog ({topic}) of a store that the topology text does not have",
        "only changelogs of the topology's stores",
        "If the application has the store, put its new Topology.describe() into the topology file."
        " If the changelog is unused, delete it:"
        f" {delete_topic(facts.bootstrap_servers, topic)}. If it belongs to another application,"
        " list it under not_mine.",
    )


def _missing_store(store: str, changelog: str) -> Finding:
    return Finding(
        store,
        f"its changelog {changelog} is not on the cluster, or not visible to this user",
        f"a changelog {changelog}",
        "If the application never ran here, start it once. If the store has no changelog, declare"
        f" that (stores.{store}.logging_disabled or source_topic). If the topic exists, grant"
        " DESCRIBE on it. If it was deleted, the next restart loses the state: restore the"
        " application.",
    )


def _missing_internal(topic: str) -> Finding:
    return Finding(
        topic,
        "not on the cluster, or not visible to this user",
        "an internal topic of the topology",
        "If the application never ran here, start it once. If the topology has changed, put its new"
        " Topology.describe() into the topology file. If the topic exists, grant DESCRIBE on it.",
    )


def _undeclared(
    what: str, names: Iterable[str], allowed: Collection[str], setting: str
) -> Iterator[Finding]:
    for name in sorted(set(names) - set(allowed)):
        yield Finding(
            name,
            f"the topology has this {what}, but the declaration does not",
            f"one of {', '.join(sorted(allowed)) or 'none'}",
            f"If it is intended, add it to governance.{setting}. Otherwise change the application.",
        )


def partitions_as_needed(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Declared counts, co-partitioned topics, changelogs and repartition topics.

    The rules are those of `RepartitionTopics` and `ChangelogTopics` of Kafka Streams 4.x: a
    changelog has as many partitions as the widest topic that its sub-topology reads; a repartition
    topic as many as the topics it is joined with, else as the widest that its writers read.
    """
    said = dict(declared.governance.partitions)
    counts = {name: topic.partitions for name, topic in facts.topics.items()}
    apart = list(_apart(facts, declared, counts))
    findings = [
        Finding(
            topic,
            f"{counts[topic]} partitions",
            f"{count}, as declared in governance.partitions",
            _remedy(facts, declared, topic, counts[topic], count),
        )
        for topic, count in sorted(said.items())
        if counts.get(topic, count) != count
    ]
    findings += [finding for finding, _ in apart]
    unclear = {topic for _, group in apart for topic in group}
    for topic in declared.application.topics:
        if topic.name in counts and topic.name not in said and topic.name not in unclear:
            findings += _internal(facts, declared, topic, counts)
    return Comparison(
        f"Topics: {len(counts)}; groups of them that meet in one store:"
        f" {len(declared.application.copartitioned)}.",
        findings,
        _not_evaluated(declared),
    )


def _not_evaluated(declared: Declared) -> Iterator[str]:
    if not declared.governance.partitions:
        yield "governance.partitions is not declared."
    if declared.internal and not any(t.subtopologies for t in declared.application.topics):
        yield "co-partitioned topics are unknown without a text of Topology.describe()."


def _apart(
    facts: GovernanceFacts, declared: Declared, counts: dict[str, int]
) -> Iterator[tuple[Finding, frozenset[str]]]:
    """Yield co-partitioned groups whose user topics differ, which Kafka Streams cannot correct."""
    for group in declared.application.copartitioned:
        made = {t: counts[t] for t in sorted(group - declared.internal) if t in counts}
        if len(set(made.values())) < 2:
            continue
        widest = max(made.values())
        narrow = [topic for topic, count in made.items() if count < widest]
        found = ", ".join(f"{topic} has {count}" for topic, count in made.items())
        commands = "; ".join(add_partitions(facts.bootstrap_servers, t, widest) for t in narrow)
        finding = Finding(
            ", ".join(made),
            f"different numbers of partitions ({found})",
            f"{widest} each, since their records meet in one store",
            "Kafka Streams refuses to start a join of them, and keys that meet otherwise lie in"
            " different tasks. Stop the application and give all the same number (existing keys"
            f" then lie in other partitions; rebuild its state from the inputs): {commands}.",
        )
        yield finding, group


def _internal(
    facts: GovernanceFacts, declared: Declared, topic: AppTopic, counts: dict[str, int]
) -> Iterator[Finding]:
    if not topic.is_internal:
        return
    needed = _needed(declared, topic, counts)
    if not needed or counts[topic.name] == max(needed.values()):
        return
    count = max(needed.values())
    widest = ", ".join(sorted(name for name, n in needed.items() if n == count))
    own = (
        ""
        if topic.roles.is_changelog
        else " If the application itself sets the number (Repartitioned.withNumberOfPartitions),"
        f" declare it: governance.partitions: {{{topic.name}: {counts[topic.name]}}}."
    )
    yield Finding(
        topic.name,
        f"{counts[topic.name]} partitions",
        f"{count}, as {widest}",
        _remedy(facts, declared, topic.name, counts[topic.name], count) + own,
    )


def _needed(declared: Declared, topic: AppTopic, counts: dict[str, int]) -> dict[str, int]:
    """Return the topics that determine the partition count of an internal topic, with counts."""
    if topic.roles.is_changelog:
        return _read_by(declared, topic.subtopologies, counts)
    for group in declared.application.copartitioned:
        if topic.name in group and (made := group - declared.internal) & counts.keys():
            return {name: counts[name] for name in made if name in counts}
    sources = {edge.source for edge in declared.application.edges if edge.target == topic.name}
    writers = {
        subtopology
        for source in declared.application.topics
        if source.name in sources
        for subtopology in source.subtopologies
    }
    return _read_by(declared, writers, counts)


def _read_by(
    declared: Declared, subtopologies: Iterable[int], counts: dict[str, int]
) -> dict[str, int]:
    readers = set(subtopologies)
    return {
        topic.name: counts[topic.name]
        for topic in declared.application.topics
        if topic.roles.is_read_by_group
        and set(topic.subtopologies) & readers
        and topic.name in counts
    }


def _remedy(facts: GovernanceFacts, declared: Declared, topic: str, count: int, needed: int) -> str:
    if topic in declared.internal:
        return (
            "Kafka Streams refuses to start with it (StreamsException: invalid partitions), as"
            " after an input was given more partitions. Stop the application, reset it"
            f" (kafka-streams-application-reset.sh --bootstrap-server {facts.bootstrap_servers}"
            f" --application-id {declared.application_id} --input-topics ...) and rebuild its state"
            " from the inputs: keys lie in other partitions than before."
        )
    if count < needed:
        return f"{add_partitions(facts.bootstrap_servers, topic, needed)}."
    return (
        "Partitions cannot be removed. If the number is intended, declare it; otherwise recreate"
        " the topic and restore it from the backup."
    )


_REPLICAS: Final = 3
_IN_SYNC: Final = 2
_COMPACT: Final = frozenset({"compact"})
_DELETE: Final = frozenset({"delete"})
_BOTH: Final = _COMPACT | _DELETE
_POLICIES: Final = {
    StoreKind.WINDOW: _BOTH,
    StoreKind.SESSION: _BOTH,
    StoreKind.JOIN_WINDOW: _DELETE,
}
"""Policies of changelogs in Kafka Streams (`*ChangelogTopicConfig` of 4.x); others are compact."""


def changelogs_replicated(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Replication factor, min.insync.replicas and replicas in sync of the internal topics."""
    topics = [facts.topics[name] for name in sorted(declared.internal & facts.topics.keys())]
    findings = [
        finding
        for topic in topics
        for finding in (
            *_too_few_replicas(facts, declared, topic),
            *_acknowledged_by_few(facts, declared, topic),
            *_out_of_sync(topic),
        )
    ]
    not_evaluated = []
    if declared.governance.replication_factor is None and facts.brokers < _REPLICAS:
        not_evaluated.append(
            f"governance.replication_factor is not declared, and the cluster has {facts.brokers}"
            " broker(s)."
        )
    compared = f"Internal topics: {len(topics)}; brokers: {facts.brokers}."
    return Comparison(compared, findings, not_evaluated)


def _too_few_replicas(
    facts: GovernanceFacts, declared: Declared, topic: TopicState
) -> Iterator[Finding]:
    said = declared.governance.replication_factor
    least = _least_replicas(facts, declared)
    if topic.replication_factor < least:
        yield Finding(
            topic.name,
            f"replication factor {topic.replication_factor}",
            f"at least {least}"
            + (", as declared" if said else f" on a cluster of {facts.brokers} brokers"),
            f"Give it more replicas: kafka-reassign-partitions.sh --bootstrap-server"
            f" {facts.bootstrap_servers} --execute --reassignment-json-file FILE, where FILE names"
            f" {least} brokers for each of its {topic.partitions} partitions; and set"
            f" replication.factor={least} in the application, so that new internal topics have it.",
            Severity.ERROR if said else Severity.WARN,
        )


def _least_replicas(facts: GovernanceFacts, declared: Declared) -> int:
    said = declared.governance.replication_factor
    return said or (_REPLICAS if facts.brokers >= _REPLICAS else 1)


def _acknowledged_by_few(
    facts: GovernanceFacts, declared: Declared, topic: TopicState
) -> Iterator[Finding]:
    said = declared.governance.min_insync_replicas
    replicated = topic.replication_factor
    least = said or (_IN_SYNC if replicated >= _REPLICAS else 1)
    actual = topic.number("min.insync.replicas", 1)
    if actual < least:
        yield Finding(
            topic.name,
            f"min.insync.replicas {actual}",
            f"at least {least}" + (", as declared" if said else f" of {replicated} replicas"),
            "A write that one broker alone has acknowledged is lost with it:"
            f" {set_configs(facts.bootstrap_servers, topic.name, min_insync_replicas=least)}.",
            Severity.ERROR if said else Severity.WARN,
        )
    elif actual >= replicated > 1 and replicated >= _least_replicas(facts, declared):
        fewer = set_configs(facts.bootstrap_servers, topic.name, min_insync_replicas=replicated - 1)
        yield Finding(
            topic.name,
            f"min.insync.replicas {actual} with {replicated} replicas",
            "less than the replication factor",
            f"The application stops as soon as one broker is down. Give it more replicas, or:"
            f" {fewer}.",
            Severity.ERROR if actual > replicated else Severity.WARN,
        )


def _out_of_sync(topic: TopicState) -> Iterator[Finding]:
    if topic.lagging:
        refused = topic.in_sync < topic.number("min.insync.replicas", 1)
        yield Finding(
            topic.name,
            f"partitions {', '.join(map(str, topic.lagging))} have as few as {topic.in_sync} of"
            f" {topic.replication_factor} replicas in sync"
            + (", so that writes are refused" if refused else ""),
            "every replica in sync",
            "Find the broker that is down or slow, and repair it.",
            Severity.ERROR if refused else Severity.WARN,
        )


def cleanup_policies_fit(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """cleanup.policy of changelogs by kind of store, of tables' sources, of repartition topics."""
    findings: list[Finding] = []
    not_evaluated: list[str] = []
    for topic in declared.application.topics:
        state = facts.topics.get(topic.name)
        if state is None:
            continue
        if topic.roles.is_repartition:
            findings += _repartition(facts, state)
        elif TopicRole.GLOBAL in topic.roles or (
            topic.roles.is_changelog and not topic.is_internal
        ):
            findings += _source_of_a_table(facts, state)
        elif topic.roles.is_changelog:
            findings += _changelog(facts, declared, topic, state)
            if any(declared.formats[s].undeclared for s in topic.stores if s in declared.formats):
                not_evaluated.append(
                    f"the kind of store {', '.join(topic.stores)} is not declared."
                )
    compared = f"Topics: {len(facts.topics)}."
    return Comparison(compared, findings, not_evaluated)


def _repartition(facts: GovernanceFacts, topic: TopicState) -> Iterator[Finding]:
    if topic.policies == _DELETE and not topic.deletes:
        return
    kept = (
        f"cleanup.policy {_said(topic)}, retention.ms {topic.number('retention.ms', -1)},"
        f" retention.bytes {topic.number('retention.bytes', -1)}"
    )
    command = set_configs(
        facts.bootstrap_servers,
        topic.name,
        cleanup_policy="delete",
        retention_ms=-1,
        retention_bytes=-1,
    )
    yield Finding(
        topic.name,
        kept,
        "cleanup.policy delete without retention (the application deletes what it has processed)",
        f"Records that are not processed yet may be removed: {command}.",
    )


def _source_of_a_table(facts: GovernanceFacts, topic: TopicState) -> Iterator[Finding]:
    if "compact" in topic.policies and not topic.deletes:
        return
    if not topic.deletes and "delete" in topic.policies:
        return  # Kafka never removes records
    yield Finding(
        topic.name,
        f"cleanup.policy {_said(topic)} with retention.ms"
        f" {duration(topic.number('retention.ms', -1))}",
        "compact, since the topic alone rebuilds a table",
        "Keys that were not written for so long vanish from the table when it is rebuilt:"
        f" {set_configs(facts.bootstrap_servers, topic.name, cleanup_policy='compact')}.",
    )


def _changelog(
    facts: GovernanceFacts, declared: Declared, topic: AppTopic, state: TopicState
) -> Iterator[Finding]:
    formats = [declared.formats[store] for store in topic.stores if store in declared.formats]
    if not formats or (formats[0].undeclared and formats[0].kind is StoreKind.KEY_VALUE):
        wanted = state.policies if "compact" in state.policies else _COMPACT
        kind = None
    else:
        kind = formats[0].kind
        wanted = _POLICIES.get(kind, _COMPACT)
    if state.policies != wanted:
        yield _wrong_policy(facts, state, wanted, kind)
    elif kind is StoreKind.VERSIONED and formats[0].retention_ms is not None:
        yield from _versions_compacted(facts, state, formats[0].retention_ms)


def _wrong_policy(
    facts: GovernanceFacts, topic: TopicState, wanted: frozenset[str], kind: StoreKind | None
) -> Finding:
    if kind is StoreKind.JOIN_WINDOW:
        why = "Records of one key and time may replace each other"
    elif kind in _POLICIES:
        why = (
            "Every update stays until its retention ends, and is read at each restore"
            if "delete" in topic.policies
            else "Expired windows never leave the log"
        )
    elif "delete" in topic.policies:
        why = "Keys not written for so long as the retention vanish from the state with a restore"
    else:
        why = "The log is never cleaned"
    policy = ",".join(sorted(wanted))
    of_kind = f" for a store of kind {kind}" if kind else " for a changelog"
    return Finding(
        topic.name,
        f"cleanup.policy {_said(topic)}",
        f"{policy}{of_kind}",
        f"{why}: {set_configs(facts.bootstrap_servers, topic.name, cleanup_policy=policy)}.",
        Severity.WARN if kind in _POLICIES else Severity.ERROR,
    )


def _versions_compacted(
    facts: GovernanceFacts, topic: TopicState, history_ms: int
) -> Iterator[Finding]:
    lag_ms = topic.number("min.compaction.lag.ms", 0)
    if lag_ms < history_ms:
        needed = history_ms + 86_400_000
        command = set_configs(facts.bootstrap_servers, topic.name, min_compaction_lag_ms=needed)
        yield Finding(
            topic.name,
            f"min.compaction.lag.ms {duration(lag_ms)}",
            f"more than the store's history retention, {duration(history_ms)}",
            f"Compaction removes versions that the store still has: {command}.",
        )


def _said(topic: TopicState) -> str:
    return ",".join(sorted(topic.policies)) or "none"


_EXPIRING: Final = (StoreKind.WINDOW, StoreKind.SESSION, StoreKind.JOIN_WINDOW)
_INPUTS: Final = TopicRoles({TopicRole.INPUT, TopicRole.GLOBAL})
_DAY_MS: Final = 86_400_000
"""Default of `windowstore.changelog.additional.retention.ms` in Kafka Streams."""
_WINDOWS: Final = 2
"""A backup reads a window after it has closed, within the length of another window."""


def retention_covers_windows(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Retention of window changelogs against their stores, of all topics against the backup.

    What is written to a changelog may be as old as the store's retention, and has to be there until
    the backup has read it: hence the sum of both.
    """
    delay_ms = _WINDOWS * (declared.window_ms or 0)
    findings: list[Finding] = []
    not_evaluated: list[str] = []
    for topic in declared.application.topics:
        state = facts.topics.get(topic.name)
        if state is None or topic.roles.is_repartition:
            continue
        expiring = _expiring(declared, topic)
        unknown = [store for store, retention in expiring.items() if retention is None]
        not_evaluated += [f"retention_ms of store {store} is not declared." for store in unknown]
        store_ms = max((ms for ms in expiring.values() if ms is not None), default=0)
        if expiring and not unknown:
            findings += _shorter_than_store(facts, state, store_ms, delay_ms)
        elif topic.name in declared.backed_up_topics and not _kept_for_rebuild(declared, topic):
            findings += _shorter_than_backup(facts, state, delay_ms)
    if declared.window_ms is None:
        not_evaluated.append("no window has closed yet: its length is not known.")
    compared = (
        f"Topics: {len(facts.topics)}; a backup may come {duration(delay_ms)} after a window began."
    )
    return Comparison(compared, findings, not_evaluated)


def _expiring(declared: Declared, topic: AppTopic) -> dict[str, int | None]:
    """Stores with windows or sessions that this changelog rebuilds, and their retention."""
    if not topic.roles.is_changelog or not topic.is_internal:
        return {}
    return {
        store: declared.formats[store].retention_ms
        for store in topic.stores
        if store in declared.formats and declared.formats[store].kind in _EXPIRING
    }


def _kept_for_rebuild(declared: Declared, topic: AppTopic) -> bool:
    """Whether `inputs_kept_for_rebuild` checks the topic; one deviation turns one check red."""
    return declared.governance.rebuild_ms is not None and topic.roles.is_source


def _shorter_than_store(
    facts: GovernanceFacts, topic: TopicState, store_ms: int, delay_ms: int
) -> Iterator[Finding]:
    kept_ms = _kept_ms(topic)
    if kept_ms is None or kept_ms >= store_ms + delay_ms:
        return
    command = set_configs(
        facts.bootstrap_servers, topic.name, retention_ms=max(store_ms, delay_ms) + _DAY_MS
    )
    yield Finding(
        topic.name,
        f"retention.ms {duration(kept_ms)}",
        f"at least {duration(store_ms + delay_ms)}: the store's retention and the time that a"
        " backup may take to read them",
        f"Windows that the store still has are missing after a restore: {command}.",
    )


def _shorter_than_backup(
    facts: GovernanceFacts, topic: TopicState, delay_ms: int
) -> Iterator[Finding]:
    kept_ms = _kept_ms(topic)
    if kept_ms is None or kept_ms >= delay_ms:
        return
    command = set_configs(facts.bootstrap_servers, topic.name, retention_ms=delay_ms)
    yield Finding(
        topic.name,
        f"retention.ms {duration(kept_ms)}",
        f"at least {duration(delay_ms)}, two windows of the backup",
        f"Records are deleted before a backup has read them: {command}; or make the windows of the"
        " backup shorter.",
    )


def inputs_kept_for_rebuild(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Retention of inputs against how far back a rebuild needs them."""
    rebuild_ms = declared.governance.rebuild_ms
    if rebuild_ms is None:
        return Comparison(NOTHING_COMPARED, (), ["governance.rebuild_hours is not declared."])
    needed_ms = max(rebuild_ms, _WINDOWS * (declared.window_ms or 0))
    topics = [facts.topics[topic] for topic in declared.names(*_INPUTS) if topic in facts.topics]
    findings = [finding for topic in topics for finding in _forgets(facts, topic, needed_ms)]
    compared = f"Inputs: {len(topics)}, {duration(needed_ms)} back." if topics else NOTHING_COMPARED
    return Comparison(compared, findings)


def _forgets(facts: GovernanceFacts, topic: TopicState, needed_ms: int) -> Iterator[Finding]:
    kept_ms = _kept_ms(topic)
    if kept_ms is not None and kept_ms < needed_ms:
        command = set_configs(facts.bootstrap_servers, topic.name, retention_ms=needed_ms)
        yield Finding(
            topic.name,
            f"retention.ms {duration(kept_ms)}",
            f"at least {duration(needed_ms)}, as declared in governance.rebuild_hours",
            f"{command}; what is deleted already is in the backups (kstreams-assets restore --mode"
            " rebuild).",
        )
    elif topic.deletes and topic.number("retention.bytes", -1) >= 0:
        size = topic.number("retention.bytes", -1)
        command = set_configs(facts.bootstrap_servers, topic.name, retention_bytes=-1)
        yield Finding(
            topic.name,
            f"retention.bytes {size}",
            "no limit by size, so that the declared time holds under any load",
            f"{command}.",
            Severity.WARN,
        )


def _kept_ms(topic: TopicState) -> int | None:
    """Return the minimum retention, None if unlimited (apart from compaction and size limits)."""
    kept_ms = topic.number("retention.ms", -1)
    return kept_ms if "delete" in topic.policies and kept_ms >= 0 else None


_ENOUGH: Final = 100
"""Minimum number of records or rows for a meaningful share."""


def tombstone_share(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Tombstones among the backed-up records of changelogs."""
    limit = declared.governance.limits.max_tombstone_share
    if limit is None:
        return Comparison(NOTHING_COMPARED, (), ["governance.limits.max_tombstone_share is off."])
    shares: dict[str, float] = {}
    for topic in declared.names(TopicRole.CHANGELOG):
        parts = [found for part, found in facts.backed_up.items() if part.topic == topic]
        records = sum(part.records for part in parts)
        if records >= _ENOUGH:
            shares[topic] = sum(part.tombstones for part in parts) / records
    findings = [
        Finding(
            topic,
            f"{share:.1%} of the records in the newest windows are tombstones",
            f"at most {limit:.1%}",
            "Find out what deletes so many keys. Until then, run compaction earlier, so that a"
            " restore reads fewer tombstones:"
            f" {set_configs(facts.bootstrap_servers, topic, min_cleanable_dirty_ratio='0.1')}."
            " If the share is intended, increase governance.limits.max_tombstone_share.",
            Severity.WARN,
        )
        for topic, share in sorted(shares.items())
        if share > limit
    ]
    not_evaluated = [] if shares else [f"no changelog has {_ENOUGH} records in the newest windows."]
    highest = max(shares.values(), default=0.0)
    compared = f"Changelogs: {len(shares)}; at most {highest:.1%} of their records are tombstones."
    return Comparison(compared if shares else NOTHING_COMPARED, findings, not_evaluated)


def store_growth(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Rows of each store in its newest snapshot against those in the one before."""
    limit = declared.governance.limits.max_store_growth
    if limit is None:
        return Comparison(
            NOTHING_COMPARED,
            (),
            ["governance.limits.max_store_growth is not declared."],
        )
    grown = {
        store: (rows.rows - rows.before) / rows.before
        for store, rows in facts.store_rows.items()
        if rows.before >= _ENOUGH
    }
    findings = [
        Finding(
            store,
            f"{facts.store_rows[store].before:,} rows in window"
            f" {facts.store_rows[store].before_window}, {facts.store_rows[store].rows:,} in"
            f" {facts.store_rows[store].window}: {share:+.1%}",
            f"at most {limit:+.1%}",
            "Look at the newest keys (kstreams-assets state). Use windows in the store, or delete"
            " keys that are not needed any more. Otherwise plan disk and restore time for the"
            " growth, or increase governance.limits.max_store_growth.",
            Severity.WARN,
        )
        for store, share in sorted(grown.items())
        if share > limit
    ]
    not_evaluated = [] if grown else [f"no store has two snapshots with {_ENOUGH} rows."]
    return Comparison(
        f"Stores: {len(grown)}." if grown else NOTHING_COMPARED, findings, not_evaluated
    )


def lag_within_limits(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Lag of each topic that the group reads; what was deleted unprocessed always counts."""
    limit = declared.governance.limits.max_lag_records
    lags = lags_of(facts)
    findings = list(_lost(facts))
    if limit is not None and facts.committed_topics:
        findings += [
            Finding(
                topic,
                f"the application is {lag:,} offsets behind",
                f"at most {limit:,}",
                "Check that the application runs, and read its log. Add instances or threads, up to"
                " the number of partitions, or find the cause of the delay.",
                Severity.WARN,
            )
            for topic, lag in sorted(lags.items())
            if lag > limit
        ]
    not_evaluated = []
    if limit is None:
        not_evaluated.append("governance.limits.max_lag_records is not declared.")
    elif not facts.committed_topics:
        not_evaluated.append(f"group {declared.application_id} has not committed offsets.")
    furthest = max(lags.values(), default=0)
    compared = f"Topics: {len(lags)}; the application is at most {furthest:,} offsets behind."
    return Comparison(compared if lags else NOTHING_COMPARED, findings, not_evaluated)


def lags_of(facts: GovernanceFacts) -> Mapping[str, int]:
    """Return the number of unprocessed offsets of each topic that the group reads."""
    lags: defaultdict[str, int] = defaultdict(int)
    for partition, state in facts.reads.items():
        lags[partition.topic] += state.lag
    return lags


def _lost(facts: GovernanceFacts) -> Iterator[Finding]:
    lost: defaultdict[str, list[str]] = defaultdict(list)
    for partition, state in sorted(facts.reads.items()):
        if state.lost:
            lost[partition.topic].append(
                f"partition {partition.partition}: offsets {state.committed} to {state.log_start}"
            )
    for topic, ranges in lost.items():
        yield Finding(
            topic,
            f"deleted before the application had processed them ({'; '.join(ranges)})",
            "a retention that is longer than the lag of the application",
            "Restore these records from the backups before the application continues; it resets or"
            " skips them silently. Increase retention.ms, and set a limit for the lag.",
        )


def keys_are_spread(facts: GovernanceFacts, declared: Declared) -> Comparison:
    """The largest share of a partition in what each topic that the group reads got."""
    limit = declared.governance.limits.max_partition_share
    if limit is None:
        text = "governance.limits.max_partition_share is not declared."
        return Comparison(NOTHING_COMPARED, (), [text])
    shares: dict[str, tuple[float, int]] = {}
    for topic in declared.names(TopicRole.INPUT, TopicRole.REPARTITION):
        counts = _records(facts, topic)
        total = sum(counts.values())
        if len(counts) > 1 and total >= _ENOUGH:
            hottest = max(counts, key=lambda partition: counts[partition])
            shares[topic] = counts[hottest] / total, hottest
    findings = [
        Finding(
            topic,
            f"partition {partition} gets {share:.1%} of the records",
            f"at most {limit:.1%}",
            "One task does most of the work. Find the key (kstreams-assets state, or count keys in"
            " the backup). Choose keys with a more even distribution, or split the hot key (key#0"
            " ... key#n) and combine its parts in a second step.",
            Severity.WARN,
        )
        for topic, (share, partition) in sorted(shares.items())
        if share > limit
    ]
    not_evaluated = [] if shares else [f"no topic with several partitions has {_ENOUGH} records."]
    return Comparison(
        f"Topics: {len(shares)}." if shares else NOTHING_COMPARED, findings, not_evaluated
    )


def _records(facts: GovernanceFacts, topic: str) -> dict[int, int]:
    """Return records by partition: in the newest windows, or without a backup in the log."""
    stored = {p.partition: f.records for p, f in facts.backed_up.items() if p.topic == topic}
    if sum(stored.values()) >= _ENOUGH:
        return stored
    return {
        p.partition: max(0, state.end - state.log_start)
        for p, state in facts.reads.items()
        if p.topic == topic
    }


def owner_and_objective_declared(_facts: GovernanceFacts, declared: Declared) -> Comparison:
    """Check that the application has an owner and a recovery objective."""
    findings = []
    if not declared.owners:
        findings.append(
            Finding(
                declared.application_id,
                "no owner",
                "a responsible person or team",
                "Add owners to the YAML, for example owners: [team:orders].",
                Severity.WARN,
            )
        )
    objectives = {
        "recovery_points.objective_seconds": declared.objective_s,
        "drill.objective_seconds": declared.recovery_time_s,
    }
    absent = [name for name, value in objectives.items() if value is None]
    if len(absent) == len(objectives):
        findings.append(
            Finding(
                declared.application_id,
                "no recovery objective",
                "the maximum data loss, or the maximum recovery time",
                f"Add {' and '.join(objectives)} to the YAML.",
                Severity.WARN,
            )
        )
        absent = []
    texts = [f"{name} {value:g}" for name, value in objectives.items() if value is not None]
    return Comparison(
        f"Owners: {', '.join(declared.owners) or 'none'};"
        f" objectives: {', '.join(texts) or 'none'}.",
        findings,
        [f"{name} is not declared." for name in absent],
    )


Check = Callable[[GovernanceFacts, Declared], Comparison]

_TABLE: Final[tuple[tuple[Check, str], ...]] = (
    (
        internal_topics_as_declared,
        "The cluster has exactly the repartition and subscription topics that are declared or"
        " that the topology creates. Red: the application was changed or never started, or"
        " another version of it ran on this cluster.",
    ),
    (
        stores_as_declared,
        "The cluster has exactly the changelogs of the topology's stores, and the topology has"
        " exactly the declared stores. Red: a store was added, removed or renamed. A renamed"
        " store starts empty.",
    ),
    (
        topology_as_declared,
        "The topology has the declared inputs and outputs, the cluster has their topics, and"
        " the group commits offsets of the topology's inputs only. Red: the topology text does"
        " not match the running application.",
    ),
    (
        partitions_as_needed,
        "Topics that share a store have the same number of partitions, internal topics have as"
        " many partitions as their sources, and declared numbers match. Red: Kafka Streams"
        " refuses to start, or finds no state for some keys.",
    ),
    (
        changelogs_replicated,
        "Internal topics have the declared replication factor (3 with three brokers) and"
        " min.insync.replicas (2), and all replicas are in sync. Red: the loss of one broker can"
        " lose state, or brokers reject writes.",
    ),
    (
        cleanup_policies_fit,
        "The cleanup.policy of every topic fits its purpose: compact for stores, compact,delete"
        " for windows and sessions, delete without retention for repartition topics. Red: Kafka"
        " removes records that are still needed.",
    ),
    (
        retention_covers_windows,
        "Changelogs of windows keep records as long as their stores do, and Kafka keeps all"
        " records until the backup has read them. Red: retention.ms is shorter.",
    ),
    (
        inputs_kept_for_rebuild,
        "Inputs keep the records that a rebuild of the application needs. Red: their retention"
        " is shorter than declared.",
    ),
    (
        tombstone_share,
        "The share of tombstones in the newest windows of each changelog is below the limit.",
    ),
    (
        store_growth,
        "No store grows by more than the limit from one window to the next.",
    ),
    (
        lag_within_limits,
        "The lag of the application is within the limit, and Kafka deleted no records before"
        " the application processed them. Red: records were deleted unprocessed.",
    ),
    (
        keys_are_spread,
        "No partition receives more than the limit of its topic's records: no key is hot.",
    ),
    (
        owner_and_objective_declared,
        "The application declares an owner, and how much data a failure may lose or how long a"
        " recovery may take.",
    ),
)

CHECKS: Final[Mapping[str, str]] = {one.__name__: claim for one, claim in _TABLE}
"""Every check and its claim, in display order."""


def evaluate(facts: GovernanceFacts, declared: Declared) -> tuple[Evaluation, ...]:
    """Evaluate every check, in the order of `CHECKS`."""
    return tuple(_evaluated(one.__name__, one(facts, declared)) for one, _ in _TABLE)


def _evaluated(check: str, comparison: Comparison) -> Evaluation:
    return evaluation_of(
        check,
        comparison.compared,
        sorted(comparison.findings, key=lambda f: (f.severity is Severity.WARN, f.subject)),
        comparison.not_evaluated,
    )
