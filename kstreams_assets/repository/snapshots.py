"""The table of snapshots, and their files."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from operator import or_
from urllib.parse import quote

import pyarrow.compute as pc

from kstreams_assets.layout import written_files
from kstreams_assets.model.damage import Damage, DamageKind
from kstreams_assets.model.data_files import By, ExpectedFile, SpanFile
from kstreams_assets.model.files import WrittenFile
from kstreams_assets.model.snapshot import Snapshot, TableStore
from kstreams_assets.model.tables import SNAPSHOTS
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.ktable_files import WindowFiles, window_files
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.table import ApplicationTable, one_of
from kstreams_assets.store import StorePath, relative
from kstreams_assets.store.locks import LockHandle


def snapshot_written(path: StorePath, window: str) -> tuple[WrittenFile, ...]:
    """The files of a window's snapshot in their current state, read completely."""
    files = window_files(path).get(window, [])
    paths = [(quote(str(relative(file.path, path))), file.records) for file in files]
    return tuple(written_files(path, paths))


def expected_of_snapshot(path: StorePath, snapshot: Snapshot) -> list[ExpectedFile]:
    """The files of a snapshot in their original state; unknown for earlier releases."""
    about = {"window": snapshot.window.key, "topic": snapshot.topic, "store": snapshot.store}
    return [
        ExpectedFile.of(path, file, kind=DamageKind.SNAPSHOT, **about) for file in snapshot.written
    ]


def snapshot_damages(
    path: StorePath, snapshot: Snapshot, by: By, files: WindowFiles | None = None
) -> list[Damage]:
    """The damage of the files of a snapshot; their names are compared, too.

    `files` is the result of `window_files`; computed by default.
    """
    expected = expected_of_snapshot(path, snapshot)
    if not expected:
        return []
    files = window_files(path) if files is None else files
    there = {file.path for file in files.get(snapshot.window.key, [])}
    if there != {file.location for file in expected}:
        problem = "the table has other files than the snapshot wrote"
        return [snapshot_damage(path, snapshot.window.key, snapshot.topic, problem)]
    return [*inspect(expected, by)]


def snapshot_damage(path: StorePath, window: str, topic: str, problem: str) -> Damage:
    """The damage of a whole snapshot of the store whose table has this path."""
    whole = ExpectedFile(
        path, "", 0, window=window, topic=topic, store=path.name, kind=DamageKind.SNAPSHOT
    )
    return whole.damage(problem)


def require_snapshot(path: StorePath, snapshot: Snapshot, files: WindowFiles | None = None) -> None:
    """Check, before a row of a snapshot is used, that its files are intact, byte for byte.

    `files` is the result of `window_files`; computed by default.

    Raises:
        StoredDataError: A file is damaged.
    """
    for damage in snapshot_damages(path, snapshot, By.DIGEST, files):
        raise damage.as_error()


