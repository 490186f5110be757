"""Avro payloads as values of Arrow columns: schema evolution, logical types, unions. Pure."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from kstreams_assets.errors import SchemaUnusableError
from kstreams_assets.model.schemas import RegisteredSchema
from spark_resources.value_shapes import TEXT, TIMESTAMP, Shape, as_json, checked_decimal, struct_of

_SAME: Final[Mapping[str, pa.DataType]] = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_PYTHON: Final[Mapping[type, frozenset[str]]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"int", "long"}),
    float: frozenset({"float", "double"}),
    str: frozenset({"string", "enum"}),
    bytes: frozenset({"bytes", "fixed"}),
    list: frozenset({"array"}),
    dict: frozenset({"map", "record", "error"}),
}
_MAX_DECIMAL_DIGITS: Final = 38
_UNREADABLE = (
    EOFError,
    RecursionError,
    LookupError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    AssertionError,
    SchemaResolutionError,
)
"""The errors of fastavro for bytes that do not match the schema."""

Named = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A schema without its logical types, used for reading bytes, and with them."""

    plain: Any
    full: Any
    named: Named


class AvroReader:
    """Reads payloads of several schemas into the shape of the newest one."""

    def __init__(self, schemas: Mapping[int, RegisteredSchema]) -> None:
        """Raise SchemaUnusableError if no schema is usable; `unusable` has the reasons by id."""
        self.unusable: dict[int, str] = {}
        self._parsed: dict[int, _Parsed] = {}
        reason: SchemaUnusableError | None = None
        for schema_id in sorted(schemas):
            try:
                self._parsed[schema_id] = _parse(schemas[schema_id])
                shape = _Shapes(self._parsed[schema_id].named).of(self._parsed[schema_id].full)
            except SchemaUnusableError as error:
                self._parsed.pop(schema_id, None)
                self.unusable[schema_id], reason = error.reason, error
                continue
            self._newest, self._shape = schema_id, shape
        if not self._parsed:
            raise reason if reason is not None else ValueError("no schema")

    @property
    def type(self) -> pa.DataType:
        """The type of every value."""
        return self._shape.type

    def read(self, schema_id: int, payload: bytes) -> object:
        """Return one value; ValueError says why the payload is invalid."""
        writer = self._parsed[schema_id].plain
        if writer == "bytes" or (isinstance(writer, dict) and writer.get("type") == "bytes"):
            return self._shape.convert(payload)  # Confluent's serializers write it without framing
        reader = None if schema_id == self._newest else self._parsed[self._newest].plain
        stream = io.BytesIO(payload)
        try:
            value = fastavro.schemaless_reader(stream, writer, reader, return_named_type=True)
        except _UNREADABLE as error:
            said = f"{type(error).__name__} {error}".strip()
            raise ValueError(f"{said} in {len(payload)} bytes") from error
        if stream.tell() != len(payload):
            raise ValueError(f"{len(payload) - stream.tell()} of {len(payload)} bytes are left")
        return self._shape.convert(value)


def _parse(schema: RegisteredSchema) -> _Parsed:
    full, plain = {}, {}
    try:
        for found in schema.references:
            text = _load(found.text)
            fastavro.parse_schema(text, named_schemas=full)
            fastavro.parse_schema(_without_logical_types(text), named_schemas=plain)
        text = _load(schema.text)
        return _Parsed(
            plain=fastavro.parse_schema(_without_logical_types(text), named_schemas=plain),
            full=fastavro.parse_schema(text, named_schemas=full),
            named=full,
        )
    except (SchemaParseException, UnknownType, *_UNREADABLE) as error:
        raise SchemaUnusableError(
            schema_id=schema.id, kind="Avro", reason=f"{type(error).__name__} {error}"
        ) from error


def _load(text: str) -> Any:  # noqa: ANN401 (JSON)
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text.strip()  # a primitive type without quotes, as some registries return it


def _without_logical_types(schema: Any) -> Any:  # noqa: ANN401 (JSON)
    """Read as the plain types below, a value outside Python's dates is still a number."""
    if isinstance(schema, list):
        return [_without_logical_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: part if key == "default" else _without_logical_types(part)
        for key, part in schema.items()
        if not (key == "logicalType" and isinstance(part, str))
    }


