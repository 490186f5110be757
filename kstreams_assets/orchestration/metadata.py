"""Public forms of results as metadata of Dagster."""

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

import dagster as dg

from kstreams_assets.public_form import Form, Markdown, Rounded, Seconds, Timestamp, Value

Values = dict[str, dg.MetadataValue]

_COLUMNS: Final = {int: "int", float: "float", bool: "bool", Seconds: "float", Rounded: "float"}


def metadata(form: Form, result: object) -> Values:
    """The values of a result; those that are None are left out."""
    found: Values = {}
    for value in form.values:
        if "dagster" in value.where and (given := value.get(result)) is not None:
            found[value.name] = _metadata(form, value, given)
    return found


def table(form: Form, results: Iterable[object]) -> dg.TableMetadataValue:
    """A table of results, a row for each."""
    columns = [value for value in form.values if "dagster" in value.where]
    schema = dg.TableSchema(
        [
            dg.TableColumn(
                column.name, _COLUMNS.get(form.kind(column), "string"), column.text or None
            )
            for column in columns
        ]
    )
    rows = [
        dg.TableRecord({column.name: column.plain(result) for column in columns})
        for result in results
    ]
    return dg.MetadataValue.table(rows, schema=schema)


def _metadata(form: Form, value: Value, given: Any) -> dg.MetadataValue:  # noqa: ANN401
    if value.form is not None:
        return table(value.form, given)
    kind = form.kind(value)
    if kind is Markdown:
        return dg.MetadataValue.md(given)
    if kind is Timestamp:
        return dg.MetadataValue.timestamp(given / 1000)
    if kind is Rounded:
        return dg.MetadataValue.float(round(float(given), 2))
    if isinstance(given, bool):
        return dg.MetadataValue.bool(given)
    if isinstance(given, float):
        return dg.MetadataValue.float(round(given, 3))
    if isinstance(given, int):
        return dg.MetadataValue.int(given)
    return dg.MetadataValue.text(str(given.value if isinstance(given, Enum) else given))
