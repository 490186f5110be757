"""What Dagster shows of KTables: columns, and the numbers of each snapshot."""

from collections.abc import Iterable

import dagster as dg
import pyarrow as pa

from kstreams_assets.backup.check_events import metadata_numbers
from kstreams_assets.ktables.columns import KEY_PARTS, POSITION, RAW, decoded_columns
from kstreams_assets.ktables.snapshot import Snapshot, TableStore

_PROBLEMS = dg.TableSchema(
    [
        dg.TableColumn("topic", "string"),
        dg.TableColumn("partition", "int"),
        dg.TableColumn("offset", "int"),
        dg.TableColumn("problem", "string", "Why the row could not be decoded"),
    ]
)
_PARTITIONS = dg.TableSchema(
    [
        dg.TableColumn("partition", "int"),
        dg.TableColumn("log_start", "int", "First offset of the log that counts"),
        dg.TableColumn("end", "int", "Exclusive end"),
        dg.TableColumn("excluded", "int", "Offsets below the end that are not in it"),
        dg.TableColumn("rows", "int"),
        dg.TableColumn("bytes", "int", "Uncompressed keys, values and headers"),
    ]
)


def column_schema(store: TableStore) -> dg.TableSchema:
    """The columns as declared, fields of structures dotted (`decoded_value.total_cents`)."""
    sources = dict(store.format.lineage)
    described = [
        *POSITION,
        *KEY_PARTS.get(store.format.kind, ()),
        *((name, kind, "From the key") for name, kind in decoded_columns(store.format, "key")),
        *(
            (name, kind, _from_value(name, sources))
            for name, kind in decoded_columns(store.format, "value")
        ),
        *RAW,
    ]
    return dg.TableSchema([dg.TableColumn(*column) for column in described])


def _from_value(column: str, sources: dict[str, tuple[str, ...]]) -> str:
    declared = sources.get(column.removeprefix("decoded_value").lstrip("."), ())
    return f"From the value; computed from {', '.join(declared)}" if declared else "From the value"


def written_schema(fields: Iterable[pa.Field], declared: dg.TableSchema) -> dg.TableSchema:
    """The columns as they are in the table, with the texts of the declared ones.

    Only the table knows the fields of Avro, Protobuf and buffers.
    """
    texts = {column.name: column.description for column in declared.columns}
    columns: list[dg.TableColumn] = []

    def add(name: str, kind: pa.DataType) -> None:
        struct = pa.types.is_struct(kind)
        side = "key" if name.startswith("decoded_key") else "value"
        text = texts.get(name) or f"From the {side}"
        columns.append(dg.TableColumn(name, "struct" if struct else sql_type(kind), text))
        if struct:
            for inner in kind:
                add(f"{name}.{inner.name}", inner.type)

    for field in fields:
        add(field.name, field.type)
    return dg.TableSchema(columns)


_SQL_TYPES = {
    "int64": "bigint",
    "int32": "int",
    "int16": "smallint",
    "int8": "tinyint",
    "double": "double",
    "float": "float",
    "bool": "boolean",
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
    "date32[day]": "date",
}


def sql_type(kind: pa.DataType) -> str:
    """A type as Spark writes it."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{sql_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{f.name}: {sql_type(f.type)}' for f in kind)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return _SQL_TYPES.get(str(kind), str(kind))


def snapshot_metadata(snapshot: Snapshot) -> dict[str, dg.MetadataValue]:
    """Metadata of one window."""
    values: dict[str, dg.MetadataValue] = {
        **metadata_numbers(
            {
                "dagster/partition_row_count": snapshot.rows,
                "rows": snapshot.rows,
                "bytes": snapshot.bytes,
                "records_read": snapshot.records,
                "problem_rows": snapshot.problem_rows,
            }
        ),
        "recovery_point": dg.MetadataValue.text(snapshot.point_id),
        "taken_at": dg.MetadataValue.timestamp(snapshot.taken_at_ms / 1000),
        "proved": dg.MetadataValue.bool(snapshot.proved),
        "base_window": dg.MetadataValue.text(snapshot.base_window or "none: from the log's begin"),
        "duration_s": dg.MetadataValue.float(round(snapshot.took_ms / 1000, 3)),
        "offsets": dg.MetadataValue.table(_partitions(snapshot), schema=_PARTITIONS),
    }
    if snapshot.reason:
        values["reason"] = dg.MetadataValue.text(snapshot.reason)
    if snapshot.delta_version is not None:
        values["delta_version"] = dg.MetadataValue.int(snapshot.delta_version)
    if snapshot.problems:
        values["problems"] = dg.MetadataValue.table(_problems(snapshot), schema=_PROBLEMS)
    return values


def _partitions(snapshot: Snapshot) -> list[dg.TableRecord]:
    return [
        dg.TableRecord(
            {
                "partition": partition.partition,
                "log_start": partition.log_start,
                "end": partition.end,
                "excluded": sum(hole.end - hole.start for hole in partition.excluded),
                "rows": partition.rows,
                "bytes": partition.bytes,
            }
        )
        for partition in snapshot.partitions
    ]


def _problems(snapshot: Snapshot) -> list[dg.TableRecord]:
    return [
        dg.TableRecord(
            {
                "topic": snapshot.topic,
                "partition": problem.partition,
                "offset": problem.offset,
                "problem": problem.problem,
            }
        )
        for problem in snapshot.problems
    ]
