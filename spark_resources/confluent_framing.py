"""Columns of records whose serializers put the id of a registered schema before the payload.

The framing is Confluent's: a byte 0, the id as four bytes big-endian, for Protobuf the path of the
message type, then the payload. Decoding runs in Spark's Python workers: they can report for each
record why it was not read, and need no JVM library for this version of Spark.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from kstreams_assets.app.store_format import Encoding
from kstreams_assets.model.schemas import RegisteredSchema
from spark_resources.framed_values import (
    LONGEST_PATH,
    PREFIX,
    FramedPlan,
    decode,
    most_used,
    plan_of,
    reader_of,
)


class SchemasOfRows(Mapping[int, RegisteredSchema]):
    """Schemas together with the rows that are decoded by them.

    Passed to `framed`, each column is read by the newest schema that it uses itself, instead of by
    the newest of all. It costs one Spark job per column.
    """

    def __init__(self, rows: DataFrame, schemas: Mapping[int, RegisteredSchema]) -> None:
        self.rows = rows
        self._schemas = schemas

    def __getitem__(self, schema_id: int) -> RegisteredSchema:
        return self._schemas[schema_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)


def schema_ids(rows: DataFrame, columns: Sequence[Column | str]) -> set[int]:
    """Return the ids before the payloads in these columns, with one Spark job."""
    found = [_schema_id(_column(column)) for column in columns]
    ids = rows.select(F.explode(F.array_distinct(F.array(*found))).alias("id")).distinct()
    return {row["id"] for row in ids.collect() if row["id"] is not None}


def framed(
    column: Column,
    encoding: Encoding,
    schemas: Mapping[int, RegisteredSchema],
    *,
    headers: Column | None = None,
    header: str = "__value_schema_id",
) -> tuple[Column, Column]:
    """Decode a column of Avro or Protobuf; the second column says why a value is NULL.

    All values have the shape of the newest schema (see `SchemasOfRows`). For Protobuf it is that
    of the message type that most rows of that schema have, or its first one without rows. Without
    any schema the decoded column is a NULL string. NULL stays NULL without an error. With
    `headers`, a record whose `header` names a schema's GUID gets an error of its own.
    """
    plan = _plan_of(column, encoding, schemas)
    type_ = reader_of(plan).type if plan.has_schemas else pa.string()
    result = StructType(
        [
            StructField("decoded", from_arrow_type(type_, prefer_timestamp_ntz=True)),
            StructField("error", StringType()),
        ]
    )

    def each(payloads: pa.Array) -> pa.Array:
        return decode(plan, payloads)

    # The stubs of pyspark have no form for a struct; it is in the documentation.
    read = F.arrow_udf(each, result)  # pyright: ignore[reportCallIssue, reportArgumentType]
    both = read(column)
    decoded, error = both["decoded"], both["error"]
    if headers is None:
        return decoded, error
    named = F.exists(headers, lambda found: found["key"] == header) & column.isNotNull()
    said = F.lit(f"its schema is named by a GUID in header {header}; only ids are read")
    return F.when(~F.coalesce(named, F.lit(False)), decoded), F.when(named, said).otherwise(error)


def _plan_of(
    column: Column, encoding: Encoding, schemas: Mapping[int, RegisteredSchema]
) -> FramedPlan:
    if not isinstance(schemas, SchemasOfRows):
        return plan_of(encoding, schemas, lambda _: (0,))
    rows, used = schemas.rows, schema_ids(schemas.rows, [column])
    mine = {schema_id: found for schema_id, found in schemas.items() if schema_id in used}
    return plan_of(encoding, mine, lambda schema_id: _most_used_path(rows, column, schema_id))


def _most_used_path(rows: DataFrame, column: Column, schema_id: int) -> tuple[int, ...]:
    """Return the path of the message type that most rows of a schema have."""
    # A path is a count and as many indexes, of one byte each unless a file has 64 or more types.
    count = F.conv(F.hex(F.substring(column, PREFIX + 1, 1)), 16, 10).cast("int") / 2
    length = F.least(count.cast("int") + 1, F.lit(LONGEST_PATH))
    path = F.substring(column, F.lit(PREFIX + 1), length)
    found = rows.where(_schema_id(column) == schema_id).groupBy(path.alias("path")).count()
    return most_used({bytes(row["path"] or b""): row["count"] for row in found.collect()})


def _schema_id(column: Column) -> Column:
    """Return the id of a framed payload, else NULL."""
    number = F.conv(F.hex(F.substring(column, 2, 4)), 16, 10).cast("bigint").cast("int")
    is_framed = (F.length(column) >= PREFIX) & (F.substring(column, 1, 1) == F.lit(b"\x00"))
    return F.when(is_framed, number)


def _column(column: Column | str) -> Column:
    return F.col(column) if isinstance(column, str) else column
