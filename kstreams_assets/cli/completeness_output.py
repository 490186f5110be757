"""How evaluations of completeness rules are printed."""

from collections.abc import Sequence
from typing import Any

import click

from kstreams_assets.checks import Severity
from kstreams_assets.cli.output import print_table
from kstreams_assets.completeness.result import NULL, RuleResult, explanation_of, severity_of
from kstreams_assets.texts import iso_time


def tell_results(title: str, results: Sequence[RuleResult]) -> None:
    """A table of the rules, the rows in violation of each, and on standard error what to do."""
    print_table(
        title,
        ["rule", "outcome", "rows in violation", "where", "window", "point", "stores from", "s"],
        [
            [
                result.rule,
                outcome_text(result),
                result.violations,
                result.place.value,
                result.window or "",
                result.point_id,
                result.stores_from,
                round(result.took_ms / 1000, 1),
            ]
            for result in results
        ],
    )
    for result in results:
        if result.sample.rows:
            shown, count = len(result.sample.rows), result.violations
            print_table(
                f"{result.rule}: {count:,} row(s) in violation"
                + (f", the first {shown}" if shown < count else ""),
                list(result.sample.columns),
                [[NULL if cell is None else cell for cell in row] for row in result.sample.rows],
            )
    for result in results:
        if not result.passed:
            level = severity_of(result).value.upper()
            click.echo(f"{level} {result.rule}: {explanation_of(result)}", err=True)


def outcome_text(result: RuleResult) -> str:
    """The outcome as tables show it: what is red is in capitals."""
    if result.passed:
        return "passed"
    text = result.outcome.value.replace("_", " ")
    return f"RED: {text}" if severity_of(result) is Severity.ERROR else f"WARN: {text}"


def result_document(result: RuleResult) -> dict[str, Any]:
    """An evaluation as plain values."""
    return {
        "rule": result.rule,
        "kind": result.kind.value,
        "place": result.place.value,
        "window": result.window,
        "recovery_point": result.point_id,
        "outcome": result.outcome.value,
        "passed": result.passed,
        "severity": severity_of(result).value,
        "blocks": result.blocks,
        "violations": result.violations,
        "explanation": explanation_of(result),
        "columns": list(result.sample.columns),
        "rows": [list(row) for row in result.sample.rows],
        "stores_from": result.stores_from,
        "took_ms": result.took_ms,
        "evaluated_at": iso_time(result.evaluated_at_ms),
        "run_id": result.run_id,
    }
