"""Gathers what readiness is judged by; needs no JVM, and the source cluster only to be told."""

import time
from dataclasses import replace
from typing import Final

from kstreams_assets.backup.coverage import recovery_point_is_recent
from kstreams_assets.drill.evidence import Evidence
from kstreams_assets.drill.readiness import Facts, OpenFinding, Readiness, judge_readiness
from kstreams_assets.drill.rules import has_rules
from kstreams_assets.errors import KafkaError, SecretNotFoundError
from kstreams_assets.governance.findings import GovernanceReport
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.layout import open_to_others

_ASK_CLUSTER_S: Final = 5.0


def readiness(
    settings: ApplicationSettings, *, ask_cluster: bool = False, now_ms: int | None = None
) -> Readiness:
    """Whether the application could be recovered right now, and why.

    `ask_cluster`: also tell whether the source cluster answers (at most some seconds); that does
    not change the verdict. `now_ms` is the present time when left out. Raises NewerLayoutError when
    a newer release wrote the warehouse.
    """
    facts = facts_of(Evidence(settings), now_ms or time.time_ns() // 1_000_000)
    if ask_cluster:
        problem = _cluster_problem(settings)
        facts = replace(facts, cluster_asked=True, cluster_problem=problem)
    return judge_readiness(facts)


def facts_of(evidence: Evidence, now_ms: int) -> Facts:
    """What the warehouse says, as readiness is judged by it."""
    settings, windows = evidence.settings, evidence.windows
    return Facts(
        now_ms=now_ms,
        recency=recovery_point_is_recent(settings, restorable=evidence.restorable, now_ms=now_ms),
        due=tuple(status.window.key for status in windows[:-1] if status.is_due),
        damaged=tuple(evidence.damaged),
        damaged_snapshots=tuple(
            f"store {snapshot.store}, window {snapshot.window.key}: {problem}"
            for snapshot, problem in evidence.damaged_snapshots
        ),
        results=tuple(rule.newest for rule in evidence.rules) if has_rules(settings) else None,
        findings=_findings(evidence.governance),
        drill=evidence.drill,
        drill_declared=bool(settings.drill.command),
        warehouse_mode=open_to_others(settings.warehouse.root),
    )


def _findings(report: GovernanceReport | None) -> tuple[OpenFinding, ...] | None:
    if report is None:
        return None
    return tuple(
        OpenFinding(verdict.check, str(finding), finding.severity)
        for verdict in report.verdicts
        for finding in verdict.findings
    )


def _cluster_problem(settings: ApplicationSettings) -> str | None:
    try:
        with KafkaCluster(settings.connection, timeout_s=_ASK_CLUSTER_S) as cluster:
            cluster.broker_ids()
    except (KafkaError, SecretNotFoundError) as error:
        return error.problem.rstrip(".")
    return None
