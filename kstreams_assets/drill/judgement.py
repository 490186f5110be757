"""What the measurements of a drill mean: objective, bottleneck, risks, state. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kstreams_assets.backup.point_judge import Restores
from kstreams_assets.backup.verdicts import Severity
from kstreams_assets.completeness.result import Outcome, RuleResult
from kstreams_assets.drill.report import (
    ApplicationMeasure,
    DrillReport,
    EvaluatedRules,
    Phase,
    PhaseMeasure,
    StoreComparison,
)

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
            yield (
                f"The recovery point gives {restored.gives.replace('_', ' ')} only: records may be"
                " processed again or missing."
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
