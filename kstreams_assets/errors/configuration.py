"""What a user wrote and this project cannot go by."""

from collections.abc import Iterable
from pathlib import Path

from kstreams_assets.errors.base import KStreamsAssetsError


class ConfigurationError(KStreamsAssetsError):
    """A setting is missing, unknown or contradicts another one."""


class SecretNotFoundError(ConfigurationError):
    """The environment variable or file that holds a secret is absent or empty."""

    def __init__(self, *, setting: str, source: str) -> None:
        super().__init__(
            f"The secret for {setting} is not there: {source} is absent or empty.",
            remedy=f"Provide {source} to the process that connects to Kafka.",
        )
        self.setting = setting
        self.source = source


class TopologyParseError(ConfigurationError):
    """A text is not the output of `Topology.describe()`."""

    def __init__(self, *, line_number: int, line: str, expected: str) -> None:
        super().__init__(
            f"Line {line_number} of the topology text is not understood: {line!r}"
            f" (expected {expected}).",
            remedy="Give the unchanged output of Topology.describe().toString().",
        )
        self.line_number = line_number
        self.line = line
        self.expected = expected


class DeclaredNotFoundError(ConfigurationError):
    """A topic or store that the user declared is not there under this name."""

    def __init__(self, *, kind: str, name: str, where: str, near: Iterable[str] = ()) -> None:
        self.kind = kind
        self.name = name
        self.where = where
        self.near = tuple(near)
        hint = f" (near: {', '.join(self.near)})" if self.near else ""
        super().__init__(
            f"The declared {kind} {name!r} is not in {where}{hint}.",
            remedy=f"Correct the name of the {kind} in the declarations, or remove it there.",
        )


class TopicPatternUnmatchedError(ConfigurationError):
    """An include or exclude pattern matches no topic of the application."""

    def __init__(
        self, *, application_id: str, setting: str, pattern: str, near: Iterable[str] = ()
    ) -> None:
        self.application_id = application_id
        self.setting = setting
        self.pattern = pattern
        self.near = tuple(near)
        hint = f" (near: {', '.join(self.near)})" if self.near else ""
        super().__init__(
            f"The {setting} pattern {pattern!r} matches no topic of application"
            f" {application_id}{hint}.",
            remedy=f"Correct the pattern (full names, case sensitive, * ? [...]) or remove it from"
            f" {setting}.",
        )


class RuleSqlError(ConfigurationError):
    """A completeness rule, or the recomputation of a store, cannot be what was meant.

    `rule` is its name (of a recomputation `recompute_<store>`), `line` where it begins in `file`,
    `problem_line` the line of the YAML with the problem; None where that is not known.
    """

    def __init__(
        self,
        *,
        rule: str,
        problem: str,
        remedy: str,
        file: Path | None = None,
        line: int | None = None,
        problem_line: int | None = None,
    ) -> None:
        self.rule = rule
        self.rule_problem = problem
        self.file = file
        self.line = line
        self.problem_line = problem_line
        of = "" if file is None else f" of {file}"
        at = "" if line is None else f", line {line}"
        if problem_line is not None and problem_line != line:
            at += f" (the problem is in line {problem_line})"
        super().__init__(f"Completeness rule {rule!r}{of}{at}: {problem}.", remedy=remedy)


class ApplicationNotFoundError(ConfigurationError):
    """Nothing on the cluster belongs to this application id."""

    def __init__(self, *, application_id: str) -> None:
        self.application_id = application_id
        super().__init__(
            f"No topic and no committed offset on the cluster belongs to application"
            f" {application_id!r}.",
            remedy="Check the application.id and the rights DESCRIBE on its group and topics; start"
            " the application once; or give its topology text.",
        )
