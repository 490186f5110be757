"""Cuts from the commit journal of a running at-least-once application, judged by an oracle."""

import itertools
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from confluent_kafka import Producer

from kstreams_assets.app.model import (
    AppTopic,
    Store,
    StreamsApplication,
    TopicEdge,
    TopicRole,
    TopicRoles,
)
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.journal import journal_topic
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, Method, RecoveryPoint
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.journal_method import JournalCommits
from kstreams_assets.recovery.levels import Level, NoOrder, levels_of
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.recovery.scene import NotTaken, Positions, Scene
from kstreams_assets.repository.repository import Repository
from spark_resources.companion import COMPANION_PROPERTIES, build_companion
from spark_resources.jars import JarSet
from spark_resources.java import JavaProgram
from tests.recovery.history import read_history
from tests.recovery.oracle import Cut, violations
from tests.recovery.test_passive_commits import in_flight_of, judge_point, records_of
from tests.recovery.trial import NO_PURGE
from tests.recovery.vector_oracle import Vectors, Verdict, read_vectors
from tests.streams.cluster import unique_name
from tests.streams.oracle_app import SOURCE, OracleApp, OracleTopics, create_topics
from tests.streams.oracle_load import OracleLoad
from tests.streams.vector_app import (
    PARTITIONS,
    PROGRAM,
    VectorApp,
    VectorTopics,
    application_of,
    orders,
)
from tests.timing import eventually

pytestmark = pytest.mark.kafka

CUTS: Final = 6
DRILL_POINTS: Final = 200
QUIET: Final = 8
# Without linger and cache, a thread's next batches follow its commit at once.
HARD: Final = {"linger.ms": "0", "statestore.cache.max.bytes": "0", "commit.interval.ms": "300"}


def with_companion(
    servers: str,
    topics: VectorTopics,
    folder: Path,
    config: Mapping[str, str] | None = None,
    *,
    jar_set: JarSet = "kafka",
) -> VectorApp:
    return VectorApp(
        servers,
        topics,
        state_dir=folder,
        config={**COMPANION_PROPERTIES, **HARD, **(config or {})},
        program=replace(PROGRAM, jar_set=jar_set, jars=(build_companion(),)),
    )


@pytest.fixture
def topics(cluster: KafkaCluster) -> VectorTopics:
    found = VectorTopics(unique_name("vector"), unique_name("v") + ".")
    found.create(cluster)
    return found


@contextmanager
def scene_of(cluster: KafkaCluster, topics: VectorTopics) -> Iterator[Scene]:
    """The application, once it has committed an offset of each partition."""

    def commits_all() -> bool:
        return len(cluster.group_offsets(topics.application_id)) == 3 * PARTITIONS

    assert eventually(commits_all)
    with cluster.raw_log() as reader:
        yield Scene(topics.application, cluster, reader, cluster.metadata().topics)


def tried(scene: Scene, levels: Sequence[Level] | None = None) -> Positions | str:
    """A cut, or why there is none; the group may still rebalance."""
    found: list[Positions | NotTaken] = []

    def is_decided() -> bool:
        found.append(JournalCommits(scene, wait_s=60, levels=levels).take())
        return isinstance(found[-1], Positions) or "rebalanced" not in found[-1].reason

    assert eventually(is_decided)
    return found[-1].reason if isinstance(found[-1], NotTaken) else found[-1]


def taken(scene: Scene) -> Positions:
    cut = tried(scene)
    assert isinstance(cut, Positions), cut
    return cut


