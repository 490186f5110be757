"""What Dagster shows of a drill and of readiness: numbers to plot, tables and the report."""

from typing import Final

import dagster as dg

from kstreams_assets.drill.judgement import bottleneck, objective_verdict, production_risks
from kstreams_assets.drill.readiness import Readiness
from kstreams_assets.drill.report import DrillReport
from kstreams_assets.drill.report_yaml import report_yaml
from kstreams_assets.markdown import plain

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
                "speaks_against": statement.speaks_against,
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
