"""Evaluations say what was found, how bad it is and in which windows."""

from dataclasses import replace

from kstreams_assets.checks import (
    Evaluation,
    Finding,
    Outcome,
    Severity,
    by_window,
    failed,
    passed,
    problem_lines,
    short_text,
)

BAD = Finding("orders", "Two records are missing.", action="Back up again.")
ODD = Finding("orders", "3 partitions", "4", "Add one.", Severity.WARN)


def test_a_failed_check_is_as_bad_as_its_worst_finding_which_comes_first() -> None:
    both = failed("complete", "orders", [ODD, BAD])
    assert both.is_red
    assert both.explanation == (
        "Two records are missing. Back up again. 3 partitions; expected: 4. Add one."
    )
    assert not failed("complete", "orders", [ODD]).is_red


def test_the_subject_is_named_where_the_check_is_of_something_else() -> None:
    assert failed("complete", "", [BAD]).explanation.startswith("orders: Two records")


def test_of_many_findings_the_first_are_shown_and_the_rest_is_counted() -> None:
    assert failed("complete", "orders", [BAD] * 12).explanation.endswith("And 2 more.")


def test_what_was_not_judged_is_said_of_a_check_that_passed() -> None:
    found = passed("complete", "orders", "4 records.", not_judged=["no limit is declared."])
    assert found.explanation == "4 records. Not evaluated: no limit is declared."


def test_what_cannot_be_verified_is_neither_passed_nor_red() -> None:
    unsure = Evaluation("complete", "orders", Outcome.NOT_VERIFIABLE)
    assert not unsure.passed
    assert not unsure.is_red
    assert Evaluation("complete", "orders", Outcome.ERROR).is_red


def test_one_cause_in_several_windows_is_one_line() -> None:
    windows = [failed("complete", "orders", [BAD], window=key) for key in ("w1", "w2", "w3")]
    other = failed("aligned", "orders", [replace(ODD, found="5 partitions")], window="w2")
    assert problem_lines([*windows, other, passed("complete", "fine", "All.")]) == [
        "ERROR orders complete in 3 windows, w1 to w3: Two records are missing. Back up again.",
        "WARN orders aligned w2: 5 partitions; expected: 4. Add one.",
    ]
    assert by_window([replace(other, window="")]) == ["5 partitions; expected: 4. Add one."]
    assert short_text([*windows[:1], other]) == "RED: complete; WARN: aligned"
    assert short_text([passed("complete", "fine", "All.")] * 2) == "2 passed"
