"""What a check of an application's governance says, and the table that keeps it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from kstreams_assets.checks import Evaluation, Finding, Outcome, Severity, worst
from kstreams_assets.layout import Warehouse
from kstreams_assets.warehouse.column import ApplicationId, Column, RunId
from kstreams_assets.warehouse.table import Table

NOTHING_COMPARED: Final = "Nothing was compared."
"""What a check says that had nothing to look at; it has not passed."""


def evaluation_of(
    check: str, looked_at: str, findings: Iterable[Finding], not_judged: Iterable[str]
) -> Evaluation:
    """How a check came out: it passed only if something was compared and nothing was found."""
    found = tuple(findings)
    outcome = Outcome.FAILED if found else Outcome.PASSED
    if not found and looked_at == NOTHING_COMPARED:
        outcome = Outcome.NOT_VERIFIABLE
    return Evaluation(
        check,
        "",
        outcome,
        found,
        looked_at,
        severity=worst(finding.severity for finding in found),
        not_judged=tuple(not_judged),
    )


@dataclass(frozen=True, slots=True)
class GovernanceReport:
    """All checks of an application at one instant (epoch milliseconds)."""

    application_id: str
    run_id: str
    cluster_id: str
    judged_at_ms: int
    evaluations: tuple[Evaluation, ...]

    @property
    def is_red(self) -> bool:
        """Whether an error was found."""
        return any(evaluation.is_red for evaluation in self.evaluations)

    def of_severity(self, severity: Severity) -> list[Finding]:
        """All findings that are so bad."""
        return [f for e in self.evaluations for f in e.findings if f.severity is severity]


_KEPT_MS: Final = 90 * 86_400_000


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """A finding as it is stored; `remedy` is its action."""

    subject: str
    found: str
    expected: str
    remedy: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """One check of one report."""

    application_id: ApplicationId
    judged_at_ms: Annotated[int, Column("When the cluster was looked at, epoch milliseconds.")]
    run_id: RunId
    cluster_id: Annotated[str, Column("Id of the Kafka cluster.")]
    position: Annotated[int, Column("Place of the check in the report.", type="int32")]
    check: Annotated[str, Column("The check.")]
    passed: Annotated[bool, Column("Whether nothing was found.")]
    severity: Annotated[Severity, Column("How bad it is when it failed.")]
    looked_at: Annotated[str, Column("What was compared.")]
    not_judged: Annotated[tuple[str, ...], Column("What could not be looked at, and why.")]
    findings: Annotated[
        tuple[StoredFinding, ...],
        Column("Topic, store or application (`subject`), what is, what should be, what to do."),
    ]


class FindingsTable:
    """Reports of all applications, one row for each check; kept for 90 days."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("governance_findings"),
            StoredVerdict,
            grows_along="judged_at_ms",
            statistics=("judged_at_ms",),
            kept=_KEPT_MS,
        )

    def record(self, report: GovernanceReport) -> None:
        """Add a report; old ones go now and then."""
        self._table.append([_stored(report, n, v) for n, v in enumerate(report.evaluations)])

    def newest(self, application_id: str) -> GovernanceReport | None:
        """The newest report of an application, None before the first.

        Raises:
            NewerLayoutError: A newer release wrote the table.
        """
        rows = self._table.newest_rows(application_id, 1)
        if not rows:
            return None
        run_id = max(row.run_id for row in rows)  # of two in one millisecond
        rows = sorted((r for r in rows if r.run_id == run_id), key=lambda r: r.position)
        return GovernanceReport(
            application_id=application_id,
            run_id=run_id,
            cluster_id=rows[0].cluster_id,
            judged_at_ms=rows[0].judged_at_ms,
            evaluations=tuple(
                evaluation_of(
                    row.check,
                    row.looked_at,
                    (
                        Finding(f.subject, f.found, f.expected, f.remedy, f.severity)
                        for f in row.findings
                    ),
                    row.not_judged,
                )
                for row in rows
            ),
        )


def _stored(report: GovernanceReport, position: int, found: Evaluation) -> StoredVerdict:
    return StoredVerdict(
        application_id=report.application_id,
        judged_at_ms=report.judged_at_ms,
        run_id=report.run_id,
        cluster_id=report.cluster_id,
        position=position,
        check=found.check,
        passed=not found.findings,
        severity=found.severity,
        looked_at=found.summary,
        not_judged=found.not_judged,
        findings=tuple(
            StoredFinding(f.subject, f.found, f.expected, f.action, f.severity)
            for f in found.findings
        ),
    )
