"""Reports of drills, made up."""

from dataclasses import replace

from kstreams_assets.app.rules import Place
from kstreams_assets.checks import Severity
from kstreams_assets.drill.report import (
    ApplicationMeasure,
    DrillReport,
    EvaluatedRules,
    LagSample,
    Phase,
    PhaseMeasure,
    RateFrom,
    Restored,
    StoreComparison,
)
from kstreams_assets.model.rule_results import Outcome, RuleKind, RuleResult

APPLICATION = ApplicationMeasure(
    to_running_s=4.0,
    to_caught_up_s=6.5,
    changelog_records=900,
    changelog_records_expected=900,
    changelog_records_per_s=450.0,
    rate_from=RateFrom.LOG,
    cpu_s=5.0,
    cpu_start_s=3.0,
    cpu_catch_up_s=2.0,
    peak_memory_bytes=200_000_000,
    disk_written_bytes=1_000_000,
    disk_read_bytes=0,
    state_bytes=300_000,
)
COMPARISON = StoreComparison(
    topic="shop-totals-changelog",
    stores=("totals",),
    records_restored=900,
    records_at_point=900,
    records_since=0,
    keys_at_point=100,
    keys_now=100,
    changed=0,
    rewritten=0,
    added=0,
    deleted=0,
)
RULE = RuleResult(
    application_id="shop",
    rule="nothing_is_lost",
    kind=RuleKind.RULE,
    place=Place.RESTORE,
    point_id="p1",
    window=None,
    outcome=Outcome.PASSED,
    explanation="Holds.",
    severity=Severity.ERROR,
    blocking=True,
    evaluated_at_ms=1_000,
)
REPORT = DrillReport(
    drill_id="20261122T030000-abcdef",
    application_id="shop",
    run_id="run",
    began_at_ms=1_795_000_000_000,
    ended_at_ms=1_795_000_060_000,
    stores=("totals",),
    objective_s=60.0,
    phases=(
        PhaseMeasure(Phase.RESTORE, 20.0, cpu_share=0.5, io_wait_share=0.0),
        PhaseMeasure(Phase.COMPLETENESS, 5.0, cpu_share=0.9, io_wait_share=0.0),
        PhaseMeasure(Phase.COMMIT, 0.5, cpu_share=0.1, io_wait_share=0.0),
        PhaseMeasure(Phase.START, 4.0, cpu_share=0.6, io_wait_share=0.0),
        PhaseMeasure(Phase.CATCH_UP, 2.5, cpu_share=0.4, io_wait_share=0.0),
        PhaseMeasure(Phase.COMPARISON, 100.0, cpu_share=1.0, io_wait_share=0.0),
    ),
    restored=Restored(
        point_id="p1",
        point_taken_at_ms=1_794_999_000_000,
        restorability="exact",
        records=2_000,
        bytes=1_000_000,
        input_records=1_000,
    ),
    application=APPLICATION,
    waiting_records=0,
    lag=(LagSample(0.1, 0, counted=True),),
    comparisons=(COMPARISON,),
    rules=(EvaluatedRules(after=True, results=(RULE,)),),
)


def with_phase(phase: Phase, **changes: float | None) -> DrillReport:
    """The report with another measure of a phase."""
    phases = tuple(
        replace(m, **changes) if m.phase is phase else m  # pyright: ignore[reportArgumentType]
        for m in REPORT.phases
    )
    return replace(REPORT, phases=phases)
