"""The table of one store: its files by window, and its columns. No JVM."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema, TableFeatures, write_deltalake

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.layout import LAYOUT_PROPERTY, LAYOUT_VERSION
from kstreams_assets.model.data_files import SpanFile
from kstreams_assets.model.files import path_in_table
from kstreams_assets.repository.delta_log import commit_hooks, committing, delta_table
from kstreams_assets.repository.known import Known
from kstreams_assets.repository.table import create_delta, open_delta
from kstreams_assets.store import StorePath
from kstreams_assets.store.failures import storage_failures

_WINDOW: Final = {"name": "window", "type": "string", "nullable": True, "metadata": {}}
_PROPERTIES: Final = {
    LAYOUT_PROPERTY: str(LAYOUT_VERSION),
    # Keys and values are not ordered: their minimum and maximum would skip no file.
    "delta.dataSkippingStatsColumns": "partition,offset,timestamp_ms",
}
_IN_DDL: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}

WindowFiles = dict[str, list[SpanFile]]
"""By window, the files of a KTable: rows of several partitions, in no order."""


def open_table(
    path: StorePath, *, to_write: bool = False, known: Known | None = None
) -> DeltaTable | None:
    """The table of a store as deltalake reads it, None if nothing was written (`open_delta`).

    Raises:
        NewerLayoutError: A newer release wrote it.
        WarehouseError: The table cannot be read.
    """
    return open_delta(
        path,
        f"ktables/{path.parent.name}/{path.name}",
        to_write=to_write,
        known=known,
        layout=LAYOUT_VERSION,
    )


def window_files(path: StorePath, known: Known | None = None) -> WindowFiles:
    """The files of each window, in order of their paths.

    Raises:
        NewerLayoutError: A newer release wrote the table.
        WarehouseError: The table cannot be read.
    """
    table = open_table(path, known=known)
    added = None if table is None else pa.table(table.get_add_actions(flatten=True))
    found: WindowFiles = {}
    if added is None or added.num_rows == 0:
        return found
    columns = ["partition.window", "path", "num_records", "min.offset", "max.offset"]
    for window, name, records, first, last in sorted(
        zip(*added.select(columns).to_pydict().values(), strict=True), key=lambda row: row[1]
    ):
        file = SpanFile(path / path_in_table(name), records, first, last, window=window)
        found.setdefault(window, []).append(file)
    return found


def prepare_table(path: StorePath, schema_json: str) -> DeltaTable:
    """The table with these columns: created if needed, with new columns and fields added.

    `schema_json` is that of a DataFrame, without `window`. Rows of other windows have nulls in new
    columns.

    Raises:
        KStreamsAssetsError: A column has another type in the table; nothing was changed.
        WarehouseError: The table cannot be written.
    """
    columns = _nullable(json.loads(schema_json))
    columns["fields"] = [_WINDOW, *columns["fields"]]
    table = open_table(path, to_write=True)
    with storage_failures(path):
        schema = Schema.from_json(json.dumps(columns))
        if table is None:
            return create_delta(
                path, schema=schema, partition_by=["window"], configuration=_PROPERTIES
            )
        there = json.loads(table.schema().to_json())
        differing = dict(_differences("", there, columns))
        if differing:
            listed = "; ".join(
                f"{name} is {there} there but {wanted} now"
                for name, (there, wanted) in differing.items()
            )
            raise KStreamsAssetsError(
                f"The columns of the table of store {path.name} differ from the declaration:"
                f" {listed}.",
                remedy=f"Restore the declaration, or remove the folder {path} and create its"
                " snapshots again from the backup.",
            )
        merged = _merged(there, columns)
        if merged != there:
            schema = Schema.from_json(json.dumps(merged))
            nothing = pa.schema(schema.to_arrow()).empty_table()
            with committing(path):
                write_deltalake(
                    table,
                    nothing,
                    mode="append",
                    schema_mode="merge",
                    post_commithook_properties=commit_hooks(path),
                )
            table = delta_table(path)
            if "invariants" not in (table.protocol().writer_features or ["invariants"]):
                # A column without time zone needs a feature. Spark then also requires features that
                # older tables with NOT NULL columns (of earlier releases) use without listing them.
                with committing(path):
                    table.alter.add_feature(
                        [TableFeatures.AppendOnly, TableFeatures.Invariants],
                        allow_protocol_versions_increase=True,
                        post_commithook_properties=commit_hooks(path),
                    )
                table = delta_table(path)
    return table


def _nullable(kind: Any) -> Any:  # noqa: ANN401 (types as Delta's JSON has them)
    """A type whose parts may all be missing: earlier and later rows may not have them."""
    if not isinstance(kind, dict):
        return kind
    may = {"nullable": True, "containsNull": True, "valueContainsNull": True}
    parts = {
        part: _nullable(kind[part])
        for part in ("elementType", "keyType", "valueType")
        if part in kind
    }
    if "fields" in kind:
        parts["fields"] = [
            {**field, "type": _nullable(field["type"]), "nullable": True}
            for field in kind["fields"]
        ]
    return {**kind, **{name: value for name, value in may.items() if name in kind}, **parts}


def _merged(there: Any, wanted: Any) -> Any:  # noqa: ANN401 (types as Delta's JSON has them)
    """A type with the columns and fields of both; those of `there` keep their spelling."""
    kind = _kind_of_both(there, wanted)
    if kind == "array":
        return {**there, "elementType": _merged(there["elementType"], wanted["elementType"])}
    if kind != "struct":
        return there
    known, new = _fields(there), _fields(wanted)
    fields = [
        {**field, "type": _merged(field["type"], new[name]["type"])} if name in new else field
        for name, field in known.items()
    ]
    fields += [field for name, field in new.items() if name not in known]
    return {**there, "fields": fields}


def _kind_of_both(there: Any, wanted: Any) -> str:  # noqa: ANN401
    kinds = {type_["type"] if isinstance(type_, dict) else type_ for type_ in (there, wanted)}
    return kinds.pop() if len(kinds) == 1 else ""


def _fields(struct: Mapping[str, Any]) -> dict[str, Any]:
    """By name, ignoring case."""
    return {field["name"].lower(): field for field in struct["fields"]}


def _differences(
    name: str,
    there: Any,  # noqa: ANN401
    wanted: Any,  # noqa: ANN401
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Columns of both, fields dotted, whose types cannot be merged."""
    kind = _kind_of_both(there, wanted)
    if kind == "struct":
        known = _fields(there)
        for field in wanted["fields"]:
            other = known.get(field["name"].lower())
            if other is not None:
                path = f"{name}.{field['name']}" if name else field["name"]
                yield from _differences(path, other["type"], field["type"])
    elif kind == "array":
        yield from _differences(name, there["elementType"], wanted["elementType"])
    elif _ddl(there) != _ddl(wanted):
        yield name, (_ddl(there), _ddl(wanted))


def _ddl(kind: Any) -> str:  # noqa: ANN401
    """A type as users write it."""
    if isinstance(kind, str):
        return _IN_DDL.get(kind, kind)
    if kind["type"] == "struct":
        fields = (f"{field['name']}:{_ddl(field['type'])}" for field in kind["fields"])
        return f"struct<{','.join(fields)}>"
    if kind["type"] == "array":
        return f"array<{_ddl(kind['elementType'])}>"
    return f"map<{_ddl(kind['keyType'])},{_ddl(kind['valueType'])}>"
