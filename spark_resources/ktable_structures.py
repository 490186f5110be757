"""Structures of the DSL's buffers as STRUCT columns: read row by row in Python.

These stores are small (what waits for a join or for the end of a window), and their layouts have
lists and optional parts, which built-in functions cannot follow.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from kstreams_assets.ktables import structures
from kstreams_assets.ktables.structure_bytes import StructureError

_TEXT, _BINARY, _INT, _LONG = StringType(), BinaryType(), IntegerType(), LongType()


def _struct(**fields: StringType | BinaryType | IntegerType | LongType | ArrayType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


_HEADERS: Final = ArrayType(_struct(key=_TEXT, value=_BINARY))


@dataclass(frozen=True, slots=True)
class Structure:
    """A layout: its columns, and how they are read from bytes and the header `v`, as a dict."""

    type: StructType
    read: Callable[[bytes, bytes | None], dict[str, object]]


def _buffer(value: structures.BufferValue) -> dict[str, object]:
    context = value.context
    return {
        "timestamp_ms": context and context.timestamp_ms,
        "topic": context and context.topic,
        "partition": context and context.partition,
        "offset": context and context.offset,
        "headers": context and [{"key": key, "value": text} for key, text in context.headers],
        "prior": value.prior,
        "old": value.old,
        "new": value.new,
        "buffer_time_ms": value.buffer_time_ms,
    }


_BUFFER_TYPE: Final = _struct(
    timestamp_ms=_LONG,
    topic=_TEXT,
    partition=_INT,
    offset=_LONG,
    headers=_HEADERS,
    prior=_BINARY,
    old=_BINARY,
    new=_BINARY,
    buffer_time_ms=_LONG,
)

SUPPRESS_VALUE: Final = Structure(
    _BUFFER_TYPE, lambda data, version: _buffer(structures.buffer_value(data, version))
)
JOIN_BUFFER_VALUE: Final = Structure(
    _BUFFER_TYPE, lambda data, _: _buffer(structures.join_buffer_value(data))
)
JOIN_BUFFER_KEY: Final = Structure(
    _struct(timestamp_ms=_LONG, key=_BINARY, sequence_number=_INT),
    lambda data, _: asdict(structures.join_buffer_key(data)),
)
SUBSCRIPTION_KEY: Final = Structure(
    _struct(foreign_key=_BINARY, primary_key=_BINARY),
    lambda data, _: asdict(structures.subscription_key(data)),
)
SUBSCRIPTION_VALUE: Final = Structure(
    _struct(
        version=_INT, instruction=_TEXT, hash=_BINARY, primary_key=_BINARY, primary_partition=_INT
    ),
    lambda data, _: asdict(structures.subscription(data)),
)
OUTER_JOIN_KEY: Final = Structure(
    _struct(timestamp_ms=_LONG, side=_TEXT, key=_BINARY),
    lambda data, _: asdict(structures.outer_join_key(data)),
)
OUTER_JOIN_VALUE: Final = Structure(
    _struct(values=ArrayType(StructType([*_struct(side=_TEXT, value=_BINARY)]))),
    lambda data, _: {
        "values": [each and asdict(each) for each in structures.outer_join_values(data)]
    },
)


def taken_apart(column: Column, structure: Structure, version: Column | None = None) -> Column:
    """STRUCT<found: STRUCT<the structure's columns>, problem: STRING>, NULL for NULL.

    Where the bytes have another layout, `found` is NULL and `problem` says what was found.
    """
    result = StructType([StructField("found", structure.type), StructField("problem", _TEXT)])
    each = _each(structure.read, to_arrow_type(result))
    # The stubs of pyspark have no form for a struct; it is in the documentation.
    function = F.arrow_udf(each, result)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return function(column, F.lit(None).cast("binary") if version is None else version)


def _each(
    read: Callable[[bytes, bytes | None], dict[str, object]], kind: pa.DataType
) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def one(data: bytes | None, version: bytes | None) -> dict[str, object] | None:
        if data is None:
            return None
        try:
            return {"found": read(data, version), "problem": None}
        except StructureError as error:
            return {"found": None, "problem": str(error)}

    def each(data: pa.Array, version: pa.Array) -> pa.Array:
        pairs = zip(data.to_pylist(), version.to_pylist(), strict=True)
        return pa.array([one(*pair) for pair in pairs], type=kind)

    return each
