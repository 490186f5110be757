"""An application that writes the source topic of its own table goes on from a restore."""

import time
from pathlib import Path

import pytest

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.restore.request import RestoreRequest
from spark_resources.resource import SparkSessionResource
from tests.recovery.test_source_changelogs import change
from tests.restore.control import by_key, differences, newest
from tests.restore.trial import Source, restore, settings_of
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Feed
from tests.streams.table_app import TableApp, TableTopics

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.drill,
    pytest.mark.alone,
]

_PARTITIONS = 4


def test_what_it_had_written_and_not_yet_read_is_not_lost(
    second_cluster: KafkaConnection, spark: SparkSessionResource, tmp_path: Path
) -> None:
    """Cut under load; afterwards out has each change once, in order, as the uninterrupted run."""
    topics = TableTopics(unique_name("table"), unique_name("t") + ".")

    def unread(point: RecoveryPoint) -> int:
        offsets = {(o.topic, o.partition): o.offset for o in point.group_offsets}
        return sum(
            cut.end - offsets.get((cut.topic, cut.partition), 0)
            for cut in point.partitions
            if cut.topic == topics.customers
        )

    with (
        LocalCluster(tmp_path / "source") as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
    ):
        settings = settings_of(topics.application, local.bootstrap_servers, tmp_path)
        topics.create(cluster, partitions=_PARTITIONS)
        source = Source(settings, cluster)
        with TableApp(local.bootstrap_servers, topics, state_dir=tmp_path / "source-state"):
            with Feed(local.bootstrap_servers, topics.changes, change, rate=2_000) as feed:
                time.sleep(3)
                point = source.take(fits=lambda taken: unread(taken) > 50)
                time.sleep(1)
                feed.stop()
            source.drain()
        source.back_up(point, spark)
        run = source.ended({"live": point})

    restored = restore(run, second_cluster, spark, RestoreRequest())
    restored.commit()
    with TableApp(second_cluster.bootstrap_servers, topics, state_dir=tmp_path / "state"):
        assert restored.replay() > 0
        restored.drain()
    control, found = run.written, restored.written(topics.customers, topics.out)
    for topic in (topics.customers, topics.out):
        assert differences(by_key(control[topic]), by_key(found[topic])) == []
        assert newest(found[topic]) == newest(control[topic])
