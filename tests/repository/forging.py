"""Control tables as somebody leaves them who may write everything, and has this package."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kstreams_assets.repository.table import Table
from kstreams_assets.store import StorePath
from tests.repository.test_table import TABLES


def forge(place: StorePath, change: Callable[[pa.Table], pa.Table]) -> None:
    """Put other rows in place of all of a control table: its chain is whole, what it says is not.

    What its rows say of themselves (digests of points, of saved records, of maps) is what gives it
    away then.
    """
    known = {each.name: each for each in TABLES}
    table: Table[Any] = replace(known[place.name], path=place)
    found = table.of_all.read()
    for application_id in found["application_id"].unique().to_pylist():
        table = replace(table, application_id=application_id)
        files = table.files()
        lows, highs = [file.low for file in files], [file.high for file in files]
        table.rewrite(min(lows), max(highs), change)


def forge_column(place: StorePath, column: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """Put other values in a column of a control table."""

    def changed(rows: pa.Table) -> pa.Table:
        index = rows.schema.get_field_index(column)
        values = pa.array(change(rows[column].to_pylist()), rows.schema.field(index).type)
        return rows.set_column(index, rows.schema.field(index), values)

    forge(place, changed)
