"""Report of a drill, its verdict, and its stored forms: YAML and a table row."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

import yaml

from kstreams_assets.checks import Severity
from kstreams_assets.model.drill import ObjectiveResult, StoredDrill
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.rule_results import Outcome, RuleResult
from kstreams_assets.public_form import (
    DAGSTER,
    JSON,
    Form,
    Markdown,
    Rounded,
    Timestamp,
    Value,
    of_kind,
    only,
)
from kstreams_assets.texts import iso_time, plain


class Phase(StrEnum):
    """The parts of a drill, in order; those up to `catch_up` make up the time to recover.

    `restore`: topics are written and verified. `completeness`: the rules are evaluated, before
    `commit`, the group offsets. `start`: from the start of the process until the application is
    RUNNING, so with the restoration of its stores. `catch_up`: until its lag is zero. `comparison`:
    state and totals of the stopped application are evaluated.
    """

    RESTORE = "restore"
    COMPLETENESS = "completeness"
    COMMIT = "commit"
    START = "start"
    CATCH_UP = "catch_up"
    COMPARISON = "comparison"


class RateFrom(StrEnum):
    """The source of the measured read rate of changelogs.

    `log`: counts and times of Kafka Streams' own lines on restoration. `offsets`: records of the
    restored changelogs over the time from the start of the process to RUNNING; the start of the
    JVM and the rebalance are in it, so the true rate is higher.
    """

    LOG = "log"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True)
class PhaseMeasure:
    """Duration and resource use of a phase.

    `cpu_share` is the busy share of the processors of this machine, for all processes together.
    `io_wait_share` is the share waiting for disks. Both are None if the system does not report
    them.
    """

    phase: Phase
    took_s: float
    cpu_share: float | None = None
    io_wait_share: float | None = None


@dataclass(frozen=True, slots=True)
class LagSample:
    """Records not yet processed, `at_s` seconds after the application's start.

    An upper bound unless `counted`.
    """

    at_s: float
    records: int
    counted: bool


@dataclass(frozen=True, slots=True)
class ApplicationMeasure:
    """The application's process with all its children.

    `to_running_s` and `to_caught_up_s` count from its start, None when it did not come so far.
    `changelog_records` are those it restored its stores from, of `changelog_records_expected`; the
    rate is in records per second, None without a record. `state_bytes` is the size of its state
    directory at the end. `exit_code` is set when it ended by itself; `last_lines` of its output
    when it did not come to its end.
    """

    to_running_s: float | None
    to_caught_up_s: float | None
    changelog_records: int | None
    changelog_records_expected: int
    changelog_records_per_s: float | None
    rate_from: RateFrom | None
    cpu_s: float
    cpu_start_s: float
    cpu_catch_up_s: float
    peak_memory_bytes: int
    disk_written_bytes: int | None
    disk_read_bytes: int | None
    state_bytes: int
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreComparison:
    """A changelog in the drill's cluster: newest record of each key, then and now.

    `records_at_point` are there of `records_restored`; `records_since` were written by the
    application in the drill. Keys count with a value: `changed` have another one, `rewritten` the
    same one once more, `added` had none at the point, `deleted` have none now. `sample` are some
    keys that are not as at the point, in hexadecimal.
    """

    topic: str
    stores: tuple[str, ...]
    records_restored: int
    records_at_point: int
    records_since: int
    keys_at_point: int
    keys_now: int
    changed: int
    rewritten: int
    added: int
    deleted: int
    sample: tuple[str, ...] = ()

    @property
    def moved(self) -> int:
        """How many keys are not as at the point."""
        return self.changed + self.added + self.deleted


@dataclass(frozen=True, slots=True)
class EvaluatedRules:
    """The completeness rules and recomputed stores, `after` the application had caught up or before
    its offsets were committed."""

    after: bool
    results: tuple[RuleResult, ...]

    @property
    def when(self) -> str:
        """When they were evaluated, in words."""
        return "after catching up" if self.after else "before the offsets were committed"


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure that ended a drill early, with its phase."""

    phase: Phase
    reason: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored, and from which point; `restorability` as in `Restorability`.

    `notes` and `retention` are what the plan and the topics' own retention say of it.
    """

    point_id: str
    point_taken_at_ms: int
    restorability: str
    records: int
    bytes: int
    input_records: int
    notes: tuple[str, ...] = ()
    retention: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrillReport:
    """One drill. `restored` and `application` are None when it ended before.

    `waiting_records` had not been processed at the point (an upper bound unless
    `waiting_counted`). `objective_s` is the declared recovery time objective. `problems` are what
    the comparison of state and totals found. Epoch milliseconds.
    """

    drill_id: str
    application_id: str
    run_id: str
    began_at_ms: int
    ended_at_ms: int
    stores: tuple[str, ...]
    objective_s: float | None
    phases: tuple[PhaseMeasure, ...]
    restored: Restored | None = None
    application: ApplicationMeasure | None = None
    waiting_records: int | None = None
    waiting_counted: bool = True
    lag: tuple[LagSample, ...] = ()
    comparisons: tuple[StoreComparison, ...] = ()
    rules: tuple[EvaluatedRules, ...] = ()
    problems: tuple[str, ...] = ()
    failure: Failure | None = None
    kept: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the application recovered with the right state, regardless of the time."""
        return self.failure is None and not self.problems

    @property
    def result(self) -> str:
        """`passed` or `failed`."""
        return "passed" if self.passed else "failed"

    @property
    def total_s(self) -> float | None:
        """Time from the start of the restore until caught up; None if it never caught up."""
        if self.application is None or self.application.to_caught_up_s is None:
            return None
        own = (Phase.START, Phase.CATCH_UP, Phase.COMPARISON)
        before = sum(m.took_s for m in self.phases if m.phase not in own)
        return before + self.application.to_caught_up_s

    @property
    def reason(self) -> str:
        """Why the drill did not pass; empty if it passed."""
        if self.failure is not None:
            return self.failure.reason
        return " ".join(self.problems)

    def measure(self, phase: Phase) -> PhaseMeasure | None:
        """Return the measurement of a phase; None if the drill did not reach it."""
        return next((m for m in self.phases if m.phase is phase), None)


