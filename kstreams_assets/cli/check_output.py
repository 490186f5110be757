"""How commands print the checks of windows: what is red, and what is only a warning."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from kstreams_assets.backup.verdicts import WindowVerdict, in_windows
from kstreams_assets.checks import Severity


def checks_text(checks: Sequence[Mapping[str, Any]]) -> str:
    """The cell of a table: the failed checks by severity, or how many passed."""
    failed = {
        severity: [c["check"] for c in checks if not c["passed"] and c["severity"] == severity]
        for severity in Severity
    }
    texts = [
        f"{'RED' if severity is Severity.ERROR else 'WARN'}: {', '.join(names)}"
        for severity, names in failed.items()
        if names
    ]
    return "; ".join(texts) or f"{len(checks)} passed"


def tell_failed(verdicts: Iterable[tuple[str, WindowVerdict]]) -> None:
    """One line on standard error for each failed check of a topic or store, cause by cause."""
    groups: dict[tuple[str, str, str], list[WindowVerdict]] = {}
    for subject, verdict in verdicts:
        if not verdict.passed:
            key = (verdict.severity.value.upper(), subject, verdict.check)
            groups.setdefault(key, []).append(verdict)
    for (severity, subject, check), failed in sorted(groups.items()):
        for text in in_windows(failed):
            click.echo(f"{severity} {subject} {check} {text}", err=True)
