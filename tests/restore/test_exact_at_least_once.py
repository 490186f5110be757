"""Exact points of a live at-least-once application: what is restored repeats nothing.

Repartition records are purged every second and changelogs are compacted at once, so that a point
can only be restored from what its recorder and its backup saved in time.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from examples.order_processor.application import create_topics
from kstreams_assets.app.model import Store, StreamsApplication, TopicEdge, TopicRole
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, Method, RecoveryPoint
from kstreams_assets.recovery.recorder import recorder_of
from spark_resources.resource import SparkSessionResource
from tests.recovery.test_compaction import AGGRESSIVE
from tests.restore.order_run import go_on
from tests.restore.test_restored_applications import assert_as_control
from tests.restore.trial import Source, SourceRun, own_names, restore, settings_of
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Feed
from tests.streams.orders import PARTITIONS, OrderTopics, order_processor, orders
from tests.streams.vector_app import application_of

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.drill, pytest.mark.alone]

POINTS: Final = 20
TRIES: Final = 30
CONFIG: Final = {**AGGRESSIVE, "repartition.purge.interval.ms": "1000"}


@pytest.fixture(scope="module")
def cleaning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaConnection]:
    """A broker whose cleaner never rests."""
    properties = {"log.cleaner.backoff.ms": "200", "log.cleaner.threads": "2"}
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


def exact_points(source: Source) -> list[RecoveryPoint]:
    recorder, found = recorder_of(source.settings, source.cluster), list[RecoveryPoint]()
    reasons: list[str] = []
    for _ in range(TRIES):
        point = recorder.take(commit_wait_s=15)
        reasons.append(point.reason)
        if point.guarantee is Guarantee.EXACT:
            assert point.method is Method.PASSIVE_COMMITS
            found.append(point)
        if len(found) == POINTS:
            return found
    pytest.fail("\n".join(reasons))


def test_twenty_restores_end_as_the_application_without_a_restore(
    cleaning: KafkaConnection,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    topics = OrderTopics(unique_name("exact"), unique_name("e") + ".")
    servers = cleaning.bootstrap_servers
    create_topics(servers, topic_prefix=topics.prefix, partitions=PARTITIONS)
    app = order_processor(
        servers,
        topics,
        tmp_path / "state",
        guarantee="at_least_once",
        commit_interval_ms=1_000,
        config=CONFIG,
    )
    with KafkaCluster(cleaning) as cluster, app:
        source = Source(settings_of(placed(topics), servers, tmp_path), cluster)
        with Feed(servers, topics.orders, orders(seed=5), rate=600) as feed:
            time.sleep(5)
            points = exact_points(source)
            newest = recorder_of(source.settings, cluster).take()
            time.sleep(1)
            feed.stop()
        source.drain()
        source.back_up(newest, spark)
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
