"""Schemas of JSON, written as Spark's DDL: checked without a JVM. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

_TOKEN: Final = re.compile(r"`[^`]+`|'(?:[^'\\]|\\.)*'|[A-Za-z_0-9]+|[<>(),:]")
_NAME: Final = re.compile(r"`[^` ,;{}()\n\t=]+`|[A-Za-z_][A-Za-z_0-9]*")
"""In quotes whatever a column of a Delta table may be called."""
_WHOLE: Final = ("TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG")
_TIMES: Final = ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")
_ATOMIC: Final = frozenset(
    {*_WHOLE, *_TIMES, "FLOAT", "REAL", "DOUBLE", "BOOLEAN", "STRING", "BINARY"}
)
_DECIMAL: Final = frozenset({"DECIMAL", "DEC", "NUMERIC"})
_MOST_DIGITS: Final = 38
_END: Final = ""


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field; `fields` are those of a struct, `type` is the type as it was written."""

    name: str
    fields: tuple["SchemaField", ...] = ()
    type: str = field(default="", compare=False)

    def paths(self) -> Iterator[str]:
        """The field and all below it, dotted."""
        yield self.name
        for inner in self.fields:
            yield from (f"{self.name}.{path}" for path in inner.paths())


class SchemaTextError(ValueError):
    """A text that is no schema; the message says where and why. Whoever reads YAML names it."""


def parse_schema(ddl: str) -> tuple[SchemaField, ...]:
    """The fields of `a BIGINT, b STRUCT<c: STRING>`.

    Stricter than Spark's parser: only types that JSON can fill and Delta can hold, map keys are
    strings, no NOT NULL (a field of JSON can always be missing), and names that differ in their
    case alone are refused.

    Raises:
        SchemaTextError: It is no such schema.
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
    """Recursive descent; `COMMENT 'text'` after a field is read over."""

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
                _refuse(token, "a name that is not there yet (upper and lower case are one)")
            self._skip(":")
            begin = self._at
            inner = self._type()
            written = "".join(token.text for token in self._tokens[begin : self._at])
            found[name.lower()] = SchemaField(name, inner, written)
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

    def _type(self) -> tuple[SchemaField, ...]:
        """Read one type, and return the fields of a struct."""
        token = self._take()
        name = token.text.upper()
        if name == "STRUCT":
            self.expect("<")
            fields = self.fields(">")
            self.expect(">")
            return fields
        if name == "ARRAY":
            self.expect("<")
            self._type()
            self.expect(">")
        elif name == "MAP":
            self._map()
        elif name in _DECIMAL:
            self._digits()
        elif name not in _ATOMIC:
            _refuse(token, "a type such as STRING, BIGINT, DOUBLE, BOOLEAN or STRUCT<...>")
        return ()

    def _map(self) -> None:
        self.expect("<")
        key = self._take()
        if key.text.upper() != "STRING":
            _refuse(key, "STRING: keys of a map are names in JSON")
        self.expect(",")
        self._type()
        self.expect(">")

    def _digits(self) -> None:
        if not self._skip("("):
            return
        precision = self._number(_MOST_DIGITS)
        if self._skip(","):
            self._number(precision)
        self.expect(")")

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
