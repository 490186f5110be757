"""Runs over many windows: locks, refusals, killed runs, changed declarations."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.ktables.run import KTableRun
from kstreams_assets.layout import LAYOUT_PROPERTY, NewerLayoutError
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.files import NewFile
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import SnapshotsTable
from kstreams_assets.repository.table import WRITER
from kstreams_assets.settings import BackupSettings
from kstreams_assets.store import StorePath, store_at
from kstreams_assets.store.locks import LeaseLostError, WarehouseLockedError
from spark_resources.ktable_job import SnapshotRows
from spark_resources.resource import SparkSessionResource
from spark_resources.work import Spark
from tests.ktables.stored_log import APPLICATION_ID, STORE, Change, StoredLog, window_of
from tests.store.place import edited, warehouse_at
from tests.streams.workbench import NoSpark

pytestmark = pytest.mark.on_store

TEXT = Format(Encoding.STRING)


def _log(root: Path, spark: Spark, value: Format = TEXT) -> StoredLog:
    """Two windows: a and b are put; then a is put again, b deleted, c is put."""
    log = StoredLog(warehouse_at(root), spark, StoreFormat(key=TEXT, value=value))
    changes = [
        Change(0, b"a", b'{"n": 1}'),
        Change(1, b"b", b'{"n": 2}'),
        Change(2, b"a", b'{"n": 3, "m": "x"}'),
        Change(3, b"b", None),
        Change(4, b"c", b'{"n": 4}'),
    ]
    log.point(0, {0: 2})
    log.back_up(0, {0: (0, 2)}, changes)
    log.point(1, {0: 5})
    log.back_up(1, {0: (2, 5)}, changes)
    return log


def _offsets(log: StoredLog, index: int) -> list[int]:
    return [row["offset"] for row in log.rows(index)]


class TestRefusals:
    def test_one_run_at_a_time(self, tmp_path: Path) -> None:
        log = _log(tmp_path, NoSpark())
        run = KTableRun(
            log.application, log.warehouse, NoSpark(), "run", BackupSettings(lock_wait_seconds=0.1)
        )
        path = log.warehouse.lock_file(APPLICATION_ID)
        with (
            warehouse_lock(path, purpose="backup run 7", wait_s=1),
            pytest.raises(WarehouseLockedError, match="backup run 7"),
        ):
            run.execute([log.store], [window_of(0)])

    @pytest.mark.parametrize("name", ["records/app", "ktables/app/store", "ktable_snapshots"])
    def test_tables_of_a_newer_release_stay_untouched(self, tmp_path: Path, name: str) -> None:
        log = _log(tmp_path, NoSpark())
        with edited(log.warehouse.root / name) as table:
            _write_as_newer_release(table)
        with pytest.raises(NewerLayoutError, match="99"):
            log.snapshot(0)


def _write_as_newer_release(path: Path) -> None:
    if not DeltaTable.is_deltatable(str(path)):
        schema = pa.schema([("application_id", pa.string())])
        DeltaTable.create(path, schema=schema)
    newer = {LAYOUT_PROPERTY: "99"}
    DeltaTable(path).alter.set_table_properties(newer, raise_if_not_exists=False)


def _during_the_write(
    log: StoredLog, monkeypatch: pytest.MonkeyPatch, change: Callable[[DeltaTable], None]
) -> None:
    """Commit something else to the store's table each time its files were written."""
    write = SnapshotRows.write

    def write_then_change(rows: SnapshotRows, folder: StorePath, **more: Any) -> list[NewFile]:
        files = write(rows, folder, **more)
        with edited(log.warehouse.ktable(APPLICATION_ID, STORE)) as path:
            change(DeltaTable(path))
        return files

    monkeypatch.setattr(SnapshotRows, "write", write_then_change)


