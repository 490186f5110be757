"""Decodes rows of a store in this process.

Columns and problem texts equal those of Spark for the same rows: see
`spark_resources.ktable_columns`, `ktable_values` and `ktable_buffers`.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kstreams_assets.app.store_columns import SchemaType, parse_schema
from kstreams_assets.app.store_format import (
    BYTES,
    FRAMED,
    WINDOWED,
    Encoding,
    Format,
    StoreFormat,
    StoreKind,
)
from kstreams_assets.ktables.json_values import (
    NotAnObjectError,
    OtherTypeError,
    arrow_type,
    json_object,
)
from kstreams_assets.model.schemas import RegisteredSchema
from spark_resources import store_structures as structures
from spark_resources.store_structures import Structure

Payloads = Sequence[bytes | None]
Schemas = Mapping[int, RegisteredSchema]
Headers = Sequence[Sequence[tuple[str, bytes | None]]]
Texts = Sequence[str | None]

_NUMBERS: Final[Mapping[Encoding, tuple[str, str, pa.DataType]]] = {
    Encoding.LONG: ("a", ">q", pa.int64()),
    Encoding.INT: ("an", ">i", pa.int32()),
    Encoding.SHORT: ("a", ">h", pa.int16()),
    Encoding.DOUBLE: ("a", ">d", pa.float64()),
    Encoding.FLOAT: ("a", ">f", pa.float32()),
}
_UUID: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SEQUENCE_BYTES: Final = 4
_LONG_BYTES: Final = 8
_MOST_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Decoded:
    """A column, and for each row the reason why it could not be decoded; null has neither."""

    values: pa.Array
    problems: Texts

    def named(self, name: str) -> Texts:
        """Return the problems with the prefix `name: `."""
        return [None if text is None else f"{name}: {text}" for text in self.problems]


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Decoded rows; `parts` are the columns in keys of this kind of store besides the key."""

    parts: Mapping[str, Sequence[int | None]]
    keys: pa.Array
    values: pa.Array
    errors: Texts


def decode_keys(keys: Payloads, store: StoreFormat, schemas: Schemas) -> pa.Array:
    """Decode keys of a store; a key that cannot be decoded becomes null."""
    return _key(keys, store, schemas, None).values


def decode_rows(
    keys: Payloads, values: Payloads, headers: Headers, store: StoreFormat, schemas: Schemas
) -> DecodedRows:
    """Decode rows to the columns of the table, without `valid_from_ms` and `valid_to_ms`."""
    key = _key(keys, store, schemas, headers)
    value = _value(values, store, schemas, headers)
    no_key = ["null key" if one is None else None for one in keys]
    return DecodedRows(
        parts=_parts_of(keys, store.kind, store).columns,
        keys=key.values,
        values=value.values,
        errors=_joined(no_key, key.named("key"), value.named("value")),
    )


def _key(keys: Payloads, store: StoreFormat, schemas: Schemas, headers: Headers | None) -> Decoded:
    if store.kind in _BUFFERS:
        return _BUFFERS[store.kind].key(keys, store, schemas)
    parts = _parts_of(keys, store.kind, store)
    named = _Named("__key_schema_id", headers) if headers is not None else None
    return parts.around(_decoded(parts.inner, store.key, schemas, named))


def _value(values: Payloads, store: StoreFormat, schemas: Schemas, headers: Headers) -> Decoded:
    if store.kind in _BUFFERS:
        return _BUFFERS[store.kind].value(values, store, schemas, headers)
    return _decoded(values, store.value, schemas, _Named("__value_schema_id", headers))


def _joined(*texts: Texts) -> list[str | None]:
    """Join the texts of each row, None without any."""
    return ["; ".join(filter(None, of_row)) or None for of_row in zip(*texts, strict=True)]


@dataclass(frozen=True, slots=True)
class _Named:
    """The header with which a record can refer to a schema by GUID, and the headers of the rows."""

    header: str
    headers: Headers


def _decoded(
    payloads: Payloads, format_: Format, schemas: Schemas, named: _Named | None = None
) -> Decoded:
    """Decode bytes by their declared format; see `ktable_values.decoded`."""
    encoding = format_.encoding
    if encoding in FRAMED:
        return _framed(payloads, encoding, schemas, named)
    if encoding is Encoding.BYTES:
        return Decoded(pa.array(payloads, pa.binary()), [None] * len(payloads))
    read, kind = _reader_of(format_)
    values: list[Any] = []
    problems: list[str | None] = []
    for payload in payloads:
        value, problem = (None, None) if payload is None else read(payload)
        values.append(value)
        problems.append(problem)
    return Decoded(pa.array(values, kind), problems)


