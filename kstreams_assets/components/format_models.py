"""How keys and values are read, as the YAML says it: `string`, or {format, schema}."""

from typing import Any, Final

from kstreams_assets.app.store_columns import SchemaTextError, parse_schema
from kstreams_assets.app.store_format import BYTES, Encoding, Format
from kstreams_assets.errors import ConfigurationError

_KEYS: Final = ("format", "schema")
_ENCODINGS: Final = ", ".join(Encoding)


def read_format(what: str, said: str | dict[str, Any] | None) -> Format:
    """The format of `what` (such as `the key of store 'a'`); nothing said means bytes.

    Raises:
        ConfigurationError: It names `what`.
    """
    if said is None:
        return BYTES
    block = {"format": said} if isinstance(said, str) else said
    unknown = sorted(block.keys() - set(_KEYS))
    if unknown or "format" not in block:
        found = f"unknown key {unknown[0]!r}" if unknown else "no key 'format'"
        raise ConfigurationError(
            f"{_begun(what)} has {found}.",
            remedy=f"Give one of {_ENCODINGS}, or {{format, schema}}.",
        )
    if block["format"] not in tuple(Encoding):
        raise ConfigurationError(
            f"{_begun(what)} has format {block['format']!r}.", remedy=f"Give one of {_ENCODINGS}."
        )
    return _checked(what, Encoding(block["format"]), block.get("schema"))


def _checked(what: str, encoding: Encoding, schema: object) -> Format:
    try:
        if schema is not None:
            parse_schema(str(schema))
        return Format(encoding, None if schema is None else str(schema))
    except SchemaTextError as error:
        raise ConfigurationError(
            f"The schema of {what} is not understood: {error}.",
            remedy="Write it as Spark's DDL: 'a BIGINT, b STRUCT<c: STRING>'.",
        ) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{_begun(what)}: {error.problem}", remedy=error.remedy) from error


def _begun(what: str) -> str:
    return what[0].upper() + what[1:]
