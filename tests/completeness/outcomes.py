"""Rules and results of the application `shop`, made by hand."""

from collections.abc import Collection, Sequence

from kstreams_assets.app.rules import CompletenessRule, Place, Scope
from kstreams_assets.checks import Severity
from kstreams_assets.model.rule_results import Outcome, RuleKind, RuleResult, Sample

SAMPLE = Sample(("customer", "difference"), (("anna", "2"), (None, "-1")))


def rule(
    name: str = "nothing_lost",
    *,
    views: Sequence[str] = ("orders", "totals"),
    balance: str | None = None,
    severity: Severity = Severity.ERROR,
    blocking: bool = True,
    on: Collection[Place] = tuple(Place),
    scope: Scope = Scope.EVERYTHING,
    description: str = "",
) -> CompletenessRule:
    """A rule; what it selects plays no part."""
    return CompletenessRule(
        name=name,
        query="SELECT * FROM orders WHERE amount < 0",
        views=tuple(views),
        balance=balance,
        severity=severity,
        blocking=blocking,
        on=list(on),
        scope=scope,
        description=description,
    )


def result(
    outcome: Outcome = Outcome.PASSED,
    *,
    rule: str = "nothing_lost",
    window: str | None = None,
    point_id: str = "point-1",
    place: Place = Place.BACKUP,
    severity: Severity = Severity.ERROR,
    blocking: bool = True,
    run_id: str = "run-1",
    evaluated_at_ms: int = 1_760_000_200_000,
) -> RuleResult:
    """An evaluation; two rows are in violation where it is violated."""
    is_violated = outcome is Outcome.VIOLATED
    return RuleResult(
        application_id="shop",
        rule=rule,
        kind=RuleKind.RULE,
        place=place,
        point_id=point_id,
        window=window,
        outcome=outcome,
        explanation=f"It is {outcome.value}. Do something.",
        severity=severity,
        blocking=blocking,
        violations=2 if is_violated else 0,
        sample=SAMPLE if is_violated else Sample(),
        stores_from="KTable snapshots",
        took_ms=1500,
        evaluated_at_ms=evaluated_at_ms,
        run_id=run_id,
    )