@pytest.mark.spark
class TestRuns:
    def test_killed_before_its_ledger_and_run_again(
        self, tmp_path: Path, spark: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = _log(tmp_path, spark)

        class Killed(BaseException):
            """As a signal would."""

        def kill(*_: object, **__: object) -> None:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(SnapshotsTable, "record", kill)
            with pytest.raises(Killed):
                log.snapshot(0, 1)
        assert Repository(log.warehouse, APPLICATION_ID).snapshots.of() == []
        assert not (log.warehouse.root / ".staging" / "ktables-app").exists()
        first, second = log.snapshot(0, 1)
        assert (first.rows, second.rows, second.base_window) == (2, 2, "w0000")
        assert (_offsets(log, 0), _offsets(log, 1)) == ([0, 1], [2, 4])
        rows = log.rows(0) + log.rows(1)
        again = log.snapshot(0, 1)
        assert log.rows(0) + log.rows(1) == rows
        assert Repository(log.warehouse, APPLICATION_ID).snapshots.of() == again
        assert {s.run_id for s in again} == {"run-3"}

    def test_what_others_commit_during_the_write_stays(
        self, tmp_path: Path, spark: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log, theirs = _log(tmp_path, spark), {"delta.checkpointInterval": "7"}
        log.snapshot(0)
        _during_the_write(log, monkeypatch, lambda table: table.alter.set_table_properties(theirs))
        log.snapshot(0, 1)
        assert (_offsets(log, 0), _offsets(log, 1)) == ([0, 1], [2, 4])
        with edited(log.warehouse.ktable(APPLICATION_ID, STORE)) as path:
            assert theirs.items() <= DeltaTable(path).metadata().configuration.items()

    def test_a_later_holder_of_the_lock_is_not_overruled(
        self, tmp_path: Path, spark: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = _log(tmp_path, spark)
        log.snapshot(0, 1)
        later = CommitProperties(app_transactions=[Transaction(WRITER, 1_000)])
        _during_the_write(
            log,
            monkeypatch,
            lambda table: table.create_write_transaction(
                [], "append", table.schema(), ["window"], commit_properties=later
            ),
        )
        with pytest.raises(LeaseLostError, match="a later writer has committed"):
            log.snapshot(1)
        assert (_offsets(log, 0), _offsets(log, 1)) == ([0, 1], [2, 4])

    def test_a_base_whose_rows_are_gone_is_none(
        self, tmp_path: Path, spark: SparkSessionResource
    ) -> None:
        """The ledger may still list what was in a table that was removed and begun anew."""
        log = _log(tmp_path, spark)
        log.snapshot(0)
        store_at(log.warehouse.ktable(APPLICATION_ID, STORE)).remove_tree()
        (anew,) = log.snapshot(1)
        (again,) = log.snapshot(1)
        assert (anew.base_window, again.base_window) == (None, None)
        assert _offsets(log, 1) == [2, 4]

    def test_declared_columns_may_be_added_and_not_changed(
        self, tmp_path: Path, spark: SparkSessionResource
    ) -> None:
        log = _log(tmp_path, spark, Format(Encoding.JSON, "n INT"))
        log.snapshot(0)
        log.format = replace(log.format, value=Format(Encoding.JSON, "n INT, m STRING"))
        (added,) = log.snapshot(1)
        assert added.base_window is None
        assert [row["decoded_value"] for row in log.rows(1)] == [
            {"n": 3, "m": "x"},
            {"n": 4, "m": None},
        ]
        assert log.rows(0)[0]["decoded_value"] == {"n": 1, "m": None}
        log.format = replace(log.format, value=Format(Encoding.JSON, "m STRING"))
        log.snapshot(1)
        assert log.rows(1)[0]["decoded_value"] == {"n": None, "m": "x"}
        before = log.rows(0) + log.rows(1)
        log.format = replace(log.format, value=Format(Encoding.JSON, "n STRING"))
        with pytest.raises(KStreamsAssetsError, match="differ from the declaration") as caught:
            log.snapshot(1)
        assert "decoded_value.n is int there but string now" in str(caught.value)
        assert "remove the folder" in str(caught.value)
        assert log.rows(0) + log.rows(1) == before
