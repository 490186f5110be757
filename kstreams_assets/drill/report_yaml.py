"""The report of a drill as a document: the block `restoreDrill`, written as YAML. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import yaml

from kstreams_assets.drill.judgement import bottleneck, objective_verdict, production_risks
from kstreams_assets.drill.report import (
    ApplicationMeasure,
    DrillReport,
    EvaluatedRules,
    LagSample,
    Phase,
    PhaseMeasure,
    StoreComparison,
)
from kstreams_assets.recovery.point import iso_time

_SAMPLES = 60


def report_yaml(report: DrillReport) -> str:
    """The report as YAML."""
    return yaml.safe_dump(report_document(report), sort_keys=False, allow_unicode=True, width=100)


def report_document(report: DrillReport) -> dict[str, Any]:
    """The report as plain values; seconds and bytes."""
    verdict = objective_verdict(report)
    restored = report.restored
    return {
        "restoreDrill": {
            "app": report.application_id,
            "inputRecords": restored.input_records if restored else None,
            **_stores(report.stores),
            "localStateDeleted": True,
            "restoreDuration": _duration(report),
            "correctnessCheck": "passed" if report.passed else "failed",
            "bottleneck": str(bottleneck(report)),
            "productionRisk": " ".join(production_risks(report)),
            "drill": report.drill_id,
            "runId": report.run_id,
            "beganAt": iso_time(report.began_at_ms),
            "endedAt": iso_time(report.ended_at_ms),
            "recoveryPoint": {
                "id": restored.point_id,
                "takenAt": iso_time(restored.point_taken_at_ms),
                "gives": restored.gives,
            }
            if restored
            else None,
            "reason": report.reason or None,
            "failedPhase": report.failure.phase.value if report.failure else None,
            "objectiveSeconds": report.objective_s,
            "recoverySeconds": _rounded(report.total_s),
            "recoveryObjective": verdict.result.value,
            "explanation": verdict.explanation,
            "phases": [_phase(measure) for measure in report.phases],
            "restoredRecords": restored.records if restored else None,
            "restoredBytes": restored.bytes if restored else None,
            "restoredRecordsPerSecond": _restored_per_s(report),
            "application": _application(report.application),
            "lag": _lag(report),
            "stateComparison": [_comparison(one) for one in report.comparisons],
            "completeness": [row for rules in report.rules for row in _rules(rules)],
            "kept": report.kept,
        }
    }


def summary(report: DrillReport) -> list[str]:
    """The report in about ten lines, for people."""
    restored = report.restored
    lines = [
        f"Drill {report.drill_id} of {report.application_id}:"
        f" {'passed' if report.passed else 'FAILED'}.",
        objective_verdict(report).explanation,
    ]
    if restored is not None:
        lines += [
            f"Recovery point: {restored.point_id} of {iso_time(restored.point_taken_at_ms)},"
            f" gives {restored.gives}.",
            f"Restored: {restored.records:,} records, {restored.bytes:,} bytes, read back and"
            " compared.",
        ]
    if report.phases:
        lines.append(
            "Phases: " + ", ".join(f"{m.phase} {m.took_s:.1f} s" for m in report.phases) + "."
        )
    if report.comparisons:
        keys = sum(comparison.keys_at_point for comparison in report.comparisons)
        moved = sum(comparison.moved for comparison in report.comparisons)
        lines.append(
            f"State: {len(report.comparisons)} changelogs with {keys:,} keys compared,"
            f" {moved:,} keys are not as at the point."
        )
    results = [result for rules in report.rules for result in rules.results]
    if results:
        outcomes = Counter(result.outcome.value.replace("_", " ") for result in results)
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        lines.append(f"Completeness rules: {told}.")
    if report.passed:
        lines.append(f"Bottleneck: {bottleneck(report)}.")
    risks = [risk for risk in production_risks(report) if risk not in lines]
    if risks:
        more = f" ({len(risks) - 1} more in the report)" if len(risks) > 1 else ""
        lines.append(f"Before you rely on it: {risks[0]}{more}")
    return lines


def _stores(stores: tuple[str, ...]) -> dict[str, Any]:
    if len(stores) == 1:
        return {"stateStore": stores[0]}
    return {"stateStores": list(stores)}


def _duration(report: DrillReport) -> str | None:
    parts = [
        f"{label} {measure.took_s:.1f} s"
        for phase, label in (
            (Phase.RESTORE, "topics"),
            (Phase.START, "start and stores"),
            (Phase.CATCH_UP, "catching up"),
        )
        if (measure := report.measure(phase)) is not None
    ]
    if report.total_s is None:
        return f"not recovered ({', '.join(parts)})" if parts else "not recovered"
    return f"{report.total_s:.1f} s ({', '.join(parts)})"


def _phase(measure: PhaseMeasure) -> dict[str, Any]:
    return {
        "phase": measure.phase.value,
        "seconds": round(measure.took_s, 2),
        "cpuShare": _rounded(measure.cpu_share),
        "ioWaitShare": _rounded(measure.io_wait_share),
    }


def _restored_per_s(report: DrillReport) -> int | None:
    measure = report.measure(Phase.RESTORE)
    if report.restored is None or measure is None or measure.took_s <= 0:
        return None
    return round(report.restored.records / measure.took_s)


def _application(measure: ApplicationMeasure | None) -> dict[str, Any] | None:
    if measure is None:
        return None
    return {
        "secondsToRunning": _rounded(measure.to_running_s),
        "secondsToCaughtUp": _rounded(measure.to_caught_up_s),
        "changelogRecordsRestored": measure.changelog_records,
        "changelogRecordsExpected": measure.changelog_records_expected,
        "changelogRecordsPerSecond": _rounded(measure.changelog_records_per_s),
        "changelogRateFrom": measure.rate_from.value if measure.rate_from else None,
        "cpuSeconds": round(measure.cpu_s, 2),
        "cpuSecondsToRunning": round(measure.cpu_start_s, 2),
        "cpuSecondsCatchingUp": round(measure.cpu_catch_up_s, 2),
        "peakMemoryBytes": measure.peak_memory_bytes,
        "diskWrittenBytes": measure.disk_written_bytes,
        "diskReadBytes": measure.disk_read_bytes,
        "stateDirectoryBytes": measure.state_bytes,
        "exitCode": measure.exit_code,
        "lastLines": list(measure.last_lines),
    }


def _lag(report: DrillReport) -> dict[str, Any]:
    return {
        "waitingRecords": report.waiting_records,
        "waitingCounted": report.waiting_counted,
        "samples": [
            {"second": round(s.at_s, 1), "records": s.records, "counted": s.counted}
            for s in _shown(report.lag)
        ],
    }


def _shown(lag: Sequence[LagSample]) -> list[LagSample]:
    """Where the lag changed, thinned out; the first and the last always."""
    ends = zip(lag, lag[1:], lag[2:], strict=False)
    bends = [two for one, two, three in ends if not one.records == two.records == three.records]
    inner = bends[:: max(1, -(-len(bends) // _SAMPLES))]
    return list(dict.fromkeys([*lag[:1], *inner, *lag[-1:]]))


def _comparison(one: StoreComparison) -> dict[str, Any]:
    return {
        "changelog": one.topic,
        "stores": list(one.stores),
        "recordsRestored": one.records_restored,
        "recordsStillThere": one.records_at_point,
        "recordsSince": one.records_since,
        "keysAtPoint": one.keys_at_point,
        "keysNow": one.keys_now,
        "keysChanged": one.changed,
        "keysRewritten": one.rewritten,
        "keysAdded": one.added,
        "keysDeleted": one.deleted,
        "keysNotAsAtPoint": list(one.sample),
    }


def _rules(rules: EvaluatedRules) -> list[dict[str, Any]]:
    return [
        {
            "rule": result.rule,
            "kind": result.kind.value,
            "when": "after catching up" if rules.after else "before the offsets were committed",
            "outcome": result.outcome.value,
            "severity": result.severity.value,
            "violations": result.violations,
            "explanation": result.explanation,
        }
        for result in rules.results
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
