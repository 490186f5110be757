"""Runs over many windows: locks, refusals, killed runs, changed declarations."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.errors import KTableError
from kstreams_assets.ktables.run import KTableRun
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.layout import LAYOUT_PROPERTY, NewerLayoutError
from kstreams_assets.lease import WarehouseLockedError, warehouse_lock
from kstreams_assets.settings import BackupSettings
from kstreams_assets.store import remove_tree
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
            log.application, log.warehouse, NoSpark(), "run", BackupSettings(lock_wait_s=0.1)
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
        assert SnapshotsTable(log.warehouse).of(APPLICATION_ID) == []
        assert not (log.warehouse.root / ".staging" / "ktables-app").exists()
        first, second = log.snapshot(0, 1)
        assert (first.rows, second.rows, second.base_window) == (2, 2, "w0000")
        assert (_offsets(log, 0), _offsets(log, 1)) == ([0, 1], [2, 4])
        rows = log.rows(0) + log.rows(1)
        again = log.snapshot(0, 1)
        assert log.rows(0) + log.rows(1) == rows
        assert SnapshotsTable(log.warehouse).of(APPLICATION_ID) == again
        assert {s.run_id for s in again} == {"run-3"}

    def test_a_base_whose_rows_are_gone_is_none(
        self, tmp_path: Path, spark: SparkSessionResource
    ) -> None:
        """The ledger may still list what was in a table that was removed and begun anew."""
        log = _log(tmp_path, spark)
        log.snapshot(0)
        remove_tree(log.warehouse.ktable(APPLICATION_ID, STORE))
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
        with pytest.raises(KTableError) as caught:
            log.snapshot(1)
        assert "decoded_value.n is int there and string now" in str(caught.value)
        assert "remove the folder" in str(caught.value)
        assert log.rows(0) + log.rows(1) == before
