"""The page of the tables below the warehouse, with their columns."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from kstreams_assets.app.store_columns import KEY_PARTS, POSITION, RAW
from kstreams_assets.layout import (
    CONTROL_LAYOUT_VERSION,
    LAYOUT_PROPERTY,
    LAYOUT_VERSION,
    Warehouse,
)
from kstreams_assets.model import column
from kstreams_assets.model.tables import TABLES
from kstreams_assets.repository.rows import rows_of
from kstreams_assets.store import StorePath, relative
from scripts.reference.markdown import table
from spark_resources.data_files import RECORD_COLUMNS

Columns = Mapping[str, tuple[str, str]]
"""Name -> type and text of a column."""

_RECORDS: Mapping[str, str] = {
    "window": column.WINDOW_KEY.text,
    "topic": "Topic.",
    "partition": column.PARTITION.text,
    "offset": column.OFFSET.text,
    "timestamp_ms": column.TIMESTAMP.text,
    "timestamp_type": column.TIMESTAMP_TYPE.text,
    "headers": column.HEADERS.text,
    "key": column.KEY.text,
    "value": column.VALUE.text,
}


def table_lines() -> Iterator[str]:
    """Every table below the warehouse with its columns."""
    warehouse = Warehouse(Path("/warehouse"))
    yield "All tables are Delta tables below the folder `warehouse`. Each carries its layout"
    yield f"version in the table property `{LAYOUT_PROPERTY}` (now {LAYOUT_VERSION} in `records`"
    yield f"and `ktables`, {CONTROL_LAYOUT_VERSION} in the others); a newer layout is refused. Do"
    yield "not write to them."
    for path, text, columns in _tables(warehouse):
        yield ""
        yield f"## {relative(path, warehouse.root)}"
        yield ""
        yield text
        yield ""
        yield from table(
            ("column", "type", "what"),
            ((f"`{name}`", f"`{kind}`", meaning) for name, (kind, meaning) in columns.items()),
        )


def _tables(warehouse: Warehouse) -> list[tuple[StorePath, str, Columns]]:
    """Where each table lies, what it is, and its columns."""
    controls = [(warehouse.control(spec.name), spec.text, _columns(spec.row)) for spec in TABLES]
    records = (
        warehouse.records("<application id>"),
        "Records, partitioned by `window` and `topic`. A file holds records"
        " of one span, in offset order.",
        _sql_columns(RECORD_COLUMNS, _RECORDS),
    )
    stores = (
        warehouse.ktable("<application id>", "<store>"),
        "State stores as tables, partitioned by `window`. A window holds the"
        " whole state at its recovery point. Which rows count is in `ktable_snapshots`.",
        _ktable_columns(),
    )
    return [records, stores, *controls]


def _ktable_columns() -> Columns:
    parts = {}
    for kind, columns in KEY_PARTS.items():
        for name, sql_type, text in columns:
            kinds = [*parts[name][2], kind] if name in parts else [kind]
            parts[name] = (sql_type, text, kinds)
    return {
        **{name: (kind, f"{text}.") for name, kind, text in POSITION},
        **{
            name: (kind, f"Only of kind {', '.join(kinds)}. {text}.")
            for name, (kind, text, kinds) in parts.items()
        },
        "decoded_key": ("as declared", "The key, without window or session; null: not decoded."),
        "decoded_value": ("as declared", "The value; null: not decoded, or deleted (versioned)."),
        **{name: (kind, f"{text}.") for name, kind, text in RAW},
    }


def _columns(row: type) -> Columns:
    return {c.name: (_arrow_type(c.field.type), c.column.text) for c in rows_of(row).columns}


def _arrow_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list<{_arrow_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{f.name}: {_arrow_type(f.type)}' for f in kind)}>"
    return str(kind)


def _sql_columns(text: str, meanings: Mapping[str, str]) -> Columns:
    found = {}
    for each in re.split(r",\s*(?![^<]*>)", text):
        name, kind = each.replace(" NOT NULL", "").split(" ", 1)
        found[name] = kind.lower()
    _require_same(list(found), meanings)
    return {name: (kind, meanings[name]) for name, kind in found.items()}


def _require_same(names: Sequence[str], meanings: Mapping[str, str]) -> None:
    wrong = set(names) ^ set(meanings)
    if wrong:
        raise ValueError(f"Column without a text, or text without a column: {sorted(wrong)}.")