_Read = Callable[[bytes], tuple[Any, str | None]]


def _reader_of(format_: Format) -> tuple[_Read, pa.DataType]:
    encoding = format_.encoding
    if encoding is Encoding.STRING:
        return _text, pa.string()
    if encoding is Encoding.UUID:
        return _uuid, pa.string()
    if encoding is Encoding.JSON:
        fields = parse_schema(format_.schema or "")
        kind = SchemaType("STRUCT", fields)
        return lambda payload: _json(payload, kind), arrow_type(kind)
    article, form, kind = _NUMBERS[encoding]
    size = struct.calcsize(form)

    def number(payload: bytes) -> tuple[Any, str | None]:
        if len(payload) != size:
            return None, f"{_size_text(payload)} where {article} {encoding} has {size}"
        return struct.unpack(form, payload)[0], None

    return number, kind


def _size_text(payload: bytes) -> str:
    return f"{len(payload)} byte{'' if len(payload) == 1 else 's'}"


def _utf8(payload: bytes) -> str | None:
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _text(payload: bytes) -> tuple[str | None, str | None]:
    text = _utf8(payload)
    if text is None:
        return None, f"{_size_text(payload)}, not UTF-8, where a string is declared"
    return text, None


def _uuid(payload: bytes) -> tuple[str | None, str | None]:
    text = _utf8(payload)
    if text is None or _UUID.fullmatch(text) is None:
        return None, f"{_size_text(payload)}, no UUID in 36 characters, where one is declared"
    return text.lower(), None


def _json(payload: bytes, kind: SchemaType) -> tuple[dict[str, Any] | None, str | None]:
    text = _utf8(payload)
    if text is None:
        return None, f"{_size_text(payload)}, not UTF-8, where JSON is declared"
    try:
        return json_object(text, kind.fields), None
    except NotAnObjectError:
        return None, f"{_size_text(payload)}, not one JSON object"
    except OtherTypeError:
        return None, "a JSON object with a field of another type than declared"


def _framed(
    payloads: Payloads, encoding: Encoding, schemas: Schemas, named: _Named | None
) -> Decoded:
    from spark_resources.framed_values import decode, plan_of_payloads

    plan = plan_of_payloads(encoding, schemas, payloads)
    by_guid = (
        [
            f"its schema is named by a GUID in header {named.header}; only ids are read"
            if payload is not None and any(name == named.header for name, _ in headers)
            else None
            for payload, headers in zip(payloads, named.headers, strict=True)
        ]
        if named
        else [None] * len(payloads)
    )
    left = [None if text else one for one, text in zip(payloads, by_guid, strict=True)]
    found = decode(plan, pa.array(left, pa.binary()))
    errors = found.field("error").to_pylist()
    return Decoded(found.field("decoded"), [a or b for a, b in zip(by_guid, errors, strict=True)])


@dataclass(frozen=True, slots=True)
class _Parts:
    """Inner keys, and the bytes after them as named columns."""

    inner: Payloads
    columns: Mapping[str, Sequence[int | None]]
    problems: Texts

    def around(self, key: Decoded) -> Decoded:
        """Return the decoded inner keys with the problems of the whole keys."""
        if not self.columns:
            return key
        pairs = zip(self.problems, key.problems, strict=True)
        problems = [whole or (inner and f"{inner} (before the window)") for whole, inner in pairs]
        wrong = pa.array([text is not None for text in self.problems], pa.bool_())
        return Decoded(_nulled(key.values, wrong), problems)


def _nulled(values: pa.Array, wrong: pa.Array) -> pa.Array:
    """Return the values, null where `wrong` is true."""
    numbers = pa.array(range(len(values)), pa.int64(), mask=wrong.to_numpy(zero_copy_only=False))
    return values.take(numbers)


def _parts_of(
    keys: Payloads, kind: StoreKind, store: StoreFormat, *, in_store: bool = True
) -> _Parts:
    """Return the parts of keys of a kind; see `ktable_values.parts_of`."""
    if kind in WINDOWED:
        return _windows(keys, store.window_size_ms, _SEQUENCE_BYTES if in_store else 0)
    if kind is StoreKind.SESSION:
        return _sessions(keys)
    return _Parts(keys, {}, [None] * len(keys))


