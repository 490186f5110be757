"""Plans from what a warehouse holds; no broker, no JVM."""

from pathlib import Path

import pytest

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.ktables.plan import SnapshotPlan, plan_snapshots
from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.repository import Repository
from tests.ktables.stored_log import Change, StoredLog, window_of
from tests.streams.workbench import NoSpark


@pytest.fixture
def log(tmp_path: Path) -> StoredLog:
    """Three windows of ten offsets each, one partition."""
    made = StoredLog(Warehouse(tmp_path), NoSpark())
    for index in range(3):
        made.point(index, {0: 10 * index + 10})
        made.back_up(index, {0: (10 * index, 10 * index + 10)}, _changes(10 * index, 10))
    return made


def _changes(first: int, count: int) -> list[Change]:
    return [Change(offset, b"k", b"v") for offset in range(first, first + count)]


def _plan(log: StoredLog, *indexes: int) -> list[SnapshotPlan]:
    states = (
        Repository.of(log.warehouse, log.application.application_id)
        .reading(log.application)
        .states([log.store])
    )
    return plan_snapshots(states, [log.store], [window_of(index) for index in indexes])


def test_windows_in_order_of_time_each_on_the_one_before(log: StoredLog) -> None:
    plans = _plan(log, 2, 0)
    assert [plan.window for plan in plans] == [window_of(0), window_of(2)]
    assert [base.window.key if (base := plan.state.base) else None for plan in plans] == [
        None,
        "w0000",
    ]
    (part,) = plans[1].state.partitions
    assert part.ranges == (OffsetRange(10, 30),)
    assert [(file.first_offset, file.last_offset) for file in part.files] == [(10, 19), (20, 29)]
    assert (plans[1].state.records, plans[1].state.bytes) == (20, 2000)
    assert [(plan.state.proved, plan.state.point.id) for plan in plans] == [
        (True, "point-0000"),
        (True, "point-0002"),
    ]


def test_a_window_that_is_not_backed_up_is_named(log: StoredLog) -> None:
    with pytest.raises(KStreamsAssetsError, match=r"window w0007.*back up window w0007"):
        _plan(log, 0, 7)


def test_so_is_one_before_it_that_is_missing(log: StoredLog) -> None:
    log.point(4, {0: 50})
    log.back_up(4, {0: (40, 50)}, _changes(40, 10))
    with pytest.raises(KStreamsAssetsError, match="between w0002 and w0004") as caught:
        _plan(log, 4)
    assert "store store for window w0004" in str(caught.value)


def test_a_window_that_closed_before_the_first_point(log: StoredLog) -> None:
    log.back_up(5, {}, [], point_id=None)
    with pytest.raises(KStreamsAssetsError, match="no recovery point was taken before it closed"):
        _plan(log, 5)


def test_a_topic_that_was_not_there_gives_no_rows(log: StoredLog) -> None:
    log.point(3, {})
    log.back_up(3, {}, [])
    (plan,) = _plan(log, 3)
    assert (plan.state.partitions, plan.state.proved) == ((), True)
    assert "did not exist" in plan.state.reason


def test_records_saved_with_points_are_looked_up_where_backups_have_holes(
    log: StoredLog,
) -> None:
    log.point(3, {0: 40}, saved_from={0: 35}, sealed=True)
    log.back_up(3, {0: (30, 40)}, _changes(30, 6), first_holes={0: 36})
    (plan,) = _plan(log, 3)
    assert plan.state.proved
    assert plan.state.partitions[0].saved == (OffsetRange(35, 40),)
    log.point(4, {0: 50})
    log.back_up(4, {0: (40, 50)}, _changes(40, 10))
    (later,) = _plan(log, 4)
    assert later.state.partitions[0].saved == (OffsetRange(36, 40),)
