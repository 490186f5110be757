"""Whether a recovery could begin right now, and what speaks against it."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from kstreams_assets.backup.requests import WindowStatus, window_statuses
from kstreams_assets.checks import Severity
from kstreams_assets.completeness.checks import declared_rules
from kstreams_assets.completeness.result import Outcome, ResultsTable, RuleResult, RuleStanding
from kstreams_assets.drill.report import DrillsTable, ObjectiveResult, StoredDrill
from kstreams_assets.drill.run import has_rules
from kstreams_assets.errors import KafkaError, SecretNotFoundError
from kstreams_assets.governance.findings import GovernanceReport
from kstreams_assets.governance.table import FindingsTable
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.ktables.snapshot import Snapshot
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.coverage import (
    Recency,
    Restorable,
    newest_restorable,
    recovery_point_is_recent,
)
from kstreams_assets.warehouse.layout import open_to_others
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.warehouse.point import iso_time
from kstreams_assets.warehouse.records import DamagedSpans, SpanDamage

DRILL_IS_OLD_S: Final = 30 * 86_400.0

_DAY_S: Final = 86_400.0
_FEW: Final = 5
_RED: Final = frozenset({Outcome.VIOLATED, Outcome.FAILED})


@dataclass(frozen=True, slots=True)
class OpenFinding:
    """A finding of the newest look at the application's governance."""

    check: str
    text: str
    severity: Severity


