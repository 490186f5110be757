"""JSON of declared types, converted like Spark's `from_json`. Pure."""

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal
from json.decoder import JSONDecodeError, JSONDecoder
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

import pyarrow as pa

from kstreams_assets.app.store_columns import SchemaField, SchemaType

T = TypeVar("T")

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_SPECIAL: Final = {
    "NaN": float("nan"),
    **{name: float("inf") for name in ("Infinity", "+Infinity", "INF", "+INF")},
    **{name: float("-inf") for name in ("-Infinity", "-INF")},
}
_UNLIKE_PYTHON: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![+-])(?:\+Infinity|[+-]?INF)', re.DOTALL)
"""Strings, and names of infinite numbers that Jackson accepts but Python does not."""
_DATE: Final = re.compile(r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_INSTANT: Final = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](?:(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?\s*(\S+)?)?)?)?"
)
_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?")
_MICRO_DIGITS: Final = 6
_BYTE: Final = range(-128, 256)
"""Jackson also accepts an unsigned byte."""


class NotAnObjectError(ValueError):
    """The text is not exactly one JSON object."""


class OtherTypeError(ValueError):
    """A field of the object does not have the declared type."""


def arrow_type(kind: SchemaType) -> pa.DataType:
    """Return the column type for a declared type."""
    if kind.name == "DECIMAL":
        return pa.decimal128(*kind.digits)
    if kind.name == "STRUCT":
        return pa.struct([(field.name, arrow_type(field.kind)) for field in kind.fields])
    if kind.element is None:
        return _ARROW[kind.name]
    element = arrow_type(kind.element)
    return pa.list_(element) if kind.name == "ARRAY" else pa.map_(pa.string(), element)


def json_object(text: str, fields: tuple[SchemaField, ...]) -> dict[str, Any]:
    """Return the declared fields of an object; a missing field is None.

    Raises:
        NotAnObjectError: The text is not exactly one JSON object.
        OtherTypeError: A field does not have its declared type.
    """
    try:
        value = _parsed(text)
    except (JSONDecodeError, RecursionError) as error:
        raise NotAnObjectError from error
    if not isinstance(value, tuple):
        raise NotAnObjectError
    return _struct(value, SchemaType("STRUCT", fields))


@dataclass(frozen=True, slots=True)
class _Number:
    """A number in its original text; other values are those of the module `json`."""

    text: str


class _Whole(_Number):
    """A number without fraction and exponent."""


class _Fraction(_Number):
    """A number with a fraction or an exponent, or an infinite one or NaN."""


_Object = tuple[tuple[str, Any], ...]
_PARSER: Final = JSONDecoder(
    parse_int=_Whole, parse_float=_Fraction, parse_constant=_Fraction, object_pairs_hook=tuple
)


def _parsed(text: str) -> Any:  # noqa: ANN401 (whatever JSON holds)
    try:
        return _PARSER.decode(text)
    except JSONDecodeError:
        return _PARSER.decode(_UNLIKE_PYTHON.sub(_as_python_reads_it, text))


def _as_python_reads_it(found: re.Match[str]) -> str:
    is_word = not found[0].startswith('"')
    return f"{'-' * found[0].startswith('-')}Infinity" if is_word else found[0]


def _converted(value: Any, kind: SchemaType) -> Any:  # noqa: ANN401 (any declared type)
    if value is None:
        return None
    try:
        return _CONVERT[kind.name](value, kind)
    except (ArithmeticError, LookupError, ValueError) as error:
        raise OtherTypeError from error


def _struct(value: object, kind: SchemaType) -> dict[str, Any]:
    given = dict(_require(value, tuple))
    return {
        field.name: _converted(given[field.name], field.kind) if field.name in given else None
        for field in kind.fields
    }


def _array(value: object, kind: SchemaType) -> list[Any]:
    return [_converted(part, _element(kind)) for part in _require(value, list)]


def _map(value: object, kind: SchemaType) -> list[tuple[str, Any]]:
    pairs: _Object = _require(value, tuple)
    return [*{name: _converted(part, _element(kind)) for name, part in pairs}.items()]


def _element(kind: SchemaType) -> SchemaType:
    return kind.element or SchemaType("STRING")


def _require(value: object, kind: type[T], *others: type[T]) -> T:
    if not isinstance(value, (kind, *others)):
        raise OtherTypeError
    return value


def _number(value: object) -> str:
    """Return the original text of a number or string."""
    return value if isinstance(value, str) else _require(value, _Number).text


