"""Columns of records whose serializers put the id of a registered schema before the payload.

The framing is Confluent's: a byte 0, the id as four bytes big-endian, for Protobuf the path of the
message type, then the payload. Decoding runs in Spark's Python workers: they can say of each record
why it was not read, and no JVM library has to fit this version of Spark.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol
from uuid import UUID

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from kstreams_assets.app.store_format import Encoding
from kstreams_assets.errors import SchemaUnusableError
from kstreams_assets.warehouse.schemas import RegisteredSchema
from spark_resources.avro_values import AvroReader
from spark_resources.protobuf_values import (
    CompiledSchemas,
    ProtobufReader,
    compile_schema,
    message_at,
    read_indexes,
)

_PREFIX: Final = 5
_GUID_PREFIX: Final = 17
_LONGEST_PATH: Final = 8
"""So many bytes of message indexes are looked at to find the message types in use."""
_HEADERS: Final = ("__key_schema_id", "__value_schema_id")
"""Headers in which newer serializers can put a schema's GUID; the payload is bare then."""
_UNCONVERTIBLE = (ValueError, RecursionError, ArithmeticError)


class SchemasOfRows(Mapping[int, RegisteredSchema]):
    """Schemas together with the rows that are decoded by them.

    Given to `framed` it has each column read by the newest schema that the column itself uses,
    rather than by the newest of all. It costs one Spark job per column.
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
    """The ids before the payloads in these columns, in one Spark job."""
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

    All values have the shape of the newest of the schemas (see `SchemasOfRows`), for Protobuf that
    of the message type which most rows of that schema have, the first one in it without rows. With
    no schema at all the decoded column is a NULL string. NULL stays NULL without an error. With
    `headers`, a record whose `header` names a schema's GUID is told apart.
    """
    plan = _plan_of(column, encoding, schemas)
    type_ = _reader(plan).type if plan.has_schemas else pa.string()
    result = StructType(
        [
            StructField("decoded", from_arrow_type(type_, prefer_timestamp_ntz=True)),
            StructField("error", StringType()),
        ]
    )

    def decode(payloads: pa.Array) -> pa.Array:
        return _decode(plan, payloads)

    # The stubs of pyspark have no form for a struct; it is in the documentation.
    read = F.arrow_udf(decode, result)  # pyright: ignore[reportCallIssue, reportArgumentType]
    both = read(column)
    decoded, error = both["decoded"], both["error"]
    if headers is None:
        return decoded, error
    named = F.exists(headers, lambda found: found["key"] == header) & column.isNotNull()
    said = F.lit(f"its schema is named by a GUID in header {header}; only ids are read")
    return F.when(~F.coalesce(named, F.lit(False)), decoded), F.when(named, said).otherwise(error)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What workers need to read one column; `wrong` says by id why a schema is of no use."""

    encoding: Encoding
    avro: tuple[RegisteredSchema, ...] = ()
    files: tuple[tuple[int, bytes], ...] = ()
    message: str = ""
    wrong: tuple[tuple[int, str], ...] = ()

    @property
    def has_schemas(self) -> bool:
        return bool(self.avro or self.files)


class _ValueReader(Protocol):
    @property
    def type(self) -> pa.DataType: ...

    def read(self, schema_id: int, payload: bytes) -> object: ...


def _plan_of(column: Column, encoding: Encoding, schemas: Mapping[int, RegisteredSchema]) -> _Plan:
    rows = schemas.rows if isinstance(schemas, SchemasOfRows) else None
    if rows is not None:
        used = schema_ids(rows, [column])
        schemas = {schema_id: found for schema_id, found in schemas.items() if schema_id in used}
    wrong = {
        schema_id: f"is {found.kind}, not {encoding}"
        for schema_id, found in schemas.items()
        if found.kind is not encoding
    }
    mine = {schema_id: schemas[schema_id] for schema_id in sorted(schemas.keys() - wrong.keys())}
    if encoding is Encoding.AVRO:
        return _avro_plan(mine, wrong)
    return _protobuf_plan(mine, wrong, rows, column)


def _avro_plan(schemas: Mapping[int, RegisteredSchema], wrong: dict[int, str]) -> _Plan:
    try:
        wrong |= {n: _unusable(reason) for n, reason in AvroReader(schemas).unusable.items()}
    except SchemaUnusableError:
        for schema_id, schema in schemas.items():
            try:
                AvroReader({schema_id: schema})
            except SchemaUnusableError as error:
                wrong[schema_id] = _unusable(error.reason)
    except ValueError:
        pass  # there is none
    usable = tuple(schema for schema_id, schema in schemas.items() if schema_id not in wrong)
    return _Plan(Encoding.AVRO, avro=usable, wrong=tuple(sorted(wrong.items())))


def _protobuf_plan(
    schemas: Mapping[int, RegisteredSchema],
    wrong: dict[int, str],
    rows: DataFrame | None,
    column: Column,
) -> _Plan:
    files: dict[int, bytes] = {}
    for schema_id, schema in schemas.items():
        try:
            files[schema_id] = _compiled(schema)
            message_at(files[schema_id], (0,))
        except SchemaUnusableError as error:
            wrong[schema_id] = _unusable(error.reason)
        except ValueError as error:
            del files[schema_id]
            wrong[schema_id] = _unusable(str(error))
    message = ""
    if files:
        newest = max(files)
        path = _most_used_path(rows, column, newest) if rows is not None else (0,)
        try:
            message = message_at(files[newest], path)
        except ValueError:
            message = message_at(files[newest], (0,))
    return _Plan(
        Encoding.PROTOBUF,
        files=tuple(files.items()),
        message=message,
        wrong=tuple(sorted(wrong.items())),
    )


def _most_used_path(rows: DataFrame, column: Column, schema_id: int) -> tuple[int, ...]:
    """The path of the message type that most rows of a schema have."""
    # A path is a count and so many indexes, of one byte each unless a file has 64 types or more.
    count = F.conv(F.hex(F.substring(column, _PREFIX + 1, 1)), 16, 10).cast("int") / 2
    length = F.least(count.cast("int") + 1, F.lit(_LONGEST_PATH))
    path = F.substring(column, F.lit(_PREFIX + 1), length)
    found = (
        rows.where(_schema_id(column) == schema_id)
        .groupBy(path.alias("path"))
        .count()
        .orderBy(F.desc("count"), "path")
    )
    for row in found.collect():
        try:
            return read_indexes(bytes(row["path"] or b""))[0]
        except ValueError:
            continue
    return (0,)


def _unusable(reason: str) -> str:
    return f"cannot be used: {reason}"


@lru_cache(maxsize=256)
def _compiled(schema: RegisteredSchema) -> bytes:
    return compile_schema(schema)


@lru_cache(maxsize=16)
def _reader(plan: _Plan) -> _ValueReader:
    """Built once in each process for all batches of a column."""
    if plan.encoding is Encoding.AVRO:
        return AvroReader({schema.id: schema for schema in plan.avro})
    files = dict(plan.files)
    return ProtobufReader(CompiledSchemas(files, plan.message, newest=max(files)))


def _decode(plan: _Plan, payloads: pa.Array) -> pa.Array:
    reader = _reader(plan) if plan.has_schemas else None
    usable = {schema.id for schema in plan.avro} | {schema_id for schema_id, _ in plan.files}
    wrong = dict(plan.wrong)
    values: list[object] = []
    errors: list[str | None] = []
    for payload in payloads.to_pylist():
        value, error = None, None
        if payload is not None:
            error = _problem(payload, usable, wrong)
            if error is None and reader is not None:
                value, error = _read(reader, payload)
        values.append(value)
        errors.append(error)
    type_ = reader.type if reader is not None else pa.string()
    return pa.StructArray.from_arrays(
        [_array(values, errors, type_), pa.array(errors, pa.string())], names=["decoded", "error"]
    )


def _problem(payload: bytes, usable: set[int], wrong: Mapping[int, str]) -> str | None:
    """What is wrong with the framing of a payload."""
    if payload[:1] == b"\x01" and len(payload) >= _GUID_PREFIX:
        guid = UUID(bytes=payload[1:_GUID_PREFIX])
        return f"its schema is named by GUID {guid}; only ids are read"
    if len(payload) < _PREFIX:
        return f"{len(payload)} bytes where a schema id alone has {_PREFIX}"
    if payload[0] != 0:
        return f"begins with byte {payload[0]:#04x}, not with 0 and a schema id"
    schema_id = _id_of(payload)
    if schema_id in usable:
        return None
    return f"schema {schema_id} {wrong.get(schema_id, 'is not stored, and no registry gave it')}"


def _read(reader: _ValueReader, payload: bytes) -> tuple[object, str | None]:
    schema_id = _id_of(payload)
    try:
        return reader.read(schema_id, payload[_PREFIX:]), None
    except _UNCONVERTIBLE as error:
        return None, f"not readable by schema {schema_id}: {error}"


def _id_of(payload: bytes) -> int:
    return int.from_bytes(payload[1:_PREFIX], "big", signed=True)


def _array(values: list[object], errors: list[str | None], type_: pa.DataType) -> pa.Array:
    """The values as one array; what the type cannot hold becomes an error of its own row."""
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, OverflowError, *_UNCONVERTIBLE):
        for number, value in enumerate(values):
            try:
                pa.array([value], type_)
            except (pa.ArrowException, OverflowError, *_UNCONVERTIBLE) as error:
                values[number] = None
                errors[number] = f"a value that {type_} cannot hold: {error}"
        return pa.array(values, type_)


def _schema_id(column: Column) -> Column:
    """The id of a framed payload, else NULL."""
    number = F.conv(F.hex(F.substring(column, 2, 4)), 16, 10).cast("bigint").cast("int")
    is_framed = (F.length(column) >= _PREFIX) & (F.substring(column, 1, 1) == F.lit(b"\x00"))
    return F.when(is_framed, number)


def _column(column: Column | str) -> Column:
    return F.col(column) if isinstance(column, str) else column
