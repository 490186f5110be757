"""What a recovery point and its backup are worth to a rule, and how the rule then came out. Pure.

A point that is exact and covered decides. At one that may repeat records nothing is proved either
way; where compaction may have taken records a violation proves nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kstreams_assets.completeness.result import Outcome
from kstreams_assets.completeness.rule import Scope

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
