"""Types of decoded columns, and the conversion of decoded values. Pure."""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of a column or field, and the conversion of a decoded value for Arrow.

    `convert` never gets None. It raises ValueError for a value outside of the type's range.
    """

    type: pa.DataType
    convert: Callable[[Any], Any]


TEXT: Final = Shape(pa.string(), str)


def struct_of(parts: Sequence[tuple[str, Shape]], get: Callable[[Any, str], Any]) -> Shape:
    """Return a struct of fields, which `get` reads from a value by their names.

    Names that differ only in case get a number: tables compare names without case.
    """
    seen: set[str] = set()
    columns: list[tuple[str, str, Callable[[Any], Any]]] = []
    fields: list[pa.Field] = []
    for number, (name, shape) in enumerate(parts):
        column = name if name.lower() not in seen else f"{name}_{number}"
        seen.add(column.lower())
        columns.append((column, name, shape.convert))
        fields.append(pa.field(column, shape.type))

    def convert(value: Any) -> dict[str, Any]:  # noqa: ANN401 (a decoded record)
        converted = {}
        for column, name, of in columns:
            part = get(value, name)
            converted[column] = None if part is None else of(part)
        return converted

    return Shape(pa.struct(fields), convert)


def as_json(value: Any) -> str:  # noqa: ANN401 (any decoded value)
    """Return a value without a fitting column type as text; bytes in base64."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def checked_decimal(unscaled: int, precision: int, scale: int) -> Decimal:
    """Return the decimal number; ValueError if it has more digits than the precision."""
    if abs(unscaled) >= 10**precision:
        raise ValueError(f"a decimal has more than {precision} digits")
    return Decimal(unscaled).scaleb(-scale, Context(prec=precision + 1))
