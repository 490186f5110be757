"""Keys to find in the state of a store, and the rows found."""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kstreams_assets.app.store_format import Encoding, StoreFormat, StoreKind
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.ktables.decoding import Schemas, decode_keys

_PARTS_IN_KEY: Final = {
    StoreKind.WINDOW: 12,
    StoreKind.JOIN_WINDOW: 12,
    StoreKind.SESSION: 16,
}
"""Bytes after the inner key: start and sequence number; end and start."""
_NUMBERS: Final[Mapping[Encoding, tuple[str, pa.DataType]]] = {
    Encoding.LONG: (">q", pa.int64()),
    Encoding.INT: (">i", pa.int32()),
    Encoding.SHORT: (">h", pa.int16()),
}
_PLAIN_KINDS: Final = frozenset({*_PARTS_IN_KEY, StoreKind.KEY_VALUE, StoreKind.VERSIONED})
"""Kinds whose keys start with the bytes of the declared key."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key to find: the decoded key as text, or raw bytes of the whole key or of the inner one."""

    text: str | None = None
    raw: bytes | None = None

    @property
    def shown(self) -> str:
        """The text, or the bytes in hexadecimal."""
        return self.text or "" if self.raw is None else f"0x{self.raw.hex()}"


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row: `parts` are window, session or validity columns; times in epoch milliseconds.

    `headers` are the ordered headers of the record; a headers-aware store (KIP-1271) has them too.
    """

    partition: int
    offset: int
    timestamp_ms: int
    parts: Mapping[str, int | None]
    decoded_key: Any
    decoded_value: Any
    decode_error: str | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def in_order(rows: Iterable[StateRow]) -> tuple[StateRow, ...]:
    """Sort rows of a key by window, session or validity."""
    return tuple(sorted(rows, key=lambda row: (_order(row), row.partition, row.offset)))


def _order(row: StateRow) -> tuple[int, ...]:
    return tuple(-1 if part is None else part for part in row.parts.values())


class KeyMatch:
    """Finds a key among raw keys; decodes them only if a text has no unique bytes."""

    def __init__(self, key: Key, store: StoreFormat, schemas: Schemas) -> None:
        self._key, self._store, self._schemas = key, store, schemas
        self._inner = key.raw if key.raw is not None else _bytes_of(key.text or "", store)

    def mask(self, keys: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return which of these keys match.

        Raises:
            KStreamsAssetsError: The text is not a valid key of this store.
        """
        columns = {"key": keys}
        if self._inner is None:
            columns["decoded_key"] = decode_keys(keys.to_pylist(), self._store, self._schemas)
            where = text_filter(columns["decoded_key"].type, self._key.text or "")
        else:
            whole = self._key.raw is not None
            where = bytes_filter(self._inner, self._store.kind, whole_too=whole)
        return ds.dataset(pa.table(columns)).to_table(columns={"is_it": where})["is_it"]


def _bytes_of(text: str, store: StoreFormat) -> bytes | None:
    """Return the bytes of a text; None if several byte sequences can encode it."""
    encoding = store.key.encoding
    if store.kind not in _PLAIN_KINDS:
        return None
    if encoding in (Encoding.STRING, Encoding.BYTES):
        return text.encode()
    if encoding not in _NUMBERS:
        return None
    form, kind = _NUMBERS[encoding]
    return struct.pack(form, _scalar(text, kind).as_py())


def bytes_filter(raw: bytes, kind: StoreKind, *, whole_too: bool = True) -> ds.Expression:
    """Filter rows whose inner key is these bytes; with `whole_too` also the whole key."""
    whole = pc.field("key") == pa.scalar(raw, pa.binary())
    behind = _PARTS_IN_KEY.get(kind)
    if behind is None:
        return whole
    start = pc.binary_slice(  # pyright: ignore[reportAttributeAccessIssue]
        pc.field("key"), 0, len(raw)
    )
    length = pc.binary_length(pc.field("key"))  # pyright: ignore[reportAttributeAccessIssue]
    inner = (start == pa.scalar(raw, pa.binary())) & (length == len(raw) + behind)
    return whole | inner if whole_too else inner


def text_filter(kind: pa.DataType, text: str) -> ds.Expression:
    """Filter rows whose decoded key, of this type, equals a text."""
    if pa.types.is_struct(kind):
        return _same_fields(("decoded_key",), kind, _json_object(text))
    return pc.field("decoded_key") == _scalar(text, kind)


def _scalar(text: str, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(text.encode(), kind)
    try:
        return pa.scalar(text).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _not_a_key(text, f"a number ({kind})") from error


def _not_a_key(text: str, expected: str) -> KStreamsAssetsError:
    return KStreamsAssetsError(
        f"{text!r} is not a key of this store.",
        remedy=f"Give {expected}, or the raw bytes with --key-hex.",
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not found:
        expected = 'a JSON object such as {"id": 7}, because keys of the store are structures'
        raise _not_a_key(text, expected)
    return found


def _same_fields(path: tuple[str, ...], kind: pa.DataType, given: dict[str, Any]) -> ds.Expression:
    """Filter rows whose structure has these fields; other fields can have any value."""
    where: ds.Expression | None = None
    for name, value in given.items():
        index = kind.get_field_index(name)
        if index < 0:
            fields = ", ".join(field.name for field in kind)
            raise _not_a_key(name, f"one of the fields {fields}")
        inner = kind.field(index).type
        here = (*path, name)
        if isinstance(value, dict) and pa.types.is_struct(inner):
            same = _same_fields(here, inner, value)
        elif value is None:
            same = pc.field(*here).is_null()
        else:
            same = pc.field(*here) == _scalar(
                value if isinstance(value, str) else str(value), inner
            )
        where = same if where is None else where & same
    if where is None:
        return pc.scalar(True)
    return where
