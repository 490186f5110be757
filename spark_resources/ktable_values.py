"""Keys and values of stores as columns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from kstreams_assets.app.store_format import FRAMED, WINDOWED, Encoding, Format, StoreKind
from kstreams_assets.model.schemas import RegisteredSchema
from spark_resources.confluent_framing import framed

_BYTES_OF: Final = {
    Encoding.LONG: 8,
    Encoding.INT: 4,
    Encoding.SHORT: 2,
    Encoding.DOUBLE: 8,
    Encoding.FLOAT: 4,
}
_ARTICLE: Final = {Encoding.INT: "an"}
_UUID: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UUID_BYTES: Final = 36
_JSON_OPTIONS: Final = {"columnNameOfCorruptRecord": "corrupt", "allowSingleQuotes": "false"}


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column, and an error if the bytes do not match the declaration; NULL has neither.

    `value` is NULL if `problem` is not. `both` is a struct of the two, set if computing one costs
    as much as computing both: as a separate column it is computed once.
    """

    value: Column
    problem: Column
    both: Column | None = None

    def named(self, name: str) -> "Decoded":
        """Return the same with `name: ` before the problem."""
        return Decoded(self.value, F.concat(F.lit(f"{name}: "), self.problem))


def decoded(
    column: Column,
    format_: Format,
    schemas: Mapping[int, RegisteredSchema],
    *,
    schema_header: str | None = None,
) -> Decoded:
    """Decode the bytes of a column by their declared format.

    Numbers have exactly the length of Kafka's serializers, text is valid UTF-8, a UUID is the text
    that `UUIDSerializer` writes. JSON is one object; missing fields are NULL. Avro and Protobuf are
    read by the registry's `schemas`, by id; `schema_header` is the record's header that can name a
    schema in another way.
    """
    encoding = format_.encoding
    if encoding is Encoding.BYTES:
        return Decoded(column, F.lit(None).cast("string"))
    if encoding in FRAMED:
        if schema_header is None:
            return Decoded(*framed(column, encoding, schemas))
        headers = F.col("headers")
        return Decoded(*framed(column, encoding, schemas, headers=headers, header=schema_header))
    if encoding is Encoding.STRING:
        return _text(column, F.try_validate_utf8(column), "not UTF-8, where a string is")
    if encoding is Encoding.UUID:
        return _uuid(column)
    if encoding is Encoding.JSON:
        return _json(column, format_.schema or "")
    return _number(column, encoding)


def long_at(column: Column, position: int | Column) -> Column:
    """Return the eight bytes at a position (from 1; negative: from the end) as a signed number.

    NULL if they are missing; the caller checks the length first.
    """
    # Base -10 is the signed one; base 10 would be unsigned and overflow. conv of at most 16 digits
    # never does.
    eight = F.substring(column, position, 8)
    return F.conv(F.hex(eight), 16, -10).try_cast("bigint")


def int_at(column: Column, position: int | Column, *, size: int = 4) -> Column:
    """Return the four (or two) bytes at a position as a signed number (BIGINT); see `long_at`."""
    found = F.conv(F.hex(F.substring(column, position, size)), 16, 10).try_cast("bigint")
    bits = 8 * size
    return F.when(found >= 1 << (bits - 1), found - (1 << bits)).otherwise(found)


def size_text(column: Column) -> Column:
    """`7 bytes`."""
    size = F.length(column)
    return F.concat(size.cast("string"), F.when(size == 1, F.lit(" byte")).otherwise(" bytes"))


def problem_when(condition: Column, *texts: Column | str) -> Column:
    """Return the joined texts if the condition holds, else NULL."""
    parts = [F.lit(text) if isinstance(text, str) else text for text in texts]
    return F.when(condition, F.concat(*parts))


def _text(column: Column, value: Column, found: str) -> Decoded:
    wrong = column.isNotNull() & value.isNull()
    return Decoded(value, problem_when(wrong, size_text(column), f", {found} declared"))


def _uuid(column: Column) -> Decoded:
    text = F.try_validate_utf8(column)
    # The length is checked too: `$` also matches before a line feed at the end.
    is_uuid = (F.length(column) == _UUID_BYTES) & F.coalesce(text.rlike(_UUID), F.lit(False))
    found = "no UUID in 36 characters, where one is"
    return _text(column, F.when(is_uuid, F.lower(text)), found)


def _json(column: Column, schema: str) -> Decoded:
    """Parse one JSON object strictly.

    `from_json` alone ignores text after an object, and takes the object out of `[{...}]`. So the
    text is read as the first of two elements of a list: anything but exactly one object breaks the
    list or changes its length.
    """
    text, size = F.try_validate_utf8(column), size_text(column)
    listed = F.from_json(
        F.concat(F.lit('{"list":['), text, F.lit(",{}]}")),
        f"list ARRAY<STRUCT<{schema}>>, corrupt STRING",
        _JSON_OPTIONS,
    )

    def evaluated(listed: Column) -> Column:
        first = F.try_element_at(listed["list"], F.lit(1))
        is_object = (F.coalesce(F.size(listed["list"]), F.lit(0)) == 2) & first.isNotNull()
        is_right = is_object & listed["corrupt"].isNull()
        why = (
            F.when(text.isNull(), F.concat(size, F.lit(", not UTF-8, where JSON is declared")))
            .when(~is_object, F.concat(size, F.lit(", not one JSON object")))
            .otherwise(F.lit("a JSON object with a field of another type than declared"))
        )
        problem = F.when(column.isNotNull() & ~is_right, why)
        return F.struct(F.when(is_right, first).alias("value"), problem.alias("problem"))

    both = _once(listed, evaluated)
    return Decoded(both["value"], both["problem"], both)


