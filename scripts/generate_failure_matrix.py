"""Writes docs/operations/failure-matrix.md: `python -m scripts.generate_failure_matrix [--check]`.

The first table shows what the drills of tests/failures saw; they record it in
docs/operations/failures (`pytest tests/failures --record-failures`). The other tables, and all
other text, are kept in docs/operations/failures/failure-matrix.md.in.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click

from tests.failures.outcome import FOLDER, Outcome, load
from tests.failures.scenarios import SCENARIOS, Scenario

MATRIX: Final = FOLDER.parent / "failure-matrix.md"
TEMPLATE: Final = "failure-matrix.md.in"
GENERATED: Final = (
    "<!-- Written by `python -m scripts.generate_failure_matrix` from the files in `failures/`;"
    " do not edit. -->"
)
_PLACE: Final = "{drills}"
_GREEN: Final = "green"
_COLUMNS: Final = (
    "scenario",
    "expected",
    "seen",
    "results of the checks",
    "after a restore",
    "do",
    "test",
    "seconds",
)


def matrix(folder: Path = FOLDER) -> str:
    """The whole document, from the outcomes recorded in a folder.

    Raises:
        ValueError: A scenario has no recorded outcome.
    """
    rows = [_row(*_COLUMNS), _row(*(["---"] * (len(_COLUMNS) - 1)), "---:")]
    for scenario in SCENARIOS:
        outcome = load(scenario.id, folder)
        if outcome is None:
            raise ValueError(f"{scenario.id} is not recorded: run pytest with --record-failures")
        rows.append(_row(*_cells(scenario, outcome)))
    template = (folder / TEMPLATE).read_text(encoding="utf-8")
    title, _, rest = template.partition("\n")
    return f"{title}\n\n{GENERATED}\n{rest}".replace(_PLACE, "\n".join(rows))


def _cells(scenario: Scenario, outcome: Outcome) -> Iterator[str]:
    yield f"{scenario.title} (`{outcome.application}`)"
    yield scenario.expected
    yield _said(outcome.happens)
    yield "<br>".join(_checks(outcome.checks))
    yield _said(outcome.restores)
    yield scenario.do
    yield f"`{outcome.test}`"
    yield f"{outcome.seconds:.0f}"


def _said(facts: Mapping[str, str]) -> str:
    return "<br>".join(f"{subject}: {fact}" for subject, fact in facts.items())


def _checks(checks: Mapping[str, str]) -> Iterator[str]:
    """Names of checks have no blanks; what is not green comes first."""
    green = [f"`{name}`" for name, said in checks.items() if said == _GREEN]
    for name, said in checks.items():
        if said != _GREEN:
            yield f"{name if ' ' in name else f'`{name}`'}: {said}"
    if green:
        yield f"green: {', '.join(green)}"


def _row(*cells: str) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail when the document is stale.")
def main(check: bool) -> None:
    """Write docs/operations/failure-matrix.md from what the drills recorded."""
    text = matrix()
    if check:
        if not MATRIX.is_file() or MATRIX.read_text(encoding="utf-8") != text:
            click.echo(f"{MATRIX.name} is stale. Run this without --check.")
            sys.exit(1)
        return
    MATRIX.write_text(text, encoding="utf-8")
    click.echo(f"Written: {MATRIX}.")


if __name__ == "__main__":
    main()