def _windows(keys: Payloads, window_size_ms: int | None, sequence: int) -> _Parts:
    suffix = _LONG_BYTES + sequence
    form = ">qi" if sequence else ">q"
    behind = [_unpacked(form, key) for key in keys]
    starts = _numbers(behind, 0)
    ends = [
        None if at is None or window_size_ms is None else min(at + window_size_ms, _MOST_MS)
        for at in starts
    ]
    columns = {"window_start_ms": starts, "window_end_ms": ends}
    if sequence:
        columns["sequence_number"] = _numbers(behind, 1)
    return _Parts(_before(keys, suffix), columns, _too_short(keys, suffix, "window"))


def _sessions(keys: Payloads) -> _Parts:
    """Split session keys; Kafka Streams writes the end before the start."""
    suffix = 2 * _LONG_BYTES
    behind = [_unpacked(">qq", key) for key in keys]
    reversed_ = [
        "a session that ends before it starts" if found and found[1] > found[0] else None
        for found in behind
    ]
    columns = {"session_start_ms": _numbers(behind, 1), "session_end_ms": _numbers(behind, 0)}
    short = _too_short(keys, suffix, "session")
    problems = [one or other for one, other in zip(short, reversed_, strict=True)]
    return _Parts(_before(keys, suffix), columns, problems)


def _unpacked(form: str, key: bytes | None) -> tuple[int, ...] | None:
    size = struct.calcsize(form)
    return None if key is None or len(key) < size else struct.unpack(form, key[-size:])


def _numbers(behind: Sequence[tuple[int, ...] | None], at: int) -> list[int | None]:
    return [None if found is None else found[at] for found in behind]


def _before(keys: Payloads, suffix: int) -> Payloads:
    return [None if key is None or len(key) < suffix else key[:-suffix] for key in keys]


