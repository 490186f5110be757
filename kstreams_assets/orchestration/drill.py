"""The asset of the recovery drill, and what Dagster shows of it."""

from collections.abc import Mapping
from typing import Final

import dagster as dg
from pydantic import Field

from kstreams_assets.drill.readiness import Readiness, readiness
from kstreams_assets.drill.report import (
    DrillReport,
    ObjectiveResult,
    bottleneck,
    objective_verdict,
    production_risks,
    report_yaml,
)
from kstreams_assets.drill.run import DrillRequest, DrillRun, report_file
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import (
    DRILL_POOL,
    backup_key,
    drill_key,
    drill_schedule,
    group,
    recovery_points_key,
)
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import plain
from spark_resources.resource import SparkSessionResource

_Values = dict[str, dg.MetadataValue]

_COMPARISON: Final = dg.TableSchema(
    [
        dg.TableColumn("changelog", "string"),
        dg.TableColumn("records_restored", "int"),
        dg.TableColumn("records_since", "int", "Written by the application in the drill"),
        dg.TableColumn("keys_at_point", "int"),
        dg.TableColumn("keys_now", "int"),
        dg.TableColumn("changed", "int"),
        dg.TableColumn("added", "int"),
        dg.TableColumn("deleted", "int"),
    ]
)
_LAG: Final = dg.TableSchema(
    [
        dg.TableColumn("second", "float", "After the application's start"),
        dg.TableColumn("records", "int", "Not yet processed"),
    ]
)
_STATEMENTS: Final = dg.TableSchema(
    [
        dg.TableColumn("subject", "string"),
        dg.TableColumn("speaks_against", "bool"),
        dg.TableColumn("statement", "string"),
    ]
)
_ROWS: Final = 200


def drill_metadata(report: DrillReport, file: str) -> _Values:
    """Of one drill; times in seconds, sizes in bytes. `file` is the report's."""
    return {
        "result": dg.MetadataValue.text("passed" if report.passed else "failed"),
        "reason": dg.MetadataValue.text(report.reason),
        "recovery_objective": dg.MetadataValue.text(objective_verdict(report).result.value),
        "bottleneck": dg.MetadataValue.text(str(bottleneck(report))),
        "production_risk": dg.MetadataValue.md(_listed(production_risks(report))),
        "report": dg.MetadataValue.md(f"```yaml\n{report_yaml(report)}```"),
        "report_file": dg.MetadataValue.path(file),
        **_times(report),
        **_restored(report),
        **_application(report),
        **_tables(report),
    }


def readiness_metadata(readiness: Readiness) -> _Values:
    """The readiness summary."""
    rows = [
        dg.TableRecord(
            {
                "subject": statement.subject,
                "speaks_against": statement in readiness.against,
                "statement": statement.text,
            }
        )
        for statement in readiness.statements
    ]
    return {
        "ready": dg.MetadataValue.text("yes" if readiness.ready else "no"),
        "ready_why": dg.MetadataValue.text(readiness.why),
        "readiness": dg.MetadataValue.table(rows, schema=_STATEMENTS),
    }


def _times(report: DrillReport) -> _Values:
    values: _Values = {
        f"{measure.phase}_s": dg.MetadataValue.float(round(measure.took_s, 2))
        for measure in report.phases
    }
    if report.total_s is not None:
        values["recovery_s"] = dg.MetadataValue.float(round(report.total_s, 2))
    if report.objective_s is not None:
        values["objective_s"] = dg.MetadataValue.float(float(report.objective_s))
    return values


def _restored(report: DrillReport) -> _Values:
    restored = report.restored
    if restored is None:
        return {}
    values: _Values = {
        "recovery_point": dg.MetadataValue.text(restored.point_id),
        "recovery_point_taken_at": dg.MetadataValue.timestamp(restored.point_taken_at_ms / 1000),
        "restored_records": dg.MetadataValue.int(restored.records),
        "restored_bytes": dg.MetadataValue.int(restored.bytes),
        "input_records": dg.MetadataValue.int(restored.input_records),
    }
    if report.waiting_records is not None:
        values["waiting_records"] = dg.MetadataValue.int(report.waiting_records)
    return values


def _application(report: DrillReport) -> _Values:
    measure = report.application
    if measure is None:
        return {}
    numbers: dict[str, float | int | None] = {
        "to_running_s": measure.to_running_s,
        "to_caught_up_s": measure.to_caught_up_s,
        "changelog_records": measure.changelog_records,
        "changelog_records_per_s": measure.changelog_records_per_s,
        "application_cpu_s": measure.cpu_s,
        "peak_memory_bytes": measure.peak_memory_bytes,
        "disk_written_bytes": measure.disk_written_bytes,
        "state_bytes": measure.state_bytes,
    }
    return {
        name: dg.MetadataValue.int(value)
        if isinstance(value, int)
        else dg.MetadataValue.float(round(value, 2))
        for name, value in numbers.items()
        if value is not None
    }


