"""A new warehouse is made with a marker and a warning; an unmounted disk is not written below."""

import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake.transaction import AddAction

from kstreams_assets.errors import WarehouseError
from kstreams_assets.layout import MARKER, NewerLayoutError, Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.records import PARTITIONED_BY, ensure_records
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store import store_at
from spark_resources.resource import SparkSessionResource
from tests.backup.samples import cut, point


def _append(root: Path, point_id: str = "first") -> None:
    Repository(Warehouse(root), "shop").points.append(point(1000, cut(0, 10), point_id=point_id))


def test_the_first_write_says_that_the_warehouse_is_new(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "warehouse"
    assert not Warehouse(root).exists
    _append(root)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"New warehouse: {root}" in caplog.text
    assert Warehouse(root).exists
    assert json.loads((root / MARKER).read_text())["created_at"] is not None
    caplog.clear()
    _append(root, "second")
    assert not caplog.records


def test_one_of_an_older_release_is_marked_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _append(tmp_path)
    (tmp_path / MARKER).unlink()
    caplog.clear()
    _append(tmp_path, "second")
    assert not caplog.records
    assert json.loads((tmp_path / MARKER).read_text())["created_at"] is None


def test_one_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    _append(tmp_path)
    (tmp_path / MARKER).write_text('{"kstreams_assets.layout": "99"}')
    with pytest.raises(NewerLayoutError, match="layout version 99"):
        _append(tmp_path, "second")


def test_an_unmounted_disk(tmp_path: Path) -> None:
    fstab = tmp_path / "fstab"
    share = tmp_path / "a share"
    share.mkdir()
    written = str(share).replace(" ", "\\040")
    fstab.write_text(f"# a comment\nUUID=1 / ext4 defaults 0 1\nserver:/x {written} nfs\n")
    with pytest.raises(WarehouseError, match=r"should be mounted .*Mount it"):
        Warehouse(share / "warehouse").make(fstab=fstab)
    assert not list(share.iterdir())
    Warehouse(tmp_path / "elsewhere").make(fstab=fstab)
    assert Warehouse(tmp_path / "elsewhere").exists


def test_a_ledger_that_is_gone_is_named(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    assert "there is no warehouse" in str(Repository(warehouse, "shop").absence())
    _append(tmp_path)
    assert Repository(warehouse, "shop").absence() is None
    _append_records(warehouse)
    assert "the ledger" in str(Repository(warehouse, "shop").absence())
    assert Repository(warehouse, "other").absence() is None


def test_records_without_a_row_are_an_empty_warehouse(tmp_path: Path) -> None:
    """As a first backup leaves them that ended before its first row in the ledger."""
    warehouse = Warehouse(tmp_path)
    Warehouse(tmp_path).make()
    ensure_records(warehouse.records("shop"))
    assert Repository(warehouse, "shop").absence() is None


def test_the_ledger_is_created_before_the_first_records(tmp_path: Path) -> None:
    """A first backup that is killed between its records and its first row has lost nothing."""
    warehouse = Warehouse(tmp_path)
    Warehouse(tmp_path).make()
    ledger = Ledger(warehouse, "shop")
    ensure_records(warehouse.records("shop"), first=ledger.ensure)
    _append_records(warehouse)
    assert Repository(warehouse, "shop").absence() is None
    assert ledger.every_row(["window"]).num_rows == 0


def test_a_follower_whose_first_window_is_open_has_increments_alone(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    _append(tmp_path)
    (tmp_path / "records" / "shop").mkdir(parents=True)
    (tmp_path / "increments").mkdir()
    assert Repository(warehouse, "shop").absence() is None


def _append_records(warehouse: Warehouse) -> None:
    """Commit a file to the table of records, as if there were no ledger."""
    table = ensure_records(warehouse.records("shop"))
    add = AddAction(
        path="window=w/topic=orders/file.parquet",
        size=1,
        partition_values={"window": "w", "topic": "orders"},
        modification_time=0,
        data_change=True,
        stats='{"numRecords": 1}',
    )
    table.create_write_transaction([add], "append", table.schema(), [*PARTITIONED_BY])


def _modes(root: Path) -> set[str]:
    """The modes of all folders and files from a folder on."""
    return {
        f"{'folder' if path.is_dir() else 'file'} {stat.S_IMODE(path.stat().st_mode):04o}"
        for path in (root, *root.rglob("*"))
    }


@pytest.fixture
def lax_umask() -> Iterator[None]:
    """As most shells set it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("lax_umask")
def test_only_the_owner_may_read_what_is_written(tmp_path: Path) -> None:
    root = tmp_path / "disk" / "warehouse"
    with warehouse_lock(Warehouse(root).lock_file("first"), purpose="test", wait_s=0):
        _append(root)
    _append(root, "second")
    assert _modes(root) == {"folder 0700", "file 0600"}
    assert store_at(root).open_to_others() is None


def test_a_wider_folder_is_reported(tmp_path: Path) -> None:
    assert store_at(tmp_path / "missing").open_to_others() is None
    tmp_path.chmod(0o750)
    assert store_at(tmp_path).open_to_others() == "0750"


@pytest.mark.spark
@pytest.mark.usefixtures("lax_umask")
def test_only_the_owner_may_read_what_spark_writes(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    path = tmp_path / "warehouse" / "records"
    spark.spark_session.range(10).write.format("delta").save(str(path))
    assert list(path.rglob("*.parquet"))
    assert _modes(path) == {"folder 0700", "file 0600"}
