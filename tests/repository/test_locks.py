"""Locks are taken in one order, and where they are not, at once and not at 3 a.m."""

from pathlib import Path

import pytest

from kstreams_assets.errors import LockOrderError
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.tables import TABLES, Lock, written_under
from kstreams_assets.repository.repository import Repository


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository(Warehouse(tmp_path), "shop")


def test_later_locks_are_taken_inside_earlier_ones(repo: Repository) -> None:
    with (
        repo.lock(Lock.MERGE, purpose="test", wait_s=0),
        repo.lock(Lock.APPLICATION, purpose="test", wait_s=0),
        repo.lock(Lock.RECORDER, purpose="test", wait_s=0),
    ):
        assert repo.warehouse.lock_file("recorder/shop").exists()
    with repo.lock(Lock.RESTORE, purpose="test", wait_s=0, of=("cluster", "group")):
        assert repo.warehouse.lock_file("restore-cluster-group").exists()


@pytest.mark.parametrize("held", [Lock.APPLICATION, Lock.RECORDER])
def test_an_earlier_lock_inside_a_later_one_is_an_error_at_once(
    repo: Repository, held: Lock
) -> None:
    with (
        repo.lock(held, purpose="test", wait_s=0),
        pytest.raises(LockOrderError, match=f"MERGE is taken while {held.name} is held"),
        repo.lock(Lock.MERGE, purpose="test", wait_s=60),
    ):
        pass
    with repo.lock(Lock.MERGE, purpose="test", wait_s=0):
        """The one that was refused is not held."""


def test_a_lock_inside_itself_is_an_error_at_once(repo: Repository) -> None:
    with (
        repo.lock(Lock.APPLICATION, purpose="test", wait_s=0),
        pytest.raises(LockOrderError),
        repo.lock(Lock.APPLICATION, purpose="test", wait_s=60),
    ):
        pass


def test_every_table_is_declared_once() -> None:
    names = [table.name for table in TABLES]
    assert len(names) == len(set(names))
    assert all(table.text for table in TABLES)
    assert {table.name for table in written_under(Lock.APPLICATION)} == {
        "windows",
        "increments",
        "topics",
        "ktable_snapshots",
    }
