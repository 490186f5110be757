"""How rules and recomputations of stores came out: stored results, and what they are checks of."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kstreams_assets.app.names import folded
from kstreams_assets.app.rules import CompletenessRule, Place, Scope
from kstreams_assets.checks import Severity
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.rule_results import Outcome, RuleResult
from kstreams_assets.rules.recompute import RULE_PREFIX
from kstreams_assets.settings import ApplicationSettings

NULL: Final = "null"
"""How a null is shown; an empty text is another value."""
AT_WINDOWS: Final = frozenset({Place.BACKUP, Place.KTABLES})
ON_RESTORES: Final = frozenset({Place.RESTORE})


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """The asset check of a rule or of a recomputed store.

    `rule` is the name in results, `name` that of the check (Dagster takes letters, digits and
    underscores). `blocking`: where it does not hold, a restore stops before the group offsets.
    """

    rule: str
    name: str
    claim: str
    blocking: bool


def rule_checks(settings: ApplicationSettings, places: frozenset[Place]) -> tuple[RuleCheck, ...]:
    """The checks of the rules that hold at one of these places, and of every recomputed store.

    Raises:
        ConfigurationError: Dagster would take two of the rules for one.
    """
    checks = [
        *(_of_rule(rule) for rule in settings.completeness if {*rule.on} & places),
        *(_of_store(each.store, each.source) for each in settings.recomputed),
    ]
    seen: dict[str, RuleCheck] = {}
    for check in checks:
        other = seen.setdefault(check.name, check)
        if other is not check:
            raise ConfigurationError(
                f"Dagster cannot tell the completeness rules {other.rule!r} and {check.rule!r}"
                " apart: it folds names to letters, digits and underscores.",
                remedy="Rename one of them.",
            )
    return tuple(checks)


def declared_rules(settings: ApplicationSettings) -> frozenset[str]:
    """The names that results may have: of the rules, and of the recomputed stores."""
    recomputed = {f"{RULE_PREFIX}{each.store}" for each in settings.recomputed}
    return frozenset({rule.name for rule in settings.completeness} | recomputed)


def counts(results: Iterable[RuleResult]) -> dict[Outcome, int]:
    """How many results have which outcome."""
    found = dict.fromkeys(Outcome, 0)
    for result in results:
        found[result.outcome] += 1
    return found


def _of_rule(rule: CompletenessRule) -> RuleCheck:
    parts = [rule.description.strip(), f"Balance: `{rule.balance}`." if rule.balance else ""]
    if not any(parts):
        parts.append(f"No row comes out of:\n\n```sql\n{rule.query.strip()}\n```\n")
    if rule.scope is Scope.WINDOW:
        parts.append("Of what is new since the window before.")
    parts.append(
        "Red: the rows in violation are with the evaluation."
        if rule.severity is Severity.ERROR
        else "A violation is a warning; the rows are with the evaluation."
    )
    return RuleCheck(
        rule=rule.name,
        name=folded(rule.name),
        claim=" ".join(part for part in parts if part),
        blocking=rule.blocking and rule.severity is Severity.ERROR,
    )


def _of_store(store: str, source: str) -> RuleCheck:
    rule = f"{RULE_PREFIX}{store}"
    return RuleCheck(
        rule=rule,
        name=folded(rule),
        claim=(
            f"Store `{store}`, recomputed from `{source}`, matches its snapshot or changelog. Red:"
            " the evaluation lists the differing keys. If late records or a restart may have"
            " changed the result, it is a warning: not verifiable exactly."
        ),
        blocking=True,
    )
