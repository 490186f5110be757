"""The table `drills`: every restore drill, with its report."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kstreams_assets.drill.judgement import ObjectiveResult, objective_verdict
from kstreams_assets.drill.report import DrillReport, Phase
from kstreams_assets.drill.report_yaml import report_yaml
from kstreams_assets.warehouse.control_table import ControlTable
from kstreams_assets.warehouse.layout import Warehouse

_FIELDS = {
    "drill_id": pa.string(),
    "run_id": pa.string(),
    "began_at_ms": pa.int64(),
    "ended_at_ms": pa.int64(),
    "point_id": pa.string(),
    "passed": pa.bool_(),
    "failed_phase": pa.string(),
    "reason": pa.string(),
    "objective_result": pa.string(),
    "objective_s": pa.float64(),
    "total_s": pa.float64(),
    "restore_s": pa.float64(),
    "start_s": pa.float64(),
    "catch_up_s": pa.float64(),
    "restored_records": pa.int64(),
    "restored_bytes": pa.int64(),
    "changelog_records_per_s": pa.float64(),
    "cpu_s": pa.float64(),
    "peak_memory_bytes": pa.int64(),
    "disk_written_bytes": pa.int64(),
    "state_bytes": pa.int64(),
    "report": pa.string(),
}
SCHEMA = pa.schema(
    [
        pa.field("application_id", pa.string(), nullable=False),
        *(pa.field(name, kind) for name, kind in _FIELDS.items()),
    ]
)


@dataclass(frozen=True, slots=True)
class StoredDrill:
    """One drill; None is not measured or not reached. Seconds, bytes, epoch milliseconds.

    `total_s` is from the begin of the restore to caught up, `report` the whole report as YAML.
    """

    application_id: str
    drill_id: str
    run_id: str
    began_at_ms: int
    ended_at_ms: int
    point_id: str | None
    passed: bool
    failed_phase: str | None
    reason: str
    objective_result: ObjectiveResult
    objective_s: float | None
    total_s: float | None
    restore_s: float | None
    start_s: float | None
    catch_up_s: float | None
    restored_records: int | None
    restored_bytes: int | None
    changelog_records_per_s: float | None
    cpu_s: float | None
    peak_memory_bytes: int | None
    disk_written_bytes: int | None
    state_bytes: int | None
    report: str


class DrillsTable:
    """The drills of all applications."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = ControlTable(
            warehouse.control("drills"),
            SCHEMA,
            grows_along="began_at_ms",
            statistics=("drill_id", "began_at_ms"),
        )

    def record(self, report: DrillReport) -> StoredDrill:
        """Add a drill."""
        stored = stored_drill(report)
        row = {name: getattr(stored, name) for name in SCHEMA.names}
        self._table.append([{**row, "objective_result": stored.objective_result.value}])
        return stored

    def of(self, application_id: str) -> list[StoredDrill]:
        """All drills of an application, the newest first."""
        rows = self._table.read(application_id=application_id).to_pylist()
        found = [_drill(row) for row in rows]
        return sorted(found, key=lambda d: (d.began_at_ms, d.drill_id), reverse=True)

    def newest(self, application_id: str) -> StoredDrill | None:
        """The drill that was begun last, None without any."""
        return next(iter(self.of(application_id)), None)


def stored_drill(report: DrillReport) -> StoredDrill:
    """A report as a row of the table."""
    restored, application = report.restored, report.application

    def took_s(phase: Phase) -> float | None:
        measure = report.measure(phase)
        return None if measure is None else measure.took_s

    return StoredDrill(
        application_id=report.application_id,
        drill_id=report.drill_id,
        run_id=report.run_id,
        began_at_ms=report.began_at_ms,
        ended_at_ms=report.ended_at_ms,
        point_id=restored.point_id if restored else None,
        passed=report.passed,
        failed_phase=report.failure.phase.value if report.failure else None,
        reason=report.reason,
        objective_result=objective_verdict(report).result,
        objective_s=report.objective_s,
        total_s=report.total_s,
        restore_s=took_s(Phase.RESTORE),
        start_s=took_s(Phase.START),
        catch_up_s=took_s(Phase.CATCH_UP),
        restored_records=restored.records if restored else None,
        restored_bytes=restored.bytes if restored else None,
        changelog_records_per_s=application.changelog_records_per_s if application else None,
        cpu_s=application.cpu_s if application else None,
        peak_memory_bytes=application.peak_memory_bytes if application else None,
        disk_written_bytes=application.disk_written_bytes if application else None,
        state_bytes=application.state_bytes if application else None,
        report=report_yaml(report),
    )


def _drill(row: Mapping[str, Any]) -> StoredDrill:
    result = ObjectiveResult(row["objective_result"])
    return StoredDrill(**{**row, "objective_result": result})
