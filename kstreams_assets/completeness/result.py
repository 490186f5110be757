"""How a completeness rule, or the recomputation of a store, came out. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from kstreams_assets.backup.verdicts import Severity
from kstreams_assets.completeness.rule import Place


class Outcome(StrEnum):
    """What an evaluation found.

    `not_verifiable`: it can neither be said to hold nor to be violated, never counted as passed.
    `failed`: it could not be evaluated.
    """

    PASSED = "passed"
    VIOLATED = "violated"
    NOT_VERIFIABLE = "not_verifiable"
    FAILED = "failed"


class RuleKind(StrEnum):
    """Whether a user wrote the rule, or a declared store was recomputed from its inputs."""

    RULE = "rule"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class Sample:
    """The first rows in violation, as text; null is None."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One evaluation of one rule.

    `point_id` and `window` say of when the content was; a restored cluster has the point it was
    restored from, and no window. `stores_from` says where the content of stores came from.
    `violations` counts the rows in violation. `explanation` ends with what to do when it did not
    pass. Times in epoch milliseconds.
    """

    application_id: str
    rule: str
    kind: RuleKind
    place: Place
    point_id: str
    window: str | None
    outcome: Outcome
    explanation: str
    severity: Severity
    blocking: bool
    violations: int = 0
    sample: Sample = Sample()
    stores_from: str = ""
    took_ms: int = 0
    evaluated_at_ms: int = 0
    run_id: str = ""

    @property
    def passed(self) -> bool:
        """Whether the rule was seen to hold."""
        return self.outcome is Outcome.PASSED

    @property
    def blocks(self) -> bool:
        """Whether a restore must not go on: a blocking rule did not pass."""
        if not self.blocking or self.severity is not Severity.ERROR:
            return False
        return self.outcome in (Outcome.VIOLATED, Outcome.FAILED)
