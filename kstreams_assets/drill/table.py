"""The table `drills`: every restore drill, with its report."""

from dataclasses import dataclass
from typing import Annotated

from kstreams_assets.drill.judgement import ObjectiveResult, objective_verdict
from kstreams_assets.drill.report import DrillReport, Phase
from kstreams_assets.drill.report_yaml import report_yaml
from kstreams_assets.warehouse.column import ApplicationId, Column
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.table import Table


@dataclass(frozen=True, slots=True)
class StoredDrill:
    """One drill, a row of the table; None is not measured or not reached."""

    application_id: ApplicationId
    drill_id: Annotated[str, Column("The drill.", nullable=True)]
    run_id: Annotated[str, Column("Dagster run, or `cli-...`.", nullable=True)]
    began_at_ms: Annotated[int, Column("When it began, epoch milliseconds.", nullable=True)]
    ended_at_ms: Annotated[int, Column("When it ended, epoch milliseconds.", nullable=True)]
    point_id: Annotated[
        str | None, Column("The recovery point; null when it ended before one was chosen.")
    ]
    passed: Annotated[
        bool,
        Column(
            "Whether the application came back with the right state, however long it took.",
            nullable=True,
        ),
    ]
    failed_phase: Annotated[str | None, Column("Phase in which it ended before its end.")]
    reason: Annotated[str, Column("Why it did not pass; empty when it did.", nullable=True)]
    objective_result: Annotated[
        ObjectiveResult,
        Column("`met`, `missed`, `not_recovered` or `not_declared`.", nullable=True),
    ]
    objective_s: Annotated[float | None, Column("The declared recovery time objective, seconds.")]
    total_s: Annotated[
        float | None,
        Column("From the begin of the restore to caught up; null when it never was."),
    ]
    restore_s: Annotated[float | None, Column("Of it, writing and verifying topics.")]
    start_s: Annotated[float | None, Column("From the start of the application to RUNNING.")]
    catch_up_s: Annotated[float | None, Column("From there to caught up.")]
    restored_records: Annotated[int | None, Column("Records restored.")]
    restored_bytes: Annotated[int | None, Column("Their size, about.")]
    changelog_records_per_s: Annotated[
        float | None, Column("How fast the application read its changelogs.")
    ]
    cpu_s: Annotated[float | None, Column("Processor time of the application, with its children.")]
    peak_memory_bytes: Annotated[int | None, Column("The most memory that it had.")]
    disk_written_bytes: Annotated[int | None, Column("What it wrote to disk.")]
    state_bytes: Annotated[int | None, Column("Size of its state directory at the end.")]
    report: Annotated[str, Column("The whole report `restoreDrill`, as YAML.", nullable=True)]


class DrillsTable:
    """The drills of all applications."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("drills"),
            StoredDrill,
            grows_along="began_at_ms",
            statistics=("drill_id", "began_at_ms"),
        )

    def record(self, report: DrillReport) -> StoredDrill:
        """Add a drill."""
        stored = stored_drill(report)
        self._table.append([stored])
        return stored

    def of(self, application_id: str) -> list[StoredDrill]:
        """All drills of an application, the newest first."""
        found = self._table.rows(application_id)
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
