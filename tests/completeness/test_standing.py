"""What a point is worth decides whether a rule passed, is violated, or cannot be judged."""

import pytest

from kstreams_assets.completeness.result import Outcome
from kstreams_assets.completeness.rule import Scope
from kstreams_assets.completeness.runnable import (
    Judged,
    Standing,
    failed,
    judged,
    late_records,
    listed,
    no_snapshot,
    not_run,
    window_not_backed_up,
    without_windows,
)

EXACT = Standing()
LATE = "orders-0 begins at offset 100 in the backup"


def outcome(
    standing: Standing, violations: int, *, is_balance: bool = True, **more: str
) -> Outcome:
    return judged(standing, violations, "point-1", is_balance=is_balance, **more).outcome


def test_an_exact_covered_point_decides() -> None:
    assert outcome(EXACT, 0) is Outcome.PASSED
    assert outcome(EXACT, 3) is Outcome.VIOLATED
    assert judged(EXACT, 3, "point-1", is_balance=True).explanation.startswith(
        "3 rows in violation at recovery point point-1"
    )


def test_where_records_may_repeat_nothing_is_proved() -> None:
    repeating = Standing(repeats="The application runs at_least_once")
    assert outcome(repeating, 0) is Outcome.NOT_VERIFIABLE
    assert outcome(repeating, 1) is Outcome.NOT_VERIFIABLE
    text = judged(repeating, 0, "point-1", is_balance=False).explanation
    assert "The application runs at_least_once" in text


@pytest.mark.parametrize(
    "standing",
    [
        Standing(unproven="compaction may have taken records."),
        Standing(unknown="The recovery point does not know totals."),
    ],
)
def test_a_doubt_excuses_a_violation_and_takes_nothing_from_a_pass(standing: Standing) -> None:
    assert outcome(standing, 0) is Outcome.PASSED
    assert outcome(standing, 1) is Outcome.NOT_VERIFIABLE
    doubt = standing.unproven or standing.unknown
    assert doubt in judged(standing, 1, "point-1", is_balance=True).explanation


def test_compaction_excuses_balances_only() -> None:
    compacted = "compaction removed records of rates before they were backed up."
    assert outcome(EXACT, 1, compacted=compacted) is Outcome.NOT_VERIFIABLE
    assert outcome(EXACT, 1, compacted=compacted, is_balance=False) is Outcome.VIOLATED


def test_what_is_not_covered_is_not_even_run() -> None:
    standing = Standing(not_covered="Recovery point point-1: Not covered: orders-0.")
    assert standing.keeps_from_judging(is_balance=False)
    found = not_run(standing, Scope.EVERYTHING)
    assert found.outcome is Outcome.NOT_VERIFIABLE
    assert "Not covered: orders-0" in found.explanation
    assert found.explanation.endswith("Back up the windows that are due, then evaluate again.")


def test_a_balance_of_what_began_late_says_to_use_windows() -> None:
    standing = Standing(incomplete=LATE)
    assert standing.keeps_from_judging(is_balance=True)
    found = not_run(standing, Scope.EVERYTHING)
    assert found.outcome is Outcome.NOT_VERIFIABLE
    assert found.explanation.startswith(LATE)
    assert found.explanation.endswith("Use scope: window.")
    assert "balance" in not_run(standing, Scope.EVERYTHING, is_recomputed=True).explanation
    assert "scope" not in not_run(standing, Scope.WINDOW).explanation


def test_other_rules_are_judged_on_what_is_there_and_say_so() -> None:
    standing = Standing(incomplete=LATE)
    assert not standing.keeps_from_judging(is_balance=False)
    for violations, expected in ((0, Outcome.PASSED), (2, Outcome.VIOLATED)):
        found = judged(standing, violations, "point-1", is_balance=False)
        assert found.outcome is expected
        assert LATE in found.explanation


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (no_snapshot(["sums"]), "sums"),
        (late_records(1_200, 0), "1,200 records"),
        (late_records(1, 3), "3 differences"),
        (without_windows(), "leave restore out"),
        (window_not_backed_up("w7"), "Window w7"),
    ],
)
def test_what_cannot_be_verified_says_why(found: Judged, told: str) -> None:
    assert found.outcome is Outcome.NOT_VERIFIABLE
    assert told in found.explanation


def test_a_rule_that_fails_says_what_spark_said() -> None:
    found = failed("[UNRESOLVED_COLUMN] no column amout.")
    assert found.outcome is Outcome.FAILED
    assert "no column amout." in found.explanation


def test_only_the_first_few_are_listed() -> None:
    assert listed([]) == ""
    assert listed(str(number) for number in range(5)) == "0; 1; 2; and 2 more"
