"""What Dagster shows of completeness: the rows in violation, and the numbers of an evaluation."""

from collections.abc import Sequence
from typing import Final

import dagster as dg

from kstreams_assets.completeness.checks import counts, explanation_of
from kstreams_assets.completeness.result import Outcome, RuleResult, Sample

Values = dict[str, dg.MetadataValue]

NULL: Final = "null"
"""How a null is shown; an empty text is another value."""

_RULES: Final = dg.TableSchema(
    [
        dg.TableColumn("rule", "string"),
        dg.TableColumn("outcome", "string", "passed, violated, not_verifiable or failed"),
        dg.TableColumn("violations", "int", "Rows in violation"),
        dg.TableColumn("stores_from", "string", "Where the content of stores came from"),
        dg.TableColumn("took_ms", "int"),
        dg.TableColumn("explanation", "string"),
    ]
)


def rule_metadata(result: RuleResult) -> Values:
    """Of one evaluation: how it came out, at which point, and the first rows in violation."""
    values: Values = {
        "outcome": dg.MetadataValue.text(result.outcome.value),
        "violations": dg.MetadataValue.int(result.violations),
        "took_s": dg.MetadataValue.float(round(result.took_ms / 1000, 3)),
    }
    if result.point_id:
        values["recovery_point"] = dg.MetadataValue.text(result.point_id)
    if result.stores_from:
        values["stores_from"] = dg.MetadataValue.text(result.stores_from)
    if result.sample.rows:
        values["rows_in_violation"] = sample_table(result.sample)
    return values


def sample_table(sample: Sample) -> dg.TableMetadataValue:
    """Rows as a table; a null is the text `null`."""
    records = [
        dg.TableRecord(
            {
                column: NULL if cell is None else cell
                for column, cell in zip(sample.columns, row, strict=True)
            }
        )
        for row in sample.rows
    ]
    schema = dg.TableSchema([dg.TableColumn(column, "string") for column in sample.columns])
    return dg.MetadataValue.table(records, schema=schema)


def evaluation_metadata(results: Sequence[RuleResult]) -> Values:
    """Of all rules together: how many came out how, and a line for each."""
    found = counts(results)
    values: Values = {
        "rules": dg.MetadataValue.int(len(results)),
        **{str(outcome): dg.MetadataValue.int(found[outcome]) for outcome in Outcome},
        "violations": dg.MetadataValue.int(sum(result.violations for result in results)),
        "took_s": dg.MetadataValue.float(round(sum(r.took_ms for r in results) / 1000, 3)),
    }
    if results:
        values["evaluations"] = dg.MetadataValue.table(
            [dg.TableRecord(_row(result)) for result in results], schema=_RULES
        )
        points = sorted({result.point_id for result in results} - {""})
        if points:
            values["recovery_point"] = dg.MetadataValue.text(", ".join(points))
    return values


def _row(result: RuleResult) -> dict[str, str | int]:
    return {
        "rule": result.rule,
        "outcome": result.outcome.value,
        "violations": result.violations,
        "stores_from": result.stores_from,
        "took_ms": result.took_ms,
        "explanation": explanation_of(result),
    }
