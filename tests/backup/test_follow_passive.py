"""A follower whose points wait for the commits of an at-least-once application."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kstreams_assets.backup.follow import Follower
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import Method
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.repository.coverage import recovery_point_is_recent
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, RecoveryPointSettings, WindowSchedule
from tests.recovery.test_barrier import control_of, on_demand
from tests.recovery.test_journal_method import with_companion
from tests.recovery.vector_oracle import read_vectors
from tests.streams.cluster import connection_to, passing_cluster, unique_name
from tests.streams.vector_app import VectorApp, VectorTopics, orders
from tests.streams.workbench import NoSpark
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.drill, pytest.mark.alone]

POINTS = 3
AGES = 40


@contextmanager
def following(settings: ApplicationSettings) -> Iterator[Follower]:
    ended, follower = threading.Event(), Follower(settings, NoSpark(), "run", 1.0)
    thread = threading.Thread(target=follower.follow, args=[ended])
    thread.start()
    try:
        yield follower
    finally:
        ended.set()
        thread.join(60)
    assert not thread.is_alive()


def passive(servers: str, topics: VectorTopics, folder: Path) -> VectorApp:
    return VectorApp(servers, topics, state_dir=folder)


def journalled(servers: str, topics: VectorTopics, folder: Path) -> VectorApp:
    return with_companion(servers, topics, folder, {"commit.interval.ms": "1000"})


@pytest.mark.parametrize(
    ("started", "method", "age_s", "asks"),
    [
        pytest.param(passive, Method.PASSIVE_COMMITS, 40, False, id="nothing-configured"),
        pytest.param(journalled, Method.JOURNAL, 10, False, id="companion"),
        # It commits every 30 s by itself.
        pytest.param(on_demand, Method.JOURNAL, 10, True, id="commits-on-demand"),
    ],
)
def test_points_of_a_follower_are_exact(
    started: Callable[[str, VectorTopics, Path], VectorApp],
    method: Method,
    age_s: float,
    asks: bool,
    tmp_path: Path,
) -> None:
    """`age_s` is how old the newest covered point gets once there are some."""
    topics = VectorTopics(unique_name("vector"), unique_name("v") + ".")
    properties = {"group.coordinator.append.linger.ms": "20"}
    with (
        passing_cluster(tmp_path / "broker", properties=properties) as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
    ):
        topics.create(cluster)
        settings = ApplicationSettings(
            application=topics.application,
            topics=topics.application.topics,
            connection=cluster.connection,
            warehouse=Warehouse(tmp_path / "warehouse"),
            windows=WindowSchedule.every("hour", start="2026-01-01"),
            recovery_points=RecoveryPointSettings(
                objective_seconds=120, control_topic=control_of(topics) if asks else None
            ),
        )
        points = Repository.open(settings).points

        def exact_points() -> int:
            return sum(one.exact for one in points.instants())

        with (
            started(local.bootstrap_servers, topics, tmp_path / "app"),
            orders(local.bootstrap_servers, topics, rate=500),
            following(settings) as follower,
        ):
            deadline = time.monotonic() + 180
            while exact_points() < POINTS:
                assert time.monotonic() < deadline, [one.reason for one in points.newest(9)]
                time.sleep(0.5)
            ages: list[float] = []
            while len(ages) < AGES:
                covered_at_ms = follower.status.covered_at_ms
                assert covered_at_ms is not None
                ages.append(time.time() - covered_at_ms / 1000)
                time.sleep(0.5)
            newest = points.newest()[0].id
            assert eventually(lambda: (follower.status.covered_point or "") >= newest)
        history = read_vectors(cluster, topics)
    found = [point for point in points.newest(100) if point.method is method]
    for point in found:
        ends = {cut.id: cut.end for cut in point.partitions}
        excluded = {cut.id: cut.excluded for cut in point.partitions}
        verdict = history.judge(ends, point.group.committed, excluded)
        assert verdict.losses == 0
        assert verdict.repeats <= point.most_repeats
    statuses = Repository.open(settings).reading(settings).statuses(found)
    assert [one.restorability for one in statuses].count(Restorability.EXACT) >= POINTS - 1
    assert recovery_point_is_recent(settings).passed
    assert max(ages) < age_s, ages