def _tables(report: DrillReport) -> _Values:
    values: _Values = {}
    if report.comparisons:
        rows = [
            dg.TableRecord(
                {
                    "changelog": one.topic,
                    "records_restored": one.records_restored,
                    "records_since": one.records_since,
                    "keys_at_point": one.keys_at_point,
                    "keys_now": one.keys_now,
                    "changed": one.changed,
                    "added": one.added,
                    "deleted": one.deleted,
                }
            )
            for one in report.comparisons
        ]
        values["state_comparison"] = dg.MetadataValue.table(rows, schema=_COMPARISON)
    if report.lag:
        samples = report.lag[:: max(1, -(-len(report.lag) // _ROWS))]
        rows = [
            dg.TableRecord({"second": round(sample.at_s, 1), "records": sample.records})
            for sample in samples
        ]
        values["lag"] = dg.MetadataValue.table(rows, schema=_LAG)
    return values


def _listed(texts: tuple[str, ...]) -> str:
    return "\n".join(f"- {plain(text)}" for text in texts)


DRILL_CHECKS: Final[Mapping[str, str]] = {
    "recovery_objective_met": (
        "From the begin of the restore until the application had caught up no more time passed than"
        " was declared, and its state and totals were right. Red: the drill failed, or took longer;"
        " the phase that took longest is named, and what to do. A warning: no objective is"
        " declared."
    ),
}
"""Checks of the asset `<app>/drill`."""


class DrillConfig(dg.Config):
    """One drill; as it stands of the newest recovery point that is enough."""

    as_of: str | None = Field(
        default=None,
        description="Restore the newest recovery point that was complete at this time: ISO 8601"
        " with a time zone, as 2026-11-21T14:30:00Z.",
    )
    point_id: str | None = Field(default=None, description="Restore this recovery point.")
    keep: bool = Field(
        default=False,
        description="Keep the local cluster, the state directory and the application's log.",
    )

    def request(self) -> DrillRequest:
        """The request; raises ConfigurationError where settings contradict each other."""
        return DrillRequest.of(self.as_of, self.point_id, keep=self.keep)


def build_drill_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The drills of an application; none where nothing says how it is started.

    Needs the resource `spark` (`SparkSessionResource`).
    """
    return [_drill_asset(settings)] if settings.drill.command else []


def build_drill_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """The schedule of an application's drills, where one is declared; on from the start if the
    application's sensors are."""
    drill = settings.drill
    if not drill.command or drill.every is None:
        return []
    running, stopped = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    return [
        dg.ScheduleDefinition(
            name=drill_schedule(settings.application_id),
            target=[drill_key(settings.application_id)],
            cron_schedule=drill.every,
            execution_timezone="UTC",
            default_status=running if settings.sensors_running else stopped,
            description=f"Restore drills of `{settings.application_id}`.",
            tags={"kstreams/app": settings.application_id},
        )
    ]


def _drill_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    application_id = settings.application_id
    key = drill_key(application_id)

    @dg.asset(
        key=key,
        deps=[
            recovery_points_key(application_id),
            *(backup_key(application_id, topic.name) for topic in settings.topics),
        ],
        description=(
            f"`{application_id}`, restored into a throwaway cluster of this machine and started"
            " there with an empty state directory: how long it takes until it has caught up, and"
            " whether its state is right. The source cluster is not touched."
        ),
        group_name=group(application_id, "drill"),
        kinds={"kafka", "drill"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        metadata={"dagster/uri": str(settings.warehouse.control("drills"))},
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text)
            for name, text in DRILL_CHECKS.items()
        ],
        pool=DRILL_POOL,
    )
    def drill(
        context: dg.AssetExecutionContext, config: DrillConfig, spark: SparkSessionResource
    ) -> dg.MaterializeResult:
        run = DrillRun(settings, spark, context.run.run_id, log=context.log.info)
        with told_as_failure():
            report = run.execute(config.request())
            ready = readiness(settings)
        file = str(report_file(settings, report.drill_id))
        return dg.MaterializeResult(
            metadata={**drill_metadata(report, file), **readiness_metadata(ready)},
            check_results=[check_result(report)],
        )

    return drill


def check_result(report: DrillReport) -> dg.AssetCheckResult:
    """The check `recovery_objective_met` as Dagster shows it."""
    verdict = objective_verdict(report)
    not_declared = verdict.result is ObjectiveResult.NOT_DECLARED
    return dg.AssetCheckResult(
        asset_key=drill_key(report.application_id),
        check_name="recovery_objective_met",
        passed=verdict.passed,
        severity=dg.AssetCheckSeverity.WARN if not_declared else dg.AssetCheckSeverity.ERROR,
        description=verdict.explanation,
        metadata={
            name: value
            for name, value in (
                ("recovery_s", report.total_s),
                ("objective_s", report.objective_s),
            )
            if value is not None
        },
    )
