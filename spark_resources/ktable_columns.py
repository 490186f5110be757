"""The columns that decoding adds to the rows of a KTable, for every kind of store.

Rows have `partition, offset, timestamp_ms, headers, key, value` as in the table of records.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kstreams_assets.app.store_format import StoreFormat, StoreKind
from kstreams_assets.model.schemas import RegisteredSchema
from spark_resources.confluent_framing import SchemasOfRows
from spark_resources.ktable_buffers import BUFFERS
from spark_resources.ktable_values import Decoded, decoded, parts_of

NULL_KEY: Final = "null key"
"""The `decode_error` of a record without a key."""
_KEY_APART, _VALUE_APART = "_key_apart", "_value_apart"
_KEY_READ, _VALUE_READ = "_key_read", "_value_read"


def with_key_parts(rows: DataFrame, store: StoreFormat) -> DataFrame:
    """Add the further parts of the keys of this kind of store.

    Windows: `window_start_ms`, `window_end_ms` (NULL without a declared size), `sequence_number`;
    sessions: `session_start_ms`, `session_end_ms` (inclusive); versioned stores: `valid_from_ms`,
    the record's timestamp. NULL if the key is too short. Other kinds have none.
    """
    if store.kind is StoreKind.VERSIONED:
        return rows.withColumn("valid_from_ms", F.col("timestamp_ms"))
    parts = parts_of(F.col("key"), store.kind, store.window_size_ms)
    return rows.withColumns(parts.columns) if parts.columns else rows


def with_decoded_columns(
    rows: DataFrame, store: StoreFormat, schemas: Mapping[int, RegisteredSchema]
) -> DataFrame:
    """Add the key parts, then `decoded_key`, `decoded_value` and `decode_error`.

    Rows never fail the job. If a row does not decode, the affected part (key, value or both) is
    NULL, and `decode_error` says why: `key: 7 bytes where a long has 8`. Otherwise it is NULL.
    """
    rows = with_key_parts(rows, store)
    if store.kind in BUFFERS:
        buffer, headers = BUFFERS[store.kind], F.col("headers")
        rows = rows.withColumns(
            {
                _KEY_APART: buffer.key_apart(F.col("key")),
                _VALUE_APART: buffer.value_apart(F.col("value"), headers),
            }
        )
        schemas = _of_rows(rows, store, schemas)
        key = buffer.key(F.col(_KEY_APART), store, schemas)
        value = buffer.value(F.col(_VALUE_APART), store, schemas)
    else:
        schemas = _of_rows(rows, store, schemas)
        key = _key(store, schemas)
        value = decoded(F.col("value"), store.value, schemas, schema_header="__value_schema_id")
    return _with(rows, key, value).drop(_KEY_APART, _VALUE_APART)


def with_decoded_record(
    rows: DataFrame, read: StoreFormat, schemas: Mapping[int, RegisteredSchema]
) -> DataFrame:
    """Add the same columns to records of a topic that may not be state: keys may be missing."""
    schemas = _of_rows(rows, read, schemas)
    key = decoded(F.col("key"), read.key, schemas, schema_header="__key_schema_id")
    value = decoded(F.col("value"), read.value, schemas, schema_header="__value_schema_id")
    return _with(rows, key, value, needs_key=False)


def _key(store: StoreFormat, schemas: Mapping[int, RegisteredSchema]) -> Decoded:
    parts = parts_of(F.col("key"), store.kind, store.window_size_ms)
    inner = decoded(parts.inner, store.key, schemas, schema_header="__key_schema_id")
    return parts.around(inner)


def _of_rows(
    rows: DataFrame, store: StoreFormat, schemas: Mapping[int, RegisteredSchema]
) -> Mapping[int, RegisteredSchema]:
    """Return schemas by which keys and values each have the shape of the newest one they use."""
    return SchemasOfRows(rows, schemas) if store.needs_registry else schemas


def _with(rows: DataFrame, key: Decoded, value: Decoded, *, needs_key: bool = True) -> DataFrame:
    rows, key = _read_once(rows, key, _KEY_READ)
    rows, value = _read_once(rows, value, _VALUE_READ)
    null_key: Column = F.when(F.col("key").isNull(), F.lit(NULL_KEY))
    wrong = [key.named("key").problem, value.named("value").problem]
    problems = F.concat_ws("; ", *([null_key] if needs_key else []), *wrong)
    return rows.withColumns(
        {
            "decoded_key": key.value,
            "decoded_value": value.value,
            "decode_error": F.when(problems != "", problems),
        }
    ).drop(_KEY_READ, _VALUE_READ)


def _read_once(rows: DataFrame, read: Decoded, name: str) -> tuple[DataFrame, Decoded]:
    """Make an expensive expression a column: Spark would compute it again for each use."""
    if read.both is None:
        return rows, read
    found = F.col(name)
    return rows.withColumn(name, read.both), Decoded(found["value"], found["problem"])
