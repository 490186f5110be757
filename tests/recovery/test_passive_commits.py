"""Passive cuts of a running at-least-once application, judged by an oracle."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.levels import NoOrder, levels_of
from kstreams_assets.recovery.passive_commits import Ambiguous, EndsSample
from kstreams_assets.recovery.passive_method import PassiveCommits, Watched
from kstreams_assets.recovery.scene import NotTaken, Scene
from tests.recovery.vector_oracle import VectorHistory, Verdict, read_vectors
from tests.streams.cluster import connection_to, passing_cluster, unique_name
from tests.streams.vector_app import VectorApp, VectorTopics, orders

pytestmark = pytest.mark.kafka

CUTS = 6
TOO_EARLY_S = 0.1


@dataclass
class Watching(PassiveCommits):
    """Remembers its samples, for the negative control."""

    taken: list[tuple[float, EndsSample]] = field(default_factory=list)

    def _sample(self, log: TopicPartitionId) -> EndsSample:
        sample = super()._sample(log)
        self.taken.append((time.monotonic(), sample))
        return sample


def watched(watching: Watching) -> Watched:
    deadline = time.monotonic() + 60
    while isinstance(found := watching.watch(), NotTaken):  # the group may still rebalance
        assert found.again, found.reason
        assert time.monotonic() < deadline, found.reason
        time.sleep(1)
    return found


def judge(history: VectorHistory, one: Watched) -> tuple[Verdict, int]:
    cut = one.cut()
    assert not isinstance(cut, Ambiguous), cut.reason
    return history.judge(cut.ends, cut.committed, cut.excluded), cut.repeats_at_most


def judge_ends(history: VectorHistory, one: Watched, taken: list[EndsSample] | None) -> Verdict:
    """Judge the same boundaries with their newest ends, or with those of other samples."""
    ends: dict[TopicPartitionId, int] = {}
    samples = taken or [None] * len(one.evidence.boundaries)
    for boundary, sample in zip(one.evidence.boundaries, samples, strict=True):
        level = one.evidence.levels[boundary.level]
        for p, end in (sample.ends if sample else boundary.after).items():
            if p.topic in level.written:
                ends[p] = max(ends.get(p, 0), end)
    committed = {p: o for b in one.evidence.boundaries for p, o in b.committed.items()}
    return history.judge(ends, committed)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker that holds each commit back, so that samples fall between flush and commit."""
    properties = {"group.coordinator.append.linger.ms": "20"}
    folder = tmp_path_factory.mktemp("passive-commits")
    with (
        passing_cluster(folder, properties=properties) as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
    ):
        yield cluster


def test_passive_cuts_lose_nothing_and_repeat_no_more_than_they_say(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Two controls: a sample before the commit loses records, writers first repeats thousands."""
    topics = VectorTopics(unique_name("vector"), unique_name("v") + ".")
    topics.create(cluster)
    servers = cluster.connection.bootstrap_servers
    levels = levels_of(topics.application)
    assert not isinstance(levels, NoOrder)
    found: list[Watched] = []
    too_early: list[list[EndsSample]] = []
    writers_first: list[Watched] = []
    with (
        VectorApp(servers, topics, state_dir=tmp_path / "app"),
        orders(servers, topics, rate=2_000),
        cluster.raw_log() as reader,
    ):
        wait_for_offsets(cluster, topics)
        scene = Scene(topics.application, cluster, reader, cluster.metadata().topics)
        for _ in range(CUTS):
            watching = Watching(scene, wait_s=60, retry_s=6)
            one = watched(watching)
            found.append(one)
            too_early.append(earlier_samples(watching, one))
        for _ in range(2):
            wrong = Watching(scene, wait_s=60, retry_s=0, levels=levels[::-1])
            writers_first.append(watched(wrong))
    history = read_vectors(cluster, topics)
    verdicts = [judge(history, one) for one in found]
    early = [judge_ends(history, *pair) for pair in zip(found, too_early, strict=True)]
    wrong_order = [judge_ends(history, one, None) for one in writers_first]
    assert [v for v, _ in verdicts if v.losses] == []
    assert [pair for pair in verdicts if pair[0].repeats > pair[1]] == []
    assert sum(v.in_flight for v, _ in verdicts) > 0
    assert [v for v in early if v.losses] != []
    assert min(v.repeats for v in wrong_order) > 500


def earlier_samples(watching: Watching, one: Watched) -> list[EndsSample]:
    """Return, for each boundary, a sample that was taken a little before its commit."""
    found: list[EndsSample] = []
    for boundary in one.evidence.boundaries:
        at_s = next(at for at, sample in watching.taken if sample.group_end > boundary.last)
        early = [sample for at, sample in watching.taken if at < at_s - TOO_EARLY_S]
        found.append(early[-1] if early else watching.taken[0][1])
    return found


def wait_for_offsets(cluster: KafkaCluster, topics: VectorTopics) -> None:
    deadline = time.monotonic() + 60
    while len(cluster.group_offsets(topics.application_id)) < 12:
        assert time.monotonic() < deadline, "the application does not commit"
        time.sleep(0.5)


def test_no_cut_without_members(cluster: KafkaCluster) -> None:
    topics = VectorTopics(unique_name("vector"), unique_name("v") + ".")
    topics.create(cluster)
    with cluster.raw_log() as reader:
        scene = Scene(topics.application, cluster, reader, cluster.metadata().topics)
        found = PassiveCommits(scene, wait_s=1).take()
    assert isinstance(found, NotTaken)
    assert "not a stable group" in found.reason
