"""A follower whose points wait for the commits of an at-least-once application."""

import threading
import time
from collections.abc import Iterator
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
from tests.recovery.vector_oracle import read_vectors
from tests.streams.cluster import connection_to, passing_cluster, unique_name
from tests.streams.vector_app import VectorApp, VectorTopics, orders
from tests.streams.workbench import NoSpark
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.drill, pytest.mark.alone]

POINTS = 3


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


def test_points_of_a_follower_are_exact(tmp_path: Path) -> None:
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
            recovery_points=RecoveryPointSettings(objective_seconds=120, commit_wait_seconds=20),
        )
        points = Repository.open(settings).points
        with (
            VectorApp(local.bootstrap_servers, topics, state_dir=tmp_path / "app"),
            orders(local.bootstrap_servers, topics, rate=500),
            following(settings) as follower,
        ):
            deadline = time.monotonic() + 180
            while sum(one.exact for one in points.instants()) < POINTS:
                assert time.monotonic() < deadline, [one.reason for one in points.newest(9)]
                time.sleep(0.5)
            newest = points.newest()[0].id
            assert eventually(lambda: (follower.status.covered_point or "") >= newest)
        history = read_vectors(cluster, topics)
    found = [point for point in points.newest(100) if point.method is Method.PASSIVE_COMMITS]
    for point in found:
        ends = {cut.id: cut.end for cut in point.partitions}
        excluded = {cut.id: cut.excluded for cut in point.partitions}
        verdict = history.judge(ends, point.group.committed, excluded)
        assert verdict.losses == 0
        assert verdict.repeats <= point.most_repeats
    statuses = Repository.open(settings).reading(settings).statuses(found)
    assert [one.restorability for one in statuses].count(Restorability.EXACT) >= POINTS - 1
    assert recovery_point_is_recent(settings).passed
