"""Results of rules and recomputed stores, and their checks."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kstreams_assets.app.names import sanitize_name
from kstreams_assets.app.rules import CompletenessRule, Place, Scope
from kstreams_assets.checks import Severity
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.rule_results import Outcome, RuleResult
from kstreams_assets.rules.recompute import RULE_PREFIX
from kstreams_assets.rules.view import BEFORE, STORE_PREFIX, views_of
from kstreams_assets.settings import ApplicationSettings

NULL: Final = "null"
"""Text for a null, to distinguish it from an empty text."""
AT_WINDOWS: Final = frozenset({Place.BACKUP, Place.KTABLES})
ON_RESTORES: Final = frozenset({Place.RESTORE})


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """The asset check of a rule or of a recomputed store.

    `rule` is the name in results, `name` that of the check (Dagster accepts letters, digits and
    underscores). `blocking`: a failure prevents the commit of group offsets in a restore.
    """

    rule: str
    name: str
    claim: str
    blocking: bool


def rule_checks(settings: ApplicationSettings, places: frozenset[Place]) -> tuple[RuleCheck, ...]:
    """Return the checks of the rules for these places, and of all recomputed stores.

    Raises:
        ConfigurationError: Two rules have the same check name.
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
                f"The completeness rules {other.rule!r} and {check.rule!r} have the same check name"
                f" {check.name} in Dagster, which allows letters, digits and underscores only.",
                remedy="Rename one of them.",
            )
    return tuple(checks)


def rules_version(settings: ApplicationSettings, places: frozenset[Place]) -> str:
    """Return a digest of what decides the results of the rules for these places.

    These are the rules, the recomputed stores, and the formats of the topics and stores that they
    read. Descriptions and lines of the YAML do not count, nor does `blocking`, which is about
    restores.
    """
    rules = [rule for rule in settings.completeness if {*rule.on} & places]
    views = views_of(settings)
    names = {name.removesuffix(BEFORE) for rule in rules for name in rule.views}
    for each in settings.recomputed:
        names |= {each.source, each.through or each.source, f"{STORE_PREFIX}{each.store}"}
    parts = [
        *(rule.model_dump_json(exclude={"description", "line", "blocking"}) for rule in rules),
        *(each.model_dump_json(exclude={"line"}) for each in settings.recomputed),
        *(f"{name} {views[name].format.fingerprint}" for name in sorted(names) if name in views),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def declared_rules(settings: ApplicationSettings) -> frozenset[str]:
    """Return the possible rule names in results: of rules and of recomputed stores."""
    recomputed = {f"{RULE_PREFIX}{each.store}" for each in settings.recomputed}
    return frozenset({rule.name for rule in settings.completeness} | recomputed)


def counts(results: Iterable[RuleResult]) -> dict[Outcome, int]:
    """Count the results by outcome."""
    found = dict.fromkeys(Outcome, 0)
    for result in results:
        found[result.outcome] += 1
    return found


def _of_rule(rule: CompletenessRule) -> RuleCheck:
    parts = [rule.description.strip(), f"Balance: `{rule.balance}`." if rule.balance else ""]
    if not any(parts):
        parts.append(f"This query returns no row:\n\n```sql\n{rule.query.strip()}\n```\n")
    if rule.scope is Scope.WINDOW:
        parts.append("The rule covers records since the previous window.")
    parts.append(
        "Red: the evaluation lists the rows in violation."
        if rule.severity is Severity.ERROR
        else "A violation is a warning; the evaluation lists the rows."
    )
    return RuleCheck(
        rule=rule.name,
        name=sanitize_name(rule.name),
        claim=" ".join(part for part in parts if part),
        blocking=rule.blocking and rule.severity is Severity.ERROR,
    )


def _of_store(store: str, source: str) -> RuleCheck:
    rule = f"{RULE_PREFIX}{store}"
    return RuleCheck(
        rule=rule,
        name=sanitize_name(rule),
        claim=(
            f"Store `{store}`, recomputed from `{source}`, matches its snapshot or changelog. Red:"
            " the evaluation lists the differing keys. If late records or a restart may have"
            " changed the result, it is a warning: not verifiable exactly."
        ),
        blocking=True,
    )
