"""Values behind the id of a registered schema, read in this process.

The framing is Confluent's: a byte 0, the id as four bytes big-endian, for Protobuf the path of the
message type, then the payload.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol
from uuid import UUID

import pyarrow as pa

from kstreams_assets.app.store_format import Encoding
from kstreams_assets.errors import SchemaUnusableError
from kstreams_assets.model.schemas import RegisteredSchema
from spark_resources.avro_values import AvroReader
from spark_resources.protobuf_values import (
    CompiledSchemas,
    ProtobufReader,
    compile_schema,
    message_at,
    read_indexes,
)

PREFIX: Final = 5
"""Bytes before the payload: 0, and the id."""
LONGEST_PATH: Final = 8
"""At most this many bytes of message indexes are read to find the message types in use."""
_GUID_PREFIX: Final = 17
_UNCONVERTIBLE = (ValueError, RecursionError, ArithmeticError)

Path = tuple[int, ...]
"""The position of a payload's message type in its Protobuf schema."""


@dataclass(frozen=True, slots=True)
class FramedPlan:
    """How one column is read; `wrong` says by id why a schema cannot be used."""

    encoding: Encoding
    avro: tuple[RegisteredSchema, ...] = ()
    files: tuple[tuple[int, bytes], ...] = ()
    message: str = ""
    wrong: tuple[tuple[int, str], ...] = ()

    @property
    def has_schemas(self) -> bool:
        """Whether any value can be read."""
        return bool(self.avro or self.files)


class _ValueReader(Protocol):
    @property
    def type(self) -> pa.DataType: ...

    def read(self, schema_id: int, payload: bytes) -> object: ...


def plan_of(
    encoding: Encoding,
    schemas: Mapping[int, RegisteredSchema],
    most_used_path: Callable[[int], Path],
) -> FramedPlan:
    """Return the plan for reading a column.

    All values have the shape of the newest schema, for Protobuf that of the message type at the
    `most_used_path` of that schema.
    """
    wrong = {
        schema_id: f"is {found.kind}, not {encoding}"
        for schema_id, found in schemas.items()
        if found.kind is not encoding
    }
    mine = {schema_id: schemas[schema_id] for schema_id in sorted(schemas.keys() - wrong.keys())}
    if encoding is Encoding.AVRO:
        return _avro_plan(mine, wrong)
    return _protobuf_plan(mine, wrong, most_used_path)


def plan_of_payloads(
    encoding: Encoding,
    schemas: Mapping[int, RegisteredSchema],
    payloads: Iterable[bytes | None],
) -> FramedPlan:
    """Return the plan for a column of these payloads: it uses their schemas."""
    ids = [(_id_of(one), one) for one in payloads if one and len(one) >= PREFIX and one[0] == 0]
    used = {schema_id: schemas[schema_id] for schema_id, _ in ids if schema_id in schemas}
    return plan_of(
        encoding,
        used,
        lambda schema_id: most_used(Counter(_path_bytes(p) for i, p in ids if i == schema_id)),
    )


def most_used(paths: Mapping[bytes, int]) -> Path:
    """Return the path that most rows have; without readable rows, the first one in the schema."""
    for path, _ in sorted(paths.items(), key=lambda item: (-item[1], item[0])):
        try:
            return read_indexes(path)[0]
        except ValueError:
            continue
    return (0,)


def _path_bytes(payload: bytes) -> bytes:
    """Return the bytes of a path: a count, then one byte per index unless a file has 64 types."""
    count = payload[PREFIX] // 2 if len(payload) > PREFIX else 0
    return payload[PREFIX : PREFIX + min(count + 1, LONGEST_PATH)]


def _avro_plan(schemas: Mapping[int, RegisteredSchema], wrong: dict[int, str]) -> FramedPlan:
    try:
        wrong |= {n: _unusable(reason) for n, reason in AvroReader(schemas).unusable.items()}
    except SchemaUnusableError:
        for schema_id, schema in schemas.items():
            try:
                AvroReader({schema_id: schema})
            except SchemaUnusableError as error:
                wrong[schema_id] = _unusable(error.reason)
    except ValueError:
        pass  # no usable schema
    usable = tuple(schema for schema_id, schema in schemas.items() if schema_id not in wrong)
    return FramedPlan(Encoding.AVRO, avro=usable, wrong=tuple(sorted(wrong.items())))


def _protobuf_plan(
    schemas: Mapping[int, RegisteredSchema],
    wrong: dict[int, str],
    most_used_path: Callable[[int], Path],
) -> FramedPlan:
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
        try:
            message = message_at(files[newest], most_used_path(newest))
        except ValueError:
            message = message_at(files[newest], (0,))
    return FramedPlan(
        Encoding.PROTOBUF,
        files=tuple(files.items()),
        message=message,
        wrong=tuple(sorted(wrong.items())),
    )


def _unusable(reason: str) -> str:
    return f"cannot be used: {reason}"


@lru_cache(maxsize=256)
def _compiled(schema: RegisteredSchema) -> bytes:
    return compile_schema(schema)


@lru_cache(maxsize=16)
def reader_of(plan: FramedPlan) -> _ValueReader:
    """Return the reader, built once in each process for all batches of a column."""
    if plan.encoding is Encoding.AVRO:
        return AvroReader({schema.id: schema for schema in plan.avro})
    files = dict(plan.files)
    return ProtobufReader(CompiledSchemas(files, plan.message, newest=max(files)))


def decode(plan: FramedPlan, payloads: pa.Array) -> pa.Array:
    """Return STRUCT<decoded, error>: values, and reasons for nulls that were not null before."""
    reader = reader_of(plan) if plan.has_schemas else None
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
    """Return the problem of a payload's framing."""
    if payload[:1] == b"\x01" and len(payload) >= _GUID_PREFIX:
        guid = UUID(bytes=payload[1:_GUID_PREFIX])
        return f"its schema is named by GUID {guid}; only ids are read"
    if len(payload) < PREFIX:
        return f"{len(payload)} bytes where a schema id alone has {PREFIX}"
    if payload[0] != 0:
        return f"begins with byte {payload[0]:#04x}, not with 0 and a schema id"
    schema_id = _id_of(payload)
    if schema_id in usable:
        return None
    return f"schema {schema_id} {wrong.get(schema_id, 'is not stored, and no registry has it')}"


def _read(reader: _ValueReader, payload: bytes) -> tuple[object, str | None]:
    schema_id = _id_of(payload)
    try:
        return reader.read(schema_id, payload[PREFIX:]), None
    except _UNCONVERTIBLE as error:
        return None, f"not readable by schema {schema_id}: {error}"


def _id_of(payload: bytes) -> int:
    return int.from_bytes(payload[1:PREFIX], "big", signed=True)


def _array(values: list[object], errors: list[str | None], type_: pa.DataType) -> pa.Array:
    """Return the values as one array; a value outside of the type becomes an error of its row."""
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, OverflowError, *_UNCONVERTIBLE):
        for number, value in enumerate(values):
            try:
                pa.array([value], type_)
            except (pa.ArrowException, OverflowError, *_UNCONVERTIBLE) as error:
                values[number] = None
                errors[number] = f"a value outside of the range of {type_}: {error}"
        return pa.array(values, type_)
