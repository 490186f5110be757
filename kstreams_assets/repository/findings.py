"""The table of governance reports."""

from kstreams_assets.checks import Evaluation, Finding
from kstreams_assets.model.governance_report import (
    GovernanceReport,
    StoredFinding,
    StoredVerdict,
    evaluation_of,
)
from kstreams_assets.model.tables import FINDINGS
from kstreams_assets.repository.table import ApplicationTable


class FindingsTable(ApplicationTable[StoredVerdict], spec=FINDINGS):
    """Reports of one application, one row for each check; kept for 90 days."""

    def record(self, report: GovernanceReport) -> None:
        """Add a report; old ones are dropped occasionally."""
        self._table.append([_stored(report, n, v) for n, v in enumerate(report.evaluations)])

    def newest(self) -> GovernanceReport | None:
        """The newest report, None before the first.

        Raises:
            NewerLayoutError: A newer release wrote the table.
        """
        rows = self._table.newest_rows(1)
        if not rows:
            return None
        run_id = max(row.run_id for row in rows)  # of two in one millisecond
        rows = sorted((r for r in rows if r.run_id == run_id), key=lambda r: r.position)
        return GovernanceReport(
            application_id=self._application_id,
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
