"""The value of a key in a store at a point or a time, and its history. No broker, no JVM.

At the point of a snapshot, the snapshot is read. At another covered point, the state is computed
from the last snapshot before it, if one exists, and from the records after that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from kstreams_assets.app.store_columns import as_text
from kstreams_assets.app.store_format import StoreKind, format_of
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.ktables.key_rows import KeyRows
from kstreams_assets.ktables.keys import Key, StateRow, bytes_filter, in_order, text_filter
from kstreams_assets.ktables.stores import require_store, table_stores
from kstreams_assets.model.point import PointInstant, no_point
from kstreams_assets.model.snapshot import Snapshot, TableStore
from kstreams_assets.model.store_states import StoreState
from kstreams_assets.repository.ktable_files import open_table
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import StoredSnapshots
from kstreams_assets.repository.store_states import StoreStates
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath, store_at
from kstreams_assets.store.failures import storage_failures
from kstreams_assets.texts import iso_time

_PLAIN = ("partition", "offset", "timestamp_ms", "decode_error", "key", "value")
_DECODED = ("decoded_key", "decoded_value")
_HEADERS = "headers"
_ASIDE = frozenset({*_PLAIN, *_DECODED, "window", _HEADERS})
_FEW = 3
_FIRST_POINTS = 4
"""Number of points in the first batch; each further batch is larger."""


@dataclass(frozen=True, slots=True)
class KeyState:
    """The rows of a key in a store at a recovery point; empty if the store did not contain it.

    `window` is that of the snapshot with the rows; None if they were computed from records.
    `base_window` is that of the base snapshot, None without one.
    """

    point_id: str
    taken_at_ms: int
    proved: bool
    reason: str
    rows: tuple[StateRow, ...]
    window: str | None = None
    base_window: str | None = None

    @classmethod
    def of(cls, place: "Place", rows: tuple[StateRow, ...]) -> "KeyState":
        """Combine rows with their snapshot or state."""
        if isinstance(place, Snapshot):
            window, base_window = place.window.key, place.base_window
            point_id, taken_at_ms = place.point_id, place.taken_at_ms
        else:
            window, base_window = None, place.base.window.key if place.base else None
            point_id, taken_at_ms = place.point.id, place.point.taken_at_ms
        return cls(point_id, taken_at_ms, place.proved, place.reason, rows, window, base_window)

    @property
    def place(self) -> str:
        """The window, or the id of the recovery point."""
        return self.window or self.point_id


Place = Snapshot | StoreState
"""Source of a state: a snapshot, or a base with records."""


def state_at(
    settings: ApplicationSettings,
    store: str,
    key: Key,
    as_of_ms: int | None = None,
    *,
    point_id: str | None = None,
) -> KeyState:
    """Return the rows of a key at a recovery point, or at the newest point complete at a time.

    Without both, the newest snapshot is read; without a snapshot, the newest covered point.

    Raises:
        KStreamsAssetsError: The store has no table, the point does not exist, no snapshot or
            covered point is old enough, the text is not a valid key of the store, or the store did
            not contain the key.
        StateNotCoveredError: The backups do not cover the point.
        StoredDataError: Files of the snapshot or of the backups changed.
    """
    of_store = _Store(settings, store)
    place = of_store.newest(as_of_ms) if point_id is None else of_store.at(point_id)
    rows = of_store.reader(place)
    found = KeyState.of(place, rows.of(key))
    if not found.rows:
        raise _not_there(store, key, found, rows.some_keys())
    return found


def history_of(
    settings: ApplicationSettings, store: str, key: Key, as_of_ms: int | None = None
) -> list[KeyState]:
    """Return the snapshots in which a key differs from the previous snapshot, oldest first.

    A state without rows means that the key was deleted.

    Raises:
        KStreamsAssetsError: As for `state_at`, and if no snapshot contains the key.
    """
    of_store = _Store(settings, store)
    snapshots = of_store.snapshots(as_of_ms)
    if not snapshots:
        raise of_store.nothing(as_of_ms)
    changes: list[KeyState] = []
    before: tuple[StateRow, ...] = ()
    point: str | None = None
    for snapshot in snapshots:
        if snapshot.point_id == point:
            continue  # a window without its own point equals the previous one
        point = snapshot.point_id
        rows = of_store.reader(snapshot).of(key)
        if rows != before:
            changes.append(KeyState.of(snapshot, rows))
        before = rows
    if not changes:
        last = snapshots[-1]
        some_keys = of_store.reader(last).some_keys()
        raise _not_there(store, key, KeyState.of(last, ()), some_keys)
    return changes


def _not_there(
    store: str, key: Key, state: KeyState, some_keys: Sequence[str]
) -> KStreamsAssetsError:
    at = iso_time(state.taken_at_ms)
    where = f"at recovery point {state.point_id} ({at})"
    if state.window is not None:
        where = f"in window {state.window} (recovery point of {at})"
    there = f" It holds, for example, {', '.join(some_keys)}." if some_keys else ""
    return KStreamsAssetsError(
        f"Store {store!r} holds no key {key.shown} {where}.{there}",
        remedy="Try another time, or --history for all windows.",
    )


class _Store:
    """The snapshots and states of one store."""

    def __init__(self, settings: ApplicationSettings, store: str) -> None:
        self._settings, self._name = settings, store
        self._points = Repository.open(settings).points
        self._stored = StoredSnapshots(Repository.open(settings), stores=[store])

    def at(self, point_id: str) -> Place:
        """Return the snapshot at a point, or the state computed from records."""
        snapshots = [one for one in self._stored.all if one.point_id == point_id]
        if snapshots:
            return snapshots[-1]
        application_id = self._settings.application_id
        for point in self._points.load([point_id]):
            return self._states.at(self._store, point)
        raise no_point(application_id, point_id)

    def newest(self, as_of_ms: int | None) -> Place:
        """Return the newest snapshot or covered point that was complete at a time.

        Without a time, points count only if there is no snapshot.
        """
        snapshots = self.snapshots(as_of_ms)
        if as_of_ms is None and snapshots:
            return snapshots[-1]
        complete = [one for one in self._taken if as_of_ms is None or one.ended_at_ms <= as_of_ms]
        last = snapshots[-1] if snapshots else None
        place = self._newest_covered(_after(complete, last)) or last
        if place is None:
            raise self.nothing(as_of_ms)
        return place

    def snapshots(self, as_of_ms: int | None) -> list[Snapshot]:
        """Return the snapshots whose point was complete at a time, oldest first."""
        if as_of_ms is None:
            return self._stored.all  # edges of windows are monotonic, clocks may not be
        # Only the start time of an expired point is known.
        ended = {one.id: one.ended_at_ms for one in self._taken}
        return [s for s in self._stored.all if ended.get(s.point_id, s.taken_at_ms) <= as_of_ms]

    def nothing(self, as_of_ms: int | None) -> KStreamsAssetsError:
        """Return the error for a store without snapshot and covered point, or an unknown store."""
        snapshots, application_id = self._stored.all, self._settings.application_id
        if not snapshots:
            require_store(self._settings, self._name)
        until = "" if as_of_ms is None else f" as of {iso_time(as_of_ms)} or earlier"
        there = ""
        if snapshots:
            oldest, taken_at = snapshots[0].window.key, iso_time(snapshots[0].taken_at_ms)
            there = f" The oldest of {len(snapshots)} is that of window {oldest} ({taken_at})."
        then = "" if as_of_ms is None else " that was complete then"
        return KStreamsAssetsError(
            f"Store {self._name!r} of {application_id} has no snapshot{until}.{there} Backups do"
            f" not cover any recovery point{then}.",
            remedy="Give a later time, or back up the due windows. To create a snapshot of a"
            " backed-up window, run kstreams-assets ktables make --app defs.yaml --store"
            f" {self._name} --window WINDOW (kstreams-assets windows lists them).",
        )

    def reader(self, place: Place) -> "KeyRows | _SnapshotRows":
        """Return a reader of the rows of a place, after a check of its files."""
        if isinstance(place, Snapshot):
            kind = format_of(self._name, self._settings.store_formats).kind
            return _SnapshotRows(self._stored, place, kind)
        self._states.require_unchanged(place)
        schemas = {}
        if self._store.format.needs_registry:
            schemas = Repository.open(self._settings).schemas.all()
        return KeyRows(self._states, place, schemas)

    def _newest_covered(self, points: Sequence[PointInstant]) -> StoreState | None:
        """Return the state at the newest of these points that is covered and has the store."""
        if self._store_now is None:
            return None
        left, size = [one.id for one in points], _FIRST_POINTS
        while left:
            lot, left, size = left[-size:], left[:-size], 4 * size
            for point in reversed(self._points.load(lot)):
                knows = any(cut.topic == self._store.topic for cut in point.partitions)
                if knows and not self._states.proof(self._store, point).missing:
                    return self._states.at(self._store, point)
        return None

    @cached_property
    def _taken(self) -> Sequence[PointInstant]:
        """All points, oldest first."""
        return self._points.bounds().taken

    @cached_property
    def _store_now(self) -> TableStore | None:
        stores = table_stores(self._settings)
        return next((one for one in stores if one.store == self._name), None)

    @property
    def _store(self) -> TableStore:
        """The store with its present declaration.

        Raises:
            KStreamsAssetsError: The store does not exist or cannot have a table.
        """
        if self._store_now is None:
            require_store(self._settings, self._name)
            raise self.nothing(None)
        return self._store_now

    @cached_property
    def _states(self) -> StoreStates:
        return (
            Repository.open(self._settings)
            .reading(self._settings.application)
            .states([self._store])
        )


def _after(points: Sequence[PointInstant], snapshot: Snapshot | None) -> list[PointInstant]:
    """Return the points after that of a snapshot."""
    if snapshot is None:
        return [*points]
    ids = [one.id for one in points]
    if snapshot.point_id in ids:
        return [*points[ids.index(snapshot.point_id) + 1 :]]
    return [one for one in points if one.taken_at_ms > snapshot.taken_at_ms]


class _SnapshotRows:
    """The rows of a snapshot; each file is read separately, because columns can differ."""

    def __init__(self, stored: StoredSnapshots, snapshot: Snapshot, kind: StoreKind) -> None:
        self._stored, self._snapshot, self._kind = stored, snapshot, kind

    def of(self, key: Key) -> tuple[StateRow, ...]:
        """Return the rows of a key, sorted by window, session or validity."""
        found: list[StateRow] = []
        for file in self._files():
            with storage_failures(file):
                schema = pq.read_schema(store_at(file).readable())
                parts = [name for name in schema.names if name not in _ASIDE]
                columns = [*_PLAIN, *_DECODED, *parts]
                columns += [_HEADERS] if _HEADERS in schema.names else []
                table = _dataset(file, schema).to_table(
                    columns=columns, filter=self._filter(schema, key)
                )
            found += [_row(row, parts) for row in table.to_pylist()]
        return in_order(found)

    def some_keys(self) -> list[str]:
        """Return a few keys in the form of `--key`."""
        found: list[str] = []
        for file in self._files():
            with storage_failures(file):
                table = _dataset(file).head(_FEW, columns=["decoded_key"])
            found += [as_text(row["decoded_key"]) for row in table.to_pylist()]
            if len(found) >= _FEW:
                break
        return found[:_FEW]

    def _files(self) -> Iterator[StorePath]:
        self._stored.require_unchanged(self._snapshot)
        return (file.path for file in self._stored.files(self._snapshot))

    def _filter(self, schema: pa.Schema, key: Key) -> ds.Expression:
        if key.raw is not None:
            return bytes_filter(key.raw, self._kind)
        return text_filter(schema.field("decoded_key").type, key.text or "")


def _dataset(file: StorePath, schema: pa.Schema | None = None) -> ds.Dataset:
    files, place = store_at(file).arrow_place()
    return ds.dataset(place, schema=schema, format=_checked(), filesystem=files)


def _checked() -> ds.ParquetFileFormat:
    """Return a format that verifies the checksums of pages."""
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    return ds.ParquetFileFormat(default_fragment_scan_options=options)


def written_fields(path: StorePath) -> list[pa.Field]:
    """Return the present columns of a KTable; empty before the first write."""
    table = open_table(path)
    return [] if table is None else list(pa.schema(table.schema().to_arrow()))


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
