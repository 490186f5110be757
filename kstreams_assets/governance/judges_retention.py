"""Do topics keep records for as long as stores, backups and rebuilds need them? Pure."""

from collections.abc import Iterator
from typing import Final

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.checks import Severity
from kstreams_assets.governance.facts import Declared, GovernanceFacts, TopicState
from kstreams_assets.governance.findings import (
    NOTHING_COMPARED,
    GovernanceFinding,
    GovernanceVerdict,
    verdict,
)
from kstreams_assets.governance.remedies import duration, set_configs
from kstreams_assets.ktables.store_format import StoreKind

_EXPIRING: Final = (StoreKind.WINDOW, StoreKind.SESSION, StoreKind.JOIN_WINDOW)
_INPUTS: Final = TopicRoles({TopicRole.INPUT, TopicRole.GLOBAL})
_DAY_MS: Final = 86_400_000
"""What Kafka Streams adds by default (`windowstore.changelog.additional.retention.ms`)."""
_WINDOWS: Final = 2
"""A backup reads a window when it has closed, and has as long again for it."""


def retention_covers_windows(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """Retention of window changelogs against their stores, of all topics against the backup.

    What is written to a changelog may be as old as the store's retention, and has to be there until
    the backup has read it: hence the sum of both.
    """
    delay_ms = _WINDOWS * (declared.window_ms or 0)
    findings: list[GovernanceFinding] = []
    not_judged: list[str] = []
    for topic in declared.application.topics:
        state = facts.topics.get(topic.name)
        if state is None or TopicRole.REPARTITION in topic.roles:
            continue
        expiring = _expiring(declared, topic)
        unknown = [store for store, retention in expiring.items() if retention is None]
        not_judged += [f"retention_ms of store {store} is not declared." for store in unknown]
        store_ms = max((ms for ms in expiring.values() if ms is not None), default=0)
        if expiring and not unknown:
            findings += _shorter_than_store(facts, state, store_ms, delay_ms)
        elif topic.name in declared.backed_up_topics and not _kept_for_rebuild(declared, topic):
            findings += _shorter_than_backup(facts, state, delay_ms)
    if declared.window_ms is None:
        not_judged.append("no window has closed yet: its length is not known.")
    looked = (
        f"Topics: {len(facts.topics)}; a backup may come {duration(delay_ms)} after a window began."
    )
    return verdict("retention_covers_windows", looked, findings, not_judged)


def _expiring(declared: Declared, topic: AppTopic) -> dict[str, int | None]:
    """Stores with windows or sessions that this changelog rebuilds, and their retention."""
    if TopicRole.CHANGELOG not in topic.roles or not topic.is_internal:
        return {}
    return {
        store: declared.formats[store].retention_ms
        for store in topic.stores
        if store in declared.formats and declared.formats[store].kind in _EXPIRING
    }


def _kept_for_rebuild(declared: Declared, topic: AppTopic) -> bool:
    """Whether `inputs_kept_for_rebuild` judges it: one deviation turns one check red."""
    return declared.governance.rebuild_ms is not None and bool(topic.roles & _INPUTS)


def _shorter_than_store(
    facts: GovernanceFacts, topic: TopicState, store_ms: int, delay_ms: int
) -> Iterator[GovernanceFinding]:
    kept_ms = _kept_ms(topic)
    if kept_ms is None or kept_ms >= store_ms + delay_ms:
        return
    command = set_configs(
        facts.bootstrap_servers, topic.name, retention_ms=max(store_ms, delay_ms) + _DAY_MS
    )
    yield GovernanceFinding(
        topic.name,
        f"retention.ms {duration(kept_ms)}",
        f"at least {duration(store_ms + delay_ms)}: the store's retention and the time that a"
        " backup may take to read them",
        f"Windows that the store still has are missing after a restore: {command}.",
    )


def _shorter_than_backup(
    facts: GovernanceFacts, topic: TopicState, delay_ms: int
) -> Iterator[GovernanceFinding]:
    kept_ms = _kept_ms(topic)
    if kept_ms is None or kept_ms >= delay_ms:
        return
    command = set_configs(facts.bootstrap_servers, topic.name, retention_ms=delay_ms)
    yield GovernanceFinding(
        topic.name,
        f"retention.ms {duration(kept_ms)}",
        f"at least {duration(delay_ms)}, two windows of the backup",
        f"Records are deleted before a backup has read them: {command}; or make the windows of the"
        " backup shorter.",
    )


def inputs_kept_for_rebuild(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """Retention of inputs against how far back a rebuild needs them."""
    name = "inputs_kept_for_rebuild"
    rebuild_ms = declared.governance.rebuild_ms
    if rebuild_ms is None:
        return verdict(name, NOTHING_COMPARED, (), ["governance.rebuild_hours is not declared."])
    needed_ms = max(rebuild_ms, _WINDOWS * (declared.window_ms or 0))
    topics = [facts.topics[topic] for topic in declared.names(*_INPUTS) if topic in facts.topics]
    findings = [finding for topic in topics for finding in _forgets(facts, topic, needed_ms)]
    looked = f"Inputs: {len(topics)}, {duration(needed_ms)} back." if topics else NOTHING_COMPARED
    return verdict(name, looked, findings)


def _forgets(
    facts: GovernanceFacts, topic: TopicState, needed_ms: int
) -> Iterator[GovernanceFinding]:
    kept_ms = _kept_ms(topic)
    if kept_ms is not None and kept_ms < needed_ms:
        command = set_configs(facts.bootstrap_servers, topic.name, retention_ms=needed_ms)
        yield GovernanceFinding(
            topic.name,
            f"retention.ms {duration(kept_ms)}",
            f"at least {duration(needed_ms)}, as declared in governance.rebuild_hours",
            f"{command}; what is deleted already is in the backups (kstreams-assets restore --mode"
            " rebuild).",
        )
    elif topic.deletes and topic.number("retention.bytes", -1) >= 0:
        size = topic.number("retention.bytes", -1)
        command = set_configs(facts.bootstrap_servers, topic.name, retention_bytes=-1)
        yield GovernanceFinding(
            topic.name,
            f"retention.bytes {size}",
            "no limit by size, so that the declared time holds under any load",
            f"{command}.",
            Severity.WARN,
        )


def _kept_ms(topic: TopicState) -> int | None:
    """How long records stay at least, None for ever (but for compaction and limits by size)."""
    kept_ms = topic.number("retention.ms", -1)
    return kept_ms if "delete" in topic.policies and kept_ms >= 0 else None
