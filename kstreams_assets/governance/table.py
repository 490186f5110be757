"""The table `governance_findings`: how every check of every look at an application came out."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from kstreams_assets.backup.verdicts import Severity
from kstreams_assets.governance.findings import (
    GovernanceFinding,
    GovernanceReport,
    GovernanceVerdict,
)
from kstreams_assets.warehouse.control_table import ControlTable
from kstreams_assets.warehouse.layout import Warehouse

_FINDING = pa.struct(
    [
        ("subject", pa.string()),
        ("found", pa.string()),
        ("expected", pa.string()),
        ("remedy", pa.string()),
        ("severity", pa.string()),
    ]
)

SCHEMA = pa.schema(
    [
        pa.field("application_id", pa.string(), nullable=False),
        pa.field("judged_at_ms", pa.int64(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("cluster_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("check", pa.string(), nullable=False),
        pa.field("passed", pa.bool_(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("looked_at", pa.string(), nullable=False),
        pa.field("not_judged", pa.list_(pa.string())),
        pa.field("findings", pa.list_(_FINDING)),
    ]
)

_KEPT_MS: Final = 90 * 86_400_000


class FindingsTable:
    """Reports of all applications, one row for each check; kept for 90 days."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = ControlTable(
            warehouse.control("governance_findings"),
            SCHEMA,
            grows_along="judged_at_ms",
            statistics=("judged_at_ms",),
            kept=_KEPT_MS,
        )

    def record(self, report: GovernanceReport) -> None:
        """Add a report; old ones go now and then."""
        self._table.append([_row(report, n, v) for n, v in enumerate(report.verdicts)])

    def newest(self, application_id: str) -> GovernanceReport | None:
        """The newest report of an application, None before the first.

        Raises:
            NewerLayoutError: A newer release wrote the table.
        """
        rows = self._table.read_newest(application_id, 1).to_pylist()
        if not rows:
            return None
        run_id = max(row["run_id"] for row in rows)  # of two in one millisecond
        rows = sorted((r for r in rows if r["run_id"] == run_id), key=lambda r: r["position"])
        return GovernanceReport(
            application_id=application_id,
            run_id=run_id,
            cluster_id=rows[0]["cluster_id"],
            judged_at_ms=rows[0]["judged_at_ms"],
            verdicts=tuple(_verdict(row) for row in rows),
        )


def _row(report: GovernanceReport, position: int, verdict: GovernanceVerdict) -> dict[str, Any]:
    return {
        "application_id": report.application_id,
        "judged_at_ms": report.judged_at_ms,
        "run_id": report.run_id,
        "cluster_id": report.cluster_id,
        "position": position,
        "check": verdict.check,
        "passed": verdict.passed,
        "severity": verdict.severity.value,
        "looked_at": verdict.looked_at,
        "not_judged": list(verdict.not_judged),
        "findings": [asdict(finding) for finding in verdict.findings],
    }


def _verdict(row: Mapping[str, Any]) -> GovernanceVerdict:
    return GovernanceVerdict(
        check=row["check"],
        looked_at=row["looked_at"],
        findings=tuple(
            GovernanceFinding(**{**each, "severity": Severity(each["severity"])})
            for each in row["findings"] or ()
        ),
        not_judged=tuple(row["not_judged"] or ()),
    )
