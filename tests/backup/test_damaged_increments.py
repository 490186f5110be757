"""A lost or damaged file of an increment costs that increment, and keeps no window open."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.run import BackupRun
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import LockHandle
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import BackupSettings, KeepSettings
from kstreams_assets.upkeep.verify import verify
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.ledger import INCREMENT, Ledger, LedgerEntry, increment_key
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.spans import Window
from tests.upkeep.simulated_app import INPUT, ROLES, SimulatedApp


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _changed(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


DAMAGES: Final[list[Callable[[Path], None]]] = [Path.unlink, _emptied, _changed]


@dataclass(frozen=True, slots=True)
class _Run(BackupRun):
    """Without a cluster: what would be read again is given by `again`."""

    @contextmanager
    def _locked(self) -> Iterator[LockHandle]:
        with self._ledger.locked("test", 5) as lock:
            yield lock

    def _complete(self, window: Window, lock: LockHandle) -> Any:
        return []

    def _back_up(self, windows: Sequence[Window], lock: LockHandle) -> list[WindowBackup]:
        AGAIN(windows)
        return []

    def take_last_point(self) -> None:
        pass


AGAIN: Callable[[Sequence[Window]], None] = lambda _: None  # noqa: E731


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedApp:
    """Three windows of two increments each, as a follower leaves them."""
    app = SimulatedApp.at(
        Warehouse(tmp_path / "warehouse"), seed=1, windows=3, keep=KeepSettings(all_s=10**6)
    )
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "record", Ledger.record_increment)
        for of in app.windows:
            middle = (of.start_ms + of.end_ms) // 2
            for half, (start_ms, end_ms) in enumerate(((of.start_ms, middle), (middle, of.end_ms))):
                part = Window(start_ms, end_ms, increment_key(of, half))
                app._work(of)
                app.take(part.end_ms - 1000)
                app.back_up(part)
    return app


def _run(app: SimulatedApp) -> _Run:
    nothing: Any = SimpleNamespace(check=lambda: None)
    settings = app.settings
    planner: Any = SimpleNamespace(
        edges=lambda _: SimpleNamespace(closing_point=lambda _: None, point_before=lambda _: None),
        described=dict,
    )

    class Run(_Run):
        __slots__ = ()

        def _planner(self) -> Any:
            return planner

    return Run(
        settings.application,
        settings.topics,
        nothing,
        settings.warehouse,
        nothing,
        "run",
        0,
        BackupSettings(),
    )


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
        _run(app).execute(app.windows, newest_closed=None)
    assert {w.key for w in app.ledger.done({*ROLES})} == {w.key for w in app.windows}
    plan = entry.result.plan
    assert f"offsets {plan.start} to {plan.end - 1} are lost" in caplog.text
    # The sound increment of the partition stays, and everything else is of its window.
    left = [e for window in app.windows for e in app.ledger.increments_of(window)]
    assert {e.result.partition for e in left} == {plan.partition}
    keys = {e.result.plan.window.key.partition(INCREMENT)[0] for e in left}
    assert keys == {app.windows[0].key}
    damages = verify(app.settings, full=True, record=False, settle_s=0).damages
    assert {(d.window, d.topic, d.partition) for d in damages} == {
        (app.windows[0].key, plan.partition.topic, plan.partition.partition)
    }
    assert _damaged_points(app) - before <= _points_that_need(app, plan.partition, plan.start)


def test_kafka_still_has_it(app: SimulatedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, path = _increment(app, 0)
    content, asked = path.read_bytes(), []
    path.unlink()

    def again(windows: Sequence[Window]) -> None:
        asked.extend(windows)
        path.write_bytes(content)

    monkeypatch.setitem(globals(), "AGAIN", again)
    _run(app).execute(app.windows, newest_closed=None)
    assert asked == [entry.result.plan.window]
    assert {w.key for w in app.ledger.done({*ROLES})} == {w.key for w in app.windows}
    assert [e for window in app.windows for e in app.ledger.increments_of(window)] == []
    assert not verify(app.settings, full=True, record=False, settle_s=0).damages


def _damaged_points(app: SimulatedApp) -> set[str]:
    settings = app.settings
    points = RecoveryPointTable(settings.warehouse).newest(settings.application_id, 1000)
    statuses = Contents(settings.warehouse, settings.application).statuses(points)
    return {point.id for point, status in zip(points, statuses, strict=True) if not status.covered}


def _points_that_need(app: SimulatedApp, partition: TopicPartitionId, start: int) -> set[str]:
    settings = app.settings
    points = RecoveryPointTable(settings.warehouse).newest(settings.application_id, 1000)
    return {
        point.id
        for point in points
        if (cut := point.cut(partition)) is not None and cut.end > start
    }
