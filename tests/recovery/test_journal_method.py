"""Cuts from the commit journal of a running at-least-once application, judged by an oracle."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.journal_method import JournalCommits
from kstreams_assets.recovery.levels import Level, NoOrder, levels_of
from kstreams_assets.recovery.scene import NotTaken, Positions, Scene
from spark_resources.companion import build_companion
from tests.recovery.vector_oracle import read_vectors
from tests.streams.cluster import unique_name
from tests.streams.vector_app import PARTITIONS, PROGRAM, VectorApp, VectorTopics, orders
from tests.timing import eventually

pytestmark = pytest.mark.kafka

CUTS: Final = 6
DRILL_POINTS: Final = 200
COMPANION: Final = {
    "main.consumer.interceptor.classes": "kstreamsassets.companion.CommitInterceptor",
    "producer.interceptor.classes": "kstreamsassets.companion.AckInterceptor",
}
# Without linger and cache, a thread's next batches follow its commit at once.
HARD: Final = {"linger.ms": "0", "statestore.cache.max.bytes": "0", "commit.interval.ms": "300"}


def with_companion(
    servers: str, topics: VectorTopics, folder: Path, config: Mapping[str, str] | None = None
) -> VectorApp:
    return VectorApp(
        servers,
        topics,
        state_dir=folder,
        config={**COMPANION, **HARD, **(config or {})},
        program=replace(PROGRAM, jars=(build_companion(),)),
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


def test_cuts_from_the_journal_are_exact(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: VectorTopics, tmp_path: Path
) -> None:
    """Controls: the ends of an earlier cut lose records; writers before readers give no cut."""
    servers = kafka_cluster.bootstrap_servers
    levels = levels_of(topics.application)
    assert not isinstance(levels, NoOrder)
    with (
        with_companion(servers, topics, tmp_path / "app"),
        orders(servers, topics, rate=1_000),
        scene_of(cluster, topics) as scene,
    ):
        cuts = [taken(scene) for _ in range(CUTS)]
        writers_first = [tried(scene, levels[::-1]) for _ in range(2)]
        no_journal = JournalCommits(scene, wait_s=1, topic=unique_name("journal")).take()
    history = read_vectors(cluster, topics)
    verdicts = [history.judge(cut.ends, cut.committed, cut.excluded) for cut in cuts]
    assert [(v.repeats, v.losses) for v in verdicts] == [(0, 0)] * CUTS
    assert sum(v.in_flight for v in verdicts) > 0
    assert {(cut.method, cut.guarantee) for cut in cuts} == {(Method.JOURNAL, Guarantee.EXACT)}
    assert all(o.metadata for cut in cuts for o in cut.committed.values())
    assert_kept(cuts, topics)
    assert history.judge(cuts[0].ends, cuts[-1].committed).losses > 0
    assert all("beyond what its writers had committed" in str(one) for one in writers_first)
    assert isinstance(no_journal, NotTaken)
    assert "there is no commit journal" in no_journal.reason


@pytest.mark.drill
def test_a_member_without_the_companion_gives_no_cut(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: VectorTopics, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    with (
        with_companion(servers, topics, tmp_path / "with"),
        with_companion(servers, topics, tmp_path / "without", dict.fromkeys(COMPANION, "")),
        orders(servers, topics, rate=500),
        scene_of(cluster, topics) as scene,
    ):
        assert "may run without the companion" in str(tried(scene))


def assert_kept(cuts: list[Positions], topics: VectorTopics) -> None:
    """The records in flight were read before the application can purge them."""
    for cut in cuts:
        for topic in (topics.by_customer, topics.by_group):
            for p in (TopicPartitionId(topic, number) for number in range(PARTITIONS)):
                if cut.committed[p].offset < cut.ends[p]:
                    first, last = cut.kept[p][0].header, cut.kept[p][-1].header
                    assert first.base_offset <= cut.committed[p].offset
                    assert last.last_offset >= cut.ends[p] - 1
