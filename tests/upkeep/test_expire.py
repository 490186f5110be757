"""Points go by policy; what stays restores as before, however windows were put together."""

import itertools
import multiprocessing
import os
import random
import signal
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.errors import StoredDataError
from kstreams_assets.metrics.info import ApplicationInfo, warehouse_info
from kstreams_assets.settings import ApplicationSettings, KeepLine, KeepSettings
from kstreams_assets.upkeep.expire import Change, expire, plan_expire
from kstreams_assets.upkeep.verify import verify
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.judge import Restores
from kstreams_assets.warehouse.points import PinsTable, RecoveryPointTable
from kstreams_assets.warehouse.records import file_actions
from tests.store.place import warehouse_at
from tests.upkeep.simulated_app import (
    APPLICATION_ID,
    FLIGHT,
    INPUT,
    STATE,
    SimulatedApp,
    read_back,
    restored_state,
    with_keep,
)

pytestmark = pytest.mark.e2e

_DAY_S = 86_400
POLICY = KeepSettings(all_s=3_600 * 3, lines=(KeepLine("daily", 3 * _DAY_S),), minimum=2)


def simulated(
    tmp_path: Path, *, seed: int, windows: int, keep: KeepSettings = POLICY
) -> SimulatedApp:
    return SimulatedApp.at(
        warehouse_at(tmp_path / "warehouse"), seed=seed, windows=windows, keep=keep
    )


def require_all_restore(app: SimulatedApp) -> list[str]:
    """Every point that is listed gives what it gave; its ids."""
    listed = [i.id for i in RecoveryPointTable(app.settings.warehouse).instants(APPLICATION_ID)]
    points = [point for point in app.points if point.id in set(listed)]
    assert len(points) == len(listed)
    for point, status in zip(points, Contents.of(app.settings).statuses(points), strict=True):
        assert status.gives is Restores.EXACT, (point.id, status.reason)
        assert restored_state(app.settings, point) == app.state(point), point.id
        for topic in (INPUT, FLIGHT):
            there = read_back(app.settings, point, topic, from_committed=True)
            assert [row for of_it in there.values() for row in of_it] == app.needed(point, topic)
    return listed


