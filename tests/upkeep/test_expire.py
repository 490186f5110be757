"""Points go by policy; what stays restores as before, however windows were put together."""

import itertools
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
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.recovery.maintenance import maintain
from kstreams_assets.recovery.retention import retention_of
from kstreams_assets.repository.records import file_actions
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, KeepSettings, RecoveryPointSettings
from kstreams_assets.upkeep.expire import Change, ExpireJob
from kstreams_assets.upkeep.verify import VerifyJob
from tests.killed import exit_code_of
from tests.store.place import warehouse_at
from tests.upkeep.simulated_app import (
    APPLICATION_ID,
    FLIGHT,
    INPUT,
    OUTPUT,
    STATE,
    SimulatedApp,
    copied,
    read_back,
    restored_state,
    with_keep,
)

pytestmark = pytest.mark.e2e

_DAY_S = 86_400
POLICY = KeepSettings(all="3h", daily="3d", minimum=2)


def simulated(
    tmp_path: Path, *, seed: int, windows: int, keep: KeepSettings = POLICY
) -> SimulatedApp:
    return SimulatedApp.at(
        warehouse_at(tmp_path / "warehouse"), seed=seed, windows=windows, keep=keep
    )


def require_all_restore(app: SimulatedApp) -> list[str]:
    """Every point that is listed gives what it gave; its ids."""
    listed = [i.id for i in Repository(app.settings.warehouse, APPLICATION_ID).points.instants()]
    points = [point for point in app.points if point.id in set(listed)]
    assert len(points) == len(listed)
    for point, status in zip(
        points, Repository.open(app.settings).reading(app.settings).statuses(points), strict=True
    ):
        assert status.restorability is Restorability.EXACT, (point.id, status.reason)
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
        Repository(app.settings.warehouse, APPLICATION_ID).pins.pin(point_id, "audit")
    assert len(require_all_restore(app)) == len(app.points)
    bytes_before = sum(size.bytes for size in app.ledger.sizes().values())

    planned = ExpireJob(app.settings).plan()
    done = ExpireJob(app.settings, run_id="one").run()

    listed = require_all_restore(app)
    assert set(listed) == set(planned.kept) == set(done.plan.kept)
    assert set(pinned) <= set(listed)
    assert len(listed) < len(app.points)
    assert {one.what for one in done.topics} >= {Change.DROP, Change.COMPACT}
    assert sum(size.bytes for size in app.ledger.sizes().values()) < 0.8 * bytes_before
    assert not list(app.ledger.damaged())
    again = ExpireJob(app.settings, run_id="two").run()
    assert (again.plan.expiring, again.topics) == ({}, ())
    assert require_all_restore(app) == listed


def test_without_a_policy_the_rule_of_the_recorder_decides(tmp_path: Path) -> None:
    app = simulated(tmp_path, seed=4, windows=12)
    app.run(app.windows, points_in_window=3)
    few = RecoveryPointSettings(keep_all_hours=0)
    settings = replace(app.settings, keep=None, recovery_points=few)
    written = {topic: _records(app, topic) for topic in (INPUT, OUTPUT)}

    done = ExpireJob(settings, run_id="one").run()

    listed = require_all_restore(app)
    assert listed == [point.id for point in app.points[2::3]], "the last of each window"
    assert set(listed) == set(done.plan.kept)
    assert {topic: _records(app, topic) for topic in written} == written, "logs stay whole"
    retention = retention_of(settings)
    assert maintain(settings.warehouse, APPLICATION_ID, retention).points_dropped == 0


def _records(app: SimulatedApp, topic: str) -> int:
    return sum(entry.result.content.records for entry in app.ledger.entries(topics={topic}))