def with_own_times(
    phases: Sequence[PhaseMeasure], application: ApplicationMeasure | None
) -> tuple[PhaseMeasure, ...]:
    """Replace times of phases by those of the application, which do not depend on polling."""
    if application is None or application.to_running_s is None:
        return tuple(phases)
    running_s, caught_up_s = application.to_running_s, application.to_caught_up_s
    own = {Phase.START: running_s}
    if caught_up_s is not None:
        own[Phase.CATCH_UP] = caught_up_s - running_s
    return tuple(replace(m, took_s=own.get(m.phase, m.took_s)) for m in phases)


_CPU_IS_BUSY: Final = 0.85
_DISK_IS_BUSY: Final = 0.2
_ONE_CORE_IS_BUSY: Final = 0.85
_FEW: Final = 3
_RED: Final = frozenset({Outcome.VIOLATED, Outcome.FAILED})

_TO_DO: Final = {
    Phase.RESTORE: "Restore to a faster target or with more cores, changelogs from KTable snapshots"
    " (changelog_source: snapshot), inputs from the committed offsets on (inputs: tail), or verify"
    " a sample.",
    Phase.COMPLETENESS: "Make the slowest rules warn only and take them off the restore (on:), or"
    " give Spark more cores.",
    Phase.COMMIT: "See the log of the target's brokers: commits take milliseconds.",
    Phase.START: "The application loads its stores from the changelogs: fewer and smaller records"
    " (compaction, shorter retention of windows), more threads or instances, faster disks.",
    Phase.CATCH_UP: "Records waited at the point: more threads or instances, or an application that"
    " lags less.",
}


