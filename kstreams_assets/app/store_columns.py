"""Column types: Spark's DDL checked without a JVM, and the columns of a KTable. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from kstreams_assets.app.store_format import BUFFERS, Encoding, Format, StoreFormat, StoreKind

_TOKEN: Final = re.compile(r"`[^`]+`|'(?:[^'\\]|\\.)*'|[A-Za-z_0-9]+|[<>(),:]")
_NAME: Final = re.compile(r"`[^` ,;{}()\n\t=]+`|[A-Za-z_][A-Za-z_0-9]*")
"""A quoted name may be any valid column name of a Delta table."""
_WHOLE: Final = ("TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG")
_TIMES: Final = ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")
_ATOMIC: Final = frozenset(
    {*_WHOLE, *_TIMES, "FLOAT", "REAL", "DOUBLE", "BOOLEAN", "STRING", "BINARY"}
)
_DECIMAL: Final = frozenset({"DECIMAL", "DEC", "NUMERIC"})
_SAME: Final = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
"""Types with two names."""
_MOST_DIGITS: Final = 38
_END: Final = ""


@dataclass(frozen=True, slots=True)
class SchemaType:
    """A type: its name in upper case, and its parts.

    `fields` are those of a struct, `element` the type of an array's elements or of a map's values,
    `digits` precision and scale of a decimal.
    """

    name: str
    fields: tuple["SchemaField", ...] = ()
    element: "SchemaType | None" = None
    digits: tuple[int, int] = (10, 0)


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field; `type` is the type as the user wrote it."""

    name: str
    kind: SchemaType
    type: str = field(default="", compare=False)

    @property
    def fields(self) -> tuple["SchemaField", ...]:
        """The fields of a struct."""
        return self.kind.fields

    def paths(self) -> Iterator[str]:
        """The field and all fields below it, dotted."""
        yield self.name
        for inner in self.fields:
            yield from (f"{self.name}.{path}" for path in inner.paths())


class SchemaTextError(ValueError):
    """A text that is not a valid schema; the message says where and why, the YAML reader adds the
    key."""


def parse_schema(ddl: str) -> tuple[SchemaField, ...]:
    """The fields of `a BIGINT, b STRUCT<c: STRING>`.

    Stricter than Spark's parser: it accepts only types that JSON can contain and Delta can store.
    Map keys are strings, NOT NULL is not allowed (a field of JSON can always be missing), and names
    that differ only in case are rejected.

    Raises:
        SchemaTextError: The text is not a valid schema.
    """
    parser = _Parser(tuple(_tokens(ddl)))
    fields = parser.fields(_END)
    parser.expect(_END)
    return fields


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    column: int


def _tokens(ddl: str) -> Iterator[_Token]:
    position = 0
    while position < len(ddl):
        if ddl[position].isspace():
            position += 1
            continue
        match = _TOKEN.match(ddl, position)
        token = _Token(match[0] if match else ddl[position], position + 1)
        yield token
        if match is None:
            _refuse(token, "a name, a type or one of < > ( ) , :")
        position += len(token.text)
    yield _Token(_END, len(ddl) + 1)


def _refuse(token: _Token, expected: str) -> NoReturn:
    found = repr(token.text) if token.text else "the end"
    raise SchemaTextError(f"column {token.column} has {found} instead of {expected}")


