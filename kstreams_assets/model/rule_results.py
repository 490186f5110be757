"""The stored results of completeness rules."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from kstreams_assets.app.rules import Place
from kstreams_assets.checks import Severity
from kstreams_assets.model.column import ApplicationId, Column, Columns
from kstreams_assets.public_form import DAGSTER, JSON, TABLE, Form, Timestamp, Value, only

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Sample:
    """The first rows that a query returned, as text; null is None."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()


NO_SAMPLE: Final = Sample()


class Outcome(StrEnum):
    """The outcome of an evaluation.

    `not_verifiable`: it could not be decided; this never counts as passed. `failed`: it could not
    be evaluated.
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
class RuleResult:
    """One evaluation of one rule, a row of the table `completeness_results`."""

    application_id: ApplicationId
    rule: Annotated[str, Column("Name of the rule; `recompute_<store>` of a recomputed store.")]
    kind: Annotated[RuleKind, Column("`rule` or `recompute`.")]
    place: Annotated[Place, Column("Where it was evaluated: `backup`, `ktables` or `restore`.")]
    point_id: Annotated[str, Column("The recovery point; of a restore, its source.")]
    window: Annotated[
        str | None,
        Column("The window that ends at the point; null at other points and on restores."),
    ]
    outcome: Annotated[Outcome, Column("`passed`, `violated`, `not_verifiable` or `failed`.")]
    explanation: Annotated[str, Column("The findings and, if it did not pass, the remedy.")]
    severity: Annotated[Severity, Column("As declared: `error` or `warn`.")]
    blocking: Annotated[bool, Column("Whether a violation blocks the commit of group offsets.")]
    violations: Annotated[int, Column("Number of violating rows.")] = 0
    sample: Annotated[
        Sample,
        Columns(
            columns=Column("Columns of the first violating rows.", name="sample_columns"),
            rows=Column("These rows, at most 20, as text; null is null.", name="sample_rows"),
        ),
    ] = NO_SAMPLE
    stores_from: Annotated[
        str,
        Column("Source of the stores' content; empty if no store was read."),
    ] = ""
    took_ms: Annotated[int, Column("Its duration.")] = 0
    evaluated_at_ms: Annotated[
        int, Column("When, epoch milliseconds; the newest of a rule, place and point counts.")
    ] = 0
    run_id: Annotated[str, Column("Dagster run, or `cli-...`; of a restore its run.")] = ""

    @property
    def passed(self) -> bool:
        """Whether the rule holds."""
        return self.outcome is Outcome.PASSED

    @property
    def blocks(self) -> bool:
        """Whether a restore must stop: a blocking rule did not pass."""
        if not self.blocking or self.severity is not Severity.ERROR:
            return False
        return self.outcome in (Outcome.VIOLATED, Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class RuleStanding:
    """The state of a rule at one place: its newest result, and how often it had each outcome."""

    newest: RuleResult
    evaluations: Mapping[Outcome, int]


_NOT_VERIFIABLE: Final = "Not verifiable exactly: "


def severity_of(result: RuleResult) -> Severity:
    """The severity of a result that did not pass.

    A rule that could not be evaluated is an error; one that cannot be decided is a warning.
    """
    if result.outcome is Outcome.VIOLATED:
        return result.severity
    return Severity.WARN if result.outcome is Outcome.NOT_VERIFIABLE else Severity.ERROR


def is_red(result: RuleResult) -> bool:
    """Whether the result is an error: neither passed nor a warning."""
    return not result.passed and severity_of(result) is Severity.ERROR


def explanation_of(result: RuleResult) -> str:
    """The findings and, if it did not pass, the remedy."""
    is_judged = result.outcome is not Outcome.NOT_VERIFIABLE
    if is_judged or result.explanation.startswith(_NOT_VERIFIABLE):
        return result.explanation
    return f"{_NOT_VERIFIABLE}{result.explanation}"


def outcome_text(result: RuleResult) -> str:
    """The outcome as tables show it: errors are in capitals."""
    if result.passed:
        return "passed"
    text = result.outcome.value.replace("_", " ")
    return f"RED: {text}" if severity_of(result) is Severity.ERROR else f"WARN: {text}"


RULE: Final = Form(
    RuleResult,
    "rule",
    *only(
        JSON,
        "kind",
        Value("place", heading="where"),
        "window",
        Value("recovery_point", of="point_id", heading="point"),
    ),
    Value("outcome", text="passed, violated, not_verifiable or failed"),
    *only(JSON, "passed", Value("severity", of=severity_of), "blocks"),
    Value("violations", heading="violating rows", text="Violating rows"),
    *only(
        JSON,
        Value("explanation", of=explanation_of),
        "columns=sample.columns rows=sample.rows",
    ),
    Value("stores_from", heading="stores from", text="Source of the stores' content"),
    "took_ms",
    *only(DAGSTER, Value("explanation", of=explanation_of)),
    *only(JSON, Value("evaluated_at", Timestamp, "evaluated_at_ms", heading="evaluated at")),
    Value("run_id", where=JSON),
    *only(
        TABLE,
        Value("result", of=outcome_text, heading="outcome"),
        Value("s", of=lambda result: round(result.took_ms / 1000, 1)),
    ),
)
"""The public form of an evaluation of a rule."""
