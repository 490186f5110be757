"""What the warehouse tells of restores, drills, completeness rules and governance."""

import time
from collections.abc import Iterator

from kstreams_assets.backup.verdicts import Severity
from kstreams_assets.completeness.result import Outcome
from kstreams_assets.drill.evidence import Evidence
from kstreams_assets.drill.judgement import ObjectiveResult
from kstreams_assets.drill.readiness import judge_readiness
from kstreams_assets.drill.readiness_facts import facts_of
from kstreams_assets.drill.report import Phase
from kstreams_assets.metrics import catalogue
from kstreams_assets.metrics.sample import Sample
from kstreams_assets.restore.restores_table import RestoresTable, RestoreState


def restore_samples(evidence: Evidence) -> Iterator[Sample]:
    """The restore that was begun last, and how many are open."""
    settings = evidence.settings
    restores = RestoresTable(settings.warehouse).all(settings.application_id)
    yield catalogue.RESTORES_OPEN.sample(sum(not restore.is_finished for restore in restores))
    if restores:
        newest = restores[0]
        yield from catalogue.RESTORE_STATE.one_of(newest.state.value, RestoreState)
        yield catalogue.RESTORE_TIME.sample(newest.changed_at_ms / 1000)


def completeness_samples(evidence: Evidence) -> Iterator[Sample]:
    """How each declared rule came out, at each place where it was evaluated."""
    for standing in evidence.rules:
        result = standing.newest
        labels = {"rule": result.rule, "place": result.place.value}
        yield from catalogue.RULE_OUTCOME.one_of(result.outcome.value, Outcome, **labels)
        yield catalogue.RULE_VIOLATIONS.sample(result.violations, **labels)
        yield catalogue.RULE_TIME.sample(result.evaluated_at_ms / 1000, **labels)
        for outcome, count in standing.evaluations.items():
            yield catalogue.RULE_EVALUATIONS.sample(count, **labels, outcome=outcome.value)


def governance_samples(evidence: Evidence) -> Iterator[Sample]:
    """How many findings each check had the last time."""
    report = evidence.governance
    if report is None:
        return
    yield catalogue.GOVERNANCE_TIME.sample(report.judged_at_ms / 1000)
    for verdict in report.verdicts:
        for severity in Severity:
            found = sum(finding.severity is severity for finding in verdict.findings)
            labels = {"check": verdict.check, "severity": severity.value}
            yield catalogue.GOVERNANCE_FINDINGS.sample(found, **labels)


def drill_samples(evidence: Evidence) -> Iterator[Sample]:
    """The drill that was begun last, and the declared time to recover."""
    objective_s = evidence.settings.drill.objective_s
    if objective_s is not None:
        yield catalogue.RECOVERY_OBJECTIVE.sample(objective_s)
    drill = evidence.drill
    if drill is None:
        return
    yield catalogue.DRILL_TIME.sample(drill.ended_at_ms / 1000)
    yield catalogue.DRILL_PASSED.sample(drill.passed)
    yield from catalogue.DRILL_OBJECTIVE.one_of(drill.objective_result.value, ObjectiveResult)
    if drill.total_s is not None:
        yield catalogue.DRILL_SECONDS.sample(drill.total_s)
    took_s = {
        Phase.RESTORE: drill.restore_s,
        Phase.START: drill.start_s,
        Phase.CATCH_UP: drill.catch_up_s,
    }
    for phase, seconds in took_s.items():
        if seconds is not None:
            yield catalogue.DRILL_PHASE_SECONDS.sample(seconds, phase=phase.value)


def readiness_samples(evidence: Evidence) -> Iterator[Sample]:
    """Whether the application could be recovered right now."""
    facts = facts_of(evidence, time.time_ns() // 1_000_000)
    yield catalogue.READY.sample(judge_readiness(facts).ready)
