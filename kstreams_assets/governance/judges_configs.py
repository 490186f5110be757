"""Do replication and cleanup policies fit what topics are for? Pure."""

from collections.abc import Iterator
from typing import Final

from kstreams_assets.app.model import AppTopic, TopicRole
from kstreams_assets.checks import Severity
from kstreams_assets.governance.facts import Declared, GovernanceFacts, TopicState
from kstreams_assets.governance.findings import GovernanceFinding, GovernanceVerdict, verdict
from kstreams_assets.governance.remedies import duration, set_configs
from kstreams_assets.ktables.store_format import StoreKind

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
"""What Kafka Streams gives changelogs (`*ChangelogTopicConfig` of 4.x); all others are compact."""


def changelogs_replicated(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
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
    not_judged = []
    if declared.governance.replication_factor is None and facts.brokers < _REPLICAS:
        not_judged.append(
            f"governance.replication_factor is not declared, and the cluster has {facts.brokers}"
            " broker(s)."
        )
    looked = f"Internal topics: {len(topics)}; brokers: {facts.brokers}."
    return verdict("changelogs_replicated", looked, findings, not_judged)


def _too_few_replicas(
    facts: GovernanceFacts, declared: Declared, topic: TopicState
) -> Iterator[GovernanceFinding]:
    said = declared.governance.replication_factor
    least = _least_replicas(facts, declared)
    if topic.replication_factor < least:
        yield GovernanceFinding(
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
) -> Iterator[GovernanceFinding]:
    said = declared.governance.min_insync_replicas
    replicated = topic.replication_factor
    least = said or (_IN_SYNC if replicated >= _REPLICAS else 1)
    actual = topic.number("min.insync.replicas", 1)
    if actual < least:
        yield GovernanceFinding(
            topic.name,
            f"min.insync.replicas {actual}",
            f"at least {least}" + (", as declared" if said else f" of {replicated} replicas"),
            "A write that one broker alone has acknowledged is lost with it:"
            f" {set_configs(facts.bootstrap_servers, topic.name, min_insync_replicas=least)}.",
            Severity.ERROR if said else Severity.WARN,
        )
    elif actual >= replicated > 1 and replicated >= _least_replicas(facts, declared):
        fewer = set_configs(facts.bootstrap_servers, topic.name, min_insync_replicas=replicated - 1)
        yield GovernanceFinding(
            topic.name,
            f"min.insync.replicas {actual} with {replicated} replicas",
            "less than the replication factor",
            f"The application stops as soon as one broker is down. Give it more replicas, or:"
            f" {fewer}.",
            Severity.ERROR if actual > replicated else Severity.WARN,
        )


def _out_of_sync(topic: TopicState) -> Iterator[GovernanceFinding]:
    if topic.lagging:
        refused = topic.in_sync < topic.number("min.insync.replicas", 1)
        yield GovernanceFinding(
            topic.name,
            f"partitions {', '.join(map(str, topic.lagging))} have as few as {topic.in_sync} of"
            f" {topic.replication_factor} replicas in sync"
            + (", so that writes are refused" if refused else ""),
            "every replica in sync",
            "Find out which broker is down or slow, and bring it back.",
            Severity.ERROR if refused else Severity.WARN,
        )


def cleanup_policies_fit(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """cleanup.policy of changelogs by kind of store, of tables' sources, of repartition topics."""
    findings: list[GovernanceFinding] = []
    not_judged: list[str] = []
    for topic in declared.application.topics:
        state = facts.topics.get(topic.name)
        if state is None:
            continue
        if TopicRole.REPARTITION in topic.roles:
            findings += _repartition(facts, state)
        elif TopicRole.GLOBAL in topic.roles or (
            TopicRole.CHANGELOG in topic.roles and not topic.is_internal
        ):
            findings += _source_of_a_table(facts, state)
        elif TopicRole.CHANGELOG in topic.roles:
            findings += _changelog(facts, declared, topic, state)
            if any(declared.formats[s].undeclared for s in topic.stores if s in declared.formats):
                not_judged.append(f"the kind of store {', '.join(topic.stores)} is not declared.")
    looked = f"Topics: {len(facts.topics)}."
    return verdict("cleanup_policies_fit", looked, findings, not_judged)


def _repartition(facts: GovernanceFacts, topic: TopicState) -> Iterator[GovernanceFinding]:
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
    yield GovernanceFinding(
        topic.name,
        kept,
        "cleanup.policy delete without retention (the application deletes what it has processed)",
        f"Records that are not processed yet may be removed: {command}.",
    )


def _source_of_a_table(facts: GovernanceFacts, topic: TopicState) -> Iterator[GovernanceFinding]:
    if "compact" in topic.policies and not topic.deletes:
        return
    if not topic.deletes and "delete" in topic.policies:
        return  # nothing is ever removed
    yield GovernanceFinding(
        topic.name,
        f"cleanup.policy {_said(topic)} with retention.ms"
        f" {duration(topic.number('retention.ms', -1))}",
        "compact, since the topic alone rebuilds a table",
        "Keys that were not written for so long vanish from the table when it is rebuilt:"
        f" {set_configs(facts.bootstrap_servers, topic.name, cleanup_policy='compact')}.",
    )


def _changelog(
    facts: GovernanceFacts, declared: Declared, topic: AppTopic, state: TopicState
) -> Iterator[GovernanceFinding]:
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
) -> GovernanceFinding:
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
    return GovernanceFinding(
        topic.name,
        f"cleanup.policy {_said(topic)}",
        f"{policy}{of_kind}",
        f"{why}: {set_configs(facts.bootstrap_servers, topic.name, cleanup_policy=policy)}.",
        Severity.WARN if kind in _POLICIES else Severity.ERROR,
    )


def _versions_compacted(
    facts: GovernanceFacts, topic: TopicState, history_ms: int
) -> Iterator[GovernanceFinding]:
    lag_ms = topic.number("min.compaction.lag.ms", 0)
    if lag_ms < history_ms:
        needed = history_ms + 86_400_000
        command = set_configs(facts.bootstrap_servers, topic.name, min_compaction_lag_ms=needed)
        yield GovernanceFinding(
            topic.name,
            f"min.compaction.lag.ms {duration(lag_ms)}",
            f"more than the store's history retention, {duration(history_ms)}",
            f"Compaction removes versions that the store still has: {command}.",
        )


def _said(topic: TopicState) -> str:
    return ",".join(sorted(topic.policies)) or "none"
