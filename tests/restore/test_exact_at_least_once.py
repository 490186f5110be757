"""Exact points of a live at-least-once application: what is restored repeats nothing.

Repartition records are purged every second and changelogs are compacted after 20 s, so that a point
can only be restored from what the follower saved in time.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from examples.order_processor.application import create_topics
from kstreams_assets.app.model import Store, StreamsApplication, TopicEdge, TopicRole
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Method, RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, RecoveryPointSettings, WindowSchedule
from spark_resources.companion import COMPANION_PROPERTIES, build_companion
from spark_resources.resource import SparkSessionResource
from tests.backup.test_follow_passive import following
from tests.recovery.test_compaction import AGGRESSIVE
from tests.restore.order_run import go_on
from tests.restore.test_restored_applications import assert_as_control
from tests.restore.trial import Source, SourceRun, own_names, restore, settings_of
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Feed
from tests.streams.orders import PARTITIONS, OrderTopics, order_processor, orders
from tests.streams.vector_app import application_of

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.drill, pytest.mark.alone]

ON_DEMAND: Final = {
    **COMPANION_PROPERTIES,
    "producer.linger.ms": "0",
    "kstreams.assets.control.topic": "commit-control",
    "kstreams.assets.commit.by.reflection": "true",
}
CONFIG: Final = {
    **AGGRESSIVE,
    # Longer than a follower waits for commits: meanwhile it saves nothing.
    "topic.segment.ms": "20000",
    "topic.delete.retention.ms": "600000",
    "topic.max.compaction.lag.ms": "20000",
    "repartition.purge.interval.ms": "1000",
}


@pytest.fixture(scope="module")
def cleaning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaConnection]:
    """A broker whose cleaner never rests."""
    properties = {
        "log.cleaner.backoff.ms": "200",
        "log.cleaner.threads": "2",
        # The application has no cache, and so writes until it commits.
        "group.coordinator.append.linger.ms": "20",
    }
    with LocalCluster(tmp_path_factory.mktemp("cleaning"), properties=properties) as local:
        yield connection_to(local.bootstrap_servers)


def placed(topics: OrderTopics) -> StreamsApplication:
    """The application with its topology, which decides the order of its commits."""
    of = {
        topics.orders: (TopicRole.INPUT, (0,)),
        topics.repartition: (TopicRole.REPARTITION, (1,)),
        topics.changelog: (TopicRole.CHANGELOG, (1,)),
        topics.totals: (TopicRole.OUTPUT, ()),
        topics.rejected: (TopicRole.OUTPUT, ()),
    }
    edges = (
        TopicEdge(topics.orders, topics.repartition),
        TopicEdge(topics.orders, topics.rejected),
        TopicEdge(topics.repartition, topics.changelog),
        TopicEdge(topics.repartition, topics.totals),
    )
    return application_of(
        topics.application_id, of, (Store("order-totals", topics.changelog),), edges
    )


def exact_points(settings: ApplicationSettings, method: Method) -> list[RecoveryPoint]:
    """The points that a restore now gives as exact; the newest are not covered yet."""
    repo = Repository.open(settings)
    found = [point for point in repo.points.newest(200) if point.method is method]
    statuses = repo.reading(settings).statuses(found)
    return [
        point
        for point, status in zip(found, statuses, strict=True)
        if status.restorability is Restorability.EXACT
    ]


def reasons(settings: ApplicationSettings) -> list[str]:
    points = Repository.open(settings).points.newest(9)
    return [point.unsealed_because or point.reason for point in points]


@pytest.mark.parametrize(
    ("method", "count", "commit_interval_ms", "config"),
    [
        pytest.param(Method.PASSIVE_COMMITS, 20, 1_000, {}, id="nothing-configured"),
        # The default commit interval: commits come on demand.
        pytest.param(Method.JOURNAL, 8, 30_000, ON_DEMAND, id="companion"),
    ],
)
def test_restores_end_as_the_application_without_a_restore(
    cleaning: KafkaConnection,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
    method: Method,
    count: int,
    commit_interval_ms: int,
    config: Mapping[str, str],
) -> None:
    topics = OrderTopics(unique_name("exact"), unique_name("e") + ".")
    servers = cleaning.bootstrap_servers
    create_topics(servers, topic_prefix=topics.prefix, partitions=PARTITIONS)
    app = order_processor(
        servers,
        topics,
        tmp_path / "state",
        guarantee="at_least_once",
        commit_interval_ms=commit_interval_ms,
        config={**CONFIG, **config},
        jars=(build_companion(),) if config else (),
    )
    control = config.get("kstreams.assets.control.topic")
    with KafkaCluster(cleaning) as cluster, app:
        windows = WindowSchedule.every("hour", start="2026-01-01")
        settings = replace(
            settings_of(placed(topics), servers, tmp_path),
            windows=windows,
            recovery_points=RecoveryPointSettings(commit_wait_seconds=15, control_topic=control),
        )
        source = Source(settings, cluster)
        with Feed(servers, topics.orders, orders(seed=5), rate=600) as feed, following(settings):
            deadline = time.monotonic() + 240
            while len(exact_points(settings, method)) < count:
                assert time.monotonic() < deadline, reasons(settings)
                time.sleep(2)
            feed.stop()
        points = exact_points(settings, method)[:count]
        source.drain()
        run = source.ended({point.id: point for point in points})
    for number, point in enumerate(points):
        assert_goes_on(run, topics, point, second_cluster, spark, tmp_path / f"state-{number}")


def assert_goes_on(
    run: SourceRun,
    topics: OrderTopics,
    point: RecoveryPoint,
    target: KafkaConnection,
    spark: SparkSessionResource,
    state_dir: Path,
) -> None:
    restored = restore(run, target, spark, own_names("exact", point))
    restored.commit()
    go_on(restored, topics, state_dir, guarantee="at_least_once")
    assert_as_control(restored, (topics.totals, topics.rejected), (topics.changelog,))
