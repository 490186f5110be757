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
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import (
    PartitionProduced,
    RestoreMode,
    RestoreState,
    StoredRestore,
)
from kstreams_assets.model.snapshot import SnapshotPartition
from kstreams_assets.offsets import OffsetRun, TopicPartitionId
from kstreams_assets.recovery import methods
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import snapshot_written
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.records import restore_records
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.upkeep.verify import Verification, VerifyJob
from tests.restore.planned_application import PlannedApplication
from tests.restore.snapshot_samples import snapshot
from tests.restore.snapshot_tables import Row, write_snapshot
from tests.streams.cluster import connection_to, unique_name
from tests.streams.workbench import NoSpark, Workbench
from tests.upkeep.damaging import FAULTS, STORE, Fault, Stored

pytestmark = pytest.mark.kafka

_SETTLE_S = 0.2


@pytest.fixture(scope="module")
def app(
    kafka_cluster: LocalCluster,
    guarded_cluster: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PlannedApplication]:
    """Two windows, three points, a KTable snapshot and an offset map; verified in full once."""
    connection = connection_to(kafka_cluster.bootstrap_servers)
    folder = tmp_path_factory.mktemp("app")
    with (
        KafkaCluster(connection) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(methods, "why_not_exact", lambda *_: "")
        bench = Workbench(
            cluster,
            Warehouse(folder / "warehouse"),
            NoSpark(),
            unique_name("app"),
        )
        there = connection_to(guarded_cluster.internal_bootstrap_servers)
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
    Repository(warehouse, application_id).snapshots.record(
        [replace(made, application_id=application_id)]
    )


def _add_map(app: PlannedApplication) -> None:
    application_id, warehouse = app.bench.application_id, app.bench.warehouse
    orders = TopicPartitionId(app.names["orders"], 0)
    produced = PartitionProduced(orders, orders, (OffsetRun(0, 0, 20),), 20, resumed=0, end=20)
    Repository(warehouse, application_id).offset_maps.record("earlier", [produced])
    Repository(warehouse, application_id).restores.append(
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
    return VerifyJob(settings, full=full, settle_s=_SETTLE_S, run_id="test").run()


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
        for blocker in (refused, refused_before):
            assert app.names[fault.topic] in str(blocker)
            assert str(fault.window) in str(blocker)


def _texts(ready: Readiness) -> list[str]:
    return [str(one) for one in ready.against]


def _refused(
    app: PlannedApplication, settings: ApplicationSettings, point: int = 0
) -> KStreamsAssetsError | None:
    """Why a restore of a point does not begin; nothing is made on the target."""
    request = app.request(point_id=app.points[point].id, accept=Restorability.UNPROVEN)
    refused: KStreamsAssetsError | None = None
    try:
        plan = plan_restore(settings, request, app.target)
        restore_records(RunContext(settings, app.target, _Begun(), "restore"), plan)
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
