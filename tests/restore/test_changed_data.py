"""Stored data that was changed behind our back: it is named, and none of it is used."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kstreams_assets.errors import KStreamsAssetsError, StoredDataError
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.layout import written_files
from kstreams_assets.model.data_files import By, SpanFile
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import PartitionCut, RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import PartitionProduced
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.offsets import TopicPartitionId, runs_of
from kstreams_assets.repository.evaluator import RestorabilityEvaluator
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import (
    require_snapshot,
    snapshot_damages,
    snapshot_written,
)
from kstreams_assets.store import StorePath, file_digest, store_at
from spark_resources import partition_records
from spark_resources.partition_records import PartitionWork, work_offsets, work_records
from tests.backup.samples import APPLICATION_ID, point
from tests.repository.forging import forge_column
from tests.restore.snapshot_samples import snapshot
from tests.restore.snapshot_tables import Row, write_snapshot
from tests.restore.span_files import Stored, span_file, work_of
from tests.store.place import edited, warehouse_at

pytestmark = pytest.mark.on_store

TARGET = TopicPartitionId("orders", 0)
COUNT = 200


def _work(tmp_path: Path, *, with_digest: bool = True) -> PartitionWork:
    folder = warehouse_at(tmp_path).root
    path = folder / "orders.parquet"
    with edited(folder) as files:
        span_file(files / path.name, _records("order"), group=50)
    (written,) = written_files(folder, [(path.name, COUNT)])
    noted = SpanFile(path, COUNT, 0, COUNT - 1, written if with_digest else None)
    work = work_of(TARGET, [path], [(0, COUNT)], COUNT)
    return replace(work, noted={path: noted})


def _records(kind: str) -> list[Stored]:
    return [Stored(offset, f"{kind} {offset}".encode()) for offset in range(COUNT)]


def _read(work: PartitionWork) -> int:
    return sum(batch.num_rows for batch in work_records(work))


def _swapped(path: Path) -> None:
    """Another topic's file of equal count and range is in its place."""
    shutil.copy(span_file(path.with_name("log.parquet"), _records("total"), group=50), path)


def _neighbour(path: Path) -> None:
    """A record has the value of its neighbour; count and offsets are as they were."""
    rows = pq.read_table(path)
    values = rows["value"].to_pylist()
    values[7] = values[8]
    column = rows.schema.get_field_index("value")
    rows = rows.set_column(column, rows.schema.field(column), pa.array(values, pa.binary()))
    pq.write_table(rows, path)


def _as_large(path: Path) -> None:
    """One value is another one, and the file is sound and as large as it was."""
    size, records = path.stat().st_size, _records("order")
    was = records[7].value or b""
    for place, other in product(range(len(was)), range(256)):
        value = was[:place] + bytes([other]) + was[place + 1 :]
        records[7] = replace(records[7], value=value)
        if value != was and span_file(path, records, group=50).stat().st_size == size:
            return
    raise AssertionError("no such value was found")


def _values_of_a_snapshot(path: Path) -> None:
    """Every value is another one."""
    rows = pq.ParquetFile(path).read()
    index = rows.schema.get_field_index("value")
    values = pa.array([b"other"] * rows.num_rows, rows.schema.field(index).type)
    pq.write_table(rows.set_column(index, rows.schema.field(index), values), path)


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(bytes(content))


def _cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _gone(path: Path) -> None:
    path.unlink()


FAULTS = {
    "swapped": _swapped,
    "neighbour": _neighbour,
    "as large": _as_large,
    "flipped": _flipped,
    "cut off": _cut_off,
    "gone": _gone,
}