@dataclass(frozen=True, slots=True)
class ObjectiveVerdict:
    """The verdict, and what to do when it is not met."""

    result: ObjectiveResult
    explanation: str

    @property
    def passed(self) -> bool:
        """Whether the application recovered within the declared objective."""
        return self.result is ObjectiveResult.MET


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`what`: cpu, disk, waiting or not measured."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def objective_verdict(report: DrillReport) -> ObjectiveVerdict:
    """Compare the time from the start of the restore until caught up with the objective."""
    total_s, objective_s = report.total_s, report.objective_s
    if not report.passed or total_s is None:
        where = f" in phase {report.failure.phase}" if report.failure else ""
        return ObjectiveVerdict(
            ObjectiveResult.NOT_RECOVERED,
            f"The drill failed{where}: {report.reason} Correct that, and repeat the drill.",
        )
    if objective_s is None:
        return ObjectiveVerdict(
            ObjectiveResult.NOT_DECLARED,
            f"Not declared; the recovery took {total_s:.1f} s. Set drill.objective_seconds to what"
            " was agreed.",
        )
    if total_s <= objective_s:
        return ObjectiveVerdict(
            ObjectiveResult.MET,
            f"The recovery took {total_s:.1f} s of {objective_s:g} s allowed.",
        )
    longest = longest_phase(report.phases)
    most = f" Most of it, {longest.took_s:.1f} s, was phase {longest.phase}." if longest else ""
    to_do = f" {_TO_DO[longest.phase]}" if longest else ""
    return ObjectiveVerdict(
        ObjectiveResult.MISSED,
        f"The recovery took {total_s:.1f} s, {total_s - objective_s:.1f} s more than the"
        f" {objective_s:g} s allowed.{most}{to_do}",
    )


def longest_phase(phases: Sequence[PhaseMeasure]) -> PhaseMeasure | None:
    """The phase of the recovery that took longest."""
    of_recovery = [m for m in phases if m.phase is not Phase.COMPARISON]
    return max(of_recovery, key=lambda m: m.took_s, default=None)


def bottleneck(report: DrillReport) -> Bottleneck:
    """Determine what the longest phase waited for, from measurements of this machine.

    CPU time of serdes cannot be distinguished from other CPU time. The network is local to this
    machine, so that it is never the bottleneck.
    """
    longest = longest_phase(report.phases)
    if longest is None:
        return Bottleneck("not measured", "the drill ended before its first phase")
    phase = f"phase {longest.phase} of the recovery took longest, {longest.took_s:.1f} s"
    if longest.cpu_share is None:
        return Bottleneck("not measured", f"{phase}; this system does not report its load")
    busy = f"this machine's processors were {longest.cpu_share:.0%} busy meanwhile"
    own = _own_cores(longest, report.application)
    used = "" if own is None else f", the application used {own:.2f} of them"
    if longest.io_wait_share is not None and longest.io_wait_share >= _DISK_IS_BUSY:
        return Bottleneck(
            "disk", f"{phase}; the processors waited {longest.io_wait_share:.0%} of it for disks"
        )
    if longest.cpu_share >= _CPU_IS_BUSY:
        return Bottleneck("cpu", f"{phase}; {busy}{used}")
    if own is not None and own >= _ONE_CORE_IS_BUSY:
        return Bottleneck(
            "cpu", f"{phase}; {busy}, and the application kept {own:.2f} of them busy by itself"
        )
    return Bottleneck(
        "waiting",
        f"{phase}; {busy}{used}, and the processors did not wait for disks: the time was spent on"
        " program starts, rebalances, commits and requests to the broker",
    )


def _own_cores(measure: PhaseMeasure, application: ApplicationMeasure | None) -> float | None:
    """Return the number of processors that the application used in its phases."""
    if application is None or measure.took_s <= 0:
        return None
    if measure.phase is Phase.START:
        return application.cpu_start_s / measure.took_s
    if measure.phase is Phase.CATCH_UP:
        return application.cpu_catch_up_s / measure.took_s
    return None


def state_problems(
    comparisons: Iterable[StoreComparison],
    *,
    waiting: int,
    application: ApplicationMeasure | None,
) -> tuple[str, ...]:
    """Return problems of the state after catching up.

    `waiting` records were unprocessed at the point and can change and delete keys. Without such
    records, no key may have changed.
    """
    return tuple([*_compared(comparisons, waiting), *_restored(application)])


