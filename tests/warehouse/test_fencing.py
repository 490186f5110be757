"""Whoever lost the lock writes nothing any more: not to any table that is written under one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import LeaseLostError, LockHandle, warehouse_lock
from kstreams_assets.offsets import OffsetRun, TopicPartitionId
from kstreams_assets.recovery.maintenance import Retention, maintain
from kstreams_assets.warehouse.ledger import Ledger, TopicFactsTable
from kstreams_assets.warehouse.points import (
    OffsetRanges,
    PinsTable,
    RecoveryPointTable,
    SavedRecordsTable,
    SavedTail,
    points_locked,
)
from kstreams_assets.warehouse.restores import (
    OffsetMapsTable,
    PartitionProduced,
    RestoresTable,
    StoredRestore,
    fence_restores,
)
from tests.backup.samples import backup, cut, point
from tests.ktables.samples import snapshot
from tests.restore.test_restores_table import restore
from tests.upkeep.stock import LIFE, TOPIC, Stock

APP = "shop"
TAILS = [SavedTail(TopicPartitionId(TOPIC, 0), LIFE, [RawRecord(0, 1_000, 0, b"k", b"v", ())])]


@dataclass
class Lock:
    """A lease of which its holder does not know that it is lost: only the epoch stands."""

    epoch: int
    is_taken_over: bool = False
    is_lost: bool = False
    tasks: Path = Path()

    def require_held(self) -> None:
        """It believes so."""

    def raise_epoch(self, above: int) -> None:
        """As a lock does."""
        self.epoch = max(self.epoch, above + 1)

    def note_writer(self, pid: int | None) -> None:
        """Nothing."""


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """A warehouse with three points, a pin and a snapshot."""
    stock = Stock(tmp_path / "warehouse")
    stock.grow(range(3))
    PinsTable(stock.warehouse).pin(APP, "point-0001", "audit")
    SnapshotsTable(stock.warehouse).record([replace(snapshot(), application_id=APP)])
    _note_restore(stock.warehouse, Lock(1))
    _note_offset_map(stock.warehouse, Lock(1))
    TopicFactsTable(stock.warehouse, APP).record([backup(topic=TOPIC)])
    return stock.warehouse


Write = Callable[[Warehouse, LockHandle], object]


def _store_a_point(warehouse: Warehouse, lock: LockHandle) -> None:
    RecoveryPointTable(warehouse).append(point(10**12, cut(0, 10)), writer=lock)


def _save_records(warehouse: Warehouse, lock: LockHandle) -> None:
    SavedRecordsTable(warehouse).append(APP, "point-0009", TAILS, writer=lock)


def _expire(warehouse: Warehouse, lock: LockHandle) -> None:
    instants = RecoveryPointTable(warehouse).instants(APP)
    going = {instant.id: instant.taken_at_ms for instant in instants}
    RecoveryPointTable(warehouse).expire(APP, going, writer=lock)


def _drop_records(warehouse: Warehouse, lock: LockHandle) -> None:
    table = SavedRecordsTable(warehouse)
    table.drop_unneeded(APP, "point-0000", "point-0002", OffsetRanges(), "q", writer=lock)


def _pin(warehouse: Warehouse, lock: LockHandle) -> None:
    PinsTable(warehouse).pin(APP, "point-0002", "late", writer=lock)


def _maintain(warehouse: Warehouse, lock: LockHandle) -> None:
    maintain(warehouse, APP, Retention(0, lambda *_: ()), now_ms=10**13, writer=lock)


def _note_topics(warehouse: Warehouse, lock: LockHandle) -> None:
    TopicFactsTable(warehouse, APP).record([backup(topic=TOPIC)], writer=lock)


def _record_snapshot(warehouse: Warehouse, lock: LockHandle) -> None:
    other = replace(snapshot(store="late"), application_id=APP)
    SnapshotsTable(warehouse).record([other], writer=lock)


def _drop_snapshot(warehouse: Warehouse, lock: LockHandle) -> None:
    made = SnapshotsTable(warehouse)._table.rows(APP)
    SnapshotsTable(warehouse).drop(made, writer=lock)


def _fence_points(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, lock: Lock) -> None:
    from kstreams_assets.warehouse import points

    class Held:
        def __init__(self, *_: object, **__: object) -> None:
            """Whatever lock it is."""

        def __enter__(self) -> Lock:
            return lock

        def __exit__(self, *_: object) -> None:
            """It stays."""

    with monkeypatch.context() as patch:
        patch.setattr(points, "warehouse_lock", Held)
        with points_locked(warehouse, APP, purpose="next", wait_s=0) as held:
            assert held is lock


def _fence_application(warehouse: Warehouse, _: pytest.MonkeyPatch, lock: Lock) -> None:
    Ledger(warehouse, APP).fence(lock)
    SnapshotsTable(warehouse).fence(APP, lock)


def _restore() -> StoredRestore:
    return replace(restore(), application_id=APP, target_cluster_id="cluster-b", group="g")


def _note_restore(warehouse: Warehouse, lock: LockHandle) -> None:
    RestoresTable(warehouse).append(_restore(), writer=lock)


def _note_offset_map(warehouse: Warehouse, lock: LockHandle) -> None:
    at = TopicPartitionId(TOPIC, 0)
    produced = PartitionProduced(at, at, [OffsetRun(0, 0, 1)], 1, 0, 1)
    OffsetMapsTable(warehouse).record(APP, "r", [produced], of=_restore(), writer=lock)


def _fence_restores(warehouse: Warehouse, _: pytest.MonkeyPatch, lock: Lock) -> None:
    fence_restores(warehouse, "cluster-b", "g", lock)


OF_POINTS: list[Write] = [
    _store_a_point,
    _save_records,
    _expire,
    _drop_records,
    _pin,
    _maintain,
]
OF_APPLICATION: list[Write] = [_note_topics, _record_snapshot, _drop_snapshot]
OF_RESTORES: list[Write] = [_note_restore, _note_offset_map]
_ALL = [(write, _fence_points) for write in OF_POINTS] + [
    (write, _fence_application) for write in OF_APPLICATION
]
_ALL += [(write, _fence_restores) for write in OF_RESTORES]


def _versions(warehouse: Warehouse) -> dict[str, int]:
    logs = warehouse.root.glob("*/_delta_log")
    return {log.parent.name: len(list(log.glob("*.json"))) for log in logs}  # pyright: ignore


@pytest.mark.parametrize(
    ("write", "fence"), _ALL, ids=[write.__name__.strip("_") for write, _ in _ALL]
)
class TestALateWriter:
    def test_is_refused_before_its_successor_has_committed(
        self,
        warehouse: Warehouse,
        monkeypatch: pytest.MonkeyPatch,
        write: Write,
        fence: Callable[[Warehouse, pytest.MonkeyPatch, Lock], None],
    ) -> None:
        late, successor = Lock(100), Lock(101, is_taken_over=True)
        fence(warehouse, monkeypatch, successor)
        before = _versions(warehouse)
        with pytest.raises(LeaseLostError, match="a later writer has committed"):
            write(warehouse, late)
        assert _versions(warehouse) == before
        write(warehouse, successor)

    def test_is_refused_after_that(
        self,
        warehouse: Warehouse,
        monkeypatch: pytest.MonkeyPatch,
        write: Write,
        fence: Callable[[Warehouse, pytest.MonkeyPatch, Lock], None],
    ) -> None:
        if write in (_expire, _maintain, _drop_snapshot):
            pytest.skip("a second time there is nothing to be dropped")
        write(warehouse, Lock(101))
        with pytest.raises(LeaseLostError, match="a later writer has committed"):
            write(warehouse, Lock(100))

    def test_a_lock_that_begins_again_is_later_than_what_the_tables_tell(
        self,
        warehouse: Warehouse,
        monkeypatch: pytest.MonkeyPatch,
        write: Write,
        fence: Callable[[Warehouse, pytest.MonkeyPatch, Lock], None],
    ) -> None:
        """As in a warehouse that was copied without its locks."""
        write(warehouse, Lock(100))
        first = Lock(1)
        fence(warehouse, monkeypatch, first)
        assert first.epoch > 100
        write(warehouse, first)


def test_other_applications_are_not_held_up(warehouse: Warehouse) -> None:
    _store_a_point(warehouse, Lock(100))
    RecoveryPointTable(warehouse).append(
        point(10**12, cut(0, 10), application_id="bar"), writer=Lock(1)
    )
    assert len(RecoveryPointTable(warehouse).instants("bar")) == 1


def test_a_warehouse_that_is_only_read_is_not_written(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock lies with the notes: its epochs say nothing of the tables."""
    reading = replace(warehouse, notes_in=tmp_path / "notes")
    before = _versions(warehouse)
    _fence_points(reading, monkeypatch, Lock(7, is_taken_over=True))
    assert _versions(warehouse) == before


def test_restores_onto_other_groups_are_not_held_up(warehouse: Warehouse) -> None:
    _note_restore(warehouse, Lock(100))
    other = replace(_restore(), restore_id="other", group="h")
    RestoresTable(warehouse).append(other, writer=Lock(1))
    assert RestoresTable(warehouse).newest(APP, "other") is not None


def test_locks_on_a_disk_count_up(warehouse: Warehouse) -> None:
    for number in range(2):
        with points_locked(warehouse, APP, purpose="test", wait_s=0) as lock:
            taken = point(10**12 + number, cut(0, 10), point_id=f"late-{number}")
            RecoveryPointTable(warehouse).append(taken, writer=lock)
    path = warehouse.lock_file(f"recorder/{APP}")
    with warehouse_lock(path, purpose="test", wait_s=0) as lock:
        assert lock.epoch == 3
