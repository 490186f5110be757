"""What a point needs is read from its files, or from the table at a version: it is the same."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import WantedPartition
from kstreams_assets.offsets import RangeSet
from kstreams_assets.repository.contents import TableScan
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import KeepSettings
from tests.repository.disk import on_disk
from tests.upkeep.simulated_app import INPUT, STATE, SimulatedApp

_COLUMNS = ["partition", "offset", "key", "value"]


def _read(scan: TableScan) -> pa.Table:
    table = DeltaTable(on_disk(scan.table), version=scan.version)
    windows = [window for window, _ in scan.partitions]
    (topic,) = {topic for _, topic in scan.partitions}
    wanted = pc.field("window").isin(windows) & (pc.field("topic") == topic)
    return table.to_pyarrow_dataset().to_table(columns=_COLUMNS, filter=wanted)


def test_files_and_scan_give_the_same_records(tmp_path: Path) -> None:
    app = SimulatedApp.at(Warehouse(tmp_path / "warehouse"), seed=5, windows=3, keep=KeepSettings())
    first, second, last = app.windows
    app.run([first, second], points_in_window=2)
    app.follow(last, increments=2)
    contents = Repository.open(app.settings).reading(app.settings)
    compared = 0
    for point in app.points:
        cuts = [cut for cut in point.partitions if cut.topic in (STATE, INPUT)]
        wanted = [WantedPartition(cut, cut.records_from(cut.log_start)) for cut in cuts]
        holdings = contents.contents(point, wanted)
        for cut, one in zip(cuts, wanted, strict=True):
            holding, ranges = holdings[cut.id], RangeSet(one.ranges)
            files = [pq.read_table(file.path, columns=_COLUMNS) for file in holding.files]
            if not files:
                assert holding.scan is None
                continue
            assert holding.scan is not None
            rows = _read(holding.scan)
            rows = rows.filter(pc.field("partition") == cut.partition)
            found, expected = (
                table.filter(pa.array(ranges.mask(table["offset"].to_numpy()))).sort_by("offset")
                for table in (rows, pa.concat_tables(files))
            )
            assert found.to_pylist() == expected.to_pylist()
            assert found.num_rows == holding.records
            compared += found.num_rows
    assert compared


def test_a_scan_stays_at_the_version_of_its_files(tmp_path: Path) -> None:
    app = SimulatedApp.at(Warehouse(tmp_path / "warehouse"), seed=5, windows=2, keep=KeepSettings())
    app.run(app.windows[:1])
    (cut, *_) = [cut for cut in app.points[0].partitions if cut.topic == STATE]
    wanted = WantedPartition(cut, cut.records_from(cut.log_start))
    scan = (
        Repository.open(app.settings)
        .reading(app.settings)
        .contents(app.points[0], [wanted])[cut.id]
        .scan
    )
    assert scan is not None
    before = _read(scan)
    app.run(app.windows[1:])
    later = (
        Repository.open(app.settings)
        .reading(app.settings)
        .contents(app.points[0], [wanted])[cut.id]
        .scan
    )
    assert later is not None
    assert (later.table, later.partitions) == (scan.table, scan.partitions)
    assert later.version == scan.version + 1
    assert _read(later).sort_by("offset") == _read(scan).sort_by("offset")
    assert before.num_rows == _read(scan).num_rows
