"""What measurements of a drill mean."""

from dataclasses import replace

import pytest

from kstreams_assets.checks import Severity
from kstreams_assets.drill.report import (
    EvaluatedRules,
    Failure,
    Phase,
    bottleneck,
    objective_verdict,
    production_risks,
    rule_problems,
    state_problems,
    with_own_times,
)
from kstreams_assets.model.drill import ObjectiveResult
from kstreams_assets.model.rule_results import Outcome
from tests.drill.reports import APPLICATION, COMPARISON, REPORT, RULE, with_phase


class TestObjective:
    """From the begin of the restore to caught up, against what was declared."""

    def test_met(self) -> None:
        assert REPORT.total_s == 20.0 + 5.0 + 0.5 + 6.5
        verdict = objective_verdict(REPORT)
        assert verdict.passed
        assert verdict.explanation == "The recovery took 32.0 s of 60 s allowed."

    def test_judging_is_no_part_of_the_recovery(self) -> None:
        assert objective_verdict(replace(REPORT, objective_s=32.0)).passed

    def test_missed_names_the_longest_phase_and_what_to_do(self) -> None:
        verdict = objective_verdict(replace(REPORT, objective_s=1.0))
        assert verdict.result is ObjectiveResult.MISSED
        assert "31.0 s more than the 1 s allowed" in verdict.explanation
        assert "20.0 s, was phase restore" in verdict.explanation
        assert "inputs: tail" in verdict.explanation

    def test_not_declared(self) -> None:
        verdict = objective_verdict(replace(REPORT, objective_s=None))
        assert verdict.result is ObjectiveResult.NOT_DECLARED
        assert "drill.objective_seconds" in verdict.explanation

    def test_a_wrong_state_in_time_is_no_recovery(self) -> None:
        verdict = objective_verdict(replace(REPORT, problems=("Totals are wrong.",)))
        assert verdict.result is ObjectiveResult.NOT_RECOVERED
        assert "Totals are wrong." in verdict.explanation

    def test_never_running(self) -> None:
        failure = Failure(Phase.START, "It was not RUNNING.")
        stopped = replace(APPLICATION, to_running_s=None, to_caught_up_s=None)
        report = replace(REPORT, failure=failure, application=stopped)
        assert report.total_s is None
        verdict = objective_verdict(report)
        assert verdict.result is ObjectiveResult.NOT_RECOVERED
        assert "failed in phase start: It was not RUNNING." in verdict.explanation


class TestBottleneck:
    """Of the phase that took longest, as far as it was measured."""

    def test_of_the_longest_phase(self) -> None:
        found = bottleneck(with_phase(Phase.RESTORE, cpu_share=0.95))
        assert found.what == "cpu"
        assert "phase restore of the recovery took longest, 20.0 s" in found.reason
        assert "95% busy" in found.reason

    def test_disk(self) -> None:
        found = bottleneck(with_phase(Phase.RESTORE, cpu_share=0.3, io_wait_share=0.4))
        assert found.what == "disk"
        assert "waited 40%" in found.reason

    def test_waiting(self) -> None:
        assert bottleneck(with_phase(Phase.RESTORE, cpu_share=0.3)).what == "waiting"

    def test_one_core_of_many(self) -> None:
        report = with_phase(Phase.CATCH_UP, took_s=50.0, cpu_share=0.2)
        busy = replace(report, application=replace(APPLICATION, cpu_catch_up_s=49.0))
        found = bottleneck(busy)
        assert found.what == "cpu"
        assert "kept 0.98 of them busy" in found.reason
        assert bottleneck(report).what == "waiting"

    def test_not_measured(self) -> None:
        assert bottleneck(with_phase(Phase.RESTORE, cpu_share=None)).what == "not measured"
        assert bottleneck(replace(REPORT, phases=())).what == "not measured"


