"""Types of the columns of a view, as far as declared formats tell them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kstreams_assets.completeness.view import View, key_parts_of
from kstreams_assets.ktables.columns import KEY_PARTS, TYPES
from kstreams_assets.ktables.ddl import SchemaField, parse_schema
from kstreams_assets.ktables.store_format import FRAMED, Format

_COMMON: Final[Mapping[str, str]] = {
    "_partition": "int",
    "_offset": "bigint",
    "_timestamp": "timestamp",
    "_timestamp_ms": "bigint",
    "_window": "string",
    "_headers": "array",
    "_in_flight": "boolean",
    "_decode_error": "string",
}
NUMBERS: Final = frozenset(
    {"tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "decimal"}
    | {"dec", "numeric", "float", "real", "double"}
)
FRACTIONS: Final = frozenset({"float", "real", "double"})
"""Types whose sums depend on the order of the records."""
RELATIVE_TOLERANCE: Final = "1e-9"
"""By how much such sums may differ."""


class MissingColumnError(LookupError):
    """A view, or a struct in it, has no such column; `available` are those it has."""

    def __init__(self, name: str, available: Iterable[str]) -> None:
        self.name = name
        self.available = tuple(available)
        super().__init__(f"no column {name!r}: there are {', '.join(self.available)}")


def column_type(view: View, path: Sequence[str]) -> str | None:
    """The type of a column, or of a field in it, in lower case without parameters (`decimal`).

    None where it is known only when read (Avro, Protobuf, buffers, inside of arrays and maps).

    Raises:
        MissingColumnError: It is known that there is none.
    """
    if view.columns is None:
        return None
    first = path[0].lower()
    known = {name.lower() for name in view.columns}
    if first not in known:
        raise MissingColumnError(path[0], view.columns)
    if first == "_key":
        return _of_format(view.format.key, path)
    if first == "_value":
        return _of_format(view.format.value, path)
    if first in _COMMON:
        return _COMMON[first] if len(path) == 1 or first == "_headers" else _scalar(path)
    parts = {name: type_ for name, type_, _ in KEY_PARTS.get(view.format.kind, ())}
    if first in key_parts_of(view.format.kind):
        return parts[first]
    return _in_fields(view.fields, path)


def _of_format(declared: Format, path: Sequence[str]) -> str | None:
    if declared.encoding in FRAMED:
        return None
    if len(path) == 1:
        return TYPES[declared.encoding]
    if declared.schema is None:
        return _scalar(path)
    return _in_fields(parse_schema(declared.schema), path[1:])


def _in_fields(fields: Sequence[SchemaField], path: Sequence[str]) -> str | None:
    found = next((each for each in fields if each.name.lower() == path[0].lower()), None)
    if found is None:
        raise MissingColumnError(path[0], (each.name for each in fields))
    if found.fields and len(path) > 1:
        return _in_fields(found.fields, path[1:])
    plain = found.type.lower().partition("(")[0].partition("<")[0]
    if len(path) == 1:
        return plain
    # Below an array or a map the path goes on; below a number it does not.
    return None if plain in ("array", "map") else _scalar(path)


def _scalar(path: Sequence[str]) -> str | None:
    raise MissingColumnError(".".join(path[1:]), ())
