"""Whatever is done to a warehouse: `verify` names it, `ready` says no, no restore begins."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kstreams_assets.drill.readiness import Readiness, readiness
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.ktables.snapshot import SnapshotPartition
from kstreams_assets.ktables.snapshots_table import SnapshotsTable, snapshot_written
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import OffsetRun, TopicPartitionId
from kstreams_assets.recovery import methods
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.run import run_restore
from kstreams_assets.settings import ApplicationSettings, BackupSettings
from kstreams_assets.upkeep.verify import Verification, verify
from kstreams_assets.warehouse.judge import Restores
from kstreams_assets.warehouse.restores import (
    OffsetMapsTable,
    PartitionProduced,
    RestoreMode,
    RestoresTable,
    RestoreState,
    StoredRestore,
)
from tests.restore.planned_application import PlannedApplication
from tests.restore.snapshot_samples import snapshot
from tests.restore.snapshot_tables import Row, write_snapshot
from tests.streams.cluster import unique_name
from tests.streams.workbench import NoSpark, Workbench
from tests.upkeep.damaging import FAULTS, STORE, Fault, Stored

pytestmark = pytest.mark.kafka

_SETTLE_S = 0.2


@pytest.fixture(scope="module")
def app(
    kafka_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlannedApplication]:
    """Two windows, three points, a KTable snapshot and an offset map; verified in full once."""
    connection = KafkaConnection(
        bootstrap_servers=kafka_cluster.bootstrap_servers, request_timeout_seconds=20
    )
    folder = tmp_path_factory.mktemp("app")
    with (
        KafkaCluster(connection) as cluster,
        LocalCluster(folder / "target") as target,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(methods, "why_not_exact", lambda *_: "")
        bench = Workbench(
            cluster,
            Warehouse(folder / "warehouse"),
            NoSpark(),
            unique_name("app"),
            settings=BackupSettings(),
        )
        there = KafkaConnection(
            bootstrap_servers=target.bootstrap_servers, request_timeout_seconds=20
        )
        made = PlannedApplication(bench, there)
        made.prepare()
        _add_snapshot(made)
        _add_map(made)
        found = _verified(made.settings)
        assert found.damages == ()
        assert found.files == 9
        yield made


def _add_snapshot(app: PlannedApplication) -> None:
    application_id, warehouse = app.bench.application_id, app.bench.warehouse
    window = app.bench.windows[0]
    table = warehouse.ktable(application_id, STORE)
    assert isinstance(table, Path)
    write_snapshot(table, [Row(0, offset, window=window.key) for offset in range(3)])
    made = snapshot(
        STORE,
        app.names["changelog"],
        window=window,
        point_id=app.points[0].id,
        partitions=(SnapshotPartition(0, "id", 0, 3, rows=3, bytes=30),),
        written=snapshot_written(table, window.key),
    )
    SnapshotsTable(warehouse).record([replace(made, application_id=application_id)])


def _add_map(app: PlannedApplication) -> None:
    application_id, warehouse = app.bench.application_id, app.bench.warehouse
    orders = TopicPartitionId(app.names["orders"], 0)
    produced = PartitionProduced(orders, orders, (OffsetRun(0, 0, 20),), 20, resumed=0, end=20)
    OffsetMapsTable(warehouse).record(application_id, "earlier", [produced])
    RestoresTable(warehouse).append(
        StoredRestore(
            application_id=application_id,
            restore_id="earlier",
            state=RestoreState.FINISHED,
            changed_at_ms=1,
            created_at_ms=1,
            run_id="run",
            point_id=app.points[0].id,
            group=application_id,
            target_cluster_id="elsewhere",
            target_bootstrap_servers="elsewhere:9092",
            mode=RestoreMode.STATE,
            request="{}",
            topics=(),
        )
    )


def _verified(settings: ApplicationSettings, *, full: bool = True) -> Verification:
    return verify(settings, full=full, settle_s=_SETTLE_S, run_id="test")


@pytest.fixture
def copied(app: PlannedApplication, tmp_path: Path) -> tuple[ApplicationSettings, Stored]:
    """The application with a copy of the warehouse."""
    root = tmp_path / "warehouse"
    assert isinstance(app.bench.warehouse.root, Path)
    shutil.copytree(app.bench.warehouse.root, root)
    settings = replace(app.settings, warehouse=Warehouse(root))
    return settings, Stored(root, app.bench.application_id, app.names)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault(
    app: PlannedApplication, copied: tuple[ApplicationSettings, Stored], fault: Fault
) -> None:
    settings, stored = copied
    fault.do(stored)
    time.sleep(0.01)
    refused_before = _refused(app, settings, fault.point)
    found = _verified(settings)
    assert not found.sound
    told = [one for one in found.errors if one.place.startswith(fault.place)]
    assert told, [str(one.finding) for one in found.damages]
    if fault.topic is not None:
        window, topic = fault.window, app.names[fault.topic]
        assert any(
            (one.window, one.topic, one.partition) == (window, topic, fault.partition)
            for one in told
        ), told
    ready = readiness(settings)
    assert not ready.ready
    assert any(fault.place.rstrip("/") in text or told[0].problem in text for text in _texts(ready))
    refused = _refused(app, settings, fault.point)
    if fault.needed:
        assert refused is not None
        assert refused_before is not None, "without a verification"
    if fault.topic is not None and fault.needed:
        for refusal in (refused, refused_before):
            assert app.names[fault.topic] in str(refusal)
            assert str(fault.window) in str(refusal)


def _texts(ready: Readiness) -> list[str]:
    return [str(one) for one in ready.against]


def _refused(
    app: PlannedApplication, settings: ApplicationSettings, point: int = 0
) -> KStreamsAssetsError | None:
    """Why a restore of a point does not begin; nothing is made on the target."""
    request = app.request(point_id=app.points[point].id, accept=Restores.UNPROVEN)
    refused: KStreamsAssetsError | None = None
    try:
        plan = plan_restore(settings, request, app.target)
        run_restore(settings, plan, app.target, spark=_Begun(), run_id="restore")
    except KStreamsAssetsError as error:
        refused = error
    except _BegunError:
        with app.on_target() as cluster:
            cluster.delete_topics([n for n in cluster.metadata().topics if n in app.names.values()])
    with app.on_target() as cluster:
        assert not {*cluster.metadata().topics} & {*app.names.values()}
    return refused


class _BegunError(Exception):
    """The restore has made its topics and begins to write."""


class _Begun:
    @property
    def spark_session(self) -> SparkSession:
        raise _BegunError

    def check(self) -> None:
        """Nothing is missing."""


def test_without_a_fault(
    app: PlannedApplication, copied: tuple[ApplicationSettings, Stored]
) -> None:
    settings, _ = copied
    assert _refused(app, settings) is None
    for full in (False, True):
        assert _verified(settings, full=full).damages == ()
    assert not [t for t in _texts(readiness(settings)) if "verif" in t or "table" in t]
