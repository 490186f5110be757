"""How backups and restores bear on which recovery points are kept."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.maintenance import maintain
from kstreams_assets.recovery.retention import retention_of
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, RecoveryPointSettings, WindowSchedule
from tests.backup.held_records import hold_records
from tests.backup.samples import APPLICATION_ID, application, backup, point, result, span
from tests.clock import freeze_time

HOUR_MS = 3_600_000
CHANGELOG = AppTopic("t", TopicRoles({TopicRole.CHANGELOG}))


def _settings(root: Path) -> ApplicationSettings:
    return ApplicationSettings(
        application=application(CHANGELOG),
        topics=(CHANGELOG,),
        connection=KafkaConnection(bootstrap_servers="localhost:1"),
        warehouse=Warehouse(root),
        windows=WindowSchedule.every("hour", start="2026-10-20"),
        recovery_points=RecoveryPointSettings(keep_all_hours=7 / 3_600),
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
    retention = retention_of(settings)
    assert set(retention.named()) == set()
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
    hold_records(settings.warehouse, APPLICATION_ID)
    assert set(retention.named()) == {"point-1", "point-2"}
    partition = TopicPartitionId("t", 0)
    assert retention.proven() == {partition: [("life-1", 0, 5), ("life-1", 5, 7)]}


def _restore(state: RestoreState, point_id: str) -> StoredRestore:
    return StoredRestore(
        application_id=APPLICATION_ID,
        restore_id=f"{point_id}-1f2e3d4c",
        state=state,
        changed_at_ms=time.time_ns() // 1_000_000,
        created_at_ms=1,
        run_id="run-1",
        point_id=point_id,
        group=APPLICATION_ID,
        target_cluster_id="cluster-2",
        target_bootstrap_servers="localhost:2",
        mode=RestoreMode.STATE,
        request="{}",
        topics=(),
    )


def test_the_point_of_a_restore_stays_until_it_is_finished(tmp_path: Path) -> None:
    """The restore begins when the recorder runs already."""
    settings = _settings(tmp_path)
    retention = retention_of(settings)
    points, restores = Repository.open(settings).points, Repository.open(settings).restores
    now_ms = time.time_ns() // 1_000_000
    old = [now_ms // HOUR_MS * HOUR_MS - 2 * HOUR_MS + second * 1000 for second in range(1, 4)]
    points.append_many(point(at_ms) for at_ms in (*old, now_ms))
    first, restored, last = (f"point-{at_ms}" for at_ms in old)

    restores.append(_restore(RestoreState.PLANNED, restored))
    restores.append(replace(_restore(RestoreState.PLANNED, first), application_id="shop-eu"))
    assert maintain(settings.warehouse, APPLICATION_ID, retention).points_dropped == 1
    left = [instant.id for instant in points.instants()]
    assert left == [restored, last, f"point-{now_ms}"]

    restores.append(_restore(RestoreState.COMMITTED, restored))
    assert maintain(settings.warehouse, APPLICATION_ID, retention).points_dropped == 0
    restores.append(_restore(RestoreState.FINISHED, restored))
    assert maintain(settings.warehouse, APPLICATION_ID, retention).points_dropped == 1
    left = [instant.id for instant in points.instants()]
    assert left == [last, f"point-{now_ms}"]
