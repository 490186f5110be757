"""The first points of a restored exactly-once application, whose table hardly changes."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.order_processor.application import create_topics
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, Method, RecoveryPoint
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import Recorder, recorder_of
from kstreams_assets.restore.request import RestoreRequest
from spark_resources.resource import SparkSessionResource
from tests.restore.trial import Restored, Source, restore, settings_of
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Feed
from tests.streams.orders import PARTITIONS, OrderTopics, order_processor, orders

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.drill,
    pytest.mark.alone,
]

_AFTER_RUNNING_S = 10.0


@pytest.fixture
def target(tmp_path: Path) -> Iterator[KafkaConnection]:
    """The cluster after the failover."""
    with LocalCluster(tmp_path / "target") as local:
        yield connection_to(local.bootstrap_servers)


def test_the_first_point_after_a_restore_is_exact_by_transactions(
    target: KafkaConnection, spark: SparkSessionResource, tmp_path: Path
) -> None:
    """Before any input, and while one key of a large table changes: the rest was restored."""
    topics = OrderTopics(unique_name("orders"), unique_name("o") + ".")
    restored = _restored(topics, target, spark, tmp_path)
    with KafkaCluster(target) as cluster:
        settings = replace(restored.run.settings, connection=target)
        recorder = recorder_of(settings, cluster)
        stopped = recorder.take()
        assert _found(stopped) == (Method.TRANSACTIONS, Guarantee.EXACT), stopped.reason
        with order_processor(target.bootstrap_servers, topics, tmp_path / "state-b"):
            running_at = time.monotonic()
            idle = _first_exact(recorder, running_at)
            assert "has written nothing since it was restored" in idle.reason
            one_key = orders(seed=7)(0)
            with Feed(target.bootstrap_servers, topics.orders, lambda _: one_key, rate=50):
                time.sleep(1)
                live = _first_exact(recorder, running_at)
        changelog = [
            p
            for n in range(PARTITIONS)
            if cluster.high_watermarks([p := TopicPartitionId(topics.changelog, n)])[p]
        ]
        moved = [p for p in changelog if _end(live, p) > _end(idle, p)]
        assert 0 < len(moved) < len(changelog)  # or nothing was shown


def _restored(
    topics: OrderTopics, target: KafkaConnection, spark: SparkSessionResource, folder: Path
) -> Restored:
    """The application as it stands on the target, its offsets committed; the source is gone."""
    with (
        LocalCluster(folder / "source") as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
    ):
        servers = local.bootstrap_servers
        create_topics(servers, topic_prefix=topics.prefix, partitions=PARTITIONS)
        source = Source(settings_of(topics.application, servers, folder), cluster)
        with (
            order_processor(servers, topics, folder / "state-a"),
            Feed(servers, topics.orders, orders(seed=1), rate=500) as feed,
        ):
            time.sleep(3)
            feed.stop()
            source.drain()
            point = source.take()
        source.back_up(point, spark)
        run = source.ended({"point": point})
    restored = restore(run, target, spark, RestoreRequest(point_id=point.id))
    restored.commit()
    return restored


def _first_exact(recorder: Recorder, running_at: float) -> RecoveryPoint:
    """The first point, which has to be exact by `transactions`, in time."""
    point = recorder.take()
    assert _found(point) == (Method.TRANSACTIONS, Guarantee.EXACT), point.reason
    assert time.monotonic() - running_at < _AFTER_RUNNING_S
    return point


def _found(point: RecoveryPoint) -> tuple[Method, Guarantee]:
    return point.method, point.guarantee


def _end(point: RecoveryPoint, partition: TopicPartitionId) -> int:
    cut = point.cut(partition)
    assert cut is not None
    return cut.end
