"""Rows of the DSL's buffers (suppress, joins): their structure, with the payloads decoded in it.

The declared formats have these meanings. `key` is the format of the record's key, in a foreign-key
subscription that of the primary key. `value` is that of the record's value, in a foreign-key
subscription that of the foreign key. In an outer join's lists it is used for both sides; values
with schemas of a registry stay bytes there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from kstreams_assets.app.store_format import BYTES, FRAMED, Format, StoreFormat, StoreKind
from kstreams_assets.model.schemas import RegisteredSchema
from spark_resources import store_structures as structures
from spark_resources.ktable_values import Decoded, decoded, parts_of
from spark_resources.store_structures import Structure

Schemas = Mapping[int, RegisteredSchema]

_VERSION_HEADER: Final = "v"


def taken_apart(column: Column, structure: Structure, version: Column | None = None) -> Column:
    """Return STRUCT<found: STRUCT<the structure's columns>, problem: STRING>, NULL for NULL.

    If the bytes have another layout, `found` is NULL and `problem` says what was found.
    """
    result = pa.struct([("found", structure.type), ("problem", pa.string())])

    def each(data: pa.Array, version: pa.Array) -> pa.Array:
        pairs = zip(data.to_pylist(), version.to_pylist(), strict=True)
        apart = [None if one is None else structure.apart(one, of_it) for one, of_it in pairs]
        rows = [each and {"found": each[0], "problem": each[1]} for each in apart]
        return pa.array(rows, type=result)

    # The stubs of pyspark have no form for a struct; it is in the documentation.
    function = F.arrow_udf(each, from_arrow_type(result))  # pyright: ignore[reportCallIssue, reportArgumentType]
    return function(column, F.lit(None).cast("binary") if version is None else version)


@dataclass(frozen=True, slots=True)
class Buffer:
    """How the keys and values of one kind of buffer are read.

    `key` and `value` receive the column that `key_apart` and `value_apart` make. It is a separate
    column, so Python parses each row once.
    """

    key_apart: Callable[[Column], Column]
    value_apart: Callable[[Column, Column], Column]
    key: Callable[[Column, StoreFormat, Schemas], Decoded]
    value: Callable[[Column, StoreFormat, Schemas], Decoded]


def _assembled(
    apart: Column,
    structure: Structure,
    payloads: Mapping[str, Decoded],
    behind: Mapping[str, Sequence[Column]] | None = None,
) -> Decoded:
    """Return the structure with decoded payloads; `behind` are fields that follow a payload."""
    found = apart["found"]
    fields: list[Column] = []
    for name in structure.type.names:
        fields.append((payloads[name].value if name in payloads else found[name]).alias(name))
        fields += (behind or {}).get(name, ())
    inner = F.concat_ws("; ", *(each.named(name).problem for name, each in payloads.items()))
    problem = F.coalesce(apart["problem"], F.when(inner != "", inner))
    return Decoded(F.when(found.isNotNull() & problem.isNull(), F.struct(*fields)), problem)


def _keyed(
    store: StoreFormat, column: Column, schemas: Schemas
) -> tuple[Decoded, tuple[Column, ...]]:
    """Return a record's key inside a buffer, optionally with a window, and the window's columns."""
    parts = parts_of(column, store.windowed_keys, store.window_size_ms, in_store=False)
    key = parts.around(decoded(parts.inner, store.key, schemas))
    return key, tuple(part.alias(name) for name, part in parts.columns.items())


def _suppress_key(column: Column, store: StoreFormat, schemas: Schemas) -> Decoded:
    key, window = _keyed(store, column, schemas)
    whole = F.struct(key.value.alias("key"), *window)
    return Decoded(F.when(column.isNotNull() & key.problem.isNull(), whole), key.problem)


def _join_buffer_key(apart: Column, store: StoreFormat, schemas: Schemas) -> Decoded:
    key, window = _keyed(store, apart["found"]["key"], schemas)
    return _assembled(apart, structures.JOIN_BUFFER_KEY, {"key": key}, {"key": window})


def _buffer_value(apart: Column, store: StoreFormat, schemas: Schemas) -> Decoded:
    found = apart["found"]
    payloads = {
        name: decoded(found[name], store.value, schemas) for name in ("prior", "old", "new")
    }
    return _assembled(apart, structures.SUPPRESS_VALUE, payloads)


def _payloads(
    structure: Structure, formats: Callable[[StoreFormat], Mapping[str, Format]]
) -> Callable[[Column, StoreFormat, Schemas], Decoded]:
    def assemble(apart: Column, store: StoreFormat, schemas: Schemas) -> Decoded:
        payloads = {
            name: decoded(apart["found"][name], format_, schemas)
            for name, format_ in formats(store).items()
        }
        return _assembled(apart, structure, payloads)

    return assemble


def _outer_join_value(apart: Column, store: StoreFormat, schemas: Schemas) -> Decoded:
    # Python functions cannot be applied to the elements of a list.
    if store.value == BYTES or store.value.encoding in FRAMED:
        return _assembled(apart, structures.OUTER_JOIN_VALUE, {})
    elements = apart["found"]["values"]

    def value(element: Column) -> Column:
        read = decoded(element["value"], store.value, schemas)
        sided = F.struct(element["side"].alias("side"), read.value.alias("value"))
        return F.when(element.isNotNull(), sided)

    def problem(element: Column) -> Column:
        return decoded(element["value"], store.value, schemas).problem

    problems = F.filter(F.transform(elements, problem), lambda text: text.isNotNull())
    first = F.try_element_at(problems, F.lit(1))
    payload = Decoded(F.transform(elements, value), first)
    return _assembled(apart, structures.OUTER_JOIN_VALUE, {"values": payload})


def _version(headers: Column) -> Column:
    """Return the last header of this name, like Kafka Streams."""
    named = F.filter(headers, lambda header: header["key"] == _VERSION_HEADER)
    return F.try_element_at(named, F.lit(-1))["value"]


BUFFERS: Final[Mapping[StoreKind, Buffer]] = {
    StoreKind.SUPPRESS: Buffer(
        key_apart=lambda key: key,
        value_apart=lambda value, headers: taken_apart(
            value, structures.SUPPRESS_VALUE, _version(headers)
        ),
        key=_suppress_key,
        value=_buffer_value,
    ),
    StoreKind.JOIN_BUFFER: Buffer(
        key_apart=lambda key: taken_apart(key, structures.JOIN_BUFFER_KEY),
        value_apart=lambda value, _: taken_apart(value, structures.JOIN_BUFFER_VALUE),
        key=_join_buffer_key,
        value=_buffer_value,
    ),
    StoreKind.SUBSCRIPTION: Buffer(
        key_apart=lambda key: taken_apart(key, structures.SUBSCRIPTION_KEY),
        value_apart=lambda value, _: taken_apart(value, structures.SUBSCRIPTION_VALUE),
        key=_payloads(
            structures.SUBSCRIPTION_KEY,
            lambda store: {"foreign_key": store.value, "primary_key": store.key},
        ),
        value=_payloads(structures.SUBSCRIPTION_VALUE, lambda store: {"primary_key": store.key}),
    ),
    StoreKind.OUTER_JOIN: Buffer(
        key_apart=lambda key: taken_apart(key, structures.OUTER_JOIN_KEY),
        value_apart=lambda value, _: taken_apart(value, structures.OUTER_JOIN_VALUE),
        key=_payloads(structures.OUTER_JOIN_KEY, lambda store: {"key": store.key}),
        value=_outer_join_value,
    ),
}