@pytest.fixture
def settle(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits until what was written is old enough to be known again; a second is long in a test."""
    monkeypatch.setattr("kstreams_assets.store.folders._SETTLED_S", 0.05)
    return lambda: time.sleep(0.06)


def _do(fault: Callable[[Path], object], path: StorePath) -> None:
    with edited(path.parent) as folder:
        fault(folder / path.name)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_no_record_of_a_changed_file_is_given(
    tmp_path: Path, fault: Callable[[Path], None]
) -> None:
    work = _work(tmp_path)
    assert _read(work) == COUNT
    _do(fault, work.files[0])
    given = []
    with pytest.raises(KStreamsAssetsError, match=r"orders-0 .*orders\.parquet.* from a copy"):
        given += work_records(work)
    assert given == []
    with pytest.raises(KStreamsAssetsError, match="orders-0 cannot be restored"):
        list(work_offsets(work))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_nor_of_one_that_was_changed_since_it_was_looked_at(
    tmp_path: Path, settle: Callable[[], None], fault: Callable[[Path], None]
) -> None:
    work = _work(tmp_path)
    settle()
    path = work.files[0]
    known = store_at(path).identity()
    assert (known is None) == (not isinstance(path, Path))
    work = replace(work, sound={path: known} if known else {})
    assert _read(work) == COUNT
    changed_ns = path.stat().st_mtime_ns if isinstance(path, Path) else 0

    def unseen(file: Path) -> None:
        fault(file)
        if file.exists():
            os.utime(file, ns=(changed_ns, changed_ns))

    _do(unseen, path)
    settle()
    with pytest.raises(KStreamsAssetsError, match=r"orders-0 .*orders\.parquet"):
        _read(work)


def test_what_was_looked_at_is_not_read_for_it_again(
    tmp_path: Path, settle: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = _work(tmp_path)
    settle()
    known = {path: found for path in work.files if (found := store_at(path).identity())}
    read: list[StorePath] = []
    monkeypatch.setattr(
        partition_records, "file_digest", lambda path: read.append(path) or file_digest(path)
    )
    assert _read(replace(work, sound=known)) == COUNT
    assert len(read) == len(work.files) - len(known)


def test_a_file_without_digest_has_as_many_records_as_were_written(tmp_path: Path) -> None:
    work = _work(tmp_path, with_digest=False)
    assert _read(work) == COUNT
    _do(lambda file: span_file(file, _records("order")[:-1]), work.files[0])
    with pytest.raises(KStreamsAssetsError, match="has 199 records, but its backup wrote 200"):
        _read(work)


def test_page_checksums_are_compared(tmp_path: Path) -> None:
    """What catches a flipped bit where no digest was noted."""
    path = tmp_path / "with.parquet"
    rows = pq.read_table(span_file(tmp_path / "orders.parquet", _records("order")))
    pq.write_table(rows, path, write_page_checksum=True, use_dictionary=False, compression="none")
    content = path.read_bytes()
    at = content.index(b"order 100")
    path.write_bytes(content[:at] + b"Order 100" + content[at + 9 :])
    assert pq.read_table(path)["value"][100].as_py() == b"Order 100"
    with pytest.raises(KStreamsAssetsError, match="cannot be read"):
        _read(work_of(TARGET, [path], [(0, COUNT)], COUNT))


def test_another_partition(tmp_path: Path) -> None:
    path = span_file(tmp_path / "orders.parquet", _records("order"))
    work = work_of(TopicPartitionId("orders", 1), [path], [(0, COUNT)], COUNT)
    with pytest.raises(KStreamsAssetsError, match="holds records of partition 0"):
        _read(work)


def _taken() -> RecoveryPoint:
    cut = PartitionCut("t", 0, "life-1", 0, 1000)
    return point(1000, cut, group_offsets=[GroupOffset("t", 0, 700, "AgAB")], point_id="p")


def _points(tmp_path: Path) -> StorePath:
    return warehouse_at(tmp_path).control("recovery_points")


def _input_offset(rows: list) -> list:
    return [[{**offset, "offset": offset["offset"] + 7} for offset in row] for row in rows]


def _metadata(rows: list) -> list:
    return [[{**offset, "metadata": ""} for offset in row] for row in rows]


def _end(rows: list) -> list:
    return [[{**cut, "end": cut["end"] - 11} for cut in row] for row in rows]


@pytest.mark.parametrize(
    ("column", "change"),
    [("group_offsets", _input_offset), ("group_offsets", _metadata), ("partitions", _end)],
)
def test_a_changed_point(tmp_path: Path, column: str, change: Callable[[list], list]) -> None:
    warehouse = warehouse_at(tmp_path)
    points = Repository(warehouse, APPLICATION_ID).points
    points.append(_taken())
    assert points.load(["p"]) == [_taken()]
    forge_column(warehouse.control("recovery_points"), column, change)
    with pytest.raises(StoredDataError, match=r"Recovery point p cannot be used.*from a copy"):
        points.load(["p"])
    assert points.newest() == []
    (damaged,) = points.load(["p"], damaged_too=True)
    evaluator = RestorabilityEvaluator({}, roles={}, backed_up=set(), closed=[])
    (status,) = evaluator.evaluate([damaged])
    assert (status.restorability, status.damaged) == (Restorability.NOTHING, True)


def test_an_older_point_is_the_newest_that_counts(tmp_path: Path) -> None:
    points = Repository(warehouse_at(tmp_path), APPLICATION_ID).points
    points.append(replace(_taken(), id="older", taken_at_ms=500, sealed=True))
    points.append(replace(_taken(), sealed=True))
    forge_column(
        warehouse_at(tmp_path).control("recovery_points"),
        "took_ms",
        lambda rows: [ms + (ms == 7) for ms in rows],
    )
    assert points.newest() == []
    points.append(replace(_taken(), id="newer", taken_at_ms=1500, sealed=True))
    assert [one.id for one in points.newest(2)] == ["newer"]
    found = points.newest_sealed()
    assert found is not None
    assert found.id == "newer"


@pytest.mark.parametrize("column", ["taken_at_ms", "digest"])
def test_points_of_earlier_releases(tmp_path: Path, column: str) -> None:
    """They have no digest: nothing is known of them, and they are readable."""
    points = Repository(warehouse_at(tmp_path), APPLICATION_ID).points
    points.append(_taken())
    forge_column(
        warehouse_at(tmp_path).control("recovery_points"),
        "digest",
        lambda rows: [None for _ in rows],
    )
    if column == "taken_at_ms":
        forge_column(
            warehouse_at(tmp_path).control("recovery_points"),
            column,
            lambda rows: [ms + 1 for ms in rows],
        )
    (found,) = points.load(["p"])
    assert not found.damaged


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("value", lambda rows: [b"other", *rows[1:]]),
        ("value", lambda rows: [rows[1], rows[0], *rows[2:]]),
        ("key", lambda rows: [None, *rows[1:]]),
        ("timestamp_ms", lambda rows: [rows[0] + 1, *rows[1:]]),
        ("headers", lambda rows: [[], *rows[1:]]),
    ],
)
def test_changed_saved_records(tmp_path: Path, column: str, change: Callable[[list], list]) -> None:
    saved = Repository(warehouse_at(tmp_path), APPLICATION_ID).saved_records
    records = [
        RawRecord(offset, 1_000 + offset, 0, b"k", b"v%d" % offset, (("h", None), ("h", b"x")))
        for offset in range(5)
    ]
    tail = SavedTail(TopicPartitionId("t", 0), "life-1", records)
    saved.append("p", [tail])
    cut = PartitionCut("t", 0, "life-1", 0, 5, saved_from=0)
    taken = point(1000, cut, point_id="p")
    assert saved.of_point(taken).num_rows == 5
    forge_column(warehouse_at(tmp_path).control("recovery_point_records"), column, change)
    with pytest.raises(StoredDataError, match=r"Offset 0 of t-0, saved with recovery point p"):
        saved.of_point(taken)


def test_saved_records_without_their_last_commit(tmp_path: Path) -> None:
    """As in a copy that was made while a point was taken: they are stored before their point."""
    saved = Repository(warehouse_at(tmp_path), APPLICATION_ID).saved_records
    partition = TopicPartitionId("t", 0)
    taken = []
    for offset in range(3):
        record = RawRecord(offset, 1_000 + offset, 0, b"k", b"v", ())
        saved.append(f"p{offset}", [SavedTail(partition, "life-1", [record])])
        cut = PartitionCut("t", 0, "life-1", 0, offset + 1, saved_from=0)
        one = point(1000, cut, point_id=f"p{offset}")
        taken.append(replace(one, saved_version=saved.version()))
    with edited(warehouse_at(tmp_path).control("recovery_point_records")) as table:
        max((table / "_delta_log").glob("*.json")).unlink()
    assert [saved.of_point(one).num_rows for one in taken[:-1]] == [1, 2]
    with pytest.raises(StoredDataError, match=r"recovery point p2 .*last commits are missing"):
        saved.of_point(taken[-1])
    points = Repository(warehouse_at(tmp_path), APPLICATION_ID).points
    points.append_many(taken)
    assert points.load(["p2"]) == [taken[-1]]


@pytest.mark.parametrize("column", ["source_start", "target_start"])
def test_a_shifted_offset_map(tmp_path: Path, column: str) -> None:
    table = Repository(warehouse_at(tmp_path), APPLICATION_ID).offset_maps
    source, target = TopicPartitionId("t", 0), TopicPartitionId("copy", 0)
    runs = tuple(runs_of([0, 1, 2, 7, 8], [0, 1, 2, 3, 4]))
    table.record("r", [PartitionProduced(source, target, runs, 5, 0, 5)])
    assert table.load("r")[source].map.map(8) == 4
    forge_column(
        warehouse_at(tmp_path).control("offset_maps"),
        column,
        lambda rows: [None if offset is None else offset + 7 for offset in rows],
    )
    with pytest.raises(StoredDataError, match=r"The offset map of t-0 in restore r"):
        table.load("r")


@pytest.mark.parametrize("fault", [_flipped, _cut_off, _gone, _values_of_a_snapshot])
def test_a_changed_snapshot(tmp_path: Path, fault: Callable[[Path], None]) -> None:
    """Neither a restore nor the next snapshot is made from it."""
    warehouse = warehouse_at(tmp_path)
    table = warehouse.ktable("shop", "sums")
    with edited(table) as folder:
        write_snapshot(folder, [Row(0, offset, b"k%d" % offset) for offset in range(30)])
    noted = snapshot(written=snapshot_written(table, "w1"))
    snapshots = Repository(warehouse, APPLICATION_ID).snapshots
    snapshots.record([noted])
    (stored,) = snapshots.of()
    assert stored.written == noted.written
    require_snapshot(table, stored)
    (file,) = (table / "window=w1").glob("*.parquet")
    _do(fault, file)
    with pytest.raises(StoredDataError, match=r"snapshot of store sums, window w1, .*ktables make"):
        require_snapshot(table, stored)
    require_snapshot(table, replace(stored, written=()))  # of an earlier release


@pytest.mark.parametrize("fault", [_cut_off, _gone])
def test_the_plan_looks_at_the_files_of_a_snapshot(
    tmp_path: Path, fault: Callable[[Path], None]
) -> None:
    table = warehouse_at(tmp_path).ktable("shop", "sums")
    with edited(table) as folder:
        write_snapshot(folder, [Row(0, 1)])
    stored = snapshot(written=snapshot_written(table, "w1"))
    assert snapshot_damages(table, stored, By.SIZE) == []
    (file,) = (table / "window=w1").glob("*.parquet")
    _do(fault, file)
    (damage,) = snapshot_damages(table, stored, By.SIZE)
    assert file.name in damage.problem