@pytest.mark.on_store
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.drill) for n in (1, 2, 3))]
)
def test_what_stays_restores_as_before(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    windows = 24
    app = simulated(tmp_path, seed=seed, windows=windows)
    app.run(app.windows, points_in_window=chance.choice([1, 1, 3]))
    pinned = chance.sample([point.id for point in app.points[3:-3]], 4)
    for point_id in pinned:
        PinsTable(app.settings.warehouse).pin(APPLICATION_ID, point_id, "audit")
    assert len(require_all_restore(app)) == len(app.points)
    bytes_before = sum(size.bytes for size in app.ledger.sizes().values())

    planned = plan_expire(app.settings)
    done = expire(app.settings, run_id="one")

    listed = require_all_restore(app)
    assert set(listed) == set(planned.kept) == set(done.plan.kept)
    assert set(pinned) <= set(listed)
    assert len(listed) < len(app.points)
    assert {one.what for one in done.topics} >= {Change.DROP, Change.FOLD}
    assert sum(size.bytes for size in app.ledger.sizes().values()) < 0.8 * bytes_before
    assert not list(app.ledger.damaged())
    again = expire(app.settings, run_id="two")
    assert (again.plan.going, again.topics) == ({}, ())
    assert require_all_restore(app) == listed


def test_one_change_at_a_time_leaves_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done at once is a matter of time and memory only."""
    left: list[list[tuple[str, int]]] = []
    for most_rows in (50_000, 1):
        app = simulated(tmp_path / str(most_rows), seed=2, windows=24)
        app.run(app.windows)
        for point in (app.points[6], app.points[12]):
            PinsTable(app.settings.warehouse).pin(APPLICATION_ID, point.id, "audit")
        monkeypatch.setattr("kstreams_assets.upkeep.expire._LOT_ROWS", most_rows)
        done = expire(app.settings, run_id="one")
        assert sum(one.topic == STATE for one in done.topics) > 1
        require_all_restore(app)
        left.append([(one.topic, one.records_after) for one in done.topics])
    assert left[0] == left[1]


def test_years_of_windows_are_a_few_rows(tmp_path: Path) -> None:
    """Expired again and again as windows come: rows and files stay few, bytes near one state."""
    app = simulated(tmp_path, seed=1, windows=60, keep=KeepSettings(all_s=0, minimum=2))
    rows: list[int] = []
    for first in range(0, 60, 5):
        app.run(app.windows[first : first + 5])
        expire(app.settings, run_id=f"run-{first}")
        rows.append(len(app.ledger.entries(topics={STATE})))
    require_all_restore(app)
    assert max(rows[6:]) <= max(rows[:6]) + 4
    base = sum(size.bytes for (_, topic), size in app.ledger.sizes().items() if topic == STATE)
    assert base < 30_000


def test_a_deletion_that_is_lost_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation that the oracle is there for: deletions are left out where keys live before."""
    from spark_resources import span_tasks

    seeds = range(2)
    original = span_tasks._Choice.stays

    def stays(choice: span_tasks._Choice, batch):
        found = original(choice, batch)
        deletes = batch["value"].is_null().to_numpy(zero_copy_only=False)
        first = (deletes & found).argmax()
        if deletes[first] and found[first]:
            found[first] = False
        return found

    monkeypatch.setattr(span_tasks._Choice, "stays", stays)
    for seed in seeds:
        app = simulated(tmp_path / str(seed), seed=seed, windows=40)
        app.run(app.windows)
        for point in app.points[5:-5:6]:
            PinsTable(app.settings.warehouse).pin(APPLICATION_ID, point.id, "audit")
        expire(app.settings, run_id="one")
        with pytest.raises(AssertionError):
            require_all_restore(app)


def test_nothing_goes_while_something_is_damaged(tmp_path: Path) -> None:
    """A point that a lost file takes away may come back with the file."""
    app = simulated(tmp_path, seed=3, windows=10)
    app.run(app.windows)
    settings = with_keep(app.settings, KeepSettings(all_s=0, minimum=1))
    path = settings.warehouse.records(APPLICATION_ID)
    gone = min(path.rglob(f"{STATE}-*.parquet"), key=lambda file: file.name)
    content = gone.read_bytes()
    gone.unlink()
    with pytest.raises(StoredDataError, match=f"nothing of it expires: .*{gone.name} is missing"):
        expire(settings, run_id="one")
    assert len(RecoveryPointTable(settings.warehouse).instants(APPLICATION_ID)) == 10
    gone.write_bytes(content)
    expire(settings, run_id="two")
    assert len(require_all_restore(app)) == 1


def test_what_was_given_up_holds_nothing_back(tmp_path: Path) -> None:
    """What lies before and behind it goes on by policy; it is not put together with anything."""
    app = simulated(tmp_path, seed=3, windows=12)
    app.run(app.windows)
    settings = with_keep(app.settings, KeepSettings(all_s=0, minimum=1))
    path = settings.warehouse.records(APPLICATION_ID)
    window = app.windows[7].key
    rows = app.ledger.entries(windows={window}, topics={INPUT})
    (path / next(file.path for row in rows for file in row.result.content.written)).unlink()
    with pytest.raises(StoredDataError, match=r"nothing of it expires: .*--accept"):
        expire(settings, run_id="one")
    assert verify(settings, full=True, settle_s=0, accept="no copy").sound
    done = expire(settings, run_id="two")
    assert done.plan.going
    assert window in {key for key, topic in app.ledger.keys() if topic == INPUT}  # noqa: SIM118
    table = RecoveryPointTable(settings.warehouse)
    listed = [instant.id for instant in table.instants(APPLICATION_ID)]
    whole = [p for p in app.points if p.id in listed and p.taken_at_ms < app.windows[7].start_ms]
    assert whole
    for point, status in zip(whole, Contents.of(settings).statuses(whole), strict=True):
        assert status.gives is Restores.EXACT
        assert restored_state(settings, point) == app.state(point)
    assert verify(settings, full=True, settle_s=0).sound


_STEPS = (
    "ktables.snapshots_table:SnapshotsTable.drop",
    "warehouse.points:RecoveryPointTable.expire",
    "upkeep.expire:_Run._write",
    "upkeep.expire:commit",
    "warehouse.ledger:Ledger.put_together",
)
MOMENTS = [
    *((step, after, 1) for step in _STEPS for after in (False, True)),
    *(("upkeep.expire:commit", True, number) for number in (2, 3, 4)),
    *(("warehouse.ledger:Ledger.put_together", after, 3) for after in (False, True)),
]

_SAMPLE = (3, 7, 9)


def _expire_and_die(settings: ApplicationSettings, step: str, after: bool, number: int) -> None:
    """In a process of its own: run until a step begins or has ended for the n-th time."""
    module_name, _, path = step.partition(":")
    owner: Any = import_module(f"kstreams_assets.{module_name}")
    *classes, name = path.split(".")
    for one in classes:
        owner = getattr(owner, one)
    original, calls = getattr(owner, name), itertools.count(1)

    def step_or_die(*args: Any, **kwargs: Any) -> Any:
        is_now = next(calls) == number
        if is_now and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if is_now:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, step_or_die)
    expire(settings, run_id="killed")


