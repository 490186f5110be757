"""KTable snapshots in which rules look stores up; reads Delta's log, no JVM."""

from functools import cached_property
from pathlib import Path

from kstreams_assets.completeness.content import SnapshotRows
from kstreams_assets.ktables.snapshot import Snapshot, TableStore
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.ktables.table import open_table, window_files
from kstreams_assets.settings import ApplicationSettings


class Snapshots:
    """The snapshots of one application by store and recovery point, as they were at first use."""

    def __init__(self, settings: ApplicationSettings) -> None:
        self._settings = settings
        self._files: dict[str, dict[str, list[tuple[Path, int]]]] = {}

    def find(self, store: TableStore, point_id: str) -> Snapshot | None:
        """The snapshot at a point in the store's format of now, whose rows are in the table."""
        snapshot = self._by_point.get((store.store, point_id))
        if snapshot is None or snapshot.fingerprint != store.format.fingerprint:
            return None
        rows = sum(count for _, count in self._files_of(snapshot))
        return snapshot if rows == snapshot.rows and snapshot.topic == store.topic else None

    def rows(self, store: TableStore, point_id: str) -> SnapshotRows:
        """Where the rows of a snapshot are; there must be one."""
        snapshot = self._by_point[store.store, point_id]
        files = tuple(str(path) for path, _ in self._files_of(snapshot))
        return SnapshotRows(store.store, snapshot.window.key, files, snapshot.rows)

    def doubt(self, store: TableStore, point_id: str) -> str:
        """Why a snapshot is not proved; empty where it is, or where there is none."""
        snapshot = self._by_point.get((store.store, point_id))
        if snapshot is None or snapshot.proved:
            return ""
        return f"The snapshot of {store.store} is not proved: {snapshot.reason}"

    @cached_property
    def _by_point(self) -> dict[tuple[str, str], Snapshot]:
        table = SnapshotsTable(self._settings.warehouse)
        found = table.of(self._settings.application_id)
        return {(snapshot.store, snapshot.point_id): snapshot for snapshot in found}

    def _files_of(self, snapshot: Snapshot) -> list[tuple[Path, int]]:
        if snapshot.store not in self._files:
            path = self._settings.warehouse.ktable(self._settings.application_id, snapshot.store)
            self._files[snapshot.store] = window_files(open_table(path), path)
        return self._files[snapshot.store].get(snapshot.window.key, [])
