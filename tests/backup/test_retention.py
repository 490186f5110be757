"""How backups bear on which recovery points are kept."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dagster._core.test_utils import freeze_time

from kstreams_assets.app.model import AppTopic, TopicRole
from kstreams_assets.backup.ledger import Ledger
from kstreams_assets.backup.retention import retention_of
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.positions import TopicPartitionId
from kstreams_assets.settings import (
    ApplicationSettings,
    RecoveryPointSettings,
    WindowSchedule,
)
from kstreams_assets.warehouse.layout import Warehouse
from tests.backup.samples import APPLICATION_ID, application, backup, result, span

HOUR_MS = 3_600_000
CHANGELOG = AppTopic("t", frozenset({TopicRole.CHANGELOG}))


def _settings(root: Path) -> ApplicationSettings:
    return ApplicationSettings(
        application=application(CHANGELOG),
        topics=(CHANGELOG,),
        connection=KafkaConnection(bootstrap_servers="localhost:1"),
        warehouse=Warehouse(root),
        windows=WindowSchedule.every("hour", start="2026-10-20"),
        recovery_points=RecoveryPointSettings(keep_all_s=7),
    )


def test_edges_are_those_of_closed_windows(tmp_path: Path) -> None:
    begin_ms = round(datetime(2026, 10, 20, tzinfo=UTC).timestamp() * 1000)
    retention = retention_of(_settings(tmp_path))
    with freeze_time(datetime(2026, 10, 20, 4, 30, tzinfo=UTC)):
        edges = sorted(retention.edges_ms(begin_ms + 2 * HOUR_MS + 1, begin_ms + 9 * HOUR_MS))
    assert edges == [begin_ms + hour * HOUR_MS for hour in (2, 3, 4)]
    assert retention.keep_all_s == 7


def test_what_the_ledger_names_and_holds(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    retention = retention_of(settings, pinned=["pinned"])
    assert set(retention.named()) == {"pinned"}
    assert retention.proven() == {}
    whole = replace(result(span(0, 5)), contiguity_known=True)
    thinned = replace(result(span(5, 9, index=1)), contiguity_known=True, first_hole=7)
    unseen = result(span(9, 12, index=2))
    backups = [
        replace(backup(found, index=i), recovery_point_id=point_id)
        for i, (found, point_id) in enumerate(
            [(whole, "point-1"), (thinned, "point-2"), (unseen, None)]
        )
    ]
    Ledger(settings.warehouse, APPLICATION_ID).record(backups, run_id="run-1")
    assert set(retention.named()) == {"pinned", "point-1", "point-2"}
    partition = TopicPartitionId("t", 0)
    assert retention.proven() == {partition: [("life-1", 0, 5), ("life-1", 5, 7)]}
