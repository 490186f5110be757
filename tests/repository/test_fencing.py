"""Whoever lost the lock writes nothing any more: not to any table that is written under one."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.restores import PartitionProduced, StoredRestore
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.model.tables import Lock
from kstreams_assets.offsets import OffsetRun, TopicPartitionId
from kstreams_assets.recovery.maintenance import maintain
from kstreams_assets.recovery.retention import Retention
from kstreams_assets.repository.fences import put_in_order
from kstreams_assets.repository.ledger import TopicFactsTable
from kstreams_assets.repository.points import OffsetRanges
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store.locks import LeaseLostError, LockHandle
from tests.backup.samples import backup, cut, point
from tests.ktables.samples import snapshot
from tests.repository.disk import on_disk
from tests.repository.test_restores_table import restore
from tests.upkeep.stock import LIFE, TOPIC, stocked

APP = "shop"
TAILS = [SavedTail(TopicPartitionId(TOPIC, 0), LIFE, [RawRecord(0, 1_000, 0, b"k", b"v", ())])]


@dataclass
class Held:
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with three points, a pin and a snapshot."""
    stock = stocked(tmp_path_factory.mktemp("fencing") / "warehouse")
    Repository(stock.warehouse, APP).pins.pin("point-0001", "audit")
    Repository(stock.warehouse, APP).snapshots.record([replace(snapshot(), application_id=APP)])
    _note_restore(stock.warehouse, Held(1))
    _note_offset_map(stock.warehouse, Held(1))
    TopicFactsTable(stock.warehouse, APP).record([backup(topic=TOPIC)])
    return on_disk(stock.warehouse.root)


@pytest.fixture
def warehouse(made: Path, tmp_path: Path) -> Warehouse:
    """A copy of it."""
    return Warehouse(Path(shutil.copytree(made, tmp_path / "warehouse")))


Write = Callable[[Warehouse, LockHandle], object]


def _store_a_point(warehouse: Warehouse, lock: LockHandle) -> None:
    Repository(warehouse, APP).points.append(point(10**12, cut(0, 10)), writer=lock)


def _save_records(warehouse: Warehouse, lock: LockHandle) -> None:
    Repository(warehouse, APP).saved_records.append("point-0009", TAILS, writer=lock)


def _expire(warehouse: Warehouse, lock: LockHandle) -> None:
    instants = Repository(warehouse, APP).points.instants()
    going = {instant.id: instant.taken_at_ms for instant in instants}
    Repository(warehouse, APP).points.drop(going, writer=lock)


def _drop_records(warehouse: Warehouse, lock: LockHandle) -> None:
    table = Repository(warehouse, APP).saved_records
    table.drop_unneeded("point-0000", "point-0002", OffsetRanges(), "q", writer=lock)


def _pin(warehouse: Warehouse, lock: LockHandle) -> None:
    Repository(warehouse, APP).pins.pin("point-0002", "late", writer=lock)


def _maintain(warehouse: Warehouse, lock: LockHandle) -> None:
    maintain(warehouse, APP, Retention(0, lambda *_: ()), now_ms=10**13, writer=lock)


def _note_topics(warehouse: Warehouse, lock: LockHandle) -> None:
    TopicFactsTable(warehouse, APP).record([backup(topic=TOPIC)], writer=lock)


def _record_snapshot(warehouse: Warehouse, lock: LockHandle) -> None:
    other = replace(snapshot(store="late"), application_id=APP)
    Repository(warehouse, APP).snapshots.record([other], writer=lock)


def _drop_snapshot(warehouse: Warehouse, lock: LockHandle) -> None:
    made = Repository(warehouse, APP).snapshots._table.rows()
    Repository(warehouse, APP).snapshots.drop(made, writer=lock)


def _fence_points(warehouse: Warehouse, lock: Held) -> None:
    put_in_order(Repository(warehouse, APP), Lock.RECORDER, lock, ())


