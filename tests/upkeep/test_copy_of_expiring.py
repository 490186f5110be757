"""A copy of a warehouse whose points expire meanwhile: every point that it lists restores."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import KeepSettings
from kstreams_assets.store import StorePath
from kstreams_assets.upkeep import copy_plan
from kstreams_assets.upkeep.copy import CopyJob
from kstreams_assets.upkeep.expire import ExpireJob
from kstreams_assets.upkeep.second_copy import promote
from tests.store.place import warehouse_at
from tests.upkeep.simulated_app import (
    APPLICATION_ID,
    FLIGHT,
    INPUT,
    SimulatedApp,
    read_back,
    restored_state,
)

pytestmark = [pytest.mark.e2e, pytest.mark.on_store]

POLICY = KeepSettings(all="3h", daily="3d", minimum=2)


def _points(place: StorePath) -> list[str]:
    return [i.id for i in Repository(Warehouse(place), APPLICATION_ID).points.instants()]


def _require_all_restore(
    app: SimulatedApp, place: StorePath, *, every: int = 1, at_work: bool = False
) -> list[str]:
    """Every point that the copy lists gives what the application held; their ids.

    While a backup is `at_work`, its window and the newest points come after each other.
    """
    settings = replace(app.settings, warehouse=Warehouse(place))
    listed = _points(place)
    points = [point for point in app.points if point.id in set(listed)]
    assert len(points) == len(listed)
    statuses = Repository.open(settings).reading(settings).statuses(points)
    if at_work:
        while not statuses[-1].covered:
            del statuses[-1], points[-1]
    for point, status in zip(points, statuses, strict=True):
        assert status.restorability is Restorability.EXACT, (point.id, status.reason)
    for point in points[::every]:
        assert restored_state(settings, point) == app.state(point), point.id
        for topic in (INPUT, FLIGHT):
            there = read_back(settings, point, topic, from_committed=True)
            assert [row for of_it in there.values() for row in of_it] == app.needed(point, topic)
    return listed


def test_before_and_after(tmp_path: Path) -> None:
    app = SimulatedApp.at(warehouse_at(tmp_path / "warehouse"), seed=3, windows=40, keep=POLICY)
    app.run(app.windows[:30])
    to = warehouse_at(tmp_path / "copy").root
    CopyJob(app.settings.warehouse, to).run()
    before = _require_all_restore(app, to, every=5)
    ExpireJob(app.settings, run_id="one").run()
    assert CopyJob(app.settings.warehouse, to).run().lacking == ()
    after = _require_all_restore(app, to)
    assert len(after) < len(before)
    app.run(app.windows[30:])
    ExpireJob(app.settings, run_id="two").run()
    assert CopyJob(app.settings.warehouse, to).run().lacking == ()
    last = _require_all_restore(app, to)
    promote(to)
    assert _require_all_restore(app, to, every=5) == last
    settings = replace(app.settings, warehouse=Warehouse(to))
    assert ExpireJob(settings, run_id="three").run().plan.expiring == {}


def test_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backups, expire and copies: what the copy lists is what it can restore, after each run."""
    monkeypatch.setattr(copy_plan, "_BETWEEN_COMMITS_S", 2.0)
    app = SimulatedApp.at(warehouse_at(tmp_path / "warehouse"), seed=5, windows=60, keep=POLICY)
    app.run(app.windows[:20])
    to = warehouse_at(tmp_path / "copy").root
    ended = threading.Event()
    failures: list[BaseException] = []

    def change() -> None:
        try:
            for first in range(20, 60, 5):
                app.run(app.windows[first : first + 5])
                ExpireJob(app.settings, run_id=f"run-{first}").run()
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            ended.set()

    writer = threading.Thread(target=change)
    writer.start()
    runs = 0
    try:
        while not ended.is_set():
            assert CopyJob(app.settings.warehouse, to).run().lacking == ()
            _require_all_restore(app, to, every=4, at_work=True)
            runs += 1
    finally:
        writer.join()
    assert not failures
    assert runs >= 3
    CopyJob(app.settings.warehouse, to).run()
    assert _require_all_restore(app, to) == _points(app.settings.warehouse.root)
