"""What a drill found, the verdict on it, and how it is stored: as YAML, as a table row."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final

import yaml

from kstreams_assets.checks import Severity
from kstreams_assets.completeness.result import Outcome, RuleResult
from kstreams_assets.layout import Warehouse
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.column import ApplicationId, Column
from kstreams_assets.warehouse.judge import Restores
from kstreams_assets.warehouse.restores import StoredRestore
from kstreams_assets.warehouse.table import Table


class Phase(StrEnum):
    """The parts of a drill, in order; those up to `catch_up` make up the time to recover.

    `restore`: topics are written and verified. `completeness`: the rules are evaluated, before
    `commit`, the group offsets. `start`: from the start of the process until the application is
    RUNNING, so with the restoration of its stores. `catch_up`: until its lag is zero. `comparison`:
    the stopped application's state and totals are judged.
    """

    RESTORE = "restore"
    COMPLETENESS = "completeness"
    COMMIT = "commit"
    START = "start"
    CATCH_UP = "catch_up"
    COMPARISON = "comparison"


class RateFrom(StrEnum):
    """Where the rate at which changelogs were read comes from.

    `log`: counts and times of Kafka Streams' own lines on restoration. `offsets`: records of the
    restored changelogs over the time from the start of the process to RUNNING; the start of the
    JVM and the rebalance are in it, so the true rate is higher.
    """

    LOG = "log"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True)
class PhaseMeasure:
    """How long a phase took, and what it used.

    `cpu_share` is the share of this machine's processors that were busy, whoever used them,
    `io_wait_share` the share that waited for disks; None where the system does not tell.
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


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a drill before its end, in which phase."""

    phase: Phase
    reason: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored, and from which point; `gives` as in `Restores`.

    `notes` and `retention` are what the plan and the topics' own retention say of it.
    """

    point_id: str
    point_taken_at_ms: int
    gives: str
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
        """Whether the application came back with the right state, however long it took."""
        return self.failure is None and not self.problems

    @property
    def total_s(self) -> float | None:
        """From the begin of the restore to caught up; None when it never was."""
        if self.application is None or self.application.to_caught_up_s is None:
            return None
        own = (Phase.START, Phase.CATCH_UP, Phase.COMPARISON)
        before = sum(m.took_s for m in self.phases if m.phase not in own)
        return before + self.application.to_caught_up_s

    @property
    def reason(self) -> str:
        """Why it did not pass, empty when it did."""
        if self.failure is not None:
            return self.failure.reason
        return " ".join(self.problems)

    def measure(self, phase: Phase) -> PhaseMeasure | None:
        """What was measured of a phase, None when the drill did not come to it."""
        return next((m for m in self.phases if m.phase is phase), None)


def with_own_times(
    phases: Sequence[PhaseMeasure], application: ApplicationMeasure | None
) -> tuple[PhaseMeasure, ...]:
    """The phases with the application's own times, which do not depend on when it was looked at."""
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


class ObjectiveResult(StrEnum):
    """How the time to recover stands to the declared objective."""

    MET = "met"
    MISSED = "missed"
    NOT_RECOVERED = "not_recovered"
    NOT_DECLARED = "not_declared"


@dataclass(frozen=True, slots=True)
class ObjectiveVerdict:
    """The verdict, and what to do when it is not met."""

    result: ObjectiveResult
    explanation: str

    @property
    def passed(self) -> bool:
        """Whether the application came back in the time that was declared."""
        return self.result is ObjectiveResult.MET


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`what`: cpu, disk, waiting or not measured."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def objective_verdict(report: DrillReport) -> ObjectiveVerdict:
    """Hold the time from the begin of the restore to caught up against the objective."""
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
    told = f" Most of it, {longest.took_s:.1f} s, was phase {longest.phase}." if longest else ""
    to_do = f" {_TO_DO[longest.phase]}" if longest else ""
    return ObjectiveVerdict(
        ObjectiveResult.MISSED,
        f"The recovery took {total_s:.1f} s, {total_s - objective_s:.1f} s more than the"
        f" {objective_s:g} s allowed.{told}{to_do}",
    )


def longest_phase(phases: Sequence[PhaseMeasure]) -> PhaseMeasure | None:
    """The phase of the recovery that took longest."""
    of_recovery = [m for m in phases if m.phase is not Phase.COMPARISON]
    return max(of_recovery, key=lambda m: m.took_s, default=None)


