"""The points that a backup run takes itself, with the recorder replaced."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.backup import run as run_points
from kstreams_assets.backup.context import RunContext
from kstreams_assets.backup.recorded import window_backups
from kstreams_assets.backup.run import ensure_closing_point, take_last_point
from kstreams_assets.backup.windows import WindowEdges
from kstreams_assets.errors import ClusterUnavailableError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import Position, Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, RecoveryPointSettings, WindowSchedule
from kstreams_assets.store.locks import WarehouseLockedError
from tests.backup.held_records import hold_records
from tests.backup.samples import APPLICATION_ID, application, backup, cut, point, result, span
from tests.backup.samples import window as window_of
from tests.streams.workbench import NoSpark

CLOSED = window_of(3)
SETTINGS = RecoveryPointSettings(seal_mib=1, closing_seal_mib=77)
HELD = {TopicPartitionId("log", 0): Position("life-1", 10)}


@dataclass
class _Recorder:
    """Notes what it was asked for."""

    error: Exception | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, *arguments: object, new_lineage: bool) -> "_Recorder":
        assert not new_lineage
        assert arguments[-1] is SETTINGS
        return self

    def take(self, **wishes: Any) -> RecoveryPoint:
        self.asked.append(wishes)
        if self.error:
            raise self.error
        return point(35, cut(0, 9))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> _Recorder:
    """Stands in for `Recorder`."""
    made = _Recorder()
    monkeypatch.setattr(run_points, "Recorder", made)
    return made


@pytest.fixture
def run(tmp_path: Path) -> RunContext:
    """Over an application with a changelog that is backed up to offset 10."""
    warehouse = Warehouse(tmp_path)
    stored = result(span(0, 10, topic="log", continues=False))
    ledger = Ledger(warehouse, APPLICATION_ID)
    ledger.record([backup(stored, topic="log")], run_id="run-1")
    hold_records(warehouse, APPLICATION_ID)
    topic = AppTopic("log", TopicRoles({TopicRole.CHANGELOG}))
    settings = ApplicationSettings(
        application=application(topic),
        topics=(topic,),
        connection=KafkaConnection(bootstrap_servers="localhost:1"),
        warehouse=warehouse,
        windows=WindowSchedule.every("hour", start="2026-10-20"),
        recovery_points=SETTINGS,
    )
    return RunContext(settings, (topic,), cast("KafkaCluster", None), NoSpark(), "run-2", 0)


def _wishes(closes_window_end_ms: int | None) -> Mapping[str, Any]:
    return {
        "closes_window_end_ms": closes_window_end_ms,
        "held": HELD,
        "seal_bytes": SETTINGS.closing_seal_bytes,
        "commit_wait_s": 0.0,
    }


def test_the_last_point_saves_only_what_no_backup_holds(
    run: RunContext, recorder: _Recorder
) -> None:
    taken = take_last_point(run)
    assert taken is not None
    assert taken.id == "point-35"
    assert recorder.asked == [_wishes(None)]


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnavailableError(
            bootstrap_servers="localhost:1", operation="describe", timeout_s=1, reason="down"
        ),
        WarehouseLockedError(path=Path("lock"), holder="another", waited_s=1),
    ],
    ids=["cluster", "lock"],
)
def test_a_last_point_that_cannot_be_taken_is_a_warning(
    run: RunContext,
    recorder: _Recorder,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    recorder.error = error
    with caplog.at_level(logging.WARNING):
        assert take_last_point(run) is None
    assert str(error) in caplog.text


def test_other_errors_are_not_hidden(run: RunContext, recorder: _Recorder) -> None:
    recorder.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        take_last_point(run)


@pytest.mark.parametrize(
    ("closed", "taken_at_ms", "asked"),
    [
        pytest.param(CLOSED, 29, [CLOSED.end_ms], id="it has no point"),
        pytest.param(CLOSED, 30, [], id="it has one"),
        pytest.param(window_of(0), 29, [], id="it is backed up already"),
    ],
)
def test_the_newest_closed_window_gets_a_point_if_it_has_none(
    run: RunContext, recorder: _Recorder, closed: Window, taken_at_ms: int, asked: list[int]
) -> None:
    Repository(run.settings.warehouse, APPLICATION_ID).points.append(point(taken_at_ms, cut(0, 9)))
    ensure_closing_point(run, closed)
    assert recorder.asked == [_wishes(end_ms) for end_ms in asked]


def test_points_of_windows_whose_spans_had_holes_are_looked_up(run: RunContext) -> None:
    Repository(run.settings.warehouse, APPLICATION_ID).points.append_many(
        [point(at, cut(0, end, topic="log")) for at, end in ((2, 4), (4, 9), (15, 9))]
    )
    whole = backup(result(span(0, 10, topic="log")), topic="log")
    thinned = replace(whole, spans=(replace(whole.spans[0], first_hole=4),))
    for backups, unproven in (([whole], [()]), ([thinned, whole], [("point-4",), ()])):
        (window,) = window_backups(run.repo, [whole.window], backups, WindowEdges([]))
        assert [topic.unproven_points for topic in window.topics] == unproven
