"""A live application, backed up window by window and expired: each point that stays goes on."""

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples.order_processor.application import create_topics
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.spans import Window
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import InputsExtent
from kstreams_assets.settings import ApplicationSettings, KeepSettings, WindowSchedule
from kstreams_assets.upkeep.expire import Change, ExpireJob
from spark_resources.resource import SparkSessionResource
from spark_resources.work import Spark
from tests.restore.control import by_key, newest
from tests.restore.order_run import go_on
from tests.restore.trial import Restored, Source, SourceRun, end_of, own_names, restore, settings_of
from tests.store.place import warehouse_at
from tests.streams.cluster import connection_to, passing_cluster, unique_name
from tests.streams.feed import Feed
from tests.streams.orders import PARTITIONS, OrderTopics, order_processor, orders

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e]

_RATE = 500
_EVERY = 10


@dataclass(frozen=True, slots=True)
class _Lived:
    run: SourceRun
    topics: OrderTopics
    points: list[RecoveryPoint]


def _lived(folder: Path, spark: Spark, windows: int) -> _Lived:
    """Run the application, and back windows of half a second up, some at a time."""
    topics = OrderTopics(unique_name("orders"), unique_name("o") + ".")
    today = datetime.now(UTC)
    with (
        passing_cluster(folder / "source") as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
    ):
        servers = local.bootstrap_servers
        create_topics(servers, topic_prefix=topics.prefix, partitions=PARTITIONS)
        settings = replace(
            settings_of(topics.application, servers, folder),
            # The windows are those of the test; that of the schedule is open for hours.
            windows=WindowSchedule.every("day", start=f"{today:%Y-%m-%d}"),
            keep=KeepSettings(all="0s", minimum=2),
        )
        source = Source(settings, cluster)
        made: list[Window] = []
        points: list[RecoveryPoint] = []
        application = order_processor(servers, topics, folder / "state")
        with application, Feed(servers, topics.orders, orders(seed=1), rate=_RATE) as feed:
            time.sleep(2)
            begins_ms = source.began_ms
            for number in range(windows):
                time.sleep(0.3)
                point = source.take()
                points.append(point)
                made.append(Window(begins_ms, point.taken_at_ms + 1, f"w{number:04d}"))
                begins_ms = made[-1].end_ms
                if len(made) == _EVERY:
                    _back_up(settings, made, spark)
                    made = []
            feed.stop()
            source.drain()
        _back_up(settings, made, spark)
        return _Lived(source.ended({}), topics, points)


def _back_up(settings: ApplicationSettings, windows: list[Window], spark: Spark) -> None:
    if windows:
        BackupJob(settings, spark, unique_name("backup")).run(windows)


def _goes_on(lived: _Lived, restored: Restored, state_dir: Path) -> None:
    """What it has written after the point, and what its store holds, are as in the source run."""
    topics, point = lived.topics, restored.point
    go_on(restored, topics, state_dir)
    found = restored.written(*topics.written)
    for topic in (topics.totals, topics.rejected):
        control = by_key(
            r for r in lived.run.written[topic] if r.offset >= end_of(point, topic, r.partition)
        )
        there = by_key(found[topic])
        assert control
        for key, wanted in control.items():
            assert there[key][-len(wanted) :] == wanted, (topic, key)
    assert newest(found[topics.changelog]) == newest(lived.run.written[topics.changelog])


def _stored(settings: ApplicationSettings) -> int:
    sizes = Ledger(settings.warehouse, settings.application_id).sizes()
    return sum(size.bytes for size in sizes.values())


@pytest.mark.parametrize(
    ("windows", "pinned"),
    [pytest.param(30, 2), pytest.param(120, 10, marks=pytest.mark.drill)],
)
def test_every_point_that_stays_goes_on(
    windows: int,
    pinned: int,
    kafka_cluster: LocalCluster,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    target = connection_to(kafka_cluster.bootstrap_servers)
    lived = _lived(tmp_path, spark, windows)
    settings = lived.run.settings
    step = windows // (pinned + 1)
    for point in lived.points[step : step * pinned + 1 : step]:
        Repository(settings.warehouse, settings.application_id).pins.pin(point.id, "quarter")
    before = _stored(settings)

    done = ExpireJob(settings, run_id="expire").run()

    table = Repository(settings.warehouse, settings.application_id).points
    listed = [instant.id for instant in table.instants()]
    assert sorted(done.plan.kept) == sorted(listed)
    assert pinned + 2 <= len(listed) <= pinned + 4
    assert {Change.DROP, Change.COMPACT, Change.JOIN} <= {one.what for one in done.topics}
    after = _stored(settings)
    fresh = 0
    statuses = Repository.open(settings).reading(settings).statuses(table.load(listed))
    covered = [status.id for status in statuses if status.restorability is Restorability.EXACT]
    assert covered == listed[: pinned + 2]  # the last one was taken behind the last backup
    for number, point in enumerate(table.load(covered)):
        is_last = point.id == covered[-1]
        inputs = InputsExtent.FULL if is_last else InputsExtent.TAIL
        request = own_names(f"kept{number}", point).model_copy(update={"inputs": inputs})
        restored = restore(lived.run, target, spark, request)
        restored.commit()
        if is_last:
            fresh = _fresh_backup(lived, restored, tmp_path / "fresh", spark)
        _goes_on(lived, restored, tmp_path / f"state-{number}")
    assert after <= 1.3 * fresh, (before, after, fresh)
    assert after < before


def _fresh_backup(lived: _Lived, restored: Restored, folder: Path, spark: Spark) -> int:
    """The size of a first backup of what was restored."""
    renamed = OrderTopics(
        restored.plan.group, restored.names[lived.topics.orders].removesuffix("orders")
    )
    settings = replace(
        lived.run.settings,
        application=renamed.application,
        topics=renamed.application.topics,
        connection=restored.target,
        warehouse=warehouse_at(folder / "warehouse"),
    )
    began_ms = time.time_ns() // 1_000_000
    with KafkaCluster(restored.target) as cluster:
        point = recorder_of(settings, cluster).take()
    _back_up(settings, [Window(began_ms, point.taken_at_ms + 1, "w0000")], spark)
    return _stored(settings)
