"""Restored applications go on as if nothing had happened: held against the uninterrupted run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from examples.order_processor.application import create_topics
from kstreams_assets.app.model import Store
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.point import Guarantee, Method, RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from spark_resources.resource import SparkSessionResource
from tests.restore.control import by_key, differences, newest
from tests.restore.order_run import IN_FLIGHT, RATE, OrderRun, go_on
from tests.restore.trial import (
    Restored,
    Source,
    SourceRun,
    own_names,
    restore,
    settings_of,
    with_snapshots,
)
from tests.restore.wide_run import WideRun
from tests.streams.cluster import unique_name
from tests.streams.feed import Feed, Record
from tests.streams.orders import PARTITIONS, OrderTopics, order_processor, orders, totals
from tests.streams.wide_app import WideApp, WideTopics

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.on_store,
    pytest.mark.drill,
    pytest.mark.alone,
]


def assert_as_control(
    restored: Restored, outputs: Sequence[str], changelogs: Sequence[str]
) -> None:
    """Every record of every key in the outputs, and what the stores hold, as in the control run."""
    control, found = restored.run.written, restored.written(*outputs, *changelogs)
    wrong = {t: differences(by_key(control[t]), by_key(found[t])) for t in outputs}
    assert {topic: texts for topic, texts in wrong.items() if texts} == {}
    for topic in changelogs:
        assert newest(found[topic]) == newest(control[topic]), topic


def test_the_order_run_had_its_hard_moments(order_run: OrderRun) -> None:
    points = order_run.source.points
    assert order_run.rate > 0.9 * RATE
    assert {p.guarantee for p in points.values()} == {Guarantee.EXACT}
    assert {p.method for p in points.values()} == {Method.TRANSACTIONS}
    assert order_run.aborted > 0
    assert points["reader paused"].in_flight >= IN_FLIGHT
    assert len({p.id for p in points.values()}) == 5


@pytest.mark.parametrize(
    ("label", "inputs", "same_names"),
    [
        ("steady", InputsExtent.FULL, True),
        pytest.param(*("after a rebalance", InputsExtent.FULL, False), marks=pytest.mark.sample),
        ("aborted", InputsExtent.FULL, False),
        ("reader paused", InputsExtent.TAIL, False),
        ("one instance", InputsExtent.TAIL, False),
    ],
)
def test_the_order_processor_goes_on_from_a_live_point(
    label: str,
    inputs: InputsExtent,
    same_names: bool,
    order_run: OrderRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    topics, point = order_run.topics, order_run.source.points[label]
    request = RestoreRequest(point_id=point.id) if same_names else own_names("restored", point)
    request = request.model_copy(update={"inputs": inputs})
    restored = restore(order_run.source, second_cluster, spark, request)
    restored.commit()

    go_on(restored, topics, tmp_path / "state")

    assert_as_control(restored, (topics.totals, topics.rejected), (topics.changelog,))


def test_a_wide_application_goes_on_from_half_way(
    wide_run: WideRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    topics, half = wide_run.topics, wide_run.source.points["half"]
    assert half.guarantee is Guarantee.EXACT
    assert len(half.partitions) >= 100
    restored = restore(wide_run.source, second_cluster, spark, RestoreRequest())
    restored.commit()

    with WideApp(second_cluster.bootstrap_servers, topics, state_dir=tmp_path / "state"):
        assert restored.replay() > 0
        restored.drain()

    assert_as_control(restored, (topics.raised, *topics.outputs), topics.changelogs)
    found = restored.written(topics.buffer)[topics.buffer]
    waiting = buffered(found)
    assert waiting == buffered(wide_run.source.written[topics.buffer])
    assert waiting


def assert_from_snapshots(restored: Restored, changelogs: Sequence[str]) -> None:
    """These changelogs, and nothing else, hold one record of each key; less than their raw logs."""
    planned = {topic.source: (topic, source) for topic, source in restored.plan.from_snapshots}
    assert set(planned) == set(changelogs)
    for name, records in restored.written(*changelogs).items():
        topic, source = planned[name]
        assert len(records) == topic.records == len(newest(records)), name
        assert topic.records <= source.raw_records
    less = [topic for topic, source in planned.values() if topic.records < source.raw_records]
    assert sum(topic.records for topic, _ in planned.values())
    assert less
    assert all(t.bytes < s.raw_bytes for t, s in planned.values() if t in less)


def test_the_order_processor_goes_on_from_a_ktable_snapshot(
    order_run: OrderRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    topics = order_run.topics
    run = with_snapshots(order_run.source, [Store("order-totals", topics.changelog)], spark)
    closing = run.points["one instance"]
    request = own_names("snapshot", closing, changelog_source=ChangelogSource.SNAPSHOT)
    restored = restore(
        run, second_cluster, spark, request.model_copy(update={"inputs": InputsExtent.TAIL})
    )
    assert_from_snapshots(restored, (topics.changelog,))
    restored.commit()

    go_on(restored, topics, tmp_path / "state")

    assert_as_control(restored, (topics.totals, topics.rejected), (topics.changelog,))


def test_a_point_between_windows_has_no_snapshots(
    order_run: OrderRun, second_cluster: KafkaConnection, spark: SparkSessionResource
) -> None:
    stores = (Store("order-totals", order_run.topics.changelog),)
    run = order_run.source
    application = replace(run.settings.application, stores=stores)
    settings = replace(run.settings, application=application)
    request = own_names("between", run.points["steady"], changelog_source=ChangelogSource.SNAPSHOT)
    (blocker,) = plan_restore(settings, request, second_cluster).blockers
    assert "It closes no window that is backed up" in blocker.found


def test_a_wide_application_goes_on_from_ktable_snapshots(
    wide_run: WideRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    topics, half = wide_run.topics, wide_run.source.points["half"]
    changelogs = (*topics.changelogs, topics.buffer)
    stores = [Store(_store_of(topic, topics.application_id), topic) for topic in changelogs]
    run = with_snapshots(wide_run.source, stores, spark)
    request = own_names("snapshot", half, changelog_source=ChangelogSource.SNAPSHOT)
    restored = restore(run, second_cluster, spark, request)
    assert_from_snapshots(restored, changelogs)
    restored.commit()
    prefix = restored.names[topics.readings].removesuffix("readings")
    renamed = WideTopics(restored.plan.group, prefix)

    with WideApp(second_cluster.bootstrap_servers, renamed, state_dir=tmp_path / "state"):
        assert restored.replay() > 0
        restored.drain()

    assert_as_control(restored, (topics.raised, *topics.outputs), topics.changelogs)
    # What waits names the topic that it came from, which has another name here.
    found, control = (
        {key: value[:8] for key, value in buffered(written[topics.buffer]).items()}
        for written in (restored.written(topics.buffer), run.written)
    )
    assert found == control


def _store_of(changelog: str, application_id: str) -> str:
    return changelog.removeprefix(f"{application_id}-").removesuffix("-changelog")


def buffered(records: Sequence[Record]) -> Mapping[bytes | None, bytes]:
    """What waits in a suppress buffer: timestamp, then all that follows the record's offset.

    The offset (8 bytes behind the timestamp) is that of the cluster on which it was read.
    """
    return {
        key: written.value[:8] + written.value[16:]
        for key, written in newest(records).items()
        if written.value is not None
    }


@dataclass(frozen=True, slots=True)
class AtLeastOnceRun:
    """Point `live` was taken under load, point `stopped` while the application was stopped."""

    source: SourceRun
    topics: OrderTopics


@pytest.fixture(scope="module")
def at_least_once_run(
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path_factory: pytest.TempPathFactory,
) -> AtLeastOnceRun:
    """An order processor that commits what it has done every two seconds only."""
    folder = tmp_path_factory.mktemp("at-least-once")
    topics = OrderTopics(unique_name("alos"), unique_name("a") + ".")
    servers = second_cluster.bootstrap_servers
    create_topics(servers, topic_prefix=topics.prefix, partitions=PARTITIONS)
    points: dict[str, RecoveryPoint] = {}
    app = order_processor(
        servers, topics, folder / "state", guarantee="at_least_once", commit_interval_ms=2_000
    )
    with KafkaCluster(second_cluster) as cluster, app:
        source = Source(settings_of(topics.application, servers, folder), cluster)
        with Feed(servers, topics.orders, orders(seed=3), rate=1_000) as feed:
            time.sleep(5)
            points["live"] = source.take(guarantee=Guarantee.AT_LEAST_ONCE)
            time.sleep(1)
            feed.stop()
        source.drain()
        app.stop()
        points["stopped"] = source.take(guarantee=Guarantee.AT_LEAST_ONCE)
        app.start()
        with Feed(servers, topics.orders, orders(seed=4), rate=1_000) as feed:
            time.sleep(2)
            feed.stop()
        source.drain()
        source.back_up(points["stopped"], spark)
        return AtLeastOnceRun(source.ended(points), topics)


def test_at_least_once_from_a_live_point_loses_nothing(
    at_least_once_run: AtLeastOnceRun, spark: SparkSessionResource, tmp_path: Path
) -> None:
    run, topics = at_least_once_run.source, at_least_once_run.topics
    request = own_names("live", run.points["live"], accept=Restorability.AT_LEAST_ONCE)
    restored = restore(run, run.settings.connection, spark, request)
    restored.commit()

    go_on(restored, topics, tmp_path / "state", guarantee="at_least_once")

    control = totals(run.written[topics.totals])
    found = totals(restored.written(topics.totals)[topics.totals])
    lost = {
        customer: (found.get(customer), total)
        for customer, total in control.items()
        if customer not in found or found[customer] < total
    }
    assert lost == {}
    # It was a live point: what came after the last commit was done twice.
    assert sum(count for count, _ in found.values()) > sum(count for count, _ in control.values())


def test_at_least_once_from_an_application_closed_in_an_orderly_way_repeats_nothing(
    at_least_once_run: AtLeastOnceRun, spark: SparkSessionResource, tmp_path: Path
) -> None:
    run, topics = at_least_once_run.source, at_least_once_run.topics
    assert run.points["stopped"].method is Method.QUIESCED
    # that it was not killed nobody can see in Kafka, so the operator has to know it
    assert run.points["stopped"].guarantee is Guarantee.AT_LEAST_ONCE
    request = own_names("stopped", run.points["stopped"])
    request = request.model_copy(update={"accept": Restorability.AT_LEAST_ONCE})
    restored = restore(run, run.settings.connection, spark, request)
    restored.commit()

    go_on(restored, topics, tmp_path / "state", guarantee="at_least_once")

    assert_as_control(restored, (topics.totals, topics.rejected), (topics.changelog,))


_RESTORES = 20


def _counted(found: Mapping[bytes | None, tuple[int, int]]) -> int:
    return sum(count for count, _ in found.values())


@pytest.fixture(scope="module")
def many_points_run(
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path_factory: pytest.TempPathFactory,
) -> AtLeastOnceRun:
    """A stock at-least-once application under load; a point every half second."""
    folder = tmp_path_factory.mktemp("many-points")
    topics = OrderTopics(unique_name("many"), unique_name("m") + ".")
    servers = second_cluster.bootstrap_servers
    create_topics(servers, topic_prefix=topics.prefix, partitions=PARTITIONS)
    points: dict[str, RecoveryPoint] = {}
    app = order_processor(
        servers, topics, folder / "state", guarantee="at_least_once", commit_interval_ms=1_500
    )
    with KafkaCluster(second_cluster) as cluster, app:
        source = Source(settings_of(topics.application, servers, folder), cluster)
        with Feed(servers, topics.orders, orders(seed=5), rate=600) as feed:
            time.sleep(3)
            for number in range(_RESTORES):
                points[f"p{number}"] = source.take(guarantee=Guarantee.AT_LEAST_ONCE)
                time.sleep(0.5)
            feed.stop()
        source.drain()
        points["end"] = source.take(guarantee=Guarantee.AT_LEAST_ONCE)
        source.back_up(points["end"], spark)
        return AtLeastOnceRun(source.ended(points), topics)


def test_twenty_restores_of_an_at_least_once_application_repeat_no_more_than_they_say(
    many_points_run: AtLeastOnceRun, spark: SparkSessionResource, tmp_path: Path
) -> None:
    """Nothing is asked for: the application's own guarantee is what a point has to give."""
    run, topics = many_points_run.source, many_points_run.topics
    control = totals(run.written[topics.totals])
    repeated: dict[str, tuple[int, int]] = {}
    for number in range(_RESTORES):
        point = run.points[f"p{number}"]
        assert point.runs_at is Guarantee.AT_LEAST_ONCE
        name = f"many{number}"
        restored = restore(run, run.settings.connection, spark, own_names(name, point))
        restored.commit()
        go_on(restored, topics, tmp_path / name, guarantee="at_least_once")
        found = totals(restored.written(topics.totals)[topics.totals])
        assert {c for c, total in control.items() if found.get(c, (0, 0)) < total} == set()
        most = sum(point.repeats_at_most.values())
        repeated[point.id] = (_counted(found) - _counted(control), most)
    assert all(0 <= extra <= most for extra, most in repeated.values()), repeated
    assert any(extra for extra, _ in repeated.values()), "nothing was repeated under load"


def test_offsets_that_are_older_than_the_point_repeat_more_than_it_says(
    many_points_run: AtLeastOnceRun, spark: SparkSessionResource, tmp_path: Path
) -> None:
    """The comparison above sees it."""
    run, topics = many_points_run.source, many_points_run.topics
    point = run.points[f"p{_RESTORES - 1}"]
    restored = restore(run, run.settings.connection, spark, own_names("older", point))
    restored.commit()
    with KafkaCluster(restored.target) as cluster:
        offsets = cluster.group_offsets(restored.plan.group)
        cluster.commit_group_offsets(
            restored.plan.group, {p: replace(o, offset=0) for p, o in offsets.items()}
        )

    go_on(restored, topics, tmp_path / "older", guarantee="at_least_once")

    control = totals(run.written[topics.totals])
    found = totals(restored.written(topics.totals)[topics.totals])
    assert _counted(found) - _counted(control) > sum(point.repeats_at_most.values())