class TestState:
    """The state after catching up against the state at the point."""

    def test_as_it_was(self) -> None:
        assert state_problems([COMPARISON], waiting=0, application=APPLICATION) == ()

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"changed": 3}, "3 keys changed"),
            ({"added": 2}, "2 are new"),
            ({"deleted": 1, "sample": ("6b",)}, "1 are gone (keys 6b)"),
        ],
    )
    def test_a_change_though_nothing_waited(self, change: dict[str, int], told: str) -> None:
        found = replace(COMPARISON, **change)  # pyright: ignore[reportArgumentType]
        (problem,) = state_problems([found], waiting=0, application=APPLICATION)
        assert told in problem
        assert "no unprocessed records" in problem

    def test_waiting_records_may_change_and_delete_keys(self) -> None:
        found = replace(COMPARISON, changed=3, added=2, deleted=1)
        assert state_problems([found], waiting=1, application=APPLICATION) == ()

    def test_restored_records_that_are_gone(self) -> None:
        found = replace(COMPARISON, records_at_point=899)
        (problem,) = state_problems([found], waiting=5, application=APPLICATION)
        assert "1 of 900 restored records are gone" in problem

    def test_stores_that_were_not_restored_from_all_of_it(self) -> None:
        seen = replace(APPLICATION, changelog_records=10)
        (problem,) = state_problems([COMPARISON], waiting=0, application=seen)
        assert "from 10 records, but its changelogs contain 900" in problem
        unknown = replace(APPLICATION, changelog_records=None)
        assert state_problems([COMPARISON], waiting=0, application=unknown) == ()


class TestRules:
    """Completeness rules and recomputed stores."""

    def _problems(self, **change: object) -> tuple[str, ...]:
        result = replace(RULE, **change)  # pyright: ignore[reportArgumentType]
        return rule_problems(EvaluatedRules(after=True, results=(result,)))

    @pytest.mark.parametrize("outcome", [Outcome.VIOLATED, Outcome.FAILED])
    def test_red(self, outcome: Outcome) -> None:
        (problem,) = self._problems(outcome=outcome, explanation="An order is missing.")
        assert "nothing_is_lost does not hold after catching up: An order is missing." in problem

    def test_a_warning_or_not_verifiable_is_a_risk_only(self) -> None:
        assert self._problems(outcome=Outcome.VIOLATED, severity=Severity.WARN) == ()
        assert self._problems(outcome=Outcome.NOT_VERIFIABLE) == ()
        for change, told in (
            ({"outcome": Outcome.NOT_VERIFIABLE}, "Not verifiable: nothing_is_lost."),
            ({"outcome": Outcome.VIOLATED, "severity": Severity.WARN}, "warn only do not hold"),
        ):
            result = replace(RULE, **change)  # pyright: ignore[reportArgumentType]
            rules = (EvaluatedRules(after=True, results=(result,)),)
            assert told in " ".join(production_risks(replace(REPORT, rules=rules)))


class TestRisks:
    """What an operator should know."""

    def test_of_a_good_drill(self) -> None:
        (risk,) = production_risks(REPORT)
        assert "one local broker" in risk

    def test_a_point_that_is_not_exact(self) -> None:
        assert REPORT.restored is not None
        restored = replace(
            REPORT.restored, restorability="at_least_once", notes=("A note.",), retention=("r",) * 5
        )
        risks = production_risks(replace(REPORT, restored=restored))
        assert "is at least once only" in risks[0]
        assert risks[1] == "A note."
        assert "The same of 2 more topics." in risks

    def test_no_rules(self) -> None:
        risks = production_risks(replace(REPORT, rules=()))
        assert "No completeness rule is declared" in " ".join(risks)

    def test_missed(self) -> None:
        risks = production_risks(replace(REPORT, objective_s=1.0))
        assert "more than the 1 s allowed" in risks[0]


def test_the_applications_own_times_count() -> None:
    phases = with_own_times(REPORT.phases, replace(APPLICATION, to_running_s=3.0))
    assert {m.phase: m.took_s for m in phases}[Phase.START] == 3.0
    assert {m.phase: m.took_s for m in phases}[Phase.CATCH_UP] == 3.5
    never = replace(APPLICATION, to_running_s=None, to_caught_up_s=None)
    assert with_own_times(REPORT.phases, never) == REPORT.phases
