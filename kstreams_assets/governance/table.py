"""The table `governance_findings`: how every check of every look at an application came out."""

from dataclasses import dataclass
from typing import Annotated, Final

from kstreams_assets.checks import Severity
from kstreams_assets.governance.findings import (
    GovernanceFinding,
    GovernanceReport,
    GovernanceVerdict,
)
from kstreams_assets.warehouse.column import ApplicationId, Column, RunId
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.table import Table

_KEPT_MS: Final = 90 * 86_400_000


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
        tuple[GovernanceFinding, ...],
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
        self._table.append([_stored(report, n, v) for n, v in enumerate(report.verdicts)])

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
            verdicts=tuple(
                GovernanceVerdict(row.check, row.looked_at, row.findings, row.not_judged)
                for row in rows
            ),
        )


def _stored(report: GovernanceReport, position: int, verdict: GovernanceVerdict) -> StoredVerdict:
    return StoredVerdict(
        application_id=report.application_id,
        judged_at_ms=report.judged_at_ms,
        run_id=report.run_id,
        cluster_id=report.cluster_id,
        position=position,
        check=verdict.check,
        passed=verdict.passed,
        severity=verdict.severity,
        looked_at=verdict.looked_at,
        not_judged=verdict.not_judged,
        findings=verdict.findings,
    )
