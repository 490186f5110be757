"""The result model of all checks: a check, its findings and its outcome.

Declare a claim once as a `Check`. Users, tables and Dagster see its name; its claim describes the
condition and what a failure means. A function that evaluates the claim returns an `Evaluation`:
`passed(check, subject, "what was checked")`, or `failed(check, subject, findings)` with a `Finding`
for each deviation, whose `action` names the remedy. If the claim cannot be decided, use
`Outcome.NOT_VERIFIABLE` (never counted as passed). If the evaluation itself failed, use
`Outcome.ERROR`. A list of findings without an evaluation is a list of blockers (of a restore) or a
diagnosis (of a running restore). `problem_lines`, `short_text` and `by_window` format evaluations
for the terminal and Dagster. Stored results have row classes of their own, which convert from and
to these.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_assets.public_form import Form

MOST_SHOWN: Final = 10
"""At most this many findings are listed in one text; the rest are counted."""


class Severity(StrEnum):
    """The severity of a failed check."""

    ERROR = "error"
    WARN = "warn"


class Outcome(StrEnum):
    """The outcome of an evaluation.

    `not_verifiable`: the claim could not be decided. `error`: the evaluation failed.
    """

    PASSED = "passed"
    FAILED = "failed"
    NOT_VERIFIABLE = "not_verifiable"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Check:
    """A claim that is checked. If a `blocking` check fails, a restore stops."""

    name: str
    claim: str
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One deviation of a `subject` (topic, store, group): actual value, expected value, remedy."""

    subject: str
    found: str
    expected: str = ""
    action: str = ""
    severity: Severity = Severity.ERROR

    @property
    def text(self) -> str:
        """The finding and the remedy, without the subject."""
        found = f"{self.found}; expected: {self.expected}." if self.expected else self.found
        return f"{found} {self.action}" if self.action else found

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation of a check of `subject` (topic, store, rule; empty for the application).

    `summary` describes what was checked, `not_judged` what was not and why. `window` is empty if
    the check does not belong to a window. `severity` is that of the failure, or of a possible one.
    """

    check: str
    subject: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    summary: str = ""
    window: str = ""
    severity: Severity = Severity.ERROR
    not_judged: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether the claim holds."""
        return self.outcome is Outcome.PASSED

    @property
    def is_red(self) -> bool:
        """Whether it is an error, not a warning and not unverifiable."""
        is_bad = self.outcome in (Outcome.FAILED, Outcome.ERROR)
        return is_bad and self.severity is Severity.ERROR

    @property
    def explanation(self) -> str:
        """The findings with their remedies, or what was checked."""
        texts = [
            finding.text if finding.subject == self.subject else str(finding)
            for finding in self.findings[:MOST_SHOWN]
        ]
        if len(self.findings) > MOST_SHOWN:
            texts.append(f"And {len(self.findings) - MOST_SHOWN} more.")
        not_judged = [f"Not evaluated: {text}" for text in self.not_judged]
        return " ".join([*(texts or [self.summary]), *not_judged])


EVALUATION: Final = Form(Evaluation, "check passed severity explanation")
"""The public form of an evaluation."""


def passed(
    check: str,
    subject: str,
    summary: str,
    *,
    window: str = "",
    numbers: Mapping[str, int] | None = None,
    severity: Severity = Severity.ERROR,
    not_judged: Iterable[str] = (),
) -> Evaluation:
    """The evaluation of a claim that holds; `summary` describes what was checked."""
    return Evaluation(
        check,
        subject,
        Outcome.PASSED,
        summary=summary,
        window=window,
        severity=severity,
        not_judged=tuple(not_judged),
        numbers=numbers or {},
    )


def failed(
    check: str,
    subject: str,
    findings: Iterable[Finding],
    *,
    summary: str = "",
    window: str = "",
    numbers: Mapping[str, int] | None = None,
    not_judged: Iterable[str] = (),
) -> Evaluation:
    """The evaluation of a claim that does not hold, with its worst severity; errors first."""
    ordered = sorted(findings, key=lambda finding: finding.severity is Severity.WARN)
    return Evaluation(
        check,
        subject,
        Outcome.FAILED,
        tuple(ordered),
        summary,
        window,
        worst(finding.severity for finding in ordered),
        tuple(not_judged),
        numbers or {},
    )


def worst(severities: Iterable[Severity]) -> Severity:
    """ERROR if any severity is an error or there is none; else WARN."""
    found = set(severities)
    return Severity.WARN if found == {Severity.WARN} else Severity.ERROR


def short_text(evaluations: Iterable[Evaluation]) -> str:
    """The cell of a table: the failed checks by severity, or the number that passed."""
    evaluations = list(evaluations)
    texts: list[str] = []
    for severity, word in ((Severity.ERROR, "RED"), (Severity.WARN, "WARN")):
        names = [e.check for e in evaluations if not e.passed and e.severity is severity]
        if names:
            texts.append(f"{word}: {', '.join(names)}")
    return "; ".join(texts) or f"{len(evaluations)} passed"


def by_window(evaluations: Sequence[Evaluation]) -> list[str]:
    """Each distinct explanation once, with its window or the number of its windows."""
    windows: dict[str, list[str]] = {}
    for evaluation in evaluations:
        windows.setdefault(evaluation.explanation, []).append(evaluation.window)
    texts: list[str] = []
    for explanation, keys in windows.items():
        if not any(keys):
            texts.append(explanation)
        elif len(keys) == 1:
            texts.append(f"{keys[0]}: {explanation}")
        else:
            texts.append(f"in {len(keys)} windows, {min(keys)} to {max(keys)}: {explanation}")
    return texts


def problem_lines(evaluations: Iterable[Evaluation]) -> list[str]:
    """One line for each cause of a failed check: severity, subject, check, remedy."""
    groups: dict[tuple[str, str, str], list[Evaluation]] = {}
    for evaluation in evaluations:
        if not evaluation.passed:
            key = (evaluation.severity.value.upper(), evaluation.subject, evaluation.check)
            groups.setdefault(key, []).append(evaluation)
    return [
        f"{' '.join(word for word in key if word)} {text}"
        for key, alike in sorted(groups.items())
        for text in by_window(alike)
    ]
