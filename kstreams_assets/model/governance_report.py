"""The stored form of reports on the governance of an application."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from kstreams_assets.checks import Evaluation, Finding, Outcome, Severity, worst
from kstreams_assets.model.column import ApplicationId, Column, RunId
from kstreams_assets.public_form import DAGSTER, JSON, Form, Timestamp, Value, only


@dataclass(frozen=True, slots=True)
class GovernanceReport:
    """All checks of an application at one time (epoch milliseconds)."""

    application_id: str
    run_id: str
    cluster_id: str
    judged_at_ms: int
    evaluations: tuple[Evaluation, ...]

    @property
    def is_red(self) -> bool:
        """Whether an error was found."""
        return any(evaluation.is_red for evaluation in self.evaluations)

    def of_severity(self, severity: Severity) -> list[Finding]:
        """All findings of this severity."""
        return [f for e in self.evaluations for f in e.findings if f.severity is severity]


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """The stored form of a finding; `remedy` is its action."""

    subject: str
    found: str
    expected: str
    remedy: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """One check of one report."""

    application_id: ApplicationId
    judged_at_ms: Annotated[int, Column("When the cluster was inspected, epoch milliseconds.")]
    run_id: RunId
    cluster_id: Annotated[str, Column("Id of the Kafka cluster.")]
    position: Annotated[int, Column("Place of the check in the report.", type="int32")]
    check: Annotated[str, Column("The check.")]
    passed: Annotated[bool, Column("Whether nothing was found.")]
    severity: Annotated[Severity, Column("Severity of a failure.")]
    looked_at: Annotated[str, Column("What was compared.")]
    not_judged: Annotated[tuple[str, ...], Column("What could not be checked, and why.")]
    findings: Annotated[
        tuple[StoredFinding, ...],
        Column("Topic, store or application (`subject`), actual value, expected value, remedy."),
    ]


NOTHING_COMPARED: Final = "Nothing was compared."
"""The summary of a check without anything to compare; it has not passed."""


def evaluation_of(
    check: str, looked_at: str, findings: Iterable[Finding], not_judged: Iterable[str]
) -> Evaluation:
    """The evaluation of a check: it passed only if something was compared without findings."""
    found = tuple(findings)
    outcome = Outcome.FAILED if found else Outcome.PASSED
    if not found and looked_at == NOTHING_COMPARED:
        outcome = Outcome.NOT_VERIFIABLE
    return Evaluation(
        check,
        "",
        outcome,
        found,
        looked_at,
        severity=worst(finding.severity for finding in found),
        not_judged=tuple(not_judged),
    )


def is_compared(evaluation: Evaluation) -> bool:
    """Whether a check had anything to compare."""
    return evaluation.outcome is not Outcome.NOT_VERIFIABLE


FINDING: Final = Form(
    Finding,
    Value("subject", text="Topic, store or application"),
    Value("found", text="Actual value"),
    Value("expected", text="Expected value"),
    Value("remedy", of="action", text="Remedy"),
    "severity",
)
EVALUATION: Final = Form(
    Evaluation,
    *only(
        JSON,
        "check",
        Value("passed", of=lambda found: found.passed if is_compared(found) else None),
        Value("compared", of=is_compared),
        "severity looked_at=summary not_judged",
        Value("findings", form=FINDING),
    ),
    *only(
        DAGSTER,
        Value("findings_count", of=lambda found: len(found.findings)),
        Value("findings", of=lambda found: found.findings or None, form=FINDING),
        Value("not_judged", of=lambda found: " ".join(found.not_judged) or None),
    ),
)
REPORT: Final = Form(
    GovernanceReport,
    Value("application_id", where=JSON),
    *only(
        DAGSTER,
        Value("errors", of=lambda report: len(report.of_severity(Severity.ERROR))),
        Value("warnings", of=lambda report: len(report.of_severity(Severity.WARN))),
        Value("failed_checks", of=lambda r: sum(bool(e.findings) for e in r.evaluations)),
    ),
    "cluster_id",
    Value("judged_at", Timestamp, "judged_at_ms"),
    *only(
        JSON,
        Value("passed", of=lambda report: not report.is_red),
        Value("checks", of="evaluations", form=EVALUATION),
    ),
)