@pytest.mark.parametrize(
    ("step", "after", "number"),
    [
        moment if index in _SAMPLE else pytest.param(*moment, marks=pytest.mark.drill)
        for index, moment in enumerate(MOMENTS)
    ],
)
def test_a_kill_at_any_moment_takes_nothing(
    tmp_path: Path, step: str, after: bool, number: int
) -> None:
    app = simulated(tmp_path, seed=MOMENTS.index((step, after, number)), windows=16)
    app = replace(app, per_window=10)
    app.run(app.windows)
    PinsTable(app.settings.warehouse).pin(APPLICATION_ID, app.points[6].id, "audit")
    process = multiprocessing.get_context("spawn").Process(
        target=_expire_and_die, args=(app.settings, step, after, number)
    )
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL

    assert not list(app.ledger.damaged())
    assert verify(app.settings, full=True, record=False, settle_s=0).errors == ()
    require_all_restore(app)
    expire(app.settings, run_id="after")

    require_all_restore(app)
    actions = file_actions(app.settings.warehouse.records(APPLICATION_ID))
    there = set(zip(actions["window"].to_pylist(), actions["topic"].to_pylist(), strict=True))
    assert there <= app.ledger.keys()
    assert verify(app.settings, full=True, record=False, settle_s=0).damages == ()
    uninterrupted = plan_expire(app.settings)
    assert (uninterrupted.going, uninterrupted.changes) == ({}, ())


def test_an_expired_warehouse_is_sound(tmp_path: Path) -> None:
    app = simulated(tmp_path, seed=5, windows=30)
    app.run(app.windows)
    before = info_of(app)
    expire(app.settings, run_id="one")
    after = info_of(app)
    found = verify(app.settings, full=True)
    assert [damage.finding.text for damage in found.damages] == []
    assert (before.expires or 0) > 0
    assert (after.expires, after.due) == (0, 0)
    assert after.points == before.points - (before.expires or 0)
    assert after.put_together > 0
    assert after.bytes < before.bytes
    assert after.newest_exact is not None
    assert before.newest_exact is not None
    assert after.newest_exact.id == before.newest_exact.id


def info_of(app: SimulatedApp) -> ApplicationInfo:
    """What `info` says of it."""
    (found,) = warehouse_info(app.settings.warehouse, [app.settings]).applications
    return found