def _compared(comparisons: Iterable[StoreComparison], waiting: int) -> Iterator[str]:
    for found in comparisons:
        gone = found.records_restored - found.records_at_point
        if gone:
            yield (
                f"{found.topic}: {gone:,} of {found.records_restored:,} restored records are gone"
                " from the changelog. Find out what deletes records on the cluster of the drill"
                " (retention, compaction, DeleteRecords)."
            )
        if waiting == 0 and found.moved:
            keys = f" (keys {', '.join(found.sample)})" if found.sample else ""
            yield (
                f"{found.topic}: the application had no unprocessed records, but {found.changed:,}"
                f" keys changed, {found.added:,} are new and {found.deleted:,} are gone{keys}. The"
                " application does not continue correctly from this state: check whether it reads"
                " records twice, or changes state by wall-clock time (punctuators)."
            )


def _restored(application: ApplicationMeasure | None) -> Iterator[str]:
    if application is None or application.changelog_records is None:
        return
    found, expected = application.changelog_records, application.changelog_records_expected
    if found != expected:
        yield (
            f"The application restored its stores from {found:,} records, but its changelogs"
            f" contain {expected:,}. Check that it uses the empty state directory {{state_dir}} and"
            " that its topology is that of the backup."
        )


def rule_problems(rules: EvaluatedRules) -> tuple[str, ...]:
    """Return violated rules; rules that are not verifiable are a risk, not a failure."""
    return tuple(
        f"Rule {result.rule} does not hold {rules.when}: {result.explanation}"
        for result in rules.results
        if result.outcome in _RED and result.severity is Severity.ERROR
    )


def production_risks(report: DrillReport) -> tuple[str, ...]:
    """Return the risks for production that the drill has shown."""
    return tuple(_risks(report))


def _risks(report: DrillReport) -> Iterator[str]:
    verdict = objective_verdict(report)
    if not verdict.passed:
        yield verdict.explanation
    restored = report.restored
    if restored is not None:
        if restored.restorability != Restorability.EXACT:
            missing = "" if restored.restorability == Restorability.AT_LEAST_ONCE else " or missing"
            yield (
                f"The recovery point is {restored.restorability.replace('_', ' ')} only: records"
                f" may be processed again{missing}."
            )
        yield from restored.notes
        yield from _few(restored.retention)
    yield from _of_rules(report)
    if report.waiting_records and report.passed:
        upper = "" if report.waiting_counted else "At most "
        yield (
            f"{upper}{report.waiting_records:,} records waited at the point; their changes in the"
            " stores were counted; only rules can verify them."
        )
    yield (
        "The drill used one local broker: these times exclude replication and the network of a"
        " real cluster."
    )


def _of_rules(report: DrillReport) -> Iterator[str]:
    results: list[RuleResult] = [r for rules in report.rules for r in rules.results]
    if not results and report.failure is None:
        yield "No completeness rule is declared, so totals were not checked."
    unsure = sorted({r.rule for r in results if r.outcome is Outcome.NOT_VERIFIABLE})
    if unsure:
        yield f"Not verifiable: {', '.join(unsure)}."
    warned = sorted(
        {r.rule for r in results if r.outcome in _RED and r.severity is not Severity.ERROR}
    )
    if warned:
        yield f"Rules that warn only do not hold: {', '.join(warned)}."


def _few(texts: Sequence[str]) -> Iterator[str]:
    yield from texts[:_FEW]
    if len(texts) > _FEW:
        yield f"The same of {len(texts) - _FEW} more topics."


def report_yaml(report: DrillReport) -> str:
    """The report as YAML."""
    return yaml.safe_dump(report_document(report), sort_keys=False, allow_unicode=True, width=100)


def report_document(report: DrillReport) -> dict[str, Any]:
    """The report as plain values; seconds and bytes."""
    shown = REPORT.document(report)
    del shown["stateStores" if len(report.stores) == 1 else "stateStore"]
    return {"restoreDrill": shown}


