"""A view is one state of the tables: what is committed meanwhile does not show in it."""

from pathlib import Path

import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import WantedPartition
from kstreams_assets.repository import table as tables
from kstreams_assets.repository.contents import View
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import KeepSettings
from kstreams_assets.store import StorePath
from tests.upkeep.simulated_app import SimulatedApp


@pytest.fixture
def app(tmp_path: Path) -> SimulatedApp:
    warehouse = Warehouse(tmp_path / "warehouse")
    app = SimulatedApp.at(warehouse, seed=5, windows=3, keep=KeepSettings())
    app.run(app.windows[:2], points_in_window=2)
    return app


def _opened(app: SimulatedApp) -> View:
    return Repository.open(app.settings).reading(app.settings, inspect_timeout_s=0)


def _records(view: View, app: SimulatedApp) -> list[int]:
    point = app.points[0]
    wanted = [WantedPartition(cut, cut.records_from(cut.log_start)) for cut in point.partitions]
    holdings = view.contents(point, wanted)
    return [holdings[one.cut.id].records for one in wanted]


def test_later_commits_do_not_show(app: SimulatedApp) -> None:
    early, late = _opened(app), _opened(app)
    expected = early.statuses(app.points), _records(early, app), early.points.instants()
    versions = early.ledger.version(), early.ledger.records_version()
    app.run(app.windows[2:])
    repo = Repository.open(app.settings)
    assert repo.ledger.version() > versions[0]
    assert repo.ledger.records_version() > versions[1]
    # The list of files is read now, as it was then.
    known = app.points[: len(expected[0])]
    assert (late.ledger.version(), late.ledger.records_version()) == versions
    assert (late.statuses(known), _records(late, app)) == expected[:2]
    assert early.points.instants() == expected[2]
    newest = app.points[-1:]
    assert not late.statuses(newest)[0].covered
    assert _opened(app).statuses(newest)[0].covered


def test_each_log_is_looked_at_for_one_state(
    app: SimulatedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = _opened(app)
    view.statuses(app.points)
    _records(view, app)
    seen: list[StorePath] = []
    look = tables.log_state
    monkeypatch.setattr(tables, "log_state", lambda path: (seen.append(path), look(path))[1])
    view.statuses(app.points)
    _records(view, app)
    assert seen == []