def _whole(bits: int) -> Callable[[object, SchemaType], int]:
    least, beyond = -(1 << (bits - 1)), 1 << (bits - 1)
    allowed = _BYTE if bits == 8 else range(least, beyond)

    def convert(value: object, _: SchemaType) -> int:
        number = int(_require(value, _Whole).text)
        if number not in allowed:
            raise OtherTypeError
        return number if number < beyond else number - 2 * beyond

    return convert


def _floating(value: object, _: SchemaType) -> float:
    text = _number(value)
    return _SPECIAL[text] if text in _SPECIAL else float(_require(value, _Number).text)


def _boolean(value: object, _: SchemaType) -> bool:
    return _require(value, bool)


def _string(value: object, _: SchemaType) -> str:
    text = value if isinstance(value, str) else _copied(value)
    return text.encode("utf-8", "replace").decode()  # halves of a pair become `?`, as in Java


def _copied(value: object) -> str:
    """Convert a value to text like Spark, which uses Jackson's `copyCurrentStructure`."""
    match value:
        case tuple():
            pairs: _Object = value
            fields = (
                f"{json.dumps(name, ensure_ascii=False)}:{_copied(part)}" for name, part in pairs
            )
            return f"{{{','.join(fields)}}}"
        case list():
            return f"[{','.join(map(_copied, value))}]"
        case _Whole():
            return str(int(value.text))
        case _Fraction():
            return _java_double(value.text)
        case _:
            return json.dumps(value, ensure_ascii=False)


def _java_double(text: str) -> str:
    """Format a number like Java's `Double.toString`; Jackson puts infinite numbers in quotes."""
    number = _SPECIAL[text] if text in _SPECIAL else float(text)
    if math.isnan(number) or math.isinf(number):
        name = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        return f'"{name}"'
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return format(Decimal(repr(number)), "f") if number % 1 else f"{number:.1f}"
    digits = Decimal(repr(number)).normalize().as_tuple()
    first, *rest = map(str, digits.digits)
    exponent = len(digits.digits) - 1 + int(digits.exponent)
    return f"{'-' * digits.sign}{first}.{''.join(rest) or '0'}E{exponent}"


def _decimal(value: object, kind: SchemaType) -> Decimal:
    precision, scale = kind.digits
    number = Decimal(_number(value).replace(",", ""))
    digits = Context(prec=max(number.adjusted() + 1, 1) + scale + 1, rounding=ROUND_HALF_UP)
    rounded = number.quantize(Decimal(1).scaleb(-scale), context=digits)
    if len(rounded.as_tuple().digits) > precision:
        raise OtherTypeError
    return rounded


def _binary(value: object, _: SchemaType) -> bytes:
    return base64.b64decode(_require(value, str), validate=True)


def _date(value: object, _: SchemaType) -> date:
    found = _DATE.fullmatch(_require(value, str).strip())
    if found is None:
        raise OtherTypeError
    return date(*(int(part or 1) for part in found.groups()))


def _timestamp(value: object, _: SchemaType) -> datetime:
    if isinstance(value, _Whole):
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(value.text))
    local, zone = _instant(_require(value, str))
    return local.replace(tzinfo=_zone(zone) if zone else UTC).astimezone(UTC)


def _local_timestamp(value: object, _: SchemaType) -> datetime:
    return _instant(_require(value, str))[0]


def _instant(text: str) -> tuple[datetime, str | None]:
    found = _INSTANT.fullmatch(text.strip())
    if found is None:
        raise OtherTypeError
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    micros = int((fraction or "")[:_MICRO_DIGITS].ljust(_MICRO_DIGITS, "0"))
    hours, minutes, seconds = (int(part or 0) for part in (hour, minute, second))
    of_day = timedelta(hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)
    if of_day >= timedelta(days=1):
        raise OtherTypeError
    return datetime(int(year), int(month or 1), int(day or 1)) + of_day, zone


def _zone(name: str) -> timezone | ZoneInfo:
    if name == "Z":
        return UTC
    found = _OFFSET.fullmatch(name)
    if found is None:
        return ZoneInfo(name)
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    ahead = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return timezone(ahead if found[1] == "+" else -ahead)


_CONVERT: Final[Mapping[str, Callable[[Any, SchemaType], Any]]] = {
    "TINYINT": _whole(8),
    "SMALLINT": _whole(16),
    "INT": _whole(32),
    "BIGINT": _whole(64),
    "FLOAT": _floating,
    "DOUBLE": _floating,
    "BOOLEAN": _boolean,
    "STRING": _string,
    "BINARY": _binary,
    "DECIMAL": _decimal,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP_NTZ": _local_timestamp,
    "STRUCT": _struct,
    "ARRAY": _array,
    "MAP": _map,
}
