"""Rules and recomputations alike, as something that runs over views and comes out somehow. Pure."""

import difflib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kstreams_assets.app.rules import CompletenessRule, Place, Recomputation, Scope
from kstreams_assets.completeness.content import Part, ViewPart, part_of
from kstreams_assets.completeness.repeats import Allowance, Repeats, of_balance, of_recomputation
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.rule_results import NO_SAMPLE, Outcome, RuleKind, RuleResult, Sample
from kstreams_assets.rules.recompute import RULE_PREFIX, recompute_sql
from kstreams_assets.rules.view import BEFORE, View, ViewKind, views_of
from kstreams_assets.settings import ApplicationSettings


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands against judging a rule, in sentences; empty where nothing does.

    `not_covered`: records are not in the backup. `repeats`: the point is at_least_once. `within`:
    so is the application, which repeats so many records at most.
    `unproven`: compaction may have taken records of it. `incomplete`: topics whose records were
    gone before they could be backed up. `unknown`: topics that the point does not know.
    `unconfirmed`: the stores and topics depend on guesses that nobody has confirmed.
    """

    not_covered: str = ""
    repeats: str = ""
    within: Repeats | None = None
    unproven: str = ""
    incomplete: str = ""
    unknown: str = ""
    unconfirmed: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """How a rule came out, and why; ends with what to do when it did not pass."""

    outcome: Outcome
    explanation: str


def not_verifiable(explanation: str) -> Judged:
    """What can neither be said to hold nor to be violated."""
    return Judged(Outcome.NOT_VERIFIABLE, explanation)


_STORES_FROM: Final[Mapping[Place, str]] = {
    Place.BACKUP: "changelogs in the backup",
    Place.KTABLES: "KTable snapshots",
    Place.RESTORE: "changelogs on the cluster",
}


@dataclass(frozen=True, slots=True)
class Runnable:
    """A rule with `views`: by the name in its SQL, what it is of.

    If `late_sql` returns another number than 0, nothing is verifiable.
    """

    rule: CompletenessRule
    kind: RuleKind
    views: Mapping[str, tuple[View, Part]]
    late_sql: str | None = None
    recomputed: Recomputation | None = None

    @property
    def name(self) -> str:
        """The name that results have."""
        return self.rule.name

    @property
    def counts_all(self) -> bool:
        """Whether records that are missing from the backup make it wrong."""
        return self.kind is RuleKind.RECOMPUTE or self.rule.balance is not None

    @property
    def has_stores(self) -> bool:
        """Whether it looks at a store."""
        return any(view.kind is ViewKind.STORE for view, _ in self.views.values())

    def places(self, asked: Place | None, among: Sequence[Place]) -> list[Place]:
        """Where it is to be evaluated: at the place that is asked for, or at any of several."""
        wanted = among if asked is None else [asked]
        return [place for place in wanted if place in self.rule.on]

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

    def why_not_run(self, standing: Standing) -> Judged | None:
        """How it comes out where it need not be run at all, None where it must."""
        if standing.unconfirmed:
            return not_verifiable(standing.unconfirmed)
        if standing.not_covered:
            return not_verifiable(
                f"{standing.not_covered} Back up the windows that are due, then evaluate again."
            )
        if not (self.counts_all and standing.incomplete):
            return None
        if self.kind is RuleKind.RECOMPUTE:
            what = "the store cannot be recomputed from them"
            remedy = "Check it with a balance of scope: window."
        elif self.rule.scope is Scope.EVERYTHING:
            what, remedy = "a balance of all records cannot be evaluated", "Use scope: window."
        else:
            what = "the balance of this window cannot be evaluated"
            remedy = (
                "Back up more often than retention removes records, see the check no_source_loss."
            )
        return not_verifiable(f"{standing.incomplete}: {what}. {remedy}")

    def allowance(self, standing: Standing) -> Allowance | None:
        """What of the rows that it returns records explain that are repeated; None for plain SQL,
        and where nothing is repeated."""
        repeats = self._repeats(standing)
        if repeats is None or repeats.most == 0:
            return None
        if self.recomputed is not None:
            return of_recomputation(self.rule.query, self.recomputed, repeats)
        if self.rule.repeats is not None:
            return of_balance(self.rule.query, self.rule.repeats, repeats)
        return None

    def _repeats(self, standing: Standing) -> Repeats | None:
        """Those that concern it: only what is new since a point depends on that point."""
        within = standing.within
        if within is None or self.rule.scope is Scope.WINDOW:
            return within
        return Repeats(within.now)

    def judged(
        self,
        standing: Standing,
        violations: int,
        point_id: str,
        *,
        compacted: str = "",
        is_more: bool = False,
        unexplained: int | None = None,
    ) -> Judged:
        """How it came out after it returned so many rows, or more (`is_more`).

        `compacted` names topics of a balance that lack records which compaction removed.
        `unexplained` is how many of the rows the allowance for repeats does not explain, None
        without one.
        """
        remark = (
            f" {standing.incomplete}: what lay before is not looked at."
            if standing.incomplete
            else ""
        )
        rows = self._rows(violations, is_more=is_more)
        within = self._repeats(standing)
        if within is not None and within.most:
            most = within.most
            up_to = f"up to {most:,} repeats, as the application processes at least once"
            if violations == 0 or unexplained == 0:
                differ = f" {violations:,} rows differ by no more than that." if violations else ""
                return Judged(
                    Outcome.PASSED,
                    f"Holds at recovery point {point_id} {up_to}.{differ}{remark}",
                )
            if unexplained is None and violations <= most:
                return not_verifiable(
                    f"{rows}, but that may be no fault of the application: it processes at least"
                    f" once, and up to {most:,} records may be repeated at recovery point"
                    f" {point_id}. Evaluate at a point at which nothing was on its way, or write"
                    " the rule as a balance, which says in what direction repeats change it."
                )
            violations = unexplained or violations
            rows = (
                f"{self._rows(violations, is_more=is_more)} by more than {most:,} repeats explain"
            )
        elif standing.repeats and standing.within is None:
            found = "no row in violation" if violations == 0 else rows
            return not_verifiable(
                f"Recovery point {point_id} is at_least_once ({standing.repeats}): records may be"
                f" repeated in it; {found}. Evaluate at a point that is exact."
            )
        if violations == 0:
            return Judged(Outcome.PASSED, f"Holds at recovery point {point_id}.{remark}")
        doubt = standing.unproven or standing.unknown or (compacted if self.counts_all else "")
        if doubt:
            return not_verifiable(
                f"{rows}, but that may be no fault of the application: {doubt} Evaluate at a newer"
                " point that is exact and covered."
            )
        shown = "" if violations == 1 else ", the first of which are shown"
        if is_more:
            remark += " To have all counted, group the rows in its SQL, or raise max_rows."
        return Judged(
            Outcome.VIOLATED,
            f"{rows} at recovery point {point_id}{shown}.{remark} Look up in the topics and stores"
            " of the rule what became of these records; nothing is to be restored or deleted before"
            " that is known.",
        )

    def _rows(self, violations: int, *, is_more: bool) -> str:
        rows = f"{violations:,} row{'' if violations == 1 else 's'} in violation"
        if is_more:
            return f"More than {rows} (max_rows of rule {self.name}, where counting ends)"
        return rows

    def result(
        self,
        judged: Judged,
        place: Place,
        application_id: str,
        run_id: str,
        *,
        point_id: str = "",
        window: str | None = None,
        violations: int = 0,
        sample: Sample = NO_SAMPLE,
        took_s: float = 0.0,
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
            severity=self.rule.severity,
            blocking=self.rule.blocking,
            violations=violations,
            sample=sample,
            stores_from=_STORES_FROM[place] if self.has_stores else "",
            took_ms=round(1000 * took_s),
            evaluated_at_ms=time.time_ns() // 1_000_000,
            run_id=run_id,
        )


def runnables_of(
    settings: ApplicationSettings, rules: Collection[str] | None = None
) -> list[Runnable]:
    """All rules and recomputations of an application, or those of these names, in their order.

    Raises:
        ConfigurationError: There is none of a name.
    """
    views = views_of(settings)
    found = [_of_rule(rule, views) for rule in settings.completeness]
    for declared in settings.recomputed:
        made = recompute_sql(declared, views)
        rule = CompletenessRule(
            name=f"{RULE_PREFIX}{declared.store}",
            query=made.sql,
            views=made.views,
            **dict(declared.limits),
        )
        parts = {name: (views[name], Part.ALL) for name in made.views}
        found.append(Runnable(rule, RuleKind.RECOMPUTE, parts, made.late_sql, declared))
    if rules is None:
        return found
    known = [one.name for one in found]
    for name in sorted(set(rules) - set(known)):
        near = difflib.get_close_matches(name, known)
        raise ConfigurationError(
            f"{settings.application_id} has no completeness rule {name!r}.",
            remedy=f"Its rules are: {', '.join(near or known) or 'none'}.",
        )
    return [one for one in found if one.name in rules]


def _of_rule(rule: CompletenessRule, views: Mapping[str, View]) -> Runnable:
    by_window = rule.scope is Scope.WINDOW
    named = {name: views[name.removesuffix(BEFORE)] for name in rule.views}
    parts = {name: (view, part_of(name, view, by_window=by_window)) for name, view in named.items()}
    return Runnable(rule, RuleKind.RULE, parts)
