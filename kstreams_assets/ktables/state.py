"""One key of a store at an instant, and its history: read from the tables, no broker, no JVM."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from kstreams_assets.app.store_columns import as_text
from kstreams_assets.app.store_format import StoreKind, format_of
from kstreams_assets.errors import (
    KeyNotInStoreError,
    KeyNotUnderstoodError,
    NoSnapshotError,
    UnknownStoreError,
)
from kstreams_assets.ktables.snapshot import Snapshot
from kstreams_assets.ktables.snapshots_table import SnapshotsTable, require_snapshot
from kstreams_assets.ktables.table import open_table, window_files
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath, arrow_place, readable
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.table import storage_failures

_PLAIN = ("partition", "offset", "timestamp_ms", "decode_error", "key", "value")
_DECODED = ("decoded_key", "decoded_value")
_HEADERS = "headers"
_ASIDE = frozenset({*_PLAIN, *_DECODED, "window", _HEADERS})
_PARTS_IN_KEY = {
    StoreKind.WINDOW: 12,
    StoreKind.JOIN_WINDOW: 12,
    StoreKind.SESSION: 16,
}
"""Bytes behind the inner key: start and sequence number; end and start."""
_FEW = 3


@dataclass(frozen=True, slots=True)
class Key:
    """What is looked for: the decoded key as text, or raw bytes (whole key, or the inner one)."""

    text: str | None = None
    raw: bytes | None = None

    @property
    def shown(self) -> str:
        """As it is shown: the text, or hexadecimal."""
        return self.text or "" if self.raw is None else f"0x{self.raw.hex()}"


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row: `parts` are window, session or validity columns; times in epoch milliseconds.

    `headers` are those of the record, in order: a headers-aware store (KIP-1271) holds them too.
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


@dataclass(frozen=True, slots=True)
class KeyState:
    """What a snapshot holds of a key; no rows: it does not hold it."""

    snapshot: Snapshot
    rows: tuple[StateRow, ...]


def state_at(
    settings: ApplicationSettings, store: str, key: Key, as_of_ms: int | None = None
) -> KeyState:
    """The rows of a key in the newest snapshot whose recovery point was complete at a time.

    Raises:
        UnknownStoreError: The application has no such store with a table.
        NoSnapshotError: No snapshot is that old; it tells which there are.
        KeyNotUnderstoodError: The text is no key of the store's type.
        KeyNotInStoreError: The store did not hold the key then.
        StoredDataError: The files of the snapshot are not those that were written.
    """
    snapshot = _snapshots(settings, store, as_of_ms)[-1]
    files = _Files(settings.warehouse.ktable(settings.application_id, store))
    rows = files.rows(snapshot, key, format_of(store, settings.store_formats).kind)
    if not rows:
        raise _not_there(store, key, snapshot, files.some_keys(snapshot))
    return KeyState(snapshot, rows)


def history_of(
    settings: ApplicationSettings, store: str, key: Key, as_of_ms: int | None = None
) -> list[KeyState]:
    """The snapshots in which a key is not as in the one before, oldest first.

    A state without rows says that the key was gone.

    Raises:
        KStreamsAssetsError: As for `state_at`; the key is not there when no snapshot ever held it.
    """
    snapshots = _snapshots(settings, store, as_of_ms)
    files = _Files(settings.warehouse.ktable(settings.application_id, store))
    kind = format_of(store, settings.store_formats).kind
    changes: list[KeyState] = []
    before: tuple[StateRow, ...] = ()
    point: str | None = None
    for snapshot in snapshots:
        if snapshot.point_id == point:
            continue  # a window without a point of its own is as the one before
        point = snapshot.point_id
        rows = files.rows(snapshot, key, kind)
        if rows != before:
            changes.append(KeyState(snapshot, rows))
        before = rows
    if not changes:
        raise _not_there(store, key, snapshots[-1], files.some_keys(snapshots[-1]))
    return changes


def _snapshots(
    settings: ApplicationSettings, store: str, as_of_ms: int | None
) -> Sequence[Snapshot]:
    """Those of a store up to a time, oldest first; never none."""
    found = SnapshotsTable(settings.warehouse).of(settings.application_id, stores=[store])
    if not found:
        require_store(settings, store)
    ordered = sorted(found, key=lambda s: s.window)  # edges of windows never go back, clocks may
    early = ordered
    if as_of_ms is not None:
        instants = RecoveryPointTable(settings.warehouse).instants(settings.application_id)
        # Of a point that was thinned out since, only the beginning is known.
        ended = {instant.id: instant.ended_at_ms for instant in instants}
        early = [s for s in ordered if ended.get(s.point_id, s.taken_at_ms) <= as_of_ms]
    if not early:
        raise NoSnapshotError(
            application_id=settings.application_id,
            store=store,
            as_of=None if as_of_ms is None else iso_time(as_of_ms),
            windows=[(s.window.key, iso_time(s.taken_at_ms)) for s in ordered],
        )
    return early


def why_unconfirmed(settings: ApplicationSettings, store: str) -> str:
    """Why a store is not read: it depends on a guess that nobody has confirmed; empty if not."""
    guesses = settings.application.guesses_about(stores=[store])
    return " ".join(f"{str(guess).rstrip('.')}. {guess.remedy}" for guess in guesses).rstrip(".")


def require_store(settings: ApplicationSettings, store: str) -> None:
    """Refuse a store that the application does not have, or that can have no table.

    Raises:
        UnknownStoreError: It says which there are, and which name is near.
    """
    known = {s.name: s for s in settings.application.stores}
    if store in known:
        why = ""
        if store in settings.without_ktable:
            why = "it is declared with ktable: false"
        elif unconfirmed := why_unconfirmed(settings, store):
            why = unconfirmed
        elif known[store].changelog is None:
            why = "it has no changelog (logging disabled)"
        if not why:
            return
        raise UnknownStoreError(
            application_id=settings.application_id, store=store, known=sorted(known), why=why
        )
    raise UnknownStoreError(
        application_id=settings.application_id,
        store=store,
        known=sorted(known),
        near=difflib.get_close_matches(store, list(known), n=_FEW, cutoff=0.5),
    )


def _not_there(
    store: str, key: Key, snapshot: Snapshot, some_keys: Sequence[str]
) -> KeyNotInStoreError:
    return KeyNotInStoreError(
        store=store,
        key=key.shown,
        window=snapshot.window.key,
        taken_at=iso_time(snapshot.taken_at_ms),
        some_keys=some_keys,
    )


class _Files:
    """The files of a KTable by window; each is read by itself, whatever its columns.

    A snapshot is compared with its digests before the first row of it is used.
    """

    def __init__(self, path: StorePath) -> None:
        self._path = path
        self._by_window = window_files(open_table(path), path)
        self._required: set[str] = set()

    def _files(self, snapshot: Snapshot) -> list[StorePath]:
        window = snapshot.window.key
        if window not in self._required:
            require_snapshot(self._path, snapshot, self._by_window)
            self._required.add(window)
        return [file for file, _ in self._by_window.get(window, ())]

    def rows(self, snapshot: Snapshot, key: Key, kind: StoreKind) -> tuple[StateRow, ...]:
        """The rows of a key, in order of window, session or validity."""
        found: list[StateRow] = []
        for file in self._files(snapshot):
            with storage_failures(file):
                schema = pq.read_schema(readable(file))
                where = _filter(schema, key, kind)
                parts = [name for name in schema.names if name not in _ASIDE]
                columns = [*_PLAIN, *_DECODED, *parts]
                columns += [_HEADERS] if _HEADERS in schema.names else []
                rows = _dataset(file, schema)
                table = rows.to_table(columns=columns, filter=where)
            found += [_row(row, parts) for row in table.to_pylist()]
        return tuple(sorted(found, key=lambda row: (_order(row), row.partition, row.offset)))

    def some_keys(self, snapshot: Snapshot) -> list[str]:
        """A few keys as they are written in `--key`."""
        found: list[str] = []
        for file in self._files(snapshot):
            with storage_failures(file):
                rows = _dataset(file)
                table = rows.head(_FEW, columns=["decoded_key"])
            found += [as_text(row["decoded_key"]) for row in table.to_pylist()]
            if len(found) >= _FEW:
                break
        return found[:_FEW]


def _dataset(file: StorePath, schema: pa.Schema | None = None) -> ds.Dataset:
    files, place = arrow_place(file)
    return ds.dataset(place, schema=schema, format=_checked(), filesystem=files)


def _checked() -> ds.ParquetFileFormat:
    """Compares the checksums of pages."""
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    return ds.ParquetFileFormat(default_fragment_scan_options=options)


def written_fields(path: StorePath) -> list[pa.Field]:
    """The columns of a KTable as they are now; none while nobody has written it."""
    table = open_table(path)
    return [] if table is None else list(pa.schema(table.schema().to_arrow()))


def _order(row: StateRow) -> tuple[int, ...]:
    return tuple(-1 if part is None else part for part in row.parts.values())


def _row(row: dict[str, Any], parts: Sequence[str]) -> StateRow:
    return StateRow(
        partition=row["partition"],
        offset=row["offset"],
        timestamp_ms=row["timestamp_ms"],
        parts={name: row[name] for name in parts},
        decoded_key=row["decoded_key"],
        decoded_value=row["decoded_value"],
        decode_error=row["decode_error"],
        key=row["key"],
        value=row["value"],
        headers=tuple((header["key"], header["value"]) for header in row.get(_HEADERS) or ()),
    )


def _filter(schema: pa.Schema, key: Key, kind: StoreKind) -> ds.Expression:
    if key.raw is not None:
        whole = pc.field("key") == pa.scalar(key.raw, pa.binary())
        behind = _PARTS_IN_KEY.get(kind)
        if behind is None:
            return whole
        begin = pc.binary_slice(  # pyright: ignore[reportAttributeAccessIssue]
            pc.field("key"), 0, len(key.raw)
        )
        length = pc.binary_length(pc.field("key"))  # pyright: ignore[reportAttributeAccessIssue]
        inner = (begin == pa.scalar(key.raw, pa.binary())) & (length == len(key.raw) + behind)
        return whole | inner
    text = key.text or ""
    field = schema.field("decoded_key")
    if pa.types.is_struct(field.type):
        return _same_fields(("decoded_key",), field.type, _json_object(text))
    return pc.field("decoded_key") == _scalar(text, field.type)


def _scalar(text: str, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(text.encode(), kind)
    try:
        return pa.scalar(text).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise KeyNotUnderstoodError(key=text, expected=f"a number ({kind})") from error


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not found:
        expected = 'an object such as {"id": 7}: the store\'s keys are structures'
        raise KeyNotUnderstoodError(key=text, expected=expected)
    return found


def _same_fields(path: tuple[str, ...], kind: pa.DataType, wanted: dict[str, Any]) -> ds.Expression:
    """Rows whose structure has these fields; others may have any value."""
    where: ds.Expression | None = None
    for name, value in wanted.items():
        index = kind.get_field_index(name)
        if index < 0:
            fields = ", ".join(field.name for field in kind)
            raise KeyNotUnderstoodError(key=name, expected=f"one of the fields {fields}")
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