def bottleneck(report: DrillReport) -> Bottleneck:
    """What the longest phase waited for, as far as this machine shows it.

    CPU that decodes records (serde) cannot be told from other CPU. The network is this machine's
    own, so it is never named.
    """
    longest = longest_phase(report.phases)
    if longest is None:
        return Bottleneck("not measured", "the drill ended before its first phase")
    told = f"phase {longest.phase} took longest, {longest.took_s:.1f} s"
    if longest.cpu_share is None:
        return Bottleneck("not measured", f"{told}; this system does not tell how busy it was")
    busy = f"this machine's processors were {longest.cpu_share:.0%} busy meanwhile"
    own = _own_cores(longest, report.application)
    used = "" if own is None else f", the application used {own:.2f} of them"
    if longest.io_wait_share is not None and longest.io_wait_share >= _DISK_IS_BUSY:
        return Bottleneck(
            "disk", f"{told}; the processors waited {longest.io_wait_share:.0%} of it for disks"
        )
    if longest.cpu_share >= _CPU_IS_BUSY:
        return Bottleneck("cpu", f"{told}; {busy}{used}")
    if own is not None and own >= _ONE_CORE_IS_BUSY:
        return Bottleneck(
            "cpu", f"{told}; {busy}, and the application kept {own:.2f} of them busy by itself"
        )
    return Bottleneck(
        "waiting",
        f"{told}; {busy}{used}, and disks were not waited for: the time went into starting"
        " programs, rebalances, commits and answers of the broker",
    )


def _own_cores(measure: PhaseMeasure, application: ApplicationMeasure | None) -> float | None:
    """How many processors the application kept busy in a phase of its own."""
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
    """What is wrong with the state after catching up.

    `waiting` records had not been processed at the point: they may change and delete keys. Where
    none waited, nothing may have changed.
    """
    return tuple([*_compared(comparisons, waiting), *_restored(application)])


def _compared(comparisons: Iterable[StoreComparison], waiting: int) -> Iterator[str]:
    for found in comparisons:
        gone = found.records_restored - found.records_at_point
        if gone:
            yield (
                f"{found.topic}: {gone:,} of {found.records_restored:,} restored records are gone"
                " from the changelog. See who deletes records on the drill's cluster (retention,"
                " compaction, DeleteRecords)."
            )
        if waiting == 0 and found.moved:
            keys = f" (keys {', '.join(found.sample)})" if found.sample else ""
            yield (
                f"{found.topic}: nothing was waiting for the application, but {found.changed:,}"
                f" keys changed, {found.added:,} are new and {found.deleted:,} are gone{keys}. The"
                " application does not continue from this state as it should: see whether it reads"
                " records twice, or acts by wall clock (punctuators)."
            )


def _restored(application: ApplicationMeasure | None) -> Iterator[str]:
    if application is None or application.changelog_records is None:
        return
    found, expected = application.changelog_records, application.changelog_records_expected
    if found != expected:
        yield (
            f"The application restored its stores from {found:,} records, its changelogs hold"
            f" {expected:,}. Check that it starts with the empty state directory it is given"
            " ({state_dir}) and has the topology that the backup was made of."
        )


def rule_problems(rules: EvaluatedRules) -> tuple[str, ...]:
    """Rules that do not hold; those that cannot be verified are a risk, no failure."""
    when = "after catching up" if rules.after else "before the offsets were committed"
    return tuple(
        f"Rule {result.rule} does not hold {when}: {result.explanation}"
        for result in rules.results
        if result.outcome in _RED and result.severity is Severity.ERROR
    )


def production_risks(report: DrillReport) -> tuple[str, ...]:
    """What an operator should know before relying on this, from what was seen."""
    return tuple(_risks(report))


def _risks(report: DrillReport) -> Iterator[str]:
    verdict = objective_verdict(report)
    if not verdict.passed:
        yield verdict.explanation
    restored = report.restored
    if restored is not None:
        if restored.gives != Restores.EXACT:
            missing = "" if restored.gives == Restores.AT_LEAST_ONCE else " or missing"
            yield (
                f"The recovery point gives {restored.gives.replace('_', ' ')} only: records may be"
                f" processed again{missing}."
            )
        yield from restored.notes
        yield from _few(restored.retention)
    yield from _of_rules(report)
    if report.waiting_records and report.passed:
        upper = "" if report.waiting_counted else "At most "
        yield (
            f"{upper}{report.waiting_records:,} records waited at the point; what they changed in"
            " the stores was counted, and only rules can tell whether it is right."
        )
    yield (
        "One broker of this machine was restored to: replication and the network of another"
        " cluster are not in these times."
    )


def _of_rules(report: DrillReport) -> Iterator[str]:
    results: list[RuleResult] = [r for rules in report.rules for r in rules.results]
    if not results and report.failure is None:
        yield "No completeness rule is declared: that totals are right was not checked."
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

    def without_drills(
        self, application_id: str, restores: Iterable[StoredRestore]
    ) -> list[StoredRestore]:
        """The restores that no drill made, in the order given.

        Restores of earlier releases are told apart by the reports of the drills.
        """
        is_drill = self.are_drills(application_id)
        return [restore for restore in restores if not is_drill(restore)]

    def are_drills(self, application_id: str) -> Callable[[StoredRestore], bool]:
        """Which restores drills made."""
        runs = {drill.run_id for drill in self.of(application_id)}
        return lambda restore: restore.is_of_drill or restore.run_id in runs

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