def summary(report: DrillReport) -> list[str]:
    """Summarize the report in about ten lines."""
    restored = report.restored
    lines = [
        f"Drill {report.drill_id} of {report.application_id}:"
        f" {'passed' if report.passed else 'FAILED'}.",
        objective_verdict(report).explanation,
    ]
    if restored is not None:
        lines += [
            f"Recovery point: {restored.point_id} of {iso_time(restored.point_taken_at_ms)},"
            f" restorability {restored.restorability}.",
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
            f"State: {len(report.comparisons)} changelogs with {keys:,} keys compared, {moved:,}"
            " keys differ from the point."
        )
    results = [result for rules in report.rules for result in rules.results]
    if results:
        outcomes = Counter(result.outcome.value.replace("_", " ") for result in results)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        lines.append(f"Completeness rules: {counts}.")
    if report.passed:
        lines.append(f"Bottleneck: {bottleneck(report)}.")
    risks = [risk for risk in production_risks(report) if risk not in lines]
    if risks:
        more = f" ({len(risks) - 1} more in the report)" if len(risks) > 1 else ""
        lines.append(f"Production risk: {risks[0]}{more}")
    return lines


_SAMPLES: Final = 60
_ROWS: Final = 200


def _duration(report: DrillReport) -> str:
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


def _restored_per_s(report: DrillReport) -> int | None:
    measure = report.measure(Phase.RESTORE)
    if report.restored is None or measure is None or measure.took_s <= 0:
        return None
    return round(report.restored.records / measure.took_s)


