"""Rules and recomputed stores in one form: a query over views, with an outcome. Pure."""

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
class Verifiability:
    """The reasons, as sentences, that limit the verifiability of a rule; empty without a limit.

    `not_covered`: records are missing in the backup. `repeats`: the point is at_least_once.
    `within`: the application is at-least-once itself, with these limits for repeated records.
    `unproven`: compaction may have removed records. `incomplete`: topics whose records were deleted
    before the backup. `unknown`: topics that are missing in the point. `unconfirmed`: stores and
    topics that depend on unconfirmed guesses.
    """

    not_covered: str = ""
    repeats: str = ""
    within: Repeats | None = None
    unproven: str = ""
    incomplete: str = ""
    unknown: str = ""
    unconfirmed: str = ""


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """Outcome of a rule with its explanation, which ends with a remedy if the rule did not pass."""

    outcome: Outcome
    explanation: str


def not_verifiable(explanation: str) -> RuleOutcome:
    """Return the outcome of a rule that can neither pass nor be violated."""
    return RuleOutcome(Outcome.NOT_VERIFIABLE, explanation)


_STORES_FROM: Final[Mapping[Place, str]] = {
    Place.BACKUP: "changelogs in the backup",
    Place.KTABLES: "KTable snapshots",
    Place.RESTORE: "changelogs on the cluster",
}


@dataclass(frozen=True, slots=True)
class Runnable:
    """A rule with the views of its SQL, by name.

    If `late_sql` returns another number than 0, the rule is not verifiable.
    """

    rule: CompletenessRule
    kind: RuleKind
    views: Mapping[str, tuple[View, Part]]
    late_sql: str | None = None
    recomputed: Recomputation | None = None

    @property
    def name(self) -> str:
        """The name in results."""
        return self.rule.name

    @property
    def counts_all(self) -> bool:
        """Whether missing records in the backup can change the result."""
        return self.kind is RuleKind.RECOMPUTE or self.rule.balance is not None

    @property
    def has_stores(self) -> bool:
        """Whether the rule reads a store."""
        return any(view.kind is ViewKind.STORE for view, _ in self.views.values())

    def places(self, asked: Place | None, among: Sequence[Place]) -> list[Place]:
        """Return the places of evaluation: the requested one, or all possible ones."""
        possible = among if asked is None else [asked]
        return [place for place in possible if place in self.rule.on]

    def parts(self, *, of_snapshot: bool, has_before: bool) -> Mapping[str, ViewPart]:
        """Return the views; stores are read from snapshots if requested and if a point exists."""
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

    def why_not_run(self, verifiability: Verifiability) -> RuleOutcome | None:
        """Return the outcome if it is clear without running the query; None if it must run."""
        if verifiability.unconfirmed:
            return not_verifiable(verifiability.unconfirmed)
        if verifiability.not_covered:
            return not_verifiable(
                f"{verifiability.not_covered} Back up the due windows, then evaluate again."
            )
        if not (self.counts_all and verifiability.incomplete):
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
        return not_verifiable(f"{verifiability.incomplete}: {what}. {remedy}")

    def allowance(self, verifiability: Verifiability) -> Allowance | None:
        """Return the allowance for repeated records; None for plain SQL and without repeats."""
        repeats = self._repeats(verifiability)
        if repeats is None or repeats.most == 0:
            return None
        if self.recomputed is not None:
            return of_recomputation(self.rule.query, self.recomputed, repeats)
        if self.rule.repeats is not None:
            return of_balance(self.rule.query, self.rule.repeats, repeats)
        return None

    def _repeats(self, verifiability: Verifiability) -> Repeats | None:
        """Return the repeats that affect the rule; the previous point affects new records only."""
        within = verifiability.within
        if within is None or self.rule.scope is Scope.WINDOW:
            return within
        return Repeats(within.now)

    def outcome(
        self,
        verifiability: Verifiability,
        violations: int,
        point_id: str,
        *,
        compacted: str = "",
        is_more: bool = False,
        unexplained: int | None = None,
    ) -> RuleOutcome:
        """Return the outcome after the query returned so many rows, or more (`is_more`).

        `compacted` describes topics of a balance of which compaction removed records. `unexplained`
        is the number of rows that the allowance for repeats does not explain, None without one.
        """
        remark = (
            f" {verifiability.incomplete}: earlier records are not evaluated."
            if verifiability.incomplete
            else ""
        )
        rows = self._rows(violations, is_more=is_more)
        within = self._repeats(verifiability)
        if within is not None and within.most:
            most = within.most
            up_to = f"up to {most:,} repeats, as the application processes at least once"
            if violations == 0 or unexplained == 0:
                differ = f" {violations:,} rows differ by no more than that." if violations else ""
                return RuleOutcome(
                    Outcome.PASSED,
                    f"Holds at recovery point {point_id} {up_to}.{differ}{remark}",
                )
            if unexplained is None and violations <= most:
                return not_verifiable(
                    f"{rows}, but repeated records can be the cause: the application processes at"
                    f" least once, and up to {most:,} records may be repeated at recovery point"
                    f" {point_id}. Evaluate at a point without records in flight, or write the rule"
                    " as a balance, which defines the effect of repeats."
                )
            violations = unexplained or violations
            rows = (
                f"{self._rows(violations, is_more=is_more)} by more than {most:,} repeats explain"
            )
        elif verifiability.repeats and verifiability.within is None:
            found = "no row in violation" if violations == 0 else rows
            return not_verifiable(
                f"Recovery point {point_id} is at_least_once ({verifiability.repeats}): records may"
                f" be repeated in it; {found}. Evaluate at an exact point."
            )
        if violations == 0:
            return RuleOutcome(Outcome.PASSED, f"Holds at recovery point {point_id}.{remark}")
        cause = (
            verifiability.unproven
            or verifiability.unknown
            or (compacted if self.counts_all else "")
        )
        if cause:
            return not_verifiable(
                f"{rows}, but the application may not be the cause: {cause} Evaluate at a newer"
                " point that is exact and covered."
            )
        shown = "" if violations == 1 else ", the first of which are shown"
        if is_more:
            remark += " To count all rows, group them in the SQL, or increase max_rows."
        return RuleOutcome(
            Outcome.VIOLATED,
            f"{rows} at recovery point {point_id}{shown}.{remark} Find these records in the topics"
            " and stores of the rule. Do not restore or delete anything before the cause is known.",
        )

    def _rows(self, violations: int, *, is_more: bool) -> str:
        rows = f"{violations:,} row{'' if violations == 1 else 's'} in violation"
        if is_more:
            return f"More than {rows} (counting ends at max_rows of rule {self.name})"
        return rows

    def result(
        self,
        outcome: RuleOutcome,
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
        """Return the result of an evaluation at a recovery point, with the present time."""
        return RuleResult(
            application_id=application_id,
            rule=self.name,
            kind=self.kind,
            place=place,
            point_id=point_id,
            window=window,
            outcome=outcome.outcome,
            explanation=outcome.explanation,
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
    """Return all rules and recomputed stores of an application, or the selected ones, in order.

    Raises:
        ConfigurationError: A selected rule does not exist.
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
