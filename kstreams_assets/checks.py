"""What a look at something says: a check, what it found, and how it came out. One model for all.

How to use it. Declare a claim once as a `Check`: its name is what users, tables and Dagster see,
its claim says what holds and what red means. A function that judges returns an `Evaluation` of it:
`passed(check, subject, "what was looked at")`, or `failed(check, subject, findings)` with a
`Finding` for each deviation, whose `action` says what to do. Where nothing can be said, use
`Outcome.NOT_VERIFIABLE` (never counted as passed); where the look itself failed, `Outcome.ERROR`.
A list of findings alone is a list of blockers (a restore that must not begin) or a diagnosis (a
restore that is watched). `problem_lines`, `short_text` and `by_window` put evaluations into words
for the terminal and Dagster. What is stored keeps its own row and is made from these or gives one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_assets.public_form import Form

MOST_SHOWN: Final = 10
"""How many findings are put into one text; of the others it says how many there are."""


class Severity(StrEnum):
    """How bad a failed check is."""

    ERROR = "error"
    WARN = "warn"


class Outcome(StrEnum):
    """How an evaluation came out.

    `not_verifiable`: it can neither be said to hold nor to be violated. `error`: the look failed.
    """

    PASSED = "passed"
    FAILED = "failed"
    NOT_VERIFIABLE = "not_verifiable"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Check:
    """Something that is claimed to hold; `blocking`: a restore stops where it does not."""

    name: str
    claim: str
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One deviation of a topic, store, group (`subject`): what is, what should be, what to do."""

    subject: str
    found: str
    expected: str = ""
    action: str = ""
    severity: Severity = Severity.ERROR

    @property
    def text(self) -> str:
        """What was found and what to do, without the subject."""
        found = f"{self.found}; expected: {self.expected}." if self.expected else self.found
        return f"{found} {self.action}" if self.action else found

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a check of `subject` (a topic, a store, a rule; empty for the application) came out.

    `summary` says what was looked at, `not_judged` what was not and why. `window` is empty where
    the check is not of a window. `severity` is how bad it is, or would be if it failed.
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
        """Whether the claim was seen to hold."""
        return self.outcome is Outcome.PASSED

    @property
    def is_red(self) -> bool:
        """Whether it is an error: neither a mere warning nor what cannot be verified."""
        is_bad = self.outcome in (Outcome.FAILED, Outcome.ERROR)
        return is_bad and self.severity is Severity.ERROR

    @property
    def explanation(self) -> str:
        """What was found and what to do, or what was looked at."""
        texts = [
            finding.text if finding.subject == self.subject else str(finding)
            for finding in self.findings[:MOST_SHOWN]
        ]
        if len(self.findings) > MOST_SHOWN:
            texts.append(f"And {len(self.findings) - MOST_SHOWN} more.")
        not_judged = [f"Not evaluated: {text}" for text in self.not_judged]
        return " ".join([*(texts or [self.summary]), *not_judged])


EVALUATION: Final = Form(Evaluation, "check passed severity explanation")
"""How a check came out."""


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
    """The evaluation of a claim that holds; `summary` says what was looked at."""
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
    """The evaluation of a claim that does not hold, as bad as its worst finding; errors first."""
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
    """An error if there is one, or none at all; else a warning."""
    found = set(severities)
    return Severity.WARN if found == {Severity.WARN} else Severity.ERROR


def short_text(evaluations: Iterable[Evaluation]) -> str:
    """The cell of a table: the failed checks by severity, or how many passed."""
    evaluations = list(evaluations)
    texts: list[str] = []
    for severity, word in ((Severity.ERROR, "RED"), (Severity.WARN, "WARN")):
        names = [e.check for e in evaluations if not e.passed and e.severity is severity]
        if names:
            texts.append(f"{word}: {', '.join(names)}")
    return "; ".join(texts) or f"{len(evaluations)} passed"


def by_window(evaluations: Sequence[Evaluation]) -> list[str]:
    """The explanations, each once, with the window or how many windows it is about."""
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
    """A line for each cause of a check that did not pass: severity, subject, check, what to do."""
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
