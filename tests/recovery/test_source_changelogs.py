"""Points of an application that writes the source topic of its own table, on a real broker."""

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import Guarantee, Method, RecoveryPoint
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import Recorder
from tests.restore.control import read
from tests.streams.cluster import unique_name
from tests.streams.feed import Feed, Record
from tests.streams.table_app import TableApp, TableTopics
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.alone]

_PARTITIONS = 4
_POINTS = 30
_BEGAN_MS = time.time_ns() // 1_000_000
"""Older records would be deleted by retention while the test runs."""


def change(index: int) -> Record:
    """A change of some customer, by index."""
    chance = random.Random(index)
    customer = chance.randrange(400)
    return Record(customer % _PARTITIONS, -1, _BEGAN_MS + index, b"c%d" % customer, b"%d" % index)


def _is_committed(cluster: KafkaCluster, topics: TableTopics) -> bool:
    """The application has read of both of its topics."""
    committed = cluster.group_offsets(topics.application.application_id)
    return {topics.changes, topics.customers} <= {partition.topic for partition in committed}


def test_what_was_written_and_not_yet_read_belongs_to_the_point(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Each change taken in is one record of the table's topic; each of these read, one of out."""
    topics = TableTopics(unique_name("table"), unique_name("t") + ".")
    topics.create(cluster, partitions=_PARTITIONS)
    servers = cluster.connection.bootstrap_servers
    recorder = Recorder(topics.application, cluster, Warehouse(tmp_path / "warehouse"))
    points: list[RecoveryPoint] = []
    with (
        TableApp(servers, topics, state_dir=tmp_path / "state"),
        Feed(servers, topics.changes, change, rate=3_000),
    ):
        assert eventually(lambda: _is_committed(cluster, topics))
        time.sleep(3)
        for _ in range(_POINTS):
            points.append(recorder.take())
            time.sleep(0.2)
    exact = [point for point in points if point.guarantee is Guarantee.EXACT]
    assert len(exact) > 0.9 * _POINTS, [point.reason for point in points]
    assert {point.method for point in exact} == {Method.TRANSACTIONS}
    written = read(servers, [topics.changes, topics.customers, topics.out])
    unread = 0
    for point in exact:
        offsets = {TopicPartitionId(o.topic, o.partition): o.offset for o in point.group_offsets}

        def taken_in(topic: str, read_to=offsets) -> int:
            return sum(
                record.offset < read_to.get(TopicPartitionId(topic, record.partition), 0)
                for record in written[topic]
            )

        def held(topic: str, of=point) -> int:
            cuts = {cut.partition: cut for cut in of.partitions if cut.topic == topic}
            return sum(cuts[record.partition].holds(record.offset) for record in written[topic])

        assert held(topics.customers) == taken_in(topics.changes), point
        assert held(topics.out) == taken_in(topics.customers), point
        unread += held(topics.customers) - taken_in(topics.customers)
    assert unread > 0  # or nothing was shown


def test_a_table_s_source_that_the_application_writes_undeclared_is_noticed(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Declared by hand, as input and changelog alone; others might write it."""
    topics = TableTopics(unique_name("table"), unique_name("t") + ".")
    topics.create(cluster, partitions=_PARTITIONS)
    servers, application = cluster.connection.bootstrap_servers, topics.application
    declared = tuple(
        replace(topic, roles=TopicRoles(topic.roles - {TopicRole.OUTPUT}))
        if TopicRole.CHANGELOG in topic.roles
        else topic
        for topic in application.topics
    )
    by_hand = replace(application, topics=declared)
    with (
        TableApp(servers, topics, state_dir=tmp_path / "state"),
        Feed(servers, topics.changes, change, rate=1_000),
    ):
        assert eventually(lambda: _is_committed(cluster, topics))
        time.sleep(3)
        point = Recorder(by_hand, cluster, Warehouse(tmp_path / "by-hand")).take()
        whole = Recorder(application, cluster, Warehouse(tmp_path / "whole")).take()
    assert point.guarantee is Guarantee.AT_LEAST_ONCE
    assert f"The application writes topic {topics.customers}" in point.reason
    assert whole.guarantee is Guarantee.EXACT, whole.reason
