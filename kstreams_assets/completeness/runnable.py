"""Rules and recomputations alike, as something that runs over views and comes out somehow. Pure."""

import difflib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kstreams_assets.checks import Severity
from kstreams_assets.completeness.content import Part, ViewPart, part_of, plain_name
from kstreams_assets.completeness.recompute import RULE_PREFIX, recompute_sql
from kstreams_assets.completeness.result import Outcome, RuleKind, RuleResult
from kstreams_assets.completeness.rule import (
    DEFAULT_TIMEOUT_S,
    EVERYWHERE,
    CompletenessRule,
    Place,
    Scope,
)
from kstreams_assets.completeness.view import View, ViewKind, views_of
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.settings import ApplicationSettings

_FEW = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands against judging a rule, in sentences; empty where nothing does.

    `not_covered`: records are not in the backup. `repeats`: the point is at_least_once.
    `unproven`: compaction may have taken records of it. `incomplete`: topics whose records were
    gone before they could be backed up. `unknown`: topics that the point does not know.
    """

    not_covered: str = ""
    repeats: str = ""
    unproven: str = ""
    incomplete: str = ""
    unknown: str = ""

    def keeps_from_judging(self, *, is_balance: bool) -> bool:
        """Whether the rule need not be run at all."""
        return bool(self.not_covered or (is_balance and self.incomplete))


@dataclass(frozen=True, slots=True)
class Judged:
    """How a rule came out, and why; ends with what to do when it did not pass."""

    outcome: Outcome
    explanation: str


def not_run(standing: Standing, scope: Scope, *, is_recomputed: bool = False) -> Judged:
    """A rule that was not run, see `Standing.keeps_from_judging`."""
    if standing.not_covered:
        return Judged(
            Outcome.NOT_VERIFIABLE,
            f"{standing.not_covered} Back up the windows that are due, then evaluate again.",
        )
    if is_recomputed:
        what = "the store cannot be computed anew from them"
        remedy = "Check it with a balance of scope: window."
    elif scope is Scope.EVERYTHING:
        what, remedy = "a balance of everything cannot be judged", "Use scope: window."
    else:
        what = "the balance of this window cannot be judged"
        remedy = "Back up more often than retention removes records, see the check no_source_loss."
    return Judged(Outcome.NOT_VERIFIABLE, f"{standing.incomplete}: {what}. {remedy}")


def judged(
    standing: Standing, violations: int, point_id: str, *, is_balance: bool, compacted: str = ""
) -> Judged:
    """How a rule came out that returned so many rows.

    `compacted` names topics of a balance that lack records which compaction removed.
    """
    rows = f"{violations:,} row{'' if violations == 1 else 's'} in violation"
    if standing.repeats:
        found = "no row in violation" if violations == 0 else rows
        return Judged(
            Outcome.NOT_VERIFIABLE,
            f"Recovery point {point_id} is at_least_once ({standing.repeats}): records may be"
            f" repeated in it; {found}. Evaluate at a point that is exact.",
        )
    remark = (
        f" {standing.incomplete}: what lay before is not looked at."
        if (standing.incomplete)
        else ""
    )
    if violations == 0:
        return Judged(Outcome.PASSED, f"Holds at recovery point {point_id}.{remark}")
    doubt = standing.unproven or standing.unknown or (compacted if is_balance else "")
    if doubt:
        return Judged(
            Outcome.NOT_VERIFIABLE,
            f"{rows}, but that may be no fault of the application: {doubt} Evaluate at a newer"
            " point that is exact and covered.",
        )
    shown = "" if violations == 1 else ", the first of which are shown"
    return Judged(
        Outcome.VIOLATED,
        f"{rows} at recovery point {point_id}{shown}.{remark} Look up in the topics and stores of"
        " the rule what became of these records; nothing is to be restored or deleted before that"
        " is known.",
    )


def failed(reason: str) -> Judged:
    """A rule that could not be run."""
    return Judged(
        Outcome.FAILED,
        f"It could not be evaluated: {reason.rstrip('.')}. Correct the rule, or what the reason"
        " names, and evaluate again.",
    )


def listed(texts: Iterable[str]) -> str:
    """The first few, in one sentence."""
    found = list(texts)
    more = f"; and {len(found) - _FEW} more" if len(found) > _FEW else ""
    return "; ".join(found[:_FEW]) + more


def no_snapshot(stores: Iterable[str]) -> Judged:
    """A rule that is to look at KTable snapshots that are not there."""
    return Judged(
        Outcome.NOT_VERIFIABLE,
        f"There is no KTable snapshot of {listed(stores)} at this recovery point in the format"
        " that is declared now. Make the snapshots of its window, or evaluate at place backup.",
    )


def late_records(late: int, violations: int) -> Judged:
    """A recomputation of windows that records may have missed."""
    found = "no key differs" if violations == 0 else f"{violations:,} differences were found"
    return Judged(
        Outcome.NOT_VERIFIABLE,
        f"{late:,} records may have come after their window had closed: whether they were counted"
        f" depends on restarts and on the order of partitions; {found}. Check these windows with a"
        " balance, or lengthen the grace period.",
    )


def without_windows() -> Judged:
    """A rule about what is new, on a cluster."""
    return Judged(
        Outcome.NOT_VERIFIABLE,
        "It is about what is new since the window before, and a restored cluster has no windows."
        " Evaluate it at the window of the backup, or leave restore out of its on.",
    )


def window_not_backed_up(window: str) -> Judged:
    """A rule at a window that the ledger does not have."""
    return Judged(
        Outcome.NOT_VERIFIABLE,
        f"Window {window} is not backed up, or no recovery point was taken before it closed. Back"
        " it up, then evaluate again.",
    )


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
        ConfigurationError: There is none of a name.
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
        raise ConfigurationError(
            f"{settings.application_id} has no completeness rule {name!r}.",
            remedy=f"Its rules are: {', '.join(near or known) or 'none'}.",
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
