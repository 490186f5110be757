"""The columns of a KTable, as far as a store's declared format tells them. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from kstreams_assets.ktables.ddl import SchemaField, parse_schema
from kstreams_assets.ktables.store_format import Encoding, Format, StoreFormat, StoreKind

Columns = tuple[tuple[str, str, str], ...]
"""Name, type and text of columns."""

_WINDOW: Columns = (
    ("window_start_ms", "bigint", "Begin of the window of the application, epoch milliseconds"),
    ("window_end_ms", "bigint", "Its exclusive end; null without window_size_ms"),
    ("sequence_number", "int", "Tells duplicates of a key apart, where the store keeps them"),
)
KEY_PARTS: Mapping[StoreKind, Columns] = {
    StoreKind.WINDOW: _WINDOW,
    StoreKind.JOIN_WINDOW: _WINDOW,
    StoreKind.SESSION: (
        ("session_start_ms", "bigint", "Begin of the session, epoch milliseconds"),
        ("session_end_ms", "bigint", "Its end, inclusive as in Kafka Streams"),
    ),
    StoreKind.VERSIONED: (
        ("valid_from_ms", "bigint", "From when the version is valid, epoch milliseconds"),
        ("valid_to_ms", "bigint", "Exclusive end of its validity; null: still valid"),
    ),
}
"""Columns that only some kinds of stores have."""

POSITION: Columns = (
    ("window", "string", "Window whose closing recovery point this is the state at"),
    ("partition", "int", "Partition of the topic"),
    ("offset", "bigint", "Offset of the record that the row comes from"),
    ("timestamp_ms", "bigint", "Its timestamp, epoch milliseconds"),
)
RAW: Columns = (
    ("decode_error", "string", "Why the row could not be decoded; null: it could"),
    ("headers", "array<struct<key: string, value: binary>>", "Headers of the record"),
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

_BUFFERS = frozenset(
    {
        StoreKind.SUPPRESS,
        StoreKind.JOIN_BUFFER,
        StoreKind.SUBSCRIPTION,
        StoreKind.OUTER_JOIN,
    }
)


def decoded_columns(store: StoreFormat, side: str) -> list[tuple[str, str]]:
    """Name and type of the decoded column of `key` or `value`, and of each field, dotted.

    Of buffers (suppress, joins) only the structure as a whole is known here, of Avro and Protobuf
    the schema is that of the registry: the table itself tells their fields.
    """
    column = f"decoded_{side}"
    if store.kind in _BUFFERS:
        return [(column, "struct")]
    declared: Format = store.key if side == "key" else store.value
    found = [(column, TYPES[declared.encoding])]
    if declared.schema is not None:
        found += _fields(column, parse_schema(declared.schema))
    return found


def _fields(path: str, fields: Iterable[SchemaField]) -> Iterator[tuple[str, str]]:
    """`a BIGINT, b STRUCT<c: INT>` -> (path.a, bigint), (path.b, struct), (path.b.c, int)."""
    for field in fields:
        name = f"{path}.{field.name}"
        plain = field.type.lower() if "<" not in field.type else field.type
        yield name, "struct" if field.fields else plain
        yield from _fields(name, field.fields)