def test_one_change_at_a_time_leaves_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done at once is a matter of time and memory only."""
    made = simulated(tmp_path, seed=2, windows=24)
    made.run(made.windows)
    for point in (made.points[6], made.points[12]):
        Repository(made.settings.warehouse, APPLICATION_ID).pins.pin(point.id, "audit")
    left: list[list[tuple[str, int]]] = []
    for most_rows in (50_000, 1):
        app = copied(made, tmp_path / str(most_rows))
        monkeypatch.setattr("kstreams_assets.upkeep.expire._LOT_ROWS", most_rows)
        done = ExpireJob(app.settings, run_id="one").run()
        assert sum(one.topic == STATE for one in done.topics) > 1
        require_all_restore(app)
        left.append([(one.topic, one.records_after) for one in done.topics])
    assert left[0] == left[1]


def test_years_of_windows_are_a_few_rows(tmp_path: Path) -> None:
    """Expired again and again as windows come: rows and files stay few, bytes near one state."""
    app = simulated(tmp_path, seed=1, windows=60, keep=KeepSettings(all="0s", minimum=2))
    rows: list[int] = []
    for first in range(0, 60, 5):
        app.run(app.windows[first : first + 5])
        ExpireJob(app.settings, run_id=f"run-{first}").run()
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
            Repository(app.settings.warehouse, APPLICATION_ID).pins.pin(point.id, "audit")
        ExpireJob(app.settings, run_id="one").run()
        with pytest.raises(AssertionError):
            require_all_restore(app)


def test_nothing_goes_while_something_is_damaged(tmp_path: Path) -> None:
    """A point that a lost file takes away may come back with the file."""
    app = simulated(tmp_path, seed=3, windows=10)
    app.run(app.windows)
    settings = with_keep(app.settings, KeepSettings(all="0s", minimum=1))
    path = settings.warehouse.records(APPLICATION_ID)
    gone = min(path.rglob(f"{STATE}-*.parquet"), key=lambda file: file.name)
    content = gone.read_bytes()
    gone.unlink()
    with pytest.raises(StoredDataError, match=f"nothing expires: .*{gone.name} is missing"):
        ExpireJob(settings, run_id="one").run()
    (blocker,) = ExpireJob(settings).plan().blockers
    assert gone.name in blocker.found
    assert len(Repository(settings.warehouse, APPLICATION_ID).points.instants()) == 10
    gone.write_bytes(content)
    ExpireJob(settings, run_id="two").run()
    assert len(require_all_restore(app)) == 1


def test_what_was_given_up_holds_nothing_back(tmp_path: Path) -> None:
    """What lies before and behind it goes on by policy; it is not put together with anything."""
    app = simulated(tmp_path, seed=3, windows=12)
    app.run(app.windows)
    settings = with_keep(app.settings, KeepSettings(all="0s", minimum=1))
    path = settings.warehouse.records(APPLICATION_ID)
    window = app.windows[7].key
    rows = app.ledger.entries(windows={window}, topics={INPUT})
    (path / next(file.path for row in rows for file in row.result.content.written)).unlink()
    with pytest.raises(StoredDataError, match=r"nothing expires: .*--accept"):
        ExpireJob(settings, run_id="one").run()
    assert VerifyJob(settings, full=True, settle_s=0, accept="no copy").run().sound
    done = ExpireJob(settings, run_id="two").run()
    assert done.plan.expiring
    assert window in {key for key, topic in app.ledger.keys() if topic == INPUT}  # noqa: SIM118
    table = Repository(settings.warehouse, APPLICATION_ID).points
    listed = [instant.id for instant in table.instants()]
    whole = [p for p in app.points if p.id in listed and p.taken_at_ms < app.windows[7].start_ms]
    assert whole
    for point, status in zip(
        whole, Repository.open(settings).reading(settings).statuses(whole), strict=True
    ):
        assert status.restorability is Restorability.EXACT
        assert restored_state(settings, point) == app.state(point)
    assert VerifyJob(settings, full=True, settle_s=0).run().sound


_STEPS = (
    "repository.snapshots:SnapshotsTable.drop",
    "repository.points:RecoveryPointTable.drop",
    "backup.merge:contents_of",
    "backup.merge:commit",
    "repository.ledger:Ledger.put_together",
    "upkeep.expire:commit",
)
MOMENTS = [
    *((step, after, 1) for step in _STEPS for after in (False, True)),
    *((step, True, number) for step in ("backup.merge:commit", _STEPS[-1]) for number in (2, 3)),
    *(("repository.ledger:Ledger.put_together", after, 3) for after in (False, True)),
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
    ExpireJob(settings, run_id="killed").run()


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
    Repository(app.settings.warehouse, APPLICATION_ID).pins.pin(app.points[6].id, "audit")
    code = exit_code_of(_expire_and_die, app.settings, step, after, number)
    assert code == -signal.SIGKILL

    assert not list(app.ledger.damaged())
    assert VerifyJob(app.settings, full=True, record=False, settle_s=0).run().errors == ()
    require_all_restore(app)
    ExpireJob(app.settings, run_id="after").run()

    require_all_restore(app)
    actions = file_actions(app.settings.warehouse.records(APPLICATION_ID))
    there = set(zip(actions["window"].to_pylist(), actions["topic"].to_pylist(), strict=True))
    assert there <= {*app.ledger.keys()}
    assert VerifyJob(app.settings, full=True, record=False, settle_s=0).run().damages == ()
    uninterrupted = ExpireJob(app.settings).plan()
    assert (uninterrupted.expiring, uninterrupted.changes) == ({}, ())


def test_an_expired_warehouse_is_sound(tmp_path: Path) -> None:
    app = simulated(tmp_path, seed=5, windows=30)
    app.run(app.windows)
    before = info_of(app)
    ExpireJob(app.settings, run_id="one").run()
    after = info_of(app)
    found = VerifyJob(app.settings, full=True).run()
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
