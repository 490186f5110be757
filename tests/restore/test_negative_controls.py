"""What goes wrong when a step of a restore is left out: each must differ from the control run.

Were one of these the same as the control run, the tests of exact restores would prove nothing.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.app.model import TopicRole
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import InputsExtent, RestoreRequest
from kstreams_assets.settings import VerifyExtent
from spark_resources.resource import SparkSessionResource
from tests.restore.control import by_key, differences
from tests.restore.order_run import IN_FLIGHT, OrderRun, go_on
from tests.restore.trial import Restored, own_names, restore, without
from tests.restore.wide_run import WideRun
from tests.streams.cluster import connection_to
from tests.streams.orders import totals
from tests.streams.wide_app import WideApp, WideTopics

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.drill,
    pytest.mark.sample,
    pytest.mark.alone,
]


def orders_counted(run: OrderRun, restored: Restored | None = None) -> int:
    """Orders in the totals of all customers, at the end of the control run or after a restore."""
    topic = run.topics.totals
    written = run.source.written if restored is None else restored.written(topic)
    return sum(count for count, _ in totals(written[topic]).values())


def mapped(restored: Restored, point: RecoveryPoint) -> list[GroupOffset]:
    """The group's offsets of another point, in offsets of the target."""
    table = Repository(restored.run.settings.warehouse, restored.plan.application_id).offset_maps
    maps = table.load(restored.plan.restore_id)
    by_source = {(id_.topic, id_.partition): stored for id_, stored in maps.items()}
    found = []
    for offset in point.group_offsets:
        stored = by_source[offset.topic, offset.partition]
        found.append(
            replace(offset, topic=stored.target.topic, offset=stored.map.map(offset.offset))
        )
    return found


def test_offsets_two_seconds_older_than_the_ends(
    order_run: OrderRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    run, point = order_run.source, order_run.source.points["one instance"]
    assert point.taken_at_ms - order_run.before.taken_at_ms >= 2_000
    restored = restore(run, second_cluster, spark, own_names("older", point))
    restored.commit_instead(mapped(restored, order_run.before))

    go_on(restored, order_run.topics, tmp_path / "state")

    assert orders_counted(order_run, restored) > orders_counted(order_run)


def test_records_in_flight_left_out(
    order_run: OrderRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    run, point = order_run.source, order_run.source.points["reader paused"]
    request = own_names("forgotten", point, inputs=InputsExtent.TAIL)
    restored = restore(
        run, second_cluster, spark, request, change=lambda p: without(p, TopicRole.REPARTITION)
    )
    restored.commit()

    go_on(restored, order_run.topics, tmp_path / "state")

    in_flight = sum(t.records for t in restored.plan.topics if TopicRole.REPARTITION in t.roles)
    assert in_flight >= IN_FLIGHT
    assert orders_counted(order_run) - orders_counted(order_run, restored) == in_flight


def test_offsets_not_mapped(
    order_run: OrderRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    run, point = order_run.source, order_run.source.points["one instance"]
    restored = restore(run, second_cluster, spark, own_names("unmapped", point))
    restored.commit_instead(
        [replace(o, topic=restored.names[o.topic]) for o in point.group_offsets]
    )

    go_on(restored, order_run.topics, tmp_path / "state")

    assert orders_counted(order_run, restored) != orders_counted(order_run)


def test_old_state_directory_kept(
    order_run: OrderRun, spark: SparkSessionResource, tmp_path: Path
) -> None:
    # Local state is found by the application id alone: the names must be the same.
    run, topics = order_run.source, order_run.topics
    shutil.copytree(order_run.old_state, tmp_path / "state")
    with LocalCluster(tmp_path / "third") as third:
        target = connection_to(third.bootstrap_servers)
        # A point soon after the old state would do on most runs only: where the logs of the target
        # end below the offsets of the old state, Kafka Streams notices and reads all of them.
        request = RestoreRequest(point_id=run.points["one instance"].id)
        restored = restore(run, target, spark, request)
        restored.commit()

        go_on(restored, topics, tmp_path / "state")

        # Offsets of the source count markers and aborted records, those of the target do not: what
        # lies between the same offset of the two was never read into the old state.
        assert orders_counted(order_run, restored) < orders_counted(order_run)


def test_metadata_lost(
    wide_run: WideRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    topics, half = wide_run.topics, wide_run.source.points["half"]
    request = own_names("forgetful", half, verify=VerifyExtent.COUNTS)
    restored = restore(wide_run.source, second_cluster, spark, request)
    assert any(offset.metadata for offset in restored.restore.to_commit)
    restored.commit_instead([replace(o, metadata="") for o in restored.restore.to_commit])

    renamed = WideTopics(
        restored.plan.group, restored.names[topics.readings].removesuffix("readings")
    )
    with WideApp(second_cluster.bootstrap_servers, renamed, state_dir=tmp_path / "state"):
        restored.replay()
        restored.drain()

    found = {t: by_key(r) for t, r in restored.written(*topics.outputs).items()}
    control = {t: by_key(wide_run.source.written[t]) for t in topics.outputs}
    assert {len(sequence) for sequence in control[topics.closed].values()} == {1}
    twice = [key for key, sequence in found[topics.closed].items() if len(sequence) > 1]
    assert twice
    for topic in set(topics.outputs) - {topics.closed}:
        assert differences(control[topic], found[topic]) == []