def _once(column: Column, use: Callable[[Column], Column]) -> Column:
    """Apply `use` to a column; without this Spark would compute the column again for each use."""
    return F.transform(F.array(column), use)[0]


def _number(column: Column, encoding: Encoding) -> Decoded:
    size = _BYTES_OF[encoding]
    fits = F.length(column) == size
    value = F.when(fits, _NUMBERS[encoding](column))
    expected = f" where {_ARTICLE.get(encoding, 'a')} {encoding} has {size}"
    return Decoded(value, problem_when(~fits, size_text(column), expected))


def _double(bits: Column) -> Column:
    exponent = F.shiftrightunsigned(bits, 52).bitwiseAND(F.lit(0x7FF).cast("bigint"))
    fraction = bits.bitwiseAND(F.lit((1 << 52) - 1))
    return _floating(bits < 0, exponent, fraction, fraction_bits=52, exponent_bits=11)


def _float(bits: Column) -> Column:
    exponent = F.shiftright(bits, 23).bitwiseAND(F.lit(0xFF).cast("bigint"))
    fraction = bits.bitwiseAND(F.lit((1 << 23) - 1).cast("bigint"))
    number = _floating(bits < 0, exponent, fraction, fraction_bits=23, exponent_bits=8)
    return number.cast("float")


def _floating(
    negative: Column,
    exponent: Column,
    fraction: Column,
    *,
    fraction_bits: int,
    exponent_bits: int,
) -> Column:
    """Assemble an IEEE 754 number; products with powers of two are exact, also for subnormals."""
    sign = F.when(negative, F.lit(-1.0)).otherwise(F.lit(1.0))
    least = 2 - (1 << (exponent_bits - 1)) - fraction_bits
    two = F.lit(2.0)
    special = F.when(fraction == 0, sign * F.lit(float("inf"))).otherwise(F.lit(float("nan")))
    tiny = sign * fraction.cast("double") * F.pow(two, F.lit(float(least)))
    power = F.pow(two, (exponent + F.lit(least - 1)).cast("double"))
    normal = sign * (fraction + F.lit(1 << fraction_bits)).cast("double") * power
    return (
        F.when(exponent == (1 << exponent_bits) - 1, special)
        .when(exponent == 0, tiny)
        .otherwise(normal)
    )


_NUMBERS: Final[Mapping[Encoding, Callable[[Column], Column]]] = {
    Encoding.LONG: lambda column: long_at(column, 1),
    Encoding.INT: lambda column: int_at(column, 1).cast("int"),
    Encoding.SHORT: lambda column: int_at(column, 1, size=2).cast("smallint"),
    Encoding.DOUBLE: lambda column: _once(long_at(column, 1), _double),
    Encoding.FLOAT: lambda column: _once(int_at(column, 1), _float),
}


_LONG_BYTES: Final = 8
_SEQUENCE_BYTES: Final = 4
_MOST_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class KeyParts:
    """The inner key, and the parts after it as named columns.

    All are NULL if `problem` says that there are too few bytes.
    """

    inner: Column
    columns: dict[str, Column]
    problem: Column

    def around(self, key: Decoded) -> Decoded:
        """Return the decoded inner key, with the problem of the whole key."""
        if not self.columns:
            return key
        inner = F.concat(key.problem, F.lit(" (before the window)"))
        return Decoded(F.when(self.problem.isNull(), key.value), F.coalesce(self.problem, inner))


def parts_of(
    column: Column, kind: StoreKind, window_size_ms: int | None, *, in_store: bool = True
) -> KeyParts:
    """Return the parts of a key of this kind.

    `in_store`: a window's key ends with a sequence number, as in the changelog of a window store;
    elsewhere (windowed serdes, buffers after windows) it ends with the window's start.
    """
    if kind in WINDOWED:
        return _window(column, window_size_ms, sequence=_SEQUENCE_BYTES if in_store else 0)
    if kind is StoreKind.SESSION:
        return _session(column)
    return KeyParts(column, {}, F.lit(None).cast("string"))


def _window(column: Column, window_size_ms: int | None, *, sequence: int) -> KeyParts:
    suffix = _LONG_BYTES + sequence
    fits = F.length(column) >= suffix
    start = F.when(fits, long_at(column, -suffix))
    end = F.lit(None).cast("bigint")
    if window_size_ms is not None:
        # Like Kafka Streams: a window that would end after the last millisecond ends there.
        end = F.coalesce(F.try_add(start, F.lit(window_size_ms).cast("bigint")), F.lit(_MOST_MS))
        end = F.when(fits, end)
    columns = {"window_start_ms": start, "window_end_ms": end}
    if sequence:
        columns["sequence_number"] = F.when(fits, int_at(column, -sequence).cast("int"))
    problem = problem_when(
        ~fits, size_text(column), f" where the key of a window has at least {suffix}"
    )
    return KeyParts(_before(column, suffix), columns, problem)


def _session(column: Column) -> KeyParts:
    """Kafka Streams writes the end first."""
    suffix = 2 * _LONG_BYTES
    fits = F.length(column) >= suffix
    end = F.when(fits, long_at(column, -suffix))
    start = F.when(fits, long_at(column, -_LONG_BYTES))
    problem = F.coalesce(
        problem_when(
            ~fits, size_text(column), f" where the key of a session has at least {suffix}"
        ),
        problem_when(start > end, "a session that ends before it starts"),
    )
    columns = {"session_start_ms": start, "session_end_ms": end}
    return KeyParts(_before(column, suffix), columns, problem)


def _before(column: Column, suffix: int) -> Column:
    size = F.length(column) - suffix
    return F.when(size >= 0, F.substring(column, F.lit(1), size))
