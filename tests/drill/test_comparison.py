"""Newest records of a changelog: as they were restored, and as they are now."""

from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kstreams_assets.app.model import Store, TopicRole
from kstreams_assets.drill.report import StoreComparison
from kstreams_assets.drill.run import compare_state
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.resource import SparkSessionResource
from tests.restore.after_commit import after_commit
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

Change = tuple[int, str, str | None]
"""Partition, key and value."""

_RESTORED: tuple[Change, ...] = (
    (0, "stays", "1"),
    (0, "again", "0"),
    (0, "again", "1"),
    (0, "changes", "1"),
    (0, "goes", "1"),
    (0, "was gone", "1"),
    (0, "was gone", None),
    (1, "stays", "other partition"),
    (1, "comes back", None),
)
_SINCE: tuple[Change, ...] = (
    (0, "again", "1"),
    (0, "changes", "2"),
    (0, "goes", None),
    (1, "new", "1"),
    (1, "new", "2"),
    (1, "comes back", "1"),
)


def test_every_kind_of_change(
    kafka_cluster: LocalCluster, spark: SparkSessionResource, tmp_path: Path
) -> None:
    topic, empty = unique_name("s-changelog"), unique_name("t-changelog")
    servers = kafka_cluster.bootstrap_servers
    with after_commit(servers, tmp_path) as place:
        place.cluster.create_topics([TopicSpec(topic, 2, 1), TopicSpec(empty, 2, 1)])
        _produce(servers, topic, _RESTORED)
        place.adopt(topic, records=len(_RESTORED), role=TopicRole.CHANGELOG)
        place.adopt(empty, records=0, role=TopicRole.CHANGELOG)
        place.adopt(topic, records=len(_RESTORED), role=TopicRole.INPUT)  # not looked at
        restore = place.restore({})
        ends = {TopicPartitionId(topic, 0): 7, TopicPartitionId(topic, 1): 2}
        ends |= {TopicPartitionId(empty, n): 0 for n in range(2)}
        stores = (Store("s", topic), Store("t", empty), Store("u", None))
        application = replace(place.settings.application, stores=stores)
        settings = replace(place.settings, application=application)

        def compare() -> tuple[StoreComparison, ...]:
            return compare_state(settings, place.cluster, restore, spark=spark, restored_ends=ends)

        at_first, of_empty = compare()
        _produce(servers, topic, _SINCE)
        now, _ = compare()
        place.cluster.delete_records({TopicPartitionId(topic, 0): 1})
        shortened, _ = compare()

    nothing = {"changed": 0, "rewritten": 0, "added": 0, "deleted": 0, "sample": ()}
    assert at_first.stores == ("s",)
    assert (at_first.records_restored, at_first.records_at_point) == (9, 9)
    assert (at_first.records_since, at_first.keys_at_point, at_first.keys_now) == (0, 5, 5)
    assert {name: getattr(at_first, name) for name in nothing} == nothing
    assert (of_empty.stores, of_empty.records_at_point, of_empty.moved) == (("t",), 0, 0)

    assert (now.records_at_point, now.records_since) == (9, 6)
    assert (now.keys_at_point, now.keys_now) == (5, 6)
    assert (now.changed, now.rewritten, now.added, now.deleted) == (1, 1, 2, 1)
    keys = {bytes.fromhex(key).decode() for key in now.sample}
    assert keys == {"changes", "goes", "new", "comes back"}
    assert replace(shortened, records_at_point=9, keys_at_point=5, keys_now=6) == replace(
        now, records_at_point=9
    )
    assert shortened.records_at_point == 8


def _produce(servers: str, topic: str, changes: tuple[Change, ...]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for partition, key, value in changes:
        producer.produce(topic, value, key, partition)
    assert producer.flush(30) == 0