def _fence_application(warehouse: Warehouse, lock: Held) -> None:
    put_in_order(Repository(warehouse, APP), Lock.APPLICATION, lock, ())


def _restore() -> StoredRestore:
    return replace(restore(), application_id=APP, target_cluster_id="cluster-b", group="g")


def _note_restore(warehouse: Warehouse, lock: LockHandle) -> None:
    Repository(warehouse, APP).restores.append(_restore(), writer=lock)


def _note_offset_map(warehouse: Warehouse, lock: LockHandle) -> None:
    at = TopicPartitionId(TOPIC, 0)
    produced = PartitionProduced(at, at, [OffsetRun(0, 0, 1)], 1, 0, 1)
    Repository(warehouse, APP).offset_maps.record("r", [produced], of=_restore(), writer=lock)


def _fence_restores(warehouse: Warehouse, lock: Held) -> None:
    put_in_order(Repository(warehouse, APP), Lock.RESTORE, lock, ("cluster-b", "g"))


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
        write: Write,
        fence: Callable[[Warehouse, Held], None],
    ) -> None:
        late, successor = Held(100), Held(101, is_taken_over=True)
        fence(warehouse, successor)
        before = _versions(warehouse)
        with pytest.raises(LeaseLostError, match="a later writer has committed"):
            write(warehouse, late)
        assert _versions(warehouse) == before
        write(warehouse, successor)

    def test_is_refused_after_that(
        self,
        warehouse: Warehouse,
        write: Write,
        fence: Callable[[Warehouse, Held], None],
    ) -> None:
        if write in (_expire, _maintain, _drop_snapshot):
            pytest.skip("a second time there is nothing to be dropped")
        write(warehouse, Held(101))
        with pytest.raises(LeaseLostError, match="a later writer has committed"):
            write(warehouse, Held(100))

    def test_a_lock_that_begins_again_is_later_than_what_the_tables_tell(
        self,
        warehouse: Warehouse,
        write: Write,
        fence: Callable[[Warehouse, Held], None],
    ) -> None:
        """As in a warehouse that was copied without its locks."""
        write(warehouse, Held(100))
        first = Held(1)
        fence(warehouse, first)
        assert first.epoch > 100
        write(warehouse, first)


def test_other_applications_are_not_held_up(warehouse: Warehouse) -> None:
    _store_a_point(warehouse, Held(100))
    Repository(warehouse, "bar").points.append(
        point(10**12, cut(0, 10), application_id="bar"), writer=Held(1)
    )
    assert len(Repository(warehouse, "bar").points.instants()) == 1


def test_a_warehouse_that_is_only_read_is_not_written(warehouse: Warehouse, tmp_path: Path) -> None:
    """The lock lies with the notes: its epochs say nothing of the tables."""
    reading = replace(warehouse, state_in=tmp_path / "notes")
    before = _versions(warehouse)
    with pytest.raises(ConfigurationError, match=r"writes to the warehouse .* without --state-in"):
        _fence_points(reading, Held(7, is_taken_over=True))
    assert _versions(warehouse) == before


def test_restores_onto_other_groups_are_not_held_up(warehouse: Warehouse) -> None:
    _note_restore(warehouse, Held(100))
    other = replace(_restore(), restore_id="other", group="h")
    Repository(warehouse, other.application_id).restores.append(other, writer=Held(1))
    assert Repository(warehouse, APP).restores.newest("other") is not None


def test_locks_on_a_disk_count_up(warehouse: Warehouse) -> None:
    for number in range(2):
        with Repository(warehouse, APP).writing(Lock.RECORDER, purpose="test", wait_s=0) as lock:
            taken = point(10**12 + number, cut(0, 10), point_id=f"late-{number}")
            Repository(warehouse, taken.application_id).points.append(taken, writer=lock)
    path = warehouse.lock_file(f"recorder/{APP}")
    with warehouse_lock(path, purpose="test", wait_s=0) as lock:
        assert lock.epoch == 3
