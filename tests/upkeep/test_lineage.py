"""An application that continues from a restore: its points there and before, and what they need."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.lineage import OtherClusterError
from kstreams_assets.model.point import RecoveryPoint, WantedPartition
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.model.spans import GapCause
from kstreams_assets.offsets import OffsetRange, OffsetRun, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import KeepSettings
from kstreams_assets.upkeep.copy import CopyJob
from kstreams_assets.upkeep.expire import ExpireJob
from spark_resources.partition_records import PartitionWork, work_records
from tests.upkeep.simulated_app import (
    APPLICATION_ID,
    FLIGHT,
    INPUT,
    OUTPUT,
    STATE,
    Row,
    SimulatedApp,
    copied,
    read_back,
    restored_state,
)

ALL = KeepSettings(all="100y")


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> SimulatedApp:
    """Four windows on one cluster, three on the next, two on a third one."""
    folder = tmp_path_factory.mktemp("lineage") / "w"
    made = SimulatedApp.at(Warehouse(folder), seed=3, windows=9, keep=ALL)
    windows = made.windows
    made.run(windows[:4], points_in_window=2)
    made.fail_over(made.points[-3], "second")
    made.run(windows[4:7], points_in_window=2)
    made.fail_over(made.points[-1], "third")
    made.run(windows[7:9], points_in_window=2)
    return made


@pytest.fixture
def app(moved: SimulatedApp, tmp_path: Path) -> SimulatedApp:
    """A copy of it."""
    return copied(moved, tmp_path / "w")


def _restorability(app: SimulatedApp) -> dict[str, Restorability]:
    contents = Repository.open(app.settings).reading(app.settings)
    return {status.id: status.restorability for status in contents.statuses(app.points)}


def _same(rows: list[Row]) -> list[tuple[bytes, bytes | None, int]]:
    return [(row.key, row.value, row.timestamp_ms) for row in rows]


def test_every_point_restores_exactly_wherever_it_was_taken(app: SimulatedApp) -> None:
    assert set(_restorability(app).values()) == {Restorability.EXACT}
    for point in app.points:
        assert restored_state(app.settings, point) == app.state(point)
        for topic in (INPUT, FLIGHT):
            found = read_back(app.settings, point, topic, from_committed=True)
            assert [row for of_it in found.values() for row in of_it] == app.needed(point, topic)
        for topic in (STATE, OUTPUT):
            for number, rows in read_back(app.settings, point, topic, from_committed=False).items():
                cut = point.cut(TopicPartitionId(topic, number))
                assert cut is not None
                assert rows == [row for row in app.log_of(cut) if cut.holds(row.offset)]


def test_what_a_restore_wrote_is_in_no_other_file(app: SimulatedApp) -> None:
    rows = app.ledger.every_row(["topic", "records", "gaps", "read_start", "start"]).to_pylist()
    held = sum(row["records"] for row in rows)
    written = {
        (r["topic"], g["start"], g["end"])
        for r in rows
        for g in r["gaps"] or ()
        if g["cause"] == GapCause.RESTORED
    }
    assert written
    assert held == app.produced


@pytest.mark.parametrize("hours", [1, 4])
def test_expire_keeps_what_continued_logs_need(app: SimulatedApp, hours: int) -> None:
    keep = KeepSettings(all="1h", hourly=f"{hours}h", minimum=2)
    settings = replace(app.settings, keep=keep)
    before = {point.id: app.state(point) for point in app.points}
    ExpireJob(settings, run_id="expire").run()
    points = Repository(settings.warehouse, APPLICATION_ID).points.newest(1_000)
    assert len(points) < len(app.points)
    app.points = sorted(points, key=lambda point: point.taken_at_ms)
    assert set(_restorability(app).values()) == {Restorability.EXACT}
    assert {p.id: restored_state(settings, p) for p in points} == {
        point.id: before[point.id] for point in points
    }
    needed = Repository(settings.warehouse, APPLICATION_ID).lineage.needed_points()
    assert needed <= {p.id for p in points}


def test_a_copy_of_one_point_has_what_its_logs_were_restored_from(
    app: SimulatedApp, tmp_path: Path
) -> None:
    newest = app.points[-1]
    CopyJob(app.settings.warehouse, Warehouse(tmp_path / "copy").root, points=[newest.id]).run()
    settings = replace(app.settings, warehouse=Warehouse(tmp_path / "copy"))
    (status,) = Repository.open(settings).reading(settings).statuses([newest])
    assert status.restorability is Restorability.EXACT
    assert restored_state(settings, newest) == app.state(newest)


def test_a_restore_that_added_headers_is_no_prefix(app: SimulatedApp) -> None:
    table = Repository(app.settings.warehouse, APPLICATION_ID).restores
    newest = table.all()[0]
    table.change(newest, request='{"original_headers": {"offset": true, "timestamp": false}}')
    origins = Repository(app.settings.warehouse, APPLICATION_ID).lineage.origins()
    assert origins.get(next(cut.life for cut in app.points[-1].partitions)) is None


def test_without_the_older_log_a_point_is_not_restored(app: SimulatedApp) -> None:
    newest = app.points[-1]
    table = Repository(app.settings.warehouse, APPLICATION_ID).restores
    for restore in table.all():
        table.change(restore, state=RestoreState.ROLLED_BACK)
    assert _restorability(app)[newest.id] is Restorability.NOTHING


def _here(app: SimulatedApp, point: RecoveryPoint, cluster: str, ids: dict[str, str]) -> None:
    lineage = Repository(app.settings.warehouse, APPLICATION_ID).lineage
    lineage.require(point, cluster_id=cluster, topic_ids=ids)


def test_only_a_cluster_that_a_restore_leads_to(app: SimulatedApp) -> None:
    newest = app.points[-1]
    there = dict(app.topic_ids)
    _here(app, newest, "third", there)
    with pytest.raises(OtherClusterError, match=f"cluster source.*{newest.id}.*third"):
        _here(app, newest, "source", {name: f"{name}-id" for name in there})
    second = {
        cut.topic: cut.topic_id
        for p in app.points
        if p.cluster_id == "second"
        for cut in p.partitions
    }
    with pytest.raises(OtherClusterError, match="--new-lineage"):
        _here(app, newest, "second", second)  # a restore led there, and was continued already
    app.fail_over(newest, "second")
    _here(app, newest, "second", dict(app.topic_ids))
    with pytest.raises(OtherClusterError):
        _here(app, newest, "second", {name: f"{name}-strange" for name in there})


def test_a_map_after_a_map() -> None:
    from kstreams_assets.offsets import OffsetMap

    first = OffsetMap([OffsetRun(10, 0, 5), OffsetRun(20, 5, 5)], 10)
    second = OffsetMap([OffsetRun(2, 100, 5), OffsetRun(9, 105, 4)], 109)
    both = first.then(second)
    expected = {
        source: second.map(first.map(source))
        for source in [*range(10, 15), *range(20, 25)]
        if second.source_of(second.map(first.map(source))) == first.map(source)
    }
    found = {
        run.source_start + n: run.target_start + n for run in both.runs for n in range(run.length)
    }
    assert found == expected
    assert OffsetRange(0, 1)  # the maps of an empty partition
    assert len(OffsetMap([], 0).then(second).runs) == 0


def test_a_restore_reads_what_was_planned(app: SimulatedApp) -> None:
    """Counted exactly, and read by the tasks of a restore, from the first or a later record on."""
    for point in app.points[-4:]:
        contents = Repository.open(app.settings).reading(app.settings)
        wanted = [WantedPartition(cut, cut.records_from(cut.log_start)) for cut in point.partitions]
        held = contents.contents(point, wanted)
        for one in wanted:
            rows = [row for row in app.log_of(one.cut) if one.cut.holds(row.offset)]
            holding = held[one.cut.id]
            assert holding.records == len(rows), (point.id, one.cut.id)
            work = PartitionWork(
                source=one.cut.id,
                target=one.cut.id,
                files=tuple(file.path for file in holding.files),
                saved_file=None,
                ranges=one.ranges,
                base_offset=0,
                records=holding.records,
                runs={f.path: f.runs for f in holding.files if f.runs is not None},
            )
            for skip in (0, min(3, len(rows))):
                found = [o for batch in work_records(work, skip=skip) for o in batch["offset"]]
                assert [o.as_py() for o in found] == [row.offset for row in rows[skip:]]
