"""Gathers what readiness is judged by; needs no JVM, and the source cluster only to be told."""

import time
from typing import Final

from kstreams_assets.backup.coverage import recovery_point_is_recent
from kstreams_assets.backup.due import window_statuses
from kstreams_assets.completeness.checks import declared_rules
from kstreams_assets.completeness.result import RuleResult
from kstreams_assets.completeness.results_table import ResultsTable
from kstreams_assets.drill.readiness import Facts, OpenFinding, Readiness, judge_readiness
from kstreams_assets.drill.rules import has_rules
from kstreams_assets.drill.table import DrillsTable
from kstreams_assets.errors import KafkaError, SecretNotFoundError
from kstreams_assets.governance.table import FindingsTable
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.settings import ApplicationSettings

_ASK_CLUSTER_S: Final = 5.0


def readiness(
    settings: ApplicationSettings, *, ask_cluster: bool = False, now_ms: int | None = None
) -> Readiness:
    """Whether the application could be recovered right now, and why.

    `ask_cluster`: also tell whether the source cluster answers (at most some seconds); that does
    not change the verdict. `now_ms` is the present time when left out. Raises NewerLayoutError when
    a newer release wrote the warehouse.
    """
    now = now_ms or time.time_ns() // 1_000_000
    statuses = window_statuses(settings)
    due = tuple(status.window.key for status in statuses[:-1] if status.is_due)
    return judge_readiness(
        Facts(
            now_ms=now,
            recency=recovery_point_is_recent(settings, now_ms=now),
            due=due,
            results=_results(settings),
            findings=_findings(settings),
            drill=DrillsTable(settings.warehouse).newest(settings.application_id),
            drill_declared=bool(settings.drill.command),
            cluster_asked=ask_cluster,
            cluster_problem=_cluster_problem(settings) if ask_cluster else None,
        )
    )


def _results(settings: ApplicationSettings) -> tuple[RuleResult, ...] | None:
    """The newest evaluation of each declared rule at each place."""
    if not has_rules(settings):
        return None
    table = ResultsTable(settings.warehouse)
    standings = table.standings(settings.application_id, declared_rules(settings))
    return tuple(standing.newest for standing in standings)


def _findings(settings: ApplicationSettings) -> tuple[OpenFinding, ...] | None:
    report = FindingsTable(settings.warehouse).newest(settings.application_id)
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
