"""The page of the tables below the warehouse, with their columns."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from kstreams_assets.app.store_columns import KEY_PARTS, POSITION, RAW
from kstreams_assets.completeness.result import RuleResult
from kstreams_assets.drill.report import StoredDrill
from kstreams_assets.governance.findings import StoredVerdict
from kstreams_assets.ktables.snapshot import Snapshot
from kstreams_assets.layout import (
    CONTROL_LAYOUT_VERSION,
    CONTROL_TABLES,
    LAYOUT_PROPERTY,
    LAYOUT_VERSION,
    Warehouse,
)
from kstreams_assets.store import StorePath, relative
from kstreams_assets.warehouse import column
from kstreams_assets.warehouse.ledger import LedgerEntry, NotedTopic
from kstreams_assets.warehouse.point import RecoveryPoint
from kstreams_assets.warehouse.points import Pin, SavedRecord
from kstreams_assets.warehouse.restores import MapRow, StoredRestore
from kstreams_assets.warehouse.rows import rows_of
from kstreams_assets.warehouse.schemas import StoredSchema
from kstreams_assets.warehouse.verifications import StoredVerification
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
    tables = _tables(warehouse)
    _require_all({path.name for path, _, _ in tables})
    for path, text, columns in tables:
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
    return [
        (
            warehouse.records("<application id>"),
            "Records, partitioned by `window` and `topic`. A file holds records"
            " of one span, in offset order.",
            _sql_columns(RECORD_COLUMNS, _RECORDS),
        ),
        (
            warehouse.control("recovery_points"),
            "Recovery points, one row each.",
            _columns(RecoveryPoint),
        ),
        (
            warehouse.control("recovery_point_records"),
            "Records of recovery points that could not wait for a backup: repartition records in"
            " flight, tails of changelogs.",
            _columns(SavedRecord),
        ),
        (
            warehouse.control("pins"),
            "Recovery points that stay until they are unpinned (`recovery-points pin`).",
            _columns(Pin),
        ),
        (
            warehouse.control("windows"),
            "The ledger: one row for each window, topic and partition that is backed up.",
            _columns(LedgerEntry),
        ),
        (
            warehouse.control("increments"),
            "What a follower has backed up of windows that are open, in order: rows as in"
            " `windows`, with the window's key, `+` and a number as `window`. They go when the"
            " window's own rows have come.",
            _columns(LedgerEntry),
        ),
        (
            warehouse.control("topics"),
            "How each topic was described when a window was backed up.",
            _columns(NotedTopic),
        ),
        (
            warehouse.control("restores"),
            "Restores, one row for each change of state.",
            _columns(StoredRestore),
        ),
        (
            warehouse.control("offset_maps"),
            "Where restored records went: source offsets to target offsets, run by run.",
            _columns(MapRow),
        ),
        (
            warehouse.ktable("<application id>", "<store>"),
            "State stores as tables, partitioned by `window`. A window holds the"
            " whole state at its recovery point. Which rows count is in `ktable_snapshots`.",
            _ktable_columns(),
        ),
        (
            warehouse.control("ktable_snapshots"),
            "The snapshots of state stores, one row for each store and window.",
            _columns(Snapshot),
        ),
        (
            warehouse.control("schemas"),
            "Schemas of Avro and Protobuf records, as the registry had them.",
            _columns(StoredSchema),
        ),
        (
            warehouse.control("completeness_results"),
            "How completeness rules came out, one row for each evaluation of each rule.",
            _columns(RuleResult),
        ),
        (
            warehouse.control("governance_findings"),
            "Governance reports, one row for each check; kept for 90 days.",
            _columns(StoredVerdict),
        ),
        (
            warehouse.control("drills"),
            "Restore drills, one row each.",
            _columns(StoredDrill),
        ),
        (
            warehouse.control("verifications"),
            "Looks at the whole warehouse (`verify`), one row each; kept for 400 days.",
            _columns(StoredVerification),
        ),
    ]


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


def _require_all(described: Collection[str]) -> None:
    missing = sorted(set(CONTROL_TABLES) - set(described))
    if missing:
        raise ValueError(f"Table without a text: {missing}.")


def _require_same(names: Sequence[str], meanings: Mapping[str, str]) -> None:
    wrong = set(names) ^ set(meanings)
    if wrong:
        raise ValueError(f"Column without a text, or text without a column: {sorted(wrong)}.")