def _bends(lag: Sequence[LagSample]) -> list[LagSample]:
    """Select samples at which the lag changed, including the first and the last sample."""
    ends = zip(lag, lag[1:], lag[2:], strict=False)
    bends = [two for one, two, three in ends if not one.records == two.records == three.records]
    inner = bends[:: max(1, -(-len(bends) // _SAMPLES))]
    return list(dict.fromkeys([*lag[:1], *inner, *lag[-1:]]))


def _rows(lag: Sequence[LagSample]) -> Sequence[LagSample] | None:
    return lag[:: max(1, -(-len(lag) // _ROWS))] or None


def _listed_risks(report: DrillReport) -> str:
    return "\n".join(f"- {plain(text)}" for text in production_risks(report))


class _Evaluated(NamedTuple):
    when: str
    result: RuleResult


def _evaluated(report: DrillReport) -> list[_Evaluated]:
    return [_Evaluated(rules.when, result) for rules in report.rules for result in rules.results]


def _took(phase: Phase) -> Value:
    return Value(f"{phase}_s", Rounded, lambda report: (m := report.measure(phase)) and m.took_s)


_POINT: Final = Form(
    Restored, "id=point_id", Value("takenAt", Timestamp, "point_taken_at_ms"), "gives=restorability"
)
_PHASE: Final = Form(
    PhaseMeasure,
    "phase",
    *of_kind(Rounded, "seconds=took_s cpuShare=cpu_share ioWaitShare=io_wait_share"),
)
_APPLICATION: Final = Form(
    ApplicationMeasure,
    *of_kind(Rounded, "secondsToRunning=to_running_s secondsToCaughtUp=to_caught_up_s"),
    "changelogRecordsRestored=changelog_records",
    "changelogRecordsExpected=changelog_records_expected",
    Value("changelogRecordsPerSecond", Rounded, "changelog_records_per_s"),
    "changelogRateFrom=rate_from",
    *of_kind(Rounded, "cpuSeconds=cpu_s cpuSecondsToRunning=cpu_start_s"),
    Value("cpuSecondsCatchingUp", Rounded, "cpu_catch_up_s"),
    "peakMemoryBytes=peak_memory_bytes diskWrittenBytes=disk_written_bytes",
    "diskReadBytes=disk_read_bytes stateDirectoryBytes=state_bytes",
    "exitCode=exit_code lastLines=last_lines",
)
_SAMPLE: Final = Form(
    LagSample,
    Value("second", float, lambda s: round(s.at_s, 1), text="After the application's start"),
    Value("records", text="Not yet processed"),
    *only(JSON, "counted"),
)
_LAG: Final = Form(
    DrillReport,
    "waitingRecords=waiting_records waitingCounted=waiting_counted",
    Value("samples", of=lambda report: _bends(report.lag), form=_SAMPLE),
)
_COMPARISON: Final = Form(
    StoreComparison,
    "changelog=topic",
    *only(
        JSON,
        "stores recordsRestored=records_restored recordsStillThere=records_at_point",
        "recordsSince=records_since keysAtPoint=keys_at_point keysNow=keys_now keysChanged=changed",
        "keysRewritten=rewritten keysAdded=added keysDeleted=deleted keysNotAsAtPoint=sample",
    ),
    *only(
        DAGSTER,
        "records_restored",
        Value("records_since", text="Written by the application in the drill"),
        "keys_at_point keys_now changed added deleted",
    ),
)
_RULE: Final = Form(
    _Evaluated,
    "rule=result.rule kind=result.kind when outcome=result.outcome severity=result.severity",
    "violations=result.violations explanation=result.explanation",
)
REPORT: Final = Form(
    DrillReport,
    *only(
        JSON,
        "app=application_id inputRecords=restored.input_records",
        Value("stateStore", of=lambda report: next(iter(report.stores), None)),
        "stateStores=stores",
        Value("localStateDeleted", of=lambda _: True),
        Value("restoreDuration", of=_duration),
        Value("correctnessCheck", of=lambda report: report.result),
    ),
    Value("bottleneck", of=lambda report: str(bottleneck(report))),
    *only(
        JSON,
        Value("productionRisk", of=lambda report: " ".join(production_risks(report))),
        "drill=drill_id runId=run_id",
        Value("beganAt", Timestamp, "began_at_ms"),
        Value("endedAt", Timestamp, "ended_at_ms"),
        Value("recoveryPoint", of="restored", form=_POINT),
        Value("reason", of=lambda report: report.reason or None),
        "failedPhase=failure.phase objectiveSeconds=objective_s",
        Value("recoverySeconds", Rounded, "total_s"),
        Value("recoveryObjective", of=lambda report: objective_verdict(report).result),
        Value("explanation", of=lambda report: objective_verdict(report).explanation),
        Value("phases", form=_PHASE),
        "restoredRecords=restored.records restoredBytes=restored.bytes",
        Value("restoredRecordsPerSecond", of=_restored_per_s),
        Value("application", form=_APPLICATION),
        Value("lag", of=lambda report: report, form=_LAG),
        Value("stateComparison", of="comparisons", form=_COMPARISON),
        Value("completeness", of=_evaluated, form=_RULE),
        "kept",
    ),
    *only(
        DAGSTER,
        "result reason",
        Value("recovery_objective", of=lambda report: objective_verdict(report).result),
        Value("production_risk", Markdown, _listed_risks),
        Value("report", Markdown, lambda report: f"```yaml\n{report_yaml(report)}```"),
        *map(_took, Phase),
        *of_kind(Rounded, "recovery_s=total_s objective_s"),
        "recovery_point=restored.point_id",
        Value("recovery_point_taken_at", Timestamp, "restored.point_taken_at_ms"),
        "restored_records=restored.records restored_bytes=restored.bytes",
        "input_records=restored.input_records waiting_records",
        *of_kind(
            Rounded,
            "to_running_s=application.to_running_s to_caught_up_s=application.to_caught_up_s",
            "changelog_records_per_s=application.changelog_records_per_s",
            "application_cpu_s=application.cpu_s",
        ),
        "changelog_records=application.changelog_records",
        "peak_memory_bytes=application.peak_memory_bytes",
        "disk_written_bytes=application.disk_written_bytes state_bytes=application.state_bytes",
        Value("state_comparison", of=lambda r: r.comparisons or None, form=_COMPARISON),
        Value("lag", of=lambda report: _rows(report.lag), form=_SAMPLE),
    ),
)
"""Public form of a drill report: the document `restoreDrill`, and the metadata of its asset."""


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
