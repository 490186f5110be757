"""Columns of the control tables as they are in the warehouses that users have."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kstreams_assets.repository.table import Table
from tests.repository.test_table import TABLES

_STORED = Path(__file__).with_name("stored_schemas.json")
"""By table its columns in order (name, Arrow type, whether null is allowed) and how it is kept.

Never changed for a column that is there; a new column of a new release is added.
"""


def _columns(schema: pa.Schema) -> list[str]:
    return [f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in schema]


def _described(known: Table[Any], path: Path) -> dict[str, Any]:
    table = replace(known, path=path / known.name)
    table.append([])
    stored = DeltaTable(str(table.path))
    return {
        "columns": _columns(table.schema),
        "partitioned_by": stored.metadata().partition_columns,
        "properties": dict(sorted(stored.metadata().configuration.items())),
        "grows_along": table.grows_along,
        "kept": table.kept,
    }


@pytest.mark.parametrize("known", TABLES, ids=lambda known: known.name)
def test_columns_are_as_they_were(known: Table[Any], tmp_path: Path) -> None:
    stored = json.loads(_STORED.read_text(encoding="utf-8"))
    assert _described(known, tmp_path) == stored[known.name]
