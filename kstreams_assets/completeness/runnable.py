"""Rules and recomputations alike, as something that runs over views. Pure."""

import difflib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kstreams_assets.checks import Severity
from kstreams_assets.completeness.content import Part, ViewPart, part_of, plain_name
from kstreams_assets.completeness.recompute import RULE_PREFIX, recompute_sql
from kstreams_assets.completeness.result import RuleKind, RuleResult
from kstreams_assets.completeness.rule import (
    DEFAULT_TIMEOUT_S,
    EVERYWHERE,
    CompletenessRule,
    Place,
    Scope,
)
from kstreams_assets.completeness.standing import Judged
from kstreams_assets.completeness.view import View, ViewKind, views_of
from kstreams_assets.errors import UnknownRuleError
from kstreams_assets.settings import ApplicationSettings

_STORES_FROM: Final[Mapping[Place, str]] = {
    Place.BACKUP: "changelogs in the backup",
    Place.KTABLES: "KTable snapshots",
    Place.RESTORE: "changelogs on the cluster",
}


@dataclass(frozen=True, slots=True)
class Runnable:
    """SQL that returns rows in violation, over `views`: by the name in the SQL, what it is of.

    `counts_all`: records that are missing from the backup make it wrong (balances, recomputations).
    If `late_sql` returns another number than 0, nothing is verifiable. `timeout_s`: how long a
    query of it may take, in seconds.
    """

    name: str
    kind: RuleKind
    sql: str
    views: Mapping[str, tuple[View, Part]]
    scope: Scope
    severity: Severity
    blocking: bool
    on: frozenset[Place]
    counts_all: bool
    late_sql: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def has_stores(self) -> bool:
        """Whether it looks at a store."""
        return any(view.kind is ViewKind.STORE for view, _ in self.views.values())

    def places(self, asked: Place | None, among: Sequence[Place]) -> list[Place]:
        """Where it is to be evaluated: at the place that is asked for, or at any of several."""
        wanted = among if asked is None else [asked]
        return [place for place in wanted if place in self.on]

    def result(
        self,
        judged: Judged,
        place: Place,
        *,
        application_id: str,
        run_id: str,
        point_id: str = "",
        window: str | None = None,
    ) -> RuleResult:
        """What came out at a recovery point, at this moment."""
        return RuleResult(
            application_id=application_id,
            rule=self.name,
            kind=self.kind,
            place=place,
            point_id=point_id,
            window=window,
            outcome=judged.outcome,
            explanation=judged.explanation,
            severity=self.severity,
            blocking=self.blocking,
            stores_from=_STORES_FROM[place] if self.has_stores else "",
            evaluated_at_ms=time.time_ns() // 1_000_000,
            run_id=run_id,
        )

    def parts(self, *, of_snapshot: bool, has_before: bool) -> Mapping[str, ViewPart]:
        """The views, stores from snapshots where asked for and where there was a point."""
        return {
            name: ViewPart(
                view,
                part,
                of_snapshot
                and view.kind is ViewKind.STORE
                and (has_before or part is not Part.BEFORE),
            )
            for name, (view, part) in self.views.items()
        }


def runnables_of(
    settings: ApplicationSettings, rules: Collection[str] | None = None
) -> list[Runnable]:
    """All rules and recomputations of an application, or those of these names, in their order.

    Raises:
        UnknownRuleError: There is none of a name.
    """
    views = views_of(settings)
    found = [_of_rule(rule, views) for rule in settings.completeness]
    for declared in settings.recomputed:
        made = recompute_sql(declared, views)
        found.append(
            Runnable(
                name=f"{RULE_PREFIX}{declared.store}",
                kind=RuleKind.RECOMPUTE,
                sql=made.sql,
                views={name: (views[name], Part.ALL) for name in made.views},
                scope=Scope.EVERYTHING,
                severity=Severity.ERROR,
                blocking=True,
                on=EVERYWHERE,
                counts_all=True,
                late_sql=made.late_sql,
            )
        )
    if rules is None:
        return found
    known = [one.name for one in found]
    for name in sorted(set(rules) - set(known)):
        near = difflib.get_close_matches(name, known)
        raise UnknownRuleError(
            application_id=settings.application_id, rule=name, known=near or known
        )
    return [one for one in found if one.name in rules]


def _of_rule(rule: CompletenessRule, views: Mapping[str, View]) -> Runnable:
    by_window = rule.scope is Scope.WINDOW
    named = {name: views[plain_name(name)] for name in rule.views}
    return Runnable(
        name=rule.name,
        kind=RuleKind.RULE,
        sql=rule.sql,
        views={
            name: (view, part_of(name, view, by_window=by_window)) for name, view in named.items()
        },
        scope=rule.scope,
        severity=rule.severity,
        blocking=rule.blocking,
        on=rule.on,
        counts_all=rule.balance is not None,
        timeout_s=rule.timeout_s,
    )