class StoredSnapshots:
    """The snapshots of one application and their files, as they were at first use.

    Only those of `stores`, if given. Call `require_unchanged` before using the rows of a snapshot.
    """

    def __init__(self, repo: Repository, *, stores: Collection[str] | None = None) -> None:
        self._repo, self._stores = repo, stores
        self._files: dict[str, WindowFiles] = {}
        self._unchanged: set[tuple[str, str]] = set()

    @cached_property
    def all(self) -> list[Snapshot]:
        """All of them, by store and time of the window."""
        return self._repo.snapshots.of(stores=self._stores)

    def of(self, store: str) -> list[Snapshot]:
        """Those of a store in order of time."""
        return [snapshot for snapshot in self.all if snapshot.store == store]

    def whole(self, store: str) -> list[Snapshot]:
        """Those of a store whose rows are all in its table."""
        return [snapshot for snapshot in self.of(store) if self.rows(snapshot) == snapshot.rows]

    def at(self, store: TableStore, point_id: str) -> Snapshot | None:
        """The snapshot at a recovery point in the store's current format, if its rows exist.

        Two windows may be closed by the same point: a proved one takes precedence.
        """
        fitting = (
            snapshot
            for snapshot in self.whole(store.store)
            if snapshot.point_id == point_id
            and snapshot.topic == store.topic
            and snapshot.fingerprint == store.format.fingerprint
        )
        return max(fitting, key=lambda s: (s.proved, s.window), default=None)

    def rows(self, snapshot: Snapshot) -> int:
        """The number of its rows in its table."""
        return sum(file.records for file in self.files(snapshot))

    def files(self, snapshot: Snapshot) -> list[SpanFile]:
        """Its files."""
        return self.files_in(snapshot.store, snapshot.window.key)

    def files_in(self, store: str, window: str) -> list[SpanFile]:
        """The files of a window in the table of a store."""
        return self._files_of(store).get(window, [])

    def damage(self, snapshot: Snapshot) -> Damage | None:
        """The first damage of its files, by name, existence and size; None without any."""
        files = self._files_of(snapshot.store)
        damages = snapshot_damages(self._table(snapshot.store), snapshot, By.SIZE, files)
        return next(iter(damages), None)

    def require_unchanged(self, snapshot: Snapshot) -> None:
        """Check that its files are intact, byte for byte; each is read once.

        Raises:
            StoredDataError: A file is damaged.
        """
        key = (snapshot.store, snapshot.window.key)
        if key not in self._unchanged:
            files = self._files_of(snapshot.store)
            require_snapshot(self._table(snapshot.store), snapshot, files)
            self._unchanged.add(key)

    def _table(self, store: str) -> StorePath:
        return self._repo.warehouse.ktable(self._repo.application_id, store)

    def _files_of(self, store: str) -> WindowFiles:
        if store not in self._files:
            self._files[store] = window_files(self._table(store), self._repo.known)
        return self._files[store]


class SnapshotsTable(ApplicationTable[Snapshot], spec=SNAPSHOTS):
    """The snapshots of one application.

    A row is written after the data: a snapshot with data but no row is simply made again.
    """

    def of(
        self,
        *,
        stores: Collection[str] | None = None,
        windows: Collection[str] | None = None,
    ) -> list[Snapshot]:
        """The snapshots of these stores and windows (keys), by store and time of the window.

        Rows of a table whose folder was removed do not count.

        Raises:
            NewerLayoutError: A newer release wrote the table.
        """
        where = pc.scalar(True)
        if stores is not None:
            where &= one_of("store", stores)
        if windows is not None:
            where &= one_of("window", windows)
        rows = self._table.rows(where)
        newest = {
            (row.store, row.window.key): row for row in sorted(rows, key=lambda r: r.recorded_at_ms)
        }
        present = {
            store
            for store in {store for store, _ in newest}
            if (self._warehouse.ktable(self._application_id, store) / "_delta_log").exists()
        }
        found = [row for (store, _), row in newest.items() if store in present]
        return sorted(found, key=lambda s: (s.store, s.window))

    def damaged(self) -> list[Damage]:
        """Snapshots with files that are missing or have another size, each once.

        Raises:
            NewerLayoutError: A newer release wrote the table, or one of a store.
            WarehouseError: One of the tables cannot be read.
        """
        stored = StoredSnapshots(Repository.of(self._warehouse, self._application_id))
        found = (stored.damage(snapshot) for snapshot in stored.all)
        return [replace(one, place=one.table) for one in found if one is not None]

    def record(self, snapshots: Sequence[Snapshot], *, writer: LockHandle | None = None) -> None:
        """Replace the rows of these snapshots, in one commit.

        `writer` is the application's lock under which they were made.

        Raises:
            LeaseLostError: Another writer now holds the lock; nothing was written.
        """
        now_ms = time.time_ns() // 1_000_000
        self._replace([replace(s, recorded_at_ms=now_ms) for s in snapshots], snapshots, writer)

    def drop(self, snapshots: Sequence[Snapshot], *, writer: LockHandle | None = None) -> None:
        """Remove the rows of these snapshots, in one commit; their files stay.

        `writer` as in `record`.
        """
        self._replace([], snapshots, writer)

    def _replace(
        self, rows: Sequence[Snapshot], same: Sequence[Snapshot], lock: LockHandle | None
    ) -> None:
        """Replace rows of the same stores and windows."""
        if not same:
            return
        of_same = (
            (pc.field("store") == s.store) & (pc.field("window") == s.window.key) for s in same
        )
        self._table.replace(rows, where=reduce(or_, of_same), writer=self._writer(lock))