def test_a_point_from_the_journal_is_exact(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: VectorTopics, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    warehouse = Warehouse(tmp_path / "warehouse")
    recorder = Recorder(topics.application, cluster, warehouse)
    points: list[RecoveryPoint] = []

    def is_from_journal() -> bool:
        points.append(recorder.take(commit_wait_s=30))
        return points[-1].method is Method.JOURNAL

    with (
        with_companion(servers, topics, tmp_path / "app"),
        orders(servers, topics, rate=500),
        scene_of(cluster, topics) as scene,
    ):
        # The companion creates its topic after the first commit.
        assert eventually(lambda: journal_topic(topics.application_id) in cluster.topics())
        assert eventually(is_from_journal), [one.reason for one in points]
        saved = in_flight_of(Repository.of(warehouse, topics.application_id), points[-1], topics)
        there = records_of(cluster, points[-1], topics)
        no_journal = JournalCommits(scene, wait_s=1, topic=unique_name("journal")).take()
    history = read_vectors(cluster, topics)
    point = points[-1]
    assert [judge_point(history, one).losses for one in points] == [0] * len(points)
    assert judge_point(history, point) == Verdict(0, 0, point.in_flight)
    assert point.guarantee is Guarantee.EXACT, point.reason
    assert saved == there
    assert {(one.level, one.repeats) for one in point.commits} == {(0, 0), (1, 0), (2, 0)}
    assert point.repeats_at_most == {}
    assert isinstance(no_journal, NotTaken)
    assert "there is no commit journal" in no_journal.reason


@pytest.mark.drill
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_cuts_from_the_journal_are_exact(
    kafka_cluster: LocalCluster,
    cluster: KafkaCluster,
    topics: VectorTopics,
    tmp_path: Path,
    protocol: str,
) -> None:
    """Controls: the ends of an earlier cut lose records; writers before readers give no cut."""
    servers = kafka_cluster.bootstrap_servers
    levels = levels_of(topics.application)
    assert not isinstance(levels, NoOrder)
    config = {} if protocol == "classic" else {"group.protocol": protocol}
    with (
        with_companion(servers, topics, tmp_path / "app", config),
        orders(servers, topics, rate=1_000),
        scene_of(cluster, topics) as scene,
    ):
        cuts = [taken(scene) for _ in range(CUTS)]
        writers_first = [tried(scene, levels[::-1]) for _ in range(2)]
    history = read_vectors(cluster, topics)
    verdicts = [history.judge(cut.ends, cut.committed, cut.excluded) for cut in cuts]
    assert [(v.repeats, v.losses) for v in verdicts] == [(0, 0)] * CUTS
    assert sum(v.in_flight for v in verdicts) > 0
    assert {(cut.method, cut.guarantee) for cut in cuts} == {(Method.JOURNAL, Guarantee.EXACT)}
    assert all(o.metadata for cut in cuts for o in cut.committed.values())
    assert_kept(cuts, topics)
    assert history.judge(cuts[0].ends, cuts[-1].committed).losses > 0
    assert all("beyond what its writers had committed" in str(one) for one in writers_first)


@pytest.mark.drill
def test_with_a_member_without_the_companion_another_method_takes_the_point(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: VectorTopics, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    with (
        with_companion(servers, topics, tmp_path / "with"),
        with_companion(
            servers, topics, tmp_path / "without", dict.fromkeys(COMPANION_PROPERTIES, "")
        ),
        orders(servers, topics, rate=500),
        scene_of(cluster, topics) as scene,
    ):
        assert "may run without the companion" in str(tried(scene))
        warehouse = Warehouse(tmp_path / "warehouse")
        point = Recorder(topics.application, cluster, warehouse).take(commit_wait_s=40)
    assert point.method in (Method.PASSIVE_COMMITS, Method.OFFSETS_FIRST)
    assert "journal: the journal does not contain the newest commits of 2 of 4" in point.reason
    assert judge_point(read_vectors(cluster, topics), point).losses == 0


def assert_kept(cuts: list[Positions], topics: VectorTopics) -> None:
    """The records in flight were read before the application can purge them."""
    for cut in cuts:
        for topic in (topics.by_customer, topics.by_group):
            for p in (TopicPartitionId(topic, number) for number in range(PARTITIONS)):
                if cut.committed[p].offset < cut.ends[p]:
                    first, last = cut.kept[p][0].header, cut.kept[p][-1].header
                    assert first.base_offset <= cut.committed[p].offset
                    assert last.last_offset >= cut.ends[p] - 1


@pytest.mark.drill
def test_standby_replicas_and_a_global_table_change_nothing(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: VectorTopics, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    cluster.create_topics([TopicSpec(topics.regions, 2)])
    regions = AppTopic(topics.regions, TopicRoles({TopicRole.GLOBAL}))
    known = topics.application
    application = replace(known, topics=tuple(sorted((*known.topics, regions), key=name_of)))
    config = {"num.standby.replicas": "1", "with.regions": "yes"}
    with (
        with_companion(servers, topics, tmp_path / "one", config),
        with_companion(servers, topics, tmp_path / "two", config),
        orders(servers, topics, rate=500),
        scene_of(cluster, topics) as scene,
    ):
        cuts = [taken(replace(scene, application=application)) for _ in range(30)]
    history = read_vectors(cluster, topics)
    verdicts = [history.judge(cut.ends, cut.committed, cut.excluded) for cut in cuts]
    assert [(v.repeats, v.losses) for v in verdicts] == [(0, 0)] * len(cuts)


def name_of(topic: AppTopic) -> str:
    return topic.name


@pytest.mark.drill
def test_punctuators_on_threads_without_records(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, tmp_path: Path
) -> None:
    """A thread that never read a record writes without a commit, and gives no cut.

    Once it has read one, it commits after punctuations too. What it wrote since a commit is not
    part of a cut; what it wrote before is.
    """
    servers = kafka_cluster.bootstrap_servers
    topics = OracleTopics(unique_name("app"), unique_name("oracle") + ".")
    create_topics(servers, topics, partitions=2, quiet_partitions=QUIET)
    app = OracleApp(
        servers,
        topics,
        state_dir=tmp_path / "app",
        guarantee="at_least_once",
        threads=6,
        commit_interval_ms=300,
        punctuate_ms=20,
        config={**COMPANION_PROPERTIES, **NO_PURGE, "linger.ms": "0"},
        program=JavaProgram(SOURCE, jars=(build_companion(),)),
    )
    with (
        app,
        OracleLoad(servers, topics.orders, rate=500),
        cluster.raw_log() as reader,
    ):
        members = cluster.group_members
        assert eventually(lambda: len(members(topics.application_id) or ()) == 6)
        assignment = members(topics.application_id) or {}
        assert any({p.topic for p in of} == {topics.quiet} for of in assignment.values())
        needed = {topics.ticks_changelog, journal_topic(topics.application_id)}
        assert eventually(lambda: needed <= cluster.topics().keys())
        scene = Scene(ticking(topics), cluster, reader, cluster.metadata().topics)
        refused = JournalCommits(scene, wait_s=3).take()
        producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        for number in range(QUIET):
            producer.produce(topics.quiet, value=b"once", partition=number)
        producer.flush(30)
        cuts = [taken(scene) for _ in range(20)]
    assert isinstance(refused, NotTaken)
    assert "threads without records commit nothing" in refused.reason
    history = read_history(servers, topics)
    found = [
        Cut({p: o.offset for p, o in cut.committed.items()}, cut.ends, cut.excluded) for cut in cuts
    ]
    assert [violations(history, cut) for cut in found] == [[]] * len(found)
    mixed = Cut(found[-1].committed, {**found[-1].ends, **ticks_of(found[0], topics.ticks)})
    assert violations(history, mixed) != []


def ticks_of(cut: Cut, topic: str) -> Mapping[TopicPartitionId, int]:
    return {p: end for p, end in cut.ends.items() if p.topic == topic}


def ticking(topics: OracleTopics) -> StreamsApplication:
    """The application with its sub-topologies."""
    of = {
        topics.orders: (TopicRole.INPUT, (0,)),
        topics.repartition: (TopicRole.REPARTITION, (1,)),
        topics.changelog: (TopicRole.CHANGELOG, (1,)),
        topics.totals: (TopicRole.OUTPUT, ()),
        topics.quiet: (TopicRole.INPUT, (2,)),
        topics.ticks_changelog: (TopicRole.CHANGELOG, (2,)),
        topics.ticks: (TopicRole.OUTPUT, ()),
    }
    edges = (
        TopicEdge(topics.orders, topics.repartition),
        TopicEdge(topics.repartition, topics.changelog),
        TopicEdge(topics.repartition, topics.totals),
        TopicEdge(topics.quiet, topics.ticks_changelog),
        TopicEdge(topics.quiet, topics.ticks),
    )
    stores = (Store("totals", topics.changelog), Store("ticks", topics.ticks_changelog))
    return application_of(topics.application_id, of, stores, edges)


SHORT_SESSIONS: Final = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}


@contextmanager
def disturbed(apps: Sequence[VectorApp], *more: Callable[[], object]) -> Iterator[list[float]]:
    """Kill one of the first two and start it again, let a third one join and leave, call more.

    Yields the times of kills.
    """
    kills: list[float] = []
    over = threading.Event()

    def kill(source: random.Random) -> None:
        kills.append(time.monotonic())
        app = apps[source.randrange(2)]
        app.kill()
        over.wait(source.uniform(0, 10))
        app.start()

    def join(source: random.Random) -> None:
        apps[2].start()
        over.wait(source.uniform(5, 15))
        apps[2].stop()

    def disturb() -> None:
        source = random.Random(5)
        for step in itertools.cycle((kill, join, *((lambda _, one=one: one()) for one in more))):
            if over.wait(source.uniform(8, 20)):
                return
            step(source)

    thread = threading.Thread(target=disturb, name="disturber")
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join(120)
        apps[2].stop()


def collected(
    take: Callable[[], Positions | NotTaken], is_enough: Callable[[Sequence[Positions]], bool]
) -> tuple[list[Positions], Counter[str]]:
    """Take cuts until there are enough; return them, and how often which reason refused one."""
    cuts: list[Positions] = []
    refused: Counter[str] = Counter()
    while not is_enough(cuts):
        found = take()
        if isinstance(found, Positions):
            cuts.append(found)
        else:
            refused[re.sub(r"[^ ]*\d[^ ]*", "N", found.reason)] += 1
    return cuts, refused


def assert_only_own_repeats(
    found: Sequence[Sequence[Vectors]], kills: Sequence[float], apps: Sequence[VectorApp]
) -> None:
    """Differences of cuts grow only with what kills make the application repeat.

    A thread that missed its session repeats records as if it had been killed.
    """
    fenced = sum(app.log_file.read_text("utf-8").count("is being fenced") for app in apps)
    changes = 0
    before = [np.zeros_like(one) for one in found[0]]
    for number, repeats in enumerate(found):
        grown = [now - then for now, then in zip(repeats, before, strict=True)]
        assert all((one >= 0).all() for one in grown), number
        changes += any(one.any() for one in grown)
        before = [*repeats]
    assert 0 < changes <= len(kills) + fenced


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_cuts_while_instances_die_and_the_group_rebalances(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: VectorTopics, tmp_path: Path
) -> None:
    """Kills repeat records of the application itself; a cut has these, no more and no less."""
    servers = kafka_cluster.bootstrap_servers
    apps = [with_companion(servers, topics, tmp_path / f"app{n}", SHORT_SESSIONS) for n in range(3)]
    with apps[0], apps[1]:
        with (
            orders(servers, topics, rate=200),
            scene_of(cluster, topics) as scene,
            disturbed(apps) as kills,
        ):
            cuts, refused = collected(
                lambda: JournalCommits(scene, wait_s=6).take(),
                lambda cuts: len(cuts) >= DRILL_POINTS,
            )
        assert eventually(lambda: is_drained(cluster, topics), within_s=120)
        end = cluster.group_offsets(topics.application_id)
    print(f"{len(kills)} kills, refused: {dict(refused)}")  # noqa: T201
    history = read_vectors(cluster, topics)
    ends = {p: len(customers) for p, customers in history.customers.items()}
    found = [history.differences(cut.ends, cut.committed, cut.excluded)[:2] for cut in cuts]
    found.append(history.differences(ends, end)[:2])
    assert len(kills) >= 5
    assert_only_own_repeats(found, kills, apps)


def is_drained(cluster: KafkaCluster, topics: VectorTopics) -> bool:
    """Whether everything was read; nothing is written any more."""
    read = [
        TopicPartitionId(topic, number)
        for topic in (topics.orders, topics.by_customer, topics.by_group)
        for number in range(PARTITIONS)
    ]
    ends = cluster.high_watermarks(read)
    committed = cluster.group_offsets(topics.application_id)
    return all(p in committed and committed[p].offset == ends[p] for p in read)
