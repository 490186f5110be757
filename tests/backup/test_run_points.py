"""The points that a backup run takes itself, with the recorder replaced."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.backup import run as run_points
from kstreams_assets.backup.run import BackupRun, window_backups
from kstreams_assets.backup.windows import WindowEdges
from kstreams_assets.errors import ClusterUnavailableError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import WarehouseLockedError
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import RecoveryPointSettings
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.warehouse.point import RecoveryPoint
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.spans import Position, Window
from tests.backup.held_records import hold_records
from tests.backup.samples import APPLICATION_ID, application, backup, cut, point, result, span
from tests.backup.samples import window as window_of
from tests.streams.workbench import NoSpark

CLOSED = window_of(3)
SETTINGS = RecoveryPointSettings(seal_bytes=1, closing_seal_bytes=77)
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
def run(tmp_path: Path) -> BackupRun:
    """Over an application with a changelog that is backed up to offset 10."""
    warehouse = Warehouse(tmp_path)
    stored = result(span(0, 10, topic="log", continues=False))
    ledger = Ledger(warehouse, APPLICATION_ID)
    ledger.record([backup(stored, topic="log")], run_id="run-1")
    hold_records(warehouse, APPLICATION_ID)
    topic = AppTopic("log", TopicRoles({TopicRole.CHANGELOG}))
    return BackupRun(
        application=application(topic),
        topics=(topic,),
        cluster=cast("KafkaCluster", None),
        warehouse=warehouse,
        spark=NoSpark(),
        run_id="run-2",
        begins_ms=0,
        recovery_points=SETTINGS,
    )


def _wishes(closes_window_end_ms: int | None) -> Mapping[str, Any]:
    return {
        "closes_window_end_ms": closes_window_end_ms,
        "held": HELD,
        "seal_bytes": SETTINGS.closing_seal_bytes,
    }


def test_the_last_point_saves_only_what_no_backup_holds(
    run: BackupRun, recorder: _Recorder
) -> None:
    taken = run.take_last_point()
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
    run: BackupRun,
    recorder: _Recorder,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    recorder.error = error
    with caplog.at_level(logging.WARNING):
        assert run.take_last_point() is None
    assert str(error) in caplog.text


def test_other_errors_are_not_hidden(run: BackupRun, recorder: _Recorder) -> None:
    recorder.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        run.take_last_point()


@pytest.mark.parametrize(
    ("closed", "taken_at_ms", "asked"),
    [
        pytest.param(CLOSED, 29, [CLOSED.end_ms], id="it has no point"),
        pytest.param(CLOSED, 30, [], id="it has one"),
        pytest.param(window_of(0), 29, [], id="it is backed up already"),
    ],
)
def test_the_newest_closed_window_gets_a_point_if_it_has_none(
    run: BackupRun, recorder: _Recorder, closed: Window, taken_at_ms: int, asked: list[int]
) -> None:
    RecoveryPointTable(run.warehouse).append(point(taken_at_ms, cut(0, 9)))
    run.ensure_closing_point(closed)
    assert recorder.asked == [_wishes(end_ms) for end_ms in asked]


def test_points_of_windows_whose_spans_had_holes_are_looked_up(run: BackupRun) -> None:
    RecoveryPointTable(run.warehouse).append_many(
        [point(at, cut(0, end, topic="log")) for at, end in ((2, 4), (4, 9), (15, 9))]
    )
    whole = backup(result(span(0, 10, topic="log")), topic="log")
    thinned = replace(whole, spans=(replace(whole.spans[0], first_hole=4),))
    for backups, unproven in (([whole], [()]), ([thinned, whole], [("point-4",), ()])):
        (window,) = window_backups(
            run.warehouse, run.application, [whole.window], backups, WindowEdges([])
        )
        assert [topic.unproven_points for topic in window.topics] == unproven
