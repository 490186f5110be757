"""Commits on demand and barriers of a running at-least-once application, judged by an oracle."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from kstreams_assets.app.model import StreamsApplication, TopicEdge, TopicRole, TopicRoles
from kstreams_assets.errors import KafkaError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.control import CommitControl, ControlTopic
from kstreams_assets.kafka.journal import journal_topic, read_journal
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.barrier import Barrier
from kstreams_assets.recovery.levels import NoOrder, levels_of
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.recovery.scene import NotTaken, Positions, Scene
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import RecoveryPointSettings
from spark_resources.companion import COMMITS_ON_DEMAND, COMPANION_PROPERTIES
from spark_resources.jars import JarSet
from tests.recovery.test_journal_method import (
    SHORT_SESSIONS,
    assert_kept,
    assert_only_own_repeats,
    collected,
    disturbed,
    scene_of,
    topics,
    with_companion,
)
from tests.recovery.test_passive_commits import in_flight_of, judge_point, records_of
from tests.recovery.vector_oracle import VectorHistory, read_vectors
from tests.streams.vector_app import PARTITIONS, VectorApp, VectorTopics, orders
from tests.timing import eventually

__all__ = ["topics"]
pytestmark = pytest.mark.kafka

DRILL_POINTS: Final = 200
KILL_POINTS: Final = 60
KILLS: Final = 3
# The default commit interval: nobody waits for a commit that comes by itself.
RARE: Final = {"commit.interval.ms": "30000", "statestore.cache.max.bytes": "0", "linger.ms": "0"}


def control_of(topics: VectorTopics) -> str:
    return f"{topics.application_id}-commit-control"


def on_demand(
    servers: str,
    topics: VectorTopics,
    folder: Path,
    config: Mapping[str, str] | None = None,
    *,
    jar_set: JarSet = "kafka",
) -> VectorApp:
    asks = {"kstreams.assets.control.topic": control_of(topics)}
    settings = {**COMMITS_ON_DEMAND, **RARE, **asks, **(config or {})}
    chosen = {name: value for name, value in settings.items() if value}
    return with_companion(servers, topics, folder, chosen, jar_set=jar_set)


def cyclic(topics: VectorTopics) -> StreamsApplication:
    """The application with the property `with.feedback`."""
    known = topics.application
    edges = (*known.edges, TopicEdge(topics.by_customer, topics.orders))
    both = TopicRoles({TopicRole.INPUT, TopicRole.OUTPUT})
    changed = tuple(
        replace(one, roles=both) if one.name == topics.orders else one for one in known.topics
    )
    return replace(known, topics=changed, edges=edges)


def written_twice(topics: VectorTopics) -> StreamsApplication:
    """The application with the property `with.shared`."""
    known = topics.application
    edge = TopicEdge(topics.by_group, topics.customer_totals)
    return replace(known, edges=(*known.edges, edge))


@contextmanager
def asked(
    cluster: KafkaCluster,
    topics: VectorTopics,
    application: StreamsApplication | None = None,
    *,
    control: CommitControl | None = None,
) -> Iterator[tuple[Scene, CommitControl]]:
    """The application, once each thread has stopped at a barrier for the first time."""
    control = control or ControlTopic(cluster.connection, control_of(topics))

    def answers() -> bool:
        if isinstance(control, ControlTopic) and control.topic not in cluster.topics():
            return False
        try:
            control.send("commit")
        except KafkaError:  # the instance does not listen yet
            return False
        time.sleep(0.5)
        return len(cluster.group_offsets(topics.application_id)) == 3 * PARTITIONS

    assert eventually(answers)
    with scene_of(cluster, topics) as scene:
        scene = replace(scene, application=application or topics.application)
        assert eventually(lambda: isinstance(Barrier(scene, control).take(), Positions))
        yield scene, control


def barrier(scene: Scene, control: CommitControl) -> Positions | NotTaken:
    """A cut at a barrier; threads stop at most once a second."""
    time.sleep(1.0)
    return Barrier(scene, control).take()


def test_a_point_is_taken_at_once_from_an_application_that_commits_every_thirty_seconds(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: VectorTopics, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    warehouse = Warehouse(tmp_path / "warehouse")
    settings = RecoveryPointSettings(control_topic=control_of(topics))
    assert isinstance(levels_of(cyclic(topics)), NoOrder)
    with (
        on_demand(servers, topics, tmp_path / "app", {"with.feedback": "yes"}),
        orders(servers, topics, rate=500),
        asked(cluster, topics),
    ):
        in_order = Recorder(topics.application, cluster, warehouse, settings)
        point = in_order.take(commit_wait_s=3)
        saved = in_flight_of(Repository.of(warehouse, topics.application_id), point, topics)
        there = records_of(cluster, point, topics)
        cycle = Recorder(cyclic(topics), cluster, Warehouse(tmp_path / "other"), settings)
        time.sleep(1)
        stopped = cycle.take(commit_wait_s=2)
    history = read_vectors(cluster, topics)
    assert (point.method, point.guarantee) == (Method.JOURNAL, Guarantee.EXACT), point.reason
    assert (stopped.method, stopped.guarantee) == (Method.BARRIER, Guarantee.EXACT), stopped.reason
    assert "(a cycle)" in stopped.reason
    assert point.took_ms < 3_000
    for one in (point, stopped):
        verdict = judge_point(history, one)
        assert (verdict.repeats, verdict.losses) == (0, 0)
        assert one.repeats_at_most == {}
    assert saved == there


def test_an_application_that_does_not_answer_costs_no_point(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: VectorTopics, tmp_path: Path
) -> None:
    """The wrapper is not configured: the topology was built in the usual way."""
    servers = kafka_cluster.bootstrap_servers
    config = {"processor.wrapper.class": "", "commit.interval.ms": "1000"}
    app = on_demand(servers, topics, tmp_path / "app", config)
    settings = RecoveryPointSettings(control_topic=control_of(topics))
    with app, orders(servers, topics, rate=200), scene_of(cluster, topics) as scene:
        assert eventually(lambda: control_of(topics) in cluster.topics())
        assert eventually(lambda: journal_topic(topics.application_id) in cluster.topics())
        found = Barrier(scene, ControlTopic(cluster.connection, control_of(topics))).take()
        recorder = Recorder(topics.application, cluster, Warehouse(tmp_path / "w"), settings)
        point = recorder.take(commit_wait_s=0.5)
        assert eventually(lambda: "No thread commits on demand" in app.log_file.read_text("utf-8"))
    assert isinstance(found, NotTaken)
    assert "did not stop at a commit" in found.reason
    assert "journal: the journal has no new commit" in point.reason
    assert judge_point(read_vectors(cluster, topics), point).losses == 0


def feedback_violations(history: VectorHistory, cut: Positions) -> int:
    """How many orders of the cycle a cut has too few or too many, by its totals."""
    topics = history.topics
    totals = np.zeros(100, np.int64)
    again = np.zeros(100, np.int64)
    for number in range(PARTITIONS):
        of_totals, of_orders = (
            TopicPartitionId(topic, number) for topic in (topics.totals, topics.orders)
        )
        for customer, vector in zip(
            history.customers[of_totals][: cut.ends[of_totals]],
            history.vectors[of_totals][: cut.ends[of_totals]],
            strict=True,
        ):
            if customer < 100:
                totals[customer] = vector.sum()
        written = history.again[of_orders][: cut.ends[of_orders]]
        np.add.at(again, history.customers[of_orders][: cut.ends[of_orders]][written] - 100, 1)
    return int(np.abs(totals // 10 - again).sum())


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("variant", "jar_set", "config"),
    [
        ("cycle", "kafka", {"with.feedback": "yes"}),
        ("written twice", "kafka", {"with.shared": "yes"}),
        ("streams", "kafka", {"with.feedback": "yes", "group.protocol": "streams"}),
        ("standby", "kafka43", {"with.regions": "yes", "num.standby.replicas": "1"}),
        ("cache", "kafka", {"statestore.cache.max.bytes": "10485760", "linger.ms": "100"}),
    ],
)
def test_cuts_at_barriers_are_exact(
    kafka_cluster: LocalCluster,
    cluster: KafkaCluster,
    topics: VectorTopics,
    tmp_path: Path,
    variant: str,
    jar_set: JarSet,
    config: Mapping[str, str],
) -> None:
    """Control: the ends of one cut with the offsets of another one lose records."""
    servers = kafka_cluster.bootstrap_servers
    application = topics.application
    if "with.feedback" in config:
        application = cyclic(topics)
    elif "with.shared" in config:
        application = written_twice(topics)
    cluster.create_topics([TopicSpec(topics.regions, 2)])
    with (
        on_demand(servers, topics, tmp_path / "one", config, jar_set=jar_set),
        on_demand(servers, topics, tmp_path / "two", config, jar_set=jar_set),
        orders(servers, topics, rate=1_000),
        asked(cluster, topics, application) as (scene, control),
    ):
        found = [barrier(scene, control) for _ in range(DRILL_POINTS // 5)]
    cuts = [one for one in found if isinstance(one, Positions)]
    refused = Counter(one.reason for one in found if isinstance(one, NotTaken))
    print(f"{variant}: {len(cuts)} cuts, refused: {dict(refused)}")  # noqa: T201
    assert len(cuts) >= 0.8 * len(found), refused
    history = read_vectors(cluster, topics)
    verdicts = [history.judge(cut.ends, cut.committed, cut.excluded) for cut in cuts]
    assert [(v.repeats, v.losses) for v in verdicts] == [(0, 0)] * len(cuts)
    assert {(cut.method, cut.guarantee) for cut in cuts} == {(Method.BARRIER, Guarantee.EXACT)}
    assert_kept(cuts, topics)
    assert history.judge(cuts[0].ends, cuts[-1].committed).losses > 0
    if "with.feedback" in config:
        assert [feedback_violations(history, cut) for cut in cuts] == [0] * len(cuts)
        mixed = {**cuts[-1].ends, **orders_of(cuts[0], topics)}
        assert feedback_violations(history, replace(cuts[-1], ends=mixed)) > 0


def orders_of(cut: Positions, topics: VectorTopics) -> Mapping[TopicPartitionId, int]:
    return {p: end for p, end in cut.ends.items() if p.topic == topics.orders}


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("jar_set", ["kafka39", "kafka"])
def test_commits_on_demand_are_exact_without_the_wrapper_by_reflection(
    kafka_cluster: LocalCluster,
    cluster: KafkaCluster,
    topics: VectorTopics,
    tmp_path: Path,
    jar_set: JarSet,
) -> None:
    servers = kafka_cluster.bootstrap_servers
    config = {"processor.wrapper.class": "", "kstreams.assets.commit.by.reflection": "true"}
    settings = RecoveryPointSettings(control_topic=control_of(topics))
    recorder = Recorder(topics.application, cluster, Warehouse(tmp_path / "w"), settings)
    with (
        on_demand(servers, topics, tmp_path / "app", config, jar_set=jar_set),
        orders(servers, topics, rate=1_000),
        asked(cluster, topics),
    ):
        points = [recorder.take(commit_wait_s=3) for _ in range(20)]
    history = read_vectors(cluster, topics)
    exact = [one for one in points if one.guarantee is Guarantee.EXACT]
    assert len(exact) >= 18, [one.reason for one in points]
    assert {one.method for one in exact} <= {Method.JOURNAL, Method.BARRIER}
    verdicts = [judge_point(history, one) for one in points]
    assert [one.losses for one in verdicts] == [0] * len(points)
    assert [judge_point(history, one).repeats for one in exact] == [0] * len(exact)


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_barriers_while_instances_die_and_recorders_die(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: VectorTopics, tmp_path: Path
) -> None:
    """Kills repeat records of the application itself; a cut has these, no more and no less."""
    servers = kafka_cluster.bootstrap_servers
    apps = [on_demand(servers, topics, tmp_path / f"app{n}", SHORT_SESSIONS) for n in range(3)]
    killed_recorder = ControlTopic(cluster.connection, control_of(topics))
    with apps[0], apps[1]:
        with (
            orders(servers, topics, rate=200),
            asked(cluster, topics) as (scene, control),
            disturbed(apps, lambda: killed_recorder.send("hold")) as kills,
        ):
            cuts, refused = collected(
                lambda: barrier(scene, control),
                lambda cuts: len(cuts) >= KILL_POINTS and len(kills) >= KILLS,
            )
        time.sleep(2)
    print(f"{len(kills)} kills, refused: {dict(refused)}")  # noqa: T201
    history = read_vectors(cluster, topics)
    differences = [history.differences(cut.ends, cut.committed, cut.excluded)[:2] for cut in cuts]
    assert_only_own_repeats(differences, kills, apps)


def test_a_hold_ends_by_itself_and_says_so(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: VectorTopics, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    with (
        on_demand(servers, topics, tmp_path / "app"),
        orders(servers, topics, rate=200),
        asked(cluster, topics) as (_, control),
    ):
        time.sleep(1)
        request = control.send("hold")
        second = control.send("hold")  # within a second: nobody stops for it

        def releases() -> list[bool]:
            part = read_journal(cluster, topics.application_id, deadline_s=30)
            held = {one.held for one in part.boundaries}
            assert second not in held
            return [one.by_recorder for one in part.releases if one.held == request]

        assert eventually(lambda: len(releases()) == 2)
        assert releases() == [False, False]
    assert COMPANION_PROPERTIES.items() <= COMMITS_ON_DEMAND.items()
