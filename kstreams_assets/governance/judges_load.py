"""How much is there, and how far behind is the application? Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from kstreams_assets.app.model import TopicRole
from kstreams_assets.checks import Severity
from kstreams_assets.governance.facts import Declared, GovernanceFacts
from kstreams_assets.governance.findings import (
    NOTHING_COMPARED,
    GovernanceFinding,
    GovernanceVerdict,
    verdict,
)
from kstreams_assets.governance.remedies import set_configs

_ENOUGH: Final = 100
"""Of fewer records or rows shares say nothing."""


def tombstone_share(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """Tombstones among the backed-up records of changelogs."""
    name = "tombstone_share"
    limit = declared.governance.limits.max_tombstone_share
    if limit is None:
        return verdict(
            name, NOTHING_COMPARED, (), ["governance.limits.max_tombstone_share is off."]
        )
    shares: dict[str, float] = {}
    for topic in declared.names(TopicRole.CHANGELOG):
        parts = [found for part, found in facts.backed_up.items() if part.topic == topic]
        records = sum(part.records for part in parts)
        if records >= _ENOUGH:
            shares[topic] = sum(part.tombstones for part in parts) / records
    findings = [
        GovernanceFinding(
            topic,
            f"{share:.1%} of the records in the newest windows are tombstones",
            f"at most {limit:.1%}",
            "Find out what deletes so many keys. Until then let compaction come sooner, so that a"
            " restore reads fewer of them:"
            f" {set_configs(facts.bootstrap_servers, topic, min_cleanable_dirty_ratio='0.1')};"
            " raise governance.limits.max_tombstone_share if the application is made so.",
            Severity.WARN,
        )
        for topic, share in sorted(shares.items())
        if share > limit
    ]
    not_judged = [] if shares else [f"no changelog has {_ENOUGH} records in the newest windows."]
    highest = max(shares.values(), default=0.0)
    looked = f"Changelogs: {len(shares)}; at most {highest:.1%} of their records are tombstones."
    return verdict(name, looked if shares else NOTHING_COMPARED, findings, not_judged)


def store_growth(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """Rows of each store in its newest snapshot against those in the one before."""
    name = "store_growth"
    limit = declared.governance.limits.max_store_growth
    if limit is None:
        return verdict(
            name,
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
        GovernanceFinding(
            store,
            f"{facts.store_rows[store].before:,} rows in window"
            f" {facts.store_rows[store].before_window}, {facts.store_rows[store].rows:,} in"
            f" {facts.store_rows[store].window}: {share:+.1%}",
            f"at most {limit:+.1%}",
            "Look at the newest keys (kstreams-assets state); give the store windows or delete keys"
            " that end; plan disk and restore time for the growth, or raise"
            " governance.limits.max_store_growth.",
            Severity.WARN,
        )
        for store, share in sorted(grown.items())
        if share > limit
    ]
    not_judged = [] if grown else [f"no store has two snapshots with {_ENOUGH} rows."]
    return verdict(
        name, f"Stores: {len(grown)}." if grown else NOTHING_COMPARED, findings, not_judged
    )


def lag_within_limits(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """Lag of each topic that the group reads; what was deleted unprocessed always counts."""
    limit = declared.governance.limits.max_lag_records
    lags = lags_of(facts)
    findings = list(_lost(facts))
    if limit is not None and facts.committed_topics:
        findings += [
            GovernanceFinding(
                topic,
                f"the application is {lag:,} offsets behind",
                f"at most {limit:,}",
                "Look whether it runs and into its log; add instances or threads up to the number"
                " of partitions, or find what slows it down.",
                Severity.WARN,
            )
            for topic, lag in sorted(lags.items())
            if lag > limit
        ]
    not_judged = []
    if limit is None:
        not_judged.append("governance.limits.max_lag_records is not declared.")
    elif not facts.committed_topics:
        not_judged.append(f"group {declared.application_id} has committed nothing.")
    furthest = max(lags.values(), default=0)
    looked = f"Topics: {len(lags)}; the application is at most {furthest:,} offsets behind."
    return verdict("lag_within_limits", looked if lags else NOTHING_COMPARED, findings, not_judged)


def lags_of(facts: GovernanceFacts) -> Mapping[str, int]:
    """Offsets of each topic that the group reads which the application has not processed."""
    lags: defaultdict[str, int] = defaultdict(int)
    for partition, state in facts.reads.items():
        lags[partition.topic] += state.lag
    return lags


def _lost(facts: GovernanceFacts) -> Iterator[GovernanceFinding]:
    lost: defaultdict[str, list[str]] = defaultdict(list)
    for partition, state in sorted(facts.reads.items()):
        if state.lost:
            lost[partition.topic].append(
                f"partition {partition.partition}: offsets {state.committed} to {state.log_start}"
            )
    for topic, ranges in lost.items():
        yield GovernanceFinding(
            topic,
            f"deleted before the application had processed them ({'; '.join(ranges)})",
            "that retention is longer than the application is ever behind",
            "Restore these records from the backups before the application goes on (it resets or"
            " skips them silently); raise retention.ms, and let a limit on lag warn before.",
        )


def keys_are_spread(facts: GovernanceFacts, declared: Declared) -> GovernanceVerdict:
    """The largest share of a partition in what each topic that the group reads got."""
    name = "keys_are_spread"
    limit = declared.governance.limits.max_partition_share
    if limit is None:
        text = "governance.limits.max_partition_share is not declared."
        return verdict(name, NOTHING_COMPARED, (), [text])
    shares: dict[str, tuple[float, int]] = {}
    for topic in declared.names(TopicRole.INPUT, TopicRole.REPARTITION):
        counts = _records(facts, topic)
        total = sum(counts.values())
        if len(counts) > 1 and total >= _ENOUGH:
            hottest = max(counts, key=lambda partition: counts[partition])
            shares[topic] = counts[hottest] / total, hottest
    findings = [
        GovernanceFinding(
            topic,
            f"partition {partition} gets {share:.1%} of the records",
            f"at most {limit:.1%}",
            "One task does most of the work. Find the key (kstreams-assets state, or count keys in"
            " the backup); choose a key that spreads, or split the hot one (key#0 ... key#n) and"
            " put its parts together in a second step.",
            Severity.WARN,
        )
        for topic, (share, partition) in sorted(shares.items())
        if share > limit
    ]
    not_judged = [] if shares else [f"no topic with several partitions has {_ENOUGH} records."]
    return verdict(
        name, f"Topics: {len(shares)}." if shares else NOTHING_COMPARED, findings, not_judged
    )


def _records(facts: GovernanceFacts, topic: str) -> dict[int, int]:
    """Records by partition: of the newest windows, or without a backup of what the log holds."""
    stored = {p.partition: f.records for p, f in facts.backed_up.items() if p.topic == topic}
    if sum(stored.values()) >= _ENOUGH:
        return stored
    return {
        p.partition: max(0, state.end - state.log_start)
        for p, state in facts.reads.items()
        if p.topic == topic
    }
