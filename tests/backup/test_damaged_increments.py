"""A lost or damaged file of an increment costs that increment, and keeps no window open."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from kstreams_assets.backup.commits import Committer
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import KeepSettings
from kstreams_assets.upkeep.verify import VerifyJob
from tests.backup.simulated_run import backup_run, without_cluster
from tests.upkeep.simulated_app import INPUT, ROLES, SimulatedApp


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _changed(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


DAMAGES: Final[list[Callable[[Path], None]]] = [Path.unlink, _emptied, _changed]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedApp:
    """Three windows of two increments each, as a follower leaves them."""
    app = SimulatedApp.at(
        Warehouse(tmp_path / "warehouse"), seed=1, windows=3, keep=KeepSettings(all="12d")
    )
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "record", Ledger.record_increment)
        for of in app.windows:
            middle = (of.start_ms + of.end_ms) // 2
            for half, (start_ms, end_ms) in enumerate(((of.start_ms, middle), (middle, of.end_ms))):
                part = of.increment(half, start_ms, end_ms)
                app._work(of)
                app.take(part.end_ms - 1000)
                app.back_up(part)
    return app


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cluster(monkeypatch)


def _increment(app: SimulatedApp, number: int) -> tuple[LedgerEntry, Path]:
    """Of the first window: a partition of the input with records in both halves."""
    entries = [e for e in app.ledger.increments_of(app.windows[0]) if e.result.content.written]
    of_input = [e for e in entries if e.result.partition.topic == INPUT]
    (partition, _), *_ = Counter(e.result.partition for e in of_input).most_common(1)
    entry = [e for e in of_input if e.result.partition == partition][number]
    path = app.settings.warehouse.records(app.settings.application_id)
    assert isinstance(path, Path)
    return entry, path / entry.result.content.written[0].path


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 1])
def test_it_costs_that_increment(
    app: SimulatedApp,
    damage: Callable[[Path], None],
    number: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = _damaged_points(app)
    entry, path = _increment(app, number)
    damage(path)
    with caplog.at_level(logging.WARNING):
        backup_run(app).execute(app.windows, newest_closed=None)
    assert {w.key for w in app.ledger.done({*ROLES})} == {w.key for w in app.windows}
    plan = entry.result.plan
    assert f"offsets {plan.start} to {plan.end - 1} are lost" in caplog.text
    # The sound increment of the partition stays, and everything else is of its window.
    left = [e for window in app.windows for e in app.ledger.increments_of(window)]
    assert {e.result.partition for e in left} == {plan.partition}
    keys = {e.result.plan.window.first_window for e in left}
    assert keys == {app.windows[0].key}
    damages = VerifyJob(app.settings, full=True, record=False, settle_s=0).run().damages
    assert {(d.window, d.topic, d.partition) for d in damages} == {
        (app.windows[0].key, plan.partition.topic, plan.partition.partition)
    }
    assert _damaged_points(app) - before <= _points_that_need(app, plan.partition, plan.start)


def test_kafka_still_has_it(app: SimulatedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, path = _increment(app, 0)
    content, asked = path.read_bytes(), []
    path.unlink()

    def again(_self: Committer, windows: Sequence[Window], *_: object) -> None:
        asked.extend(windows)
        path.write_bytes(content)

    monkeypatch.setattr(Committer, "back_up", again)
    backup_run(app).execute(app.windows, newest_closed=None)
    assert asked == [entry.result.plan.window]
    assert {w.key for w in app.ledger.done({*ROLES})} == {w.key for w in app.windows}
    assert [e for window in app.windows for e in app.ledger.increments_of(window)] == []
    assert not VerifyJob(app.settings, full=True, record=False, settle_s=0).run().damages


def _damaged_points(app: SimulatedApp) -> set[str]:
    settings = app.settings
    points = Repository(settings.warehouse, settings.application_id).points.newest(1000)
    statuses = (
        Repository.of(settings.warehouse, settings.application.application_id)
        .reading(settings.application)
        .statuses(points)
    )
    return {point.id for point, status in zip(points, statuses, strict=True) if not status.covered}


def _points_that_need(app: SimulatedApp, partition: TopicPartitionId, start: int) -> set[str]:
    settings = app.settings
    points = Repository(settings.warehouse, settings.application_id).points.newest(1000)
    return {
        point.id
        for point in points
        if (cut := point.cut(partition)) is not None and cut.end > start
    }