@dataclass(frozen=True, slots=True)
class Facts:
    """What readiness is judged by.

    `due` are closed windows that are not backed up, without the newest one, whose backup may be
    under way; oldest first. `damaged` are spans whose files are missing or do not match the
    ledger, `damaged_snapshots` are KTable snapshots with files that are missing or have another
    size. `results` are the newest evaluations of each rule at each place, None
    when no rule is declared. `findings` are None when governance was never looked at.
    `warehouse_mode` is the mode of the warehouse's folder when others than its owner may enter it.
    `cluster_problem` is None when the source cluster answers, and what it said if not;
    `cluster_asked` is False when it was not asked.
    """

    now_ms: int
    recency: Recency
    due: tuple[str, ...] = ()
    damaged: tuple[SpanDamage, ...] = ()
    damaged_snapshots: tuple[str, ...] = ()
    results: tuple[RuleResult, ...] | None = None
    findings: tuple[OpenFinding, ...] | None = None
    drill: StoredDrill | None = None
    drill_declared: bool = True
    warehouse_mode: str | None = None
    cluster_asked: bool = False
    cluster_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing that was looked at; `speaks_against` the application being ready."""

    subject: str
    text: str
    speaks_against: bool = False


@dataclass(frozen=True, slots=True)
class Readiness:
    """The summary: everything that was looked at, what speaks against it first."""

    statements: tuple[Statement, ...]

    @property
    def ready(self) -> bool:
        """Whether nothing speaks against a recovery right now."""
        return not any(statement.speaks_against for statement in self.statements)

    @property
    def why(self) -> str:
        """What speaks against it, or that nothing does."""
        against = [s.text for s in self.statements if s.speaks_against]
        return " ".join(against) if against else "Nothing speaks against it."


def judge_readiness(facts: Facts) -> Readiness:
    """Whether the application could be recovered at the time of the facts."""
    statements = [
        _of_point(facts.recency),
        _of_windows(facts.due),
        *_of_files(facts.damaged),
        *_of_snapshots(facts.damaged_snapshots),
        *_of_rules(facts.results),
        *_of_governance(facts.findings),
        _of_drill(facts),
        *_of_cluster(facts),
        *_of_warehouse(facts),
    ]
    return Readiness(tuple(sorted(statements, key=lambda s: not s.speaks_against)))


def _of_point(recency: Recency) -> Statement:
    missing = recency.restorable.exact is None
    return Statement("recovery point", recency.explanation, missing or not recency.passed)


def _of_warehouse(facts: Facts) -> Iterator[Statement]:
    if facts.warehouse_mode is not None:
        yield Statement(
            "warehouse",
            f"Others than its owner may read the folder of the warehouse (mode"
            f" {facts.warehouse_mode}), which holds production records. Close it: chmod 700 on the"
            " folder.",
        )


def _of_windows(due: Sequence[str]) -> Statement:
    if not due:
        return Statement("windows", "Every closed window but perhaps the newest is backed up.")
    return Statement(
        "windows",
        f"{len(due)} closed windows are not backed up, from {due[0]} on. Back them up; see that"
        " the backup sensor is on.",
        speaks_against=True,
    )


def _of_files(damaged: Sequence[SpanDamage]) -> Iterator[Statement]:
    if not damaged:
        return
    windows = len({damage.window for damage in damaged})
    yield Statement(
        "stored files",
        f"Files of {windows} windows do not match the ledger. {damaged[0]}. {damaged[0].remedy}"
        " kstreams-assets windows names every window.",
        speaks_against=True,
    )


def _of_snapshots(damaged: Sequence[str]) -> Iterator[Statement]:
    if not damaged:
        return
    rest = f" (and {len(damaged) - 1} more)" if damaged[1:] else ""
    yield Statement(
        "KTable snapshots",
        f"Files of KTable snapshots are not those that were written: {damaged[0]}{rest}. Make the"
        " snapshots again (kstreams-assets ktables make --window WINDOW), or bring the files back"
        " from a copy of the warehouse.",
        speaks_against=True,
    )


def _of_rules(results: Sequence[RuleResult] | None) -> Iterator[Statement]:
    if results is None:
        yield Statement("completeness", "No completeness rule is declared.")
        return
    if not results:
        yield Statement(
            "completeness",
            "The completeness rules were never evaluated. Run kstreams-assets completeness check.",
            speaks_against=True,
        )
        return
    red = [r for r in results if r.outcome in _RED]
    for result in red:
        at = f"window {result.window}" if result.window else f"point {result.point_id}"
        yield Statement(
            "completeness",
            f"Rule {result.rule} does not hold at {at} ({result.place}): {result.explanation}",
            speaks_against=result.severity is Severity.ERROR,
        )
    unsure = sorted({r.rule for r in results if r.outcome is Outcome.NOT_VERIFIABLE})
    if unsure:
        yield Statement("completeness", f"Not verifiable: {', '.join(unsure)}.")
    if not red:
        passed = len({r.rule for r in results if r.passed})
        yield Statement("completeness", f"{passed} rules hold, as last evaluated.")


def _of_governance(findings: Sequence[OpenFinding] | None) -> Iterator[Statement]:
    if findings is None:
        yield Statement(
            "governance",
            "The cluster was never compared with what is declared. Run kstreams-assets governance.",
        )
        return
    if not findings:
        yield Statement("governance", "No finding is open.")
    for finding in findings[:_FEW]:
        yield Statement(
            "governance",
            f"{finding.check}: {finding.text}",
            speaks_against=finding.severity is Severity.ERROR,
        )
    rest = findings[_FEW:]
    if rest:
        yield Statement(
            "governance",
            f"{len(rest)} more findings: kstreams-assets governance.",
            speaks_against=any(f.severity is Severity.ERROR for f in rest),
        )


def _of_drill(facts: Facts) -> Statement:
    drill = facts.drill
    if drill is None:
        to_do = (
            "Run kstreams-assets drill."
            if facts.drill_declared
            else "Give drill.command in the YAML, then run kstreams-assets drill."
        )
        return Statement("drill", f"No restore drill was ever made. {to_do}", speaks_against=True)
    at = iso_time(drill.began_at_ms)
    if not drill.passed:
        return Statement(
            "drill", f"The last drill ({at}) failed: {drill.reason}", speaks_against=True
        )
    age_s = (facts.now_ms - drill.began_at_ms) / 1000
    took = f"{drill.total_s:.1f} s" if drill.total_s is not None else "an unknown time"
    if age_s > DRILL_IS_OLD_S:
        return Statement(
            "drill",
            f"The last drill was {age_s / _DAY_S:.0f} days ago ({at}). Run kstreams-assets drill,"
            " or let drill.every do so.",
            speaks_against=True,
        )
    if drill.objective_result is ObjectiveResult.MISSED:
        return Statement(
            "drill",
            f"The last drill ({at}) took {took}, more than the objective of {drill.objective_s:g}"
            " s. Its report says which phase took longest and what to do.",
            speaks_against=True,
        )
    objective = (
        "no objective is declared (drill.objective_seconds)"
        if drill.objective_s is None
        else f"the objective is {drill.objective_s:g} s"
    )
    return Statement("drill", f"The last drill ({at}) passed in {took}; {objective}.")


def _of_cluster(facts: Facts) -> Iterator[Statement]:
    if not facts.cluster_asked:
        return
    if facts.cluster_problem is None:
        yield Statement("cluster", "The source cluster answers.")
    else:
        yield Statement(
            "cluster",
            f"The source cluster does not answer ({facts.cluster_problem}); all of this comes from"
            " the warehouse alone, which is what a recovery needs.",
        )


@dataclass(frozen=True)
class Evidence:
    """Each part is read when it is first asked for, and once; so an object is of one moment.

    Each raises NewerLayoutError when a newer release wrote its table.
    """

    settings: ApplicationSettings

    @cached_property
    def windows(self) -> list[WindowStatus]:
        """Every closed window from the first recovery point on, oldest first."""
        return window_statuses(self.settings)

    @cached_property
    def restorable(self) -> Restorable:
        """The newest recovery points that backups cover."""
        return newest_restorable(self.settings, Contents.of(self.settings, look_s=math.inf))

    @cached_property
    def damaged(self) -> DamagedSpans:
        """Backups whose files are missing or do not match the ledger."""
        settings = self.settings
        return Ledger(settings.warehouse, settings.application_id).damaged()

    @cached_property
    def damaged_snapshots(self) -> list[tuple[Snapshot, str]]:
        """KTable snapshots whose files are missing or have another size, and what is wrong."""
        return SnapshotsTable(self.settings.warehouse).damaged(self.settings.application_id)

    @cached_property
    def rules(self) -> list[RuleStanding]:
        """How each declared rule stands at each place where it was evaluated."""
        table = ResultsTable(self.settings.warehouse)
        return table.standings(self.settings.application_id, declared_rules(self.settings))

    @cached_property
    def governance(self) -> GovernanceReport | None:
        """The newest look at the cluster, None before the first."""
        return FindingsTable(self.settings.warehouse).newest(self.settings.application_id)

    @cached_property
    def drill(self) -> StoredDrill | None:
        """The drill that was begun last, None before the first."""
        return DrillsTable(self.settings.warehouse).newest(self.settings.application_id)


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
