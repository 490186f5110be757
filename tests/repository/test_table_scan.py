"""Wanted records through the table of records at a version: the same as from the list of files."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.data_files import TableScan
from kstreams_assets.model.point import RecoveryPoint, WantedPartition
from kstreams_assets.offsets import OffsetRange, RangeSet
from kstreams_assets.repository import contents
from kstreams_assets.repository.contents import View
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import KeepSettings
from tests.ktables.stored_log import Change, StoredLog
from tests.repository.disk import on_disk
from tests.streams.workbench import NoSpark
from tests.upkeep.simulated_app import INPUT, STATE, SimulatedApp

_COLUMNS = ["partition", "offset", "key", "value"]


@pytest.fixture(autouse=True)
def _however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "FEWEST_SCANNED", 1)


def _read(scan: TableScan, wanted: Sequence[WantedPartition]) -> pa.Table:
    table = DeltaTable(on_disk(scan.table), version=scan.version)
    chosen = pc.field("window").isin(scan.windows) & (pc.field("topic") == scan.topic)
    rows = table.to_pyarrow_dataset().to_table(columns=_COLUMNS, filter=chosen)
    inside = [
        rows.filter(pc.field("partition") == one.cut.partition).filter(
            pc.field("offset").isin(
                [n for r in RangeSet(one.ranges) for n in range(r.start, r.end)]
            )
        )
        for one in wanted
    ]
    return pa.concat_tables(inside).sort_by([("partition", "ascending"), ("offset", "ascending")])


def _view(app: SimulatedApp) -> View:
    return Repository.open(app.settings).reading(app.settings)


def _wanted(point: RecoveryPoint, topic: str) -> list[WantedPartition]:
    cuts = [cut for cut in point.partitions if cut.topic == topic]
    return [WantedPartition(cut, cut.records_from(cut.log_start)) for cut in cuts]


def _app(tmp_path: Path, windows: int) -> SimulatedApp:
    warehouse = Warehouse(tmp_path / "warehouse")
    return SimulatedApp.at(warehouse, seed=5, windows=windows, keep=KeepSettings())


def test_files_and_scan_give_the_same_records(tmp_path: Path) -> None:
    app = _app(tmp_path, 3)
    first, second, last = app.windows
    app.run([first, second], points_in_window=2)
    app.follow(last, increments=2)
    view, compared = _view(app), 0
    for point in app.points:
        for topic in (STATE, INPUT):
            wanted = _wanted(point, topic)
            files = [one.file for part in wanted for one in view.files(part)]
            scan = view.scan(wanted)
            if not files:
                assert scan is None
                continue
            assert scan is not None
            expected = pa.concat_tables(pq.read_table(f.path, columns=_COLUMNS) for f in files)
            holding = view.contents(point, wanted)
            found = _read(scan, wanted)
            offsets = set(zip(*expected.select(_COLUMNS[:2]).to_pydict().values(), strict=True))
            assert offsets >= {(r["partition"], r["offset"]) for r in found.to_pylist()}
            assert found.num_rows == sum(one.records for one in holding.values())
            compared += found.num_rows
    assert compared


def test_a_scan_stays_at_the_version_of_its_files(tmp_path: Path) -> None:
    app = _app(tmp_path, 2)
    app.run(app.windows[:1])
    wanted = _wanted(app.points[0], STATE)
    scan = _view(app).scan(wanted)
    assert scan is not None
    before = _read(scan, wanted)
    app.run(app.windows[1:])
    later = _view(app).scan(wanted)
    assert later is not None
    assert (later.table, later.windows) == (scan.table, scan.windows)
    assert later.version == scan.version + 1
    assert _read(later, wanted) == _read(scan, wanted) == before


def test_windows_that_no_row_of_the_ledger_names_are_not_in_it(tmp_path: Path) -> None:
    app = _app(tmp_path, 1)
    app.run(app.windows)
    wanted = _wanted(app.points[-1], STATE)
    known = _view(app).scan(wanted)
    assert known is not None
    _append(app, window="2030-01-01-00:00", partition=0)
    scan = _view(app).scan(wanted)
    assert scan is not None
    assert (scan.windows, scan.version) == (known.windows, known.version + 1)


def test_a_partition_that_the_ledger_does_not_name_beside_others_is_no_obstacle(
    tmp_path: Path,
) -> None:
    app = _app(tmp_path, 1)
    app.run(app.windows)
    wanted = _wanted(app.points[-1], STATE)
    _append(app, window=app.windows[0].key, partition=77)
    assert _view(app).scan(wanted) is not None


def test_files_are_read_one_by_one_where_offsets_do_not_tell_others(tmp_path: Path) -> None:
    """A killed backup committed partition 0 of window 1, and recorded partition 1 alone."""
    log = StoredLog(Warehouse(tmp_path), NoSpark(), StoreFormat())
    changes = [Change(n, b"k", b"v", partition=p) for p in (0, 1) for n in range(4)]
    log.point(0, {0: 2, 1: 2})
    log.back_up(0, {0: (0, 2), 1: (0, 2)}, changes)
    point = log.point(1, {0: 4, 1: 4})
    log.back_up(1, {1: (2, 4)}, changes)
    view = Repository.open(log.settings).reading(log.settings)
    both = [WantedPartition(cut, [OffsetRange(0, 4)]) for cut in point.partitions]
    assert view.scan(both) is not None
    records = log.warehouse.records(log.application.application_id)
    _write(on_disk(records), window="w0001", topic=point.partitions[0].topic, partition=0, offset=3)
    view = Repository.open(log.settings).reading(log.settings)
    assert view.scan(both) is None
    assert view.scan(both[1:]) is not None


def test_few_files_are_read_from_their_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = _app(tmp_path, 2)
    app.run(app.windows)
    wanted = _wanted(app.points[-1], STATE)
    count = sum(len(view.files(one)) for view in [_view(app)] for one in wanted)
    for most, is_scanned in ((count, True), (count + 1, False)):
        monkeypatch.setattr(contents, "FEWEST_SCANNED", most)
        assert (_view(app).scan(wanted) is not None) is is_scanned


def _append(app: SimulatedApp, *, window: str, partition: int) -> None:
    records = app.settings.warehouse.records(app.settings.application_id)
    _write(on_disk(records), window=window, topic=STATE, partition=partition, offset=1)


def _write(records: Path, *, window: str, topic: str, partition: int, offset: int) -> None:
    row = {
        "window": window,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp_ms": 1,
        "timestamp_type": 0,
        "headers": None,
        "key": b"never-named",
        "value": b"{}",
    }
    schema = pa.schema(DeltaTable(records).schema())
    write_deltalake(records, pa.Table.from_pylist([row], schema=schema), mode="append")