class _Shapes:
    """Builds the column type of a schema, and the conversion of fastavro's values."""

    def __init__(self, named: Named) -> None:
        self._named = named
        self._open: list[str] = []

    def of(self, schema: Any) -> Shape:  # noqa: ANN401 (a parsed schema)
        if isinstance(schema, list):
            return self._union(schema)
        schema = self._resolved(schema)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind)
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "array":
            item = self.of(schema["items"])
            return Shape(pa.list_(item.type), lambda value: [_of(item, part) for part in value])
        if kind == "map":
            value_of = self.of(schema["values"])
            return Shape(
                pa.map_(pa.string(), value_of.type),
                lambda value: [(key, _of(value_of, part)) for key, part in value.items()],
            )
        return _logical(schema) or Shape(_SAME[kind], _unchanged)

    def _resolved(self, schema: Any) -> dict[str, Any]:  # noqa: ANN401 (a parsed schema)
        if isinstance(schema, dict):
            return schema
        return {"type": schema} if schema in _SAME else self._named[schema]

    def _record(self, schema: dict[str, Any]) -> Shape:
        name = schema["name"]
        if name in self._open or not schema["fields"]:
            return Shape(pa.string(), as_json)  # a column type cannot be recursive or empty
        self._open.append(name)
        parts = [(field["name"], self.of(field["type"])) for field in schema["fields"]]
        self._open.pop()
        return struct_of(parts, lambda value, key: value[key])

    def _union(self, schema: list[Any]) -> Shape:
        branches = [self._resolved(part) for part in schema]
        branches = [part for part in branches if part["type"] != "null"]
        kinds = {part["type"] for part in branches if "logicalType" not in part}
        if len(kinds) == len(branches):
            for numbers, wide in ((("int", "long"), "long"), (("float", "double"), "double")):
                if kinds == set(numbers):
                    branches = [{"type": wide}]
        if not branches:
            return Shape(pa.string(), _unchanged)
        if len(branches) == 1:
            only = self.of(branches[0])
            return Shape(only.type, lambda value: _of(only, _untagged(value)))
        shapes = [self.of(part) for part in branches]
        fields = [pa.field(f"member{n}", shape.type) for n, shape in enumerate(shapes)]

        def convert(value: Any) -> Any:  # noqa: ANN401 (any Avro value)
            if value is None:
                return None
            number = _branch(branches, value)
            return {f"member{number}": _of(shapes[number], _untagged(value))}

        return Shape(pa.struct(fields), convert)


def _unchanged(value: Any) -> Any:  # noqa: ANN401 (any Avro value)
    return value


def _of(shape: Shape, value: Any) -> Any:  # noqa: ANN401 (any Avro value)
    return None if value is None else shape.convert(value)


def _untagged(value: Any) -> Any:  # noqa: ANN401 (any Avro value)
    """Remove type tags, which only unions have: fastavro returns a pair of name and value."""
    return value[1] if isinstance(value, tuple) else value


def _branch(branches: list[dict[str, Any]], value: Any) -> int:  # noqa: ANN401
    if isinstance(value, tuple):
        for number, branch in enumerate(branches):
            if branch.get("name") == value[0]:
                return number
    kinds = _PYTHON[type(_untagged(value))]
    for number, branch in enumerate(branches):
        if branch["type"] in kinds:
            return number
    raise ValueError(f"the union has no branch for a value of type {type(value).__name__}")


def _logical(schema: dict[str, Any]) -> Shape | None:
    """Return logical types that Spark knows; others stay plain values."""
    name, kind = schema.get("logicalType"), schema["type"]
    if name == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        if 0 < precision <= _MAX_DECIMAL_DIGITS and 0 <= scale <= precision:
            return Shape(pa.decimal128(precision, scale), _decimal(precision, scale))
    if name == "uuid" and kind == "string":
        return TEXT
    if name == "uuid" and kind == "fixed":
        return Shape(pa.string(), lambda value: str(UUID(bytes=value)))
    if name == "date" and kind == "int":
        return Shape(pa.date32(), _unchanged)
    timestamps: Mapping[str, tuple[pa.DataType, int]] = {
        "timestamp-millis": (TIMESTAMP, 1000),
        "timestamp-micros": (TIMESTAMP, 1),
        "local-timestamp-millis": (pa.timestamp("us"), 1000),
        "local-timestamp-micros": (pa.timestamp("us"), 1),
    }
    if kind == "long" and name in timestamps:
        type_, factor = timestamps[name]
        return Shape(type_, _micros(factor))
    return None


def _decimal(precision: int, scale: int) -> Callable[[bytes], Decimal]:
    def convert(value: bytes) -> Decimal:
        return checked_decimal(int.from_bytes(value, "big", signed=True), precision, scale)

    return convert


def _micros(factor: int) -> Callable[[int], int]:
    def convert(value: int) -> int:
        micros = value * factor
        if not -(2**63) <= micros < 2**63:
            raise ValueError(f"the timestamp {value} is outside the range of a column")
        return micros

    return convert
