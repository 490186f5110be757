"""completeness/checks.py: which checks there are, and what a result is worth."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.app.rules import CompletenessRule, Place, Recomputation, Scope
from kstreams_assets.checks import Severity
from kstreams_assets.completeness.result import AT_WINDOWS, ON_RESTORES, counts, rule_checks
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.rule_results import Outcome, explanation_of, is_red, severity_of
from kstreams_assets.settings import ApplicationSettings
from tests.completeness.outcomes import result, rule
from tests.ktables.samples import settings


def with_rules(folder: Path, *rules: CompletenessRule, stores: tuple[str, ...] = ()):
    """The application with these rules and recomputed stores."""
    recomputed = tuple(Recomputation(store=store, source="orders.eu") for store in stores)
    return replace(settings(folder), completeness=rules, recomputed=recomputed)


@pytest.fixture
def everything(tmp_path: Path) -> ApplicationSettings:
    """Rules of every place, and a recomputed store."""
    return with_rules(
        tmp_path,
        rule("on_backups", on=frozenset({Place.BACKUP})),
        rule("on_tables", on=frozenset({Place.KTABLES})),
        rule("on_restores", on=frozenset({Place.RESTORE})),
        rule("everywhere"),
        stores=("to-tals",),
    )


def test_a_rule_is_checked_where_it_holds_a_recomputed_store_everywhere(
    everything: ApplicationSettings,
) -> None:
    at_windows = {check.rule for check in rule_checks(everything, AT_WINDOWS)}
    on_restores = {check.rule for check in rule_checks(everything, ON_RESTORES)}
    assert at_windows == {"on_backups", "on_tables", "everywhere", "recompute_to-tals"}
    assert on_restores == {"on_restores", "everywhere", "recompute_to-tals"}


def test_the_name_of_a_check_is_one_that_dagster_takes(everything: ApplicationSettings) -> None:
    (store,) = [c for c in rule_checks(everything, AT_WINDOWS) if c.rule == "recompute_to-tals"]
    assert store.name == "recompute_to_tals"
    assert "`to-tals`, recomputed from `orders.eu`" in store.claim


def test_two_names_that_dagster_takes_for_one(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'recompute_a-b' and 'recompute_a\.b' have the same check name"
    ):
        rule_checks(with_rules(tmp_path, stores=("a-b", "a.b")), AT_WINDOWS)


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (rule(description="Orders are counted."), "Orders are counted. Red: the evaluation lists"),
        (rule(balance="a == b"), "Balance: `a == b`. Red:"),
        (
            rule(),
            "This query returns no row:\n\n```sql\nSELECT * FROM orders WHERE amount < 0\n```",
        ),
        (rule(scope=Scope.WINDOW), "The rule covers records since the previous window."),
        (rule(severity=Severity.WARN), "A violation is a warning"),
    ],
)
def test_what_the_check_claims(tmp_path: Path, declared: CompletenessRule, text: str) -> None:
    (check,) = rule_checks(with_rules(tmp_path, declared), AT_WINDOWS)
    assert text in check.claim


@pytest.mark.parametrize(
    ("declared", "blocking"),
    [
        (rule(), True),
        (rule(blocking=False), False),
        (rule(severity=Severity.WARN), False),
    ],
)
def test_only_errors_block(tmp_path: Path, declared: CompletenessRule, blocking: bool) -> None:
    (check,) = rule_checks(with_rules(tmp_path, declared), ON_RESTORES)
    assert check.blocking is blocking


@pytest.mark.parametrize(
    ("outcome", "declared", "severity", "red"),
    [
        (Outcome.PASSED, Severity.ERROR, Severity.ERROR, False),
        (Outcome.VIOLATED, Severity.ERROR, Severity.ERROR, True),
        (Outcome.VIOLATED, Severity.WARN, Severity.WARN, False),
        (Outcome.FAILED, Severity.WARN, Severity.ERROR, True),
        (Outcome.NOT_VERIFIABLE, Severity.ERROR, Severity.WARN, False),
    ],
)
def test_severity(outcome: Outcome, declared: Severity, severity: Severity, red: bool) -> None:
    found = result(outcome, severity=declared)
    assert severity_of(found) is severity
    assert is_red(found) is red


def test_what_is_not_verifiable_is_said_to_be_so_once() -> None:
    found = result(Outcome.NOT_VERIFIABLE)
    text = "Not verifiable exactly: It is not_verifiable. Do something."
    assert not found.passed
    assert explanation_of(found) == text
    assert explanation_of(replace(found, explanation=text)) == text
    assert explanation_of(result(Outcome.VIOLATED)) == "It is violated. Do something."


def test_counts() -> None:
    found = counts([result(), result(Outcome.FAILED), result(Outcome.FAILED)])
    assert found == {
        Outcome.PASSED: 1,
        Outcome.VIOLATED: 0,
        Outcome.NOT_VERIFIABLE: 0,
        Outcome.FAILED: 2,
    }