def _too_short(keys: Payloads, suffix: int, thing: str) -> Texts:
    return [
        f"{_size_text(key)} where the key of a {thing} has at least {suffix}"
        if key is not None and len(key) < suffix
        else None
        for key in keys
    ]


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Decoders of keys and values of one kind of buffer; see `ktable_buffers.Buffer`."""

    key: Callable[[Payloads, StoreFormat, Schemas], Decoded]
    value: Callable[[Payloads, StoreFormat, Schemas, Headers], Decoded]


def _assembled(
    payloads: Payloads,
    structure: Structure,
    decoders: Mapping[str, Callable[[Payloads], Decoded]],
    behind: Mapping[str, Callable[[Payloads], Mapping[str, Sequence[Any]]]] | None = None,
    versions: Payloads | None = None,
) -> Decoded:
    """Decode payloads in structures; `behind` returns further fields that follow a payload."""
    pairs = zip(payloads, versions or [None] * len(payloads), strict=True)
    apart = [structure.apart(*pair) for pair in pairs]
    rows = [found for found, _ in apart]
    fields: dict[str, pa.Array] = {}
    inner: list[Texts] = []
    for field in structure.type:
        raw: list[Any] = [None if row is None else row[field.name] for row in rows]
        if field.name not in decoders:
            fields[field.name] = pa.array(raw, field.type)
            continue
        read = decoders[field.name](raw)
        fields[field.name] = read.values
        inner.append(read.named(field.name))
        for name, numbers in ((behind or {}).get(field.name) or _nothing)(raw).items():
            fields[name] = pa.array(numbers, pa.int64())
    texts = _joined(*inner) if inner else [None] * len(rows)
    problems = [whole or text for (_, whole), text in zip(apart, texts, strict=True)]
    return _structs(fields, [row is not None for row in rows], problems)


def _nothing(_: Payloads) -> Mapping[str, Sequence[Any]]:
    return {}


def _structs(fields: Mapping[str, pa.Array], there: Sequence[bool], problems: Texts) -> Decoded:
    pairs = zip(there, problems, strict=True)
    wrong = pa.array([not has or text is not None for has, text in pairs], pa.bool_())
    values = pa.StructArray.from_arrays([*fields.values()], names=[*fields])
    return Decoded(_nulled(values, wrong), problems)


def _keyed(keys: Payloads, store: StoreFormat, schemas: Schemas) -> tuple[Decoded, _Parts]:
    """Decode the key of a record inside a buffer, which may be followed by a window."""
    parts = _parts_of(keys, store.windowed_keys, store, in_store=False)
    return parts.around(_decoded(parts.inner, store.key, schemas)), parts


def _suppress_key(keys: Payloads, store: StoreFormat, schemas: Schemas) -> Decoded:
    key, parts = _keyed(keys, store, schemas)
    window = {name: pa.array(numbers, pa.int64()) for name, numbers in parts.columns.items()}
    there = [one is not None for one in keys]
    return _structs({"key": key.values, **window}, there, key.problems)


def _join_buffer_key(keys: Payloads, store: StoreFormat, schemas: Schemas) -> Decoded:
    return _assembled(
        keys,
        structures.JOIN_BUFFER_KEY,
        {"key": lambda raw: _keyed(raw, store, schemas)[0]},
        {"key": lambda raw: _keyed(raw, store, schemas)[1].columns},
    )


def _buffer_value(
    values: Payloads,
    store: StoreFormat,
    schemas: Schemas,
    structure: Structure,
    versions: Payloads | None = None,
) -> Decoded:
    def read(raw: Payloads) -> Decoded:
        return _decoded(raw, store.value, schemas)

    return _assembled(
        values, structure, dict.fromkeys(("prior", "old", "new"), read), versions=versions
    )


def _versions(headers: Headers) -> Payloads:
    """Return the last header `v` of each row, like Kafka Streams."""
    return [next((v for n, v in reversed(of_row) if n == "v"), None) for of_row in headers]


def _outer_join_value(values: Payloads, store: StoreFormat, schemas: Schemas) -> Decoded:
    def read(lists: Sequence[Any]) -> Decoded:
        flat = [one and one["value"] for of_row in lists for one in of_row or ()]
        decoded = _decoded(flat, store.value, schemas)
        found = iter(zip(decoded.values.to_pylist(), decoded.problems, strict=True))
        rows: list[list[Any] | None] = []
        problems: list[str | None] = []
        for of_row in lists:
            pairs = [(one, *next(found)) for one in of_row or ()]
            rows.append(
                None
                if of_row is None
                else [one and {"side": one["side"], "value": value} for one, value, _ in pairs]
            )
            problems.append(next((text for _, _, text in pairs if text), None))
        kind = pa.list_(pa.struct([("side", pa.string()), ("value", decoded.values.type)]))
        return Decoded(pa.array(rows, kind), problems)

    plain = store.value == BYTES or store.value.encoding in FRAMED
    return _assembled(values, structures.OUTER_JOIN_VALUE, {} if plain else {"values": read})


def _payloads_of(
    structure: Structure, formats: Callable[[StoreFormat], Mapping[str, Format]]
) -> Callable[[Payloads, StoreFormat, Schemas], Decoded]:
    def assemble(payloads: Payloads, store: StoreFormat, schemas: Schemas) -> Decoded:
        decoders = {
            name: lambda raw, format_=format_: _decoded(raw, format_, schemas)
            for name, format_ in formats(store).items()
        }
        return _assembled(payloads, structure, decoders)

    return assemble


_subscription_value = _payloads_of(
    structures.SUBSCRIPTION_VALUE, lambda store: {"primary_key": store.key}
)
_BUFFERS: Final[Mapping[StoreKind, _Buffer]] = {
    StoreKind.SUPPRESS: _Buffer(
        key=_suppress_key,
        value=lambda values, store, schemas, headers: _buffer_value(
            values, store, schemas, structures.SUPPRESS_VALUE, _versions(headers)
        ),
    ),
    StoreKind.JOIN_BUFFER: _Buffer(
        key=_join_buffer_key,
        value=lambda values, store, schemas, _: _buffer_value(
            values, store, schemas, structures.JOIN_BUFFER_VALUE
        ),
    ),
    StoreKind.SUBSCRIPTION: _Buffer(
        key=_payloads_of(
            structures.SUBSCRIPTION_KEY,
            lambda store: {"foreign_key": store.value, "primary_key": store.key},
        ),
        value=lambda values, store, schemas, _: _subscription_value(values, store, schemas),
    ),
    StoreKind.OUTER_JOIN: _Buffer(
        key=_payloads_of(structures.OUTER_JOIN_KEY, lambda store: {"key": store.key}),
        value=lambda values, store, schemas, _: _outer_join_value(values, store, schemas),
    ),
}