class _Parser:
    """Recursive descent; `COMMENT 'text'` after a field is skipped."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def fields(self, closing: str) -> tuple[SchemaField, ...]:
        found: dict[str, SchemaField] = {}
        while True:
            token = self._take()
            if not _NAME.fullmatch(token.text):
                _refuse(token, "the name of a field")
            name = token.text.strip("`")
            if name.lower() in found:
                _refuse(token, "a new name (case is ignored)")
            self._skip(":")
            begin = self._at
            kind = self._type()
            written = "".join(token.text for token in self._tokens[begin : self._at])
            found[name.lower()] = SchemaField(name, kind, written)
            if self._skip("COMMENT"):
                comment = self._take()
                if not comment.text.startswith("'"):
                    _refuse(comment, "a comment in single quotes")
            if not self._skip(","):
                if self._peek().text != closing:
                    _refuse(self._peek(), f"a comma or {closing!r}" if closing else "a comma")
                return tuple(found.values())

    def expect(self, text: str) -> None:
        token = self._take()
        if token.text != text:
            _refuse(token, repr(text) if text else "the end")

    def _type(self) -> SchemaType:
        token = self._take()
        name = token.text.upper()
        if name == "STRUCT":
            self.expect("<")
            fields = self.fields(">")
            self.expect(">")
            return SchemaType(name, fields)
        if name == "ARRAY":
            self.expect("<")
            element = self._type()
            self.expect(">")
            return SchemaType(name, element=element)
        if name == "MAP":
            return SchemaType(name, element=self._map_values())
        if name in _DECIMAL:
            return SchemaType("DECIMAL", digits=self._digits())
        if name not in _ATOMIC:
            _refuse(token, "a type such as STRING, BIGINT, DOUBLE, BOOLEAN or STRUCT<...>")
        return SchemaType(_SAME.get(name, name))

    def _map_values(self) -> SchemaType:
        self.expect("<")
        key = self._take()
        if key.text.upper() != "STRING":
            _refuse(key, "STRING: keys of a map are names in JSON")
        self.expect(",")
        values = self._type()
        self.expect(">")
        return values

    def _digits(self) -> tuple[int, int]:
        if not self._skip("("):
            return 10, 0
        precision = self._number(_MOST_DIGITS)
        scale = self._number(precision) if self._skip(",") else 0
        self.expect(")")
        return precision, scale

    def _number(self, most: int) -> int:
        token = self._take()
        if not token.text.isdecimal() or int(token.text) > most:
            _refuse(token, f"a number up to {most}")
        return int(token.text)

    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._peek()
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _skip(self, text: str) -> bool:
        if self._peek().text.upper() != text:
            return False
        self._at += 1
        return True


Columns = tuple[tuple[str, str, str], ...]
"""Name, type and text of columns."""

_WINDOW: Columns = (
    ("window_start_ms", "bigint", "Start of the window of the application, epoch milliseconds"),
    ("window_end_ms", "bigint", "Its exclusive end; null without window_size_ms"),
    ("sequence_number", "int", "Distinguishes duplicates of a key, if the store keeps them"),
)
KEY_PARTS: Mapping[StoreKind, Columns] = {
    StoreKind.WINDOW: _WINDOW,
    StoreKind.JOIN_WINDOW: _WINDOW,
    StoreKind.SESSION: (
        ("session_start_ms", "bigint", "Start of the session, epoch milliseconds"),
        ("session_end_ms", "bigint", "Its end, inclusive as in Kafka Streams"),
    ),
    StoreKind.VERSIONED: (
        ("valid_from_ms", "bigint", "Start of the version's validity, epoch milliseconds"),
        ("valid_to_ms", "bigint", "Exclusive end of its validity; null: still valid"),
    ),
}
"""Columns that only some kinds of stores have."""

POSITION: Columns = (
    ("window", "string", "Window whose closing recovery point defines this state"),
    ("partition", "int", "Partition of the topic"),
    ("offset", "bigint", "Offset of the record from which the row was made"),
    ("timestamp_ms", "bigint", "Its timestamp, epoch milliseconds"),
)
HEADERS_TYPE: Final = "array<struct<key: string, value: binary, key_bytes: binary>>"
"""The type of headers for Spark; see `kafka.record_columns.HEADERS`."""
RAW: Columns = (
    ("decode_error", "string", "Why the row could not be decoded; null if it was decoded"),
    (
        "headers",
        HEADERS_TYPE,
        "Headers of the record",
    ),
    ("key", "binary", "The whole key in the topic, byte for byte"),
    ("value", "binary", "The whole value in the topic, byte for byte"),
)

TYPES: Mapping[Encoding, str] = {
    Encoding.BYTES: "binary",
    Encoding.STRING: "string",
    Encoding.LONG: "bigint",
    Encoding.INT: "int",
    Encoding.SHORT: "smallint",
    Encoding.DOUBLE: "double",
    Encoding.FLOAT: "float",
    Encoding.UUID: "string",
    Encoding.JSON: "struct",
    Encoding.AVRO: "as registered",
    Encoding.PROTOBUF: "as registered",
}
"""The type of a decoded column, by encoding."""


def decoded_columns(store: StoreFormat, side: str) -> list[tuple[str, str]]:
    """Name and type of the decoded column of `key` or `value`, and of each field, dotted.

    Of buffers (suppress, joins) only the structure as a whole is known here; of Avro and Protobuf
    the schema is that of the registry: read the fields from the table itself.
    """
    column = f"decoded_{side}"
    if store.kind in BUFFERS:
        return [(column, "struct")]
    declared: Format = store.key if side == "key" else store.value
    found = [(column, TYPES[declared.encoding])]
    if declared.schema is not None:
        found += _fields(column, parse_schema(declared.schema))
    return found


def _fields(path: str, fields: Iterable[SchemaField]) -> Iterator[tuple[str, str]]:
    """`a BIGINT, b STRUCT<c: INT>` -> (path.a, bigint), (path.b, struct), (path.b.c, int)."""
    for part in fields:
        name = f"{path}.{part.name}"
        plain = part.type.lower() if "<" not in part.type else part.type
        yield name, "struct" if part.fields else plain
        yield from _fields(name, part.fields)


def as_text(value: object) -> str:
    """A decoded key or value in one line: text unchanged, structures as JSON, bytes readable."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        text = value.decode("utf-8", errors="replace")
        return text if text.isprintable() and "\ufffd" not in text else f"0x{value.hex()}"
    return json.dumps(value, default=_plain, ensure_ascii=False)


def jsonable(value: object) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """A decoded key or value as JSON: bytes as hex, times and decimals as text."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


COMMON_TYPES: Final[Mapping[str, str]] = {
    "_partition": "int",
    "_offset": "bigint",
    "_timestamp": "timestamp",
    "_timestamp_ms": "bigint",
    "_window": "string",
    "_headers": "array",
    "_in_flight": "boolean",
    "_decode_error": "string",
}
COMMON_COLUMNS: Final = ("_key", "_value", *COMMON_TYPES)
"""Columns of every view of completeness rules; key and value have types of their own."""


def value_columns(fields: Iterable[str], key_parts: Iterable[str] = ()) -> tuple[str, ...]:
    """The fields of a struct value that become columns of their own.

    A field with the name of a common column or key part is omitted (it is still in `_value`). Names
    are compared without case, as in Spark.
    """
    taken = {name.lower() for name in (*COMMON_COLUMNS, *key_parts)}
    return tuple(field for field in fields if field.lower() not in taken)


def key_parts_of(kind: StoreKind) -> tuple[str, ...]:
    """The columns that exist only for this kind of store, such as `window_start_ms`."""
    return tuple(name for name, _, _ in KEY_PARTS.get(kind, ()))
