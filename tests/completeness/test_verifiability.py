"""The verifiability of a point decides about the outcome of a rule."""

from dataclasses import replace

import pytest

from kstreams_assets.app.rules import CompletenessRule, Scope
from kstreams_assets.completeness.repeats import Repeats
from kstreams_assets.completeness.runnable import RuleOutcome, Runnable, Verifiability
from kstreams_assets.model.rule_results import Outcome, RuleKind
from kstreams_assets.texts import few

LATE = "orders-0 starts at offset 100 in the backup"
RULE = Runnable(CompletenessRule(name="plain", query="SELECT 1", views=()), RuleKind.RULE, {})
BALANCE = replace(RULE, rule=RULE.rule.model_copy(update={"balance": "a == b"}))
OF_WINDOW = replace(BALANCE, rule=BALANCE.rule.model_copy(update={"scope": Scope.WINDOW}))
RECOMPUTED = replace(RULE, kind=RuleKind.RECOMPUTE)
REPEATS = Verifiability(repeats="The application runs at_least_once")
OWN_REPEATS = replace(REPEATS, within=Repeats(12))
UNPROVEN = Verifiability(unproven="compaction may have removed records.")
UNKNOWN = Verifiability(unknown="The recovery point does not know totals.")
COMPACTED = "compaction removed records of rates before they were backed up."


@pytest.mark.parametrize(
    ("rule", "verifiability", "violations", "compacted", "outcome", "told"),
    [
        (BALANCE, Verifiability(), 0, "", Outcome.PASSED, "Holds at recovery point point-1."),
        (
            BALANCE,
            Verifiability(),
            3,
            "",
            Outcome.VIOLATED,
            "3 rows in violation at recovery point",
        ),
        (BALANCE, REPEATS, 0, "", Outcome.NOT_VERIFIABLE, REPEATS.repeats),
        (RULE, REPEATS, 1, "", Outcome.NOT_VERIFIABLE, REPEATS.repeats),
        # Of an at-least-once application itself.
        (BALANCE, OWN_REPEATS, 0, "", Outcome.PASSED, "up to 12 repeats"),
        (RULE, OWN_REPEATS, 12, "", Outcome.NOT_VERIFIABLE, "up to 12 records may be repeated"),
        (RULE, OWN_REPEATS, 13, "", Outcome.VIOLATED, "than 12 repeats explain"),
        (RULE, replace(REPEATS, within=Repeats(0)), 1, "", Outcome.VIOLATED, "1 row in violation"),
        (RULE, replace(REPEATS, within=Repeats(0)), 0, "", Outcome.PASSED, "Holds at"),
        # A doubt excuses a violation and takes nothing from a pass.
        (BALANCE, UNPROVEN, 0, "", Outcome.PASSED, ""),
        (BALANCE, UNPROVEN, 1, "", Outcome.NOT_VERIFIABLE, UNPROVEN.unproven),
        (BALANCE, UNKNOWN, 0, "", Outcome.PASSED, ""),
        (RULE, UNKNOWN, 1, "", Outcome.NOT_VERIFIABLE, UNKNOWN.unknown),
        # Compaction excuses balances and recomputations only.
        (BALANCE, Verifiability(), 1, COMPACTED, Outcome.NOT_VERIFIABLE, COMPACTED),
        (RECOMPUTED, Verifiability(), 1, COMPACTED, Outcome.NOT_VERIFIABLE, COMPACTED),
        (RULE, Verifiability(), 1, COMPACTED, Outcome.VIOLATED, ""),
        # Other rules are evaluated on the present records, and report that.
        (RULE, Verifiability(incomplete=LATE), 0, "", Outcome.PASSED, LATE),
        (RULE, Verifiability(incomplete=LATE), 2, "", Outcome.VIOLATED, LATE),
    ],
)
def test_a_rule_that_was_run(
    rule: Runnable,
    verifiability: Verifiability,
    violations: int,
    compacted: str,
    outcome: Outcome,
    told: str,
) -> None:
    assert rule.why_not_run(verifiability) is None
    found = rule.outcome(verifiability, violations, "point-1", compacted=compacted)
    assert found.outcome is outcome
    assert told in found.explanation


@pytest.mark.parametrize(
    ("rule", "verifiability", "remedy"),
    [
        (
            RULE,
            Verifiability(not_covered="Not covered: x."),
            "Back up the due windows, then",
        ),
        (BALANCE, Verifiability(incomplete=LATE), "a balance of all records cannot be evaluated"),
        (
            OF_WINDOW,
            Verifiability(incomplete=LATE),
            "Back up more often than retention removes records",
        ),
        (RECOMPUTED, Verifiability(incomplete=LATE), "Check it with a balance of scope: window."),
    ],
)
def test_a_rule_that_need_not_be_run(
    rule: Runnable, verifiability: Verifiability, remedy: str
) -> None:
    found = rule.why_not_run(verifiability)
    assert isinstance(found, RuleOutcome)
    assert found.outcome is Outcome.NOT_VERIFIABLE
    assert found.explanation.startswith(verifiability.not_covered or LATE)
    assert remedy in found.explanation


def test_only_the_first_few_are_listed() -> None:
    assert few([]) == ""
    assert few(range(5), by="; ") == "0; 1; 2; and 2 more"
    assert (few(range(5), 4), few("ab")) == ("0, 1, 2, 3 and 1 more", "a, b")


@pytest.mark.parametrize(
    ("unexplained", "outcome"), [(0, Outcome.PASSED), (2, Outcome.VIOLATED), (40, Outcome.VIOLATED)]
)
def test_what_repeats_explain_of_a_balance(unexplained: int, outcome: Outcome) -> None:
    found = BALANCE.outcome(OWN_REPEATS, 40, "point-1", unexplained=unexplained)
    assert found.outcome is outcome
    assert "12 repeats" in found.explanation
