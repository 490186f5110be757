"""Passive cuts of a running at-least-once application, judged by an oracle."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import Guarantee, Method, RecoveryPoint
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.levels import NoOrder, levels_of
from kstreams_assets.recovery.passive_commits import Ambiguous, EndsSample
from kstreams_assets.recovery.passive_method import PassiveCommits, Watched
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.recovery.scene import NotTaken, Scene
from kstreams_assets.repository.repository import Repository
from tests.recovery.vector_oracle import VectorHistory, Verdict, read_vectors
from tests.streams.cluster import connection_to, passing_cluster, unique_name
from tests.streams.vector_app import PARTITIONS, VectorApp, VectorTopics, orders

pytestmark = pytest.mark.kafka

CUTS = 6
MANY_CUTS = 20
STREAMS_PROTOCOL = {"group.protocol": "streams"}
NO_CACHE = {"statestore.cache.max.bytes": "0"}
TOO_EARLY_S = 0.1


@dataclass
class Watching(PassiveCommits):
    """Remembers its samples, for the negative control."""

    taken: list[tuple[float, EndsSample]] = field(default_factory=list)

    def _sample(self, log: TopicPartitionId) -> EndsSample:
        sample = super()._sample(log)
        self.taken.append((time.monotonic(), sample))
        return sample


def watched(watching: PassiveCommits) -> Watched:
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


@contextmanager
def running(cluster: KafkaCluster, folder: Path, rate: int) -> Iterator[VectorTopics]:
    """One instance under a load of orders per second, which has committed offsets."""
    topics = VectorTopics(unique_name("vector"), unique_name("v") + ".")
    topics.create(cluster)
    servers = cluster.connection.bootstrap_servers
    with VectorApp(servers, topics, state_dir=folder / "app"), orders(servers, topics, rate=rate):
        wait_for_offsets(cluster, topics)
        yield topics


def test_passive_cuts_lose_nothing_and_repeat_no_more_than_they_say(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Two controls: a sample before the commit loses records, writers first repeats thousands."""
    found: list[Watched] = []
    too_early: list[list[EndsSample]] = []
    writers_first: list[Watched] = []
    with running(cluster, tmp_path, rate=2_000) as topics, cluster.raw_log() as reader:
        levels = levels_of(topics.application)
        assert not isinstance(levels, NoOrder)
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


@pytest.mark.drill
@pytest.mark.parametrize(
    ("instances", "config", "exact"),
    [
        pytest.param(1, {}, 0.7, id="defaults"),
        pytest.param(1, {"producer.linger.ms": "0", **NO_CACHE}, 0, id="no-linger-no-cache"),
        pytest.param(
            3, {"producer.linger.ms": "5", **NO_CACHE}, 0, id="three-instances-one-killed"
        ),
        pytest.param(2, {"producer.linger.ms": "5"}, 0, id="two-instances-cache-one-killed"),
        pytest.param(2, STREAMS_PROTOCOL, 0, id="two-instances-streams-protocol-one-killed"),
    ],
)
def test_each_of_many_cuts_is_what_it_says(
    cluster: KafkaCluster, tmp_path: Path, instances: int, config: dict[str, str], exact: float
) -> None:
    """An instance is killed halfway, if there are several; `exact`: at least this share is."""
    topics = VectorTopics(unique_name("vector"), unique_name("v") + ".")
    topics.create(cluster)
    servers = cluster.connection.bootstrap_servers
    settings = {"num.stream.threads": "1", **config}
    if config != STREAMS_PROTOCOL:  # there the broker has this setting
        settings["consumer.session.timeout.ms"] = "10000"
    apps = [
        VectorApp(servers, topics, state_dir=tmp_path / f"app{number}", config=settings)
        for number in range(instances)
    ]
    found: list[Watched] = []
    killed_at = MANY_CUTS // 2 if instances > 1 else MANY_CUTS
    with ExitStack() as stack:
        for app in apps:
            stack.enter_context(app)
        reader = stack.enter_context(cluster.raw_log())
        with orders(servers, topics, rate=1_500):
            wait_for_offsets(cluster, topics)
            scene = Scene(topics.application, cluster, reader, cluster.metadata().topics)
            for number in range(MANY_CUTS):
                if number == killed_at:
                    apps[0].kill()
                found.append(watched(PassiveCommits(scene, wait_s=60, retry_s=2)))
        final = read_to_the_end(cluster, topics)
    history = read_vectors(cluster, topics)
    own = history.judge(ends_of(cluster, topics), final)
    verdicts = [judge(history, one) for one in found]
    assert own.losses == own.in_flight == 0
    assert [v for v, _ in verdicts if v.losses] == []
    assert [pair for pair in verdicts[:killed_at] if pair[0].repeats > pair[1]] == []
    assert sum(bound == 0 for _, bound in verdicts) >= exact * MANY_CUTS, verdicts
    # After a kill, the application itself has repeated records.
    beyond = [pair for pair in verdicts[killed_at:] if pair[0].repeats > pair[1] + own.repeats]
    assert beyond == []


def ends_of(cluster: KafkaCluster, topics: VectorTopics) -> Mapping[TopicPartitionId, int]:
    numbers = range(PARTITIONS)
    return cluster.high_watermarks(TopicPartitionId(t, n) for t in topics.written for n in numbers)


def read_to_the_end(
    cluster: KafkaCluster, topics: VectorTopics
) -> dict[TopicPartitionId, CommittedOffset]:
    """Return the offsets of the application once it has read everything."""
    deadline = time.monotonic() + 120
    while True:
        committed = cluster.group_offsets(topics.application_id)
        ends = cluster.high_watermarks(committed)
        if all(committed[p].offset == end for p, end in ends.items()):
            return committed
        assert time.monotonic() < deadline, "the application does not read to the end"
        time.sleep(0.5)


def earlier_samples(watching: Watching, one: Watched) -> list[EndsSample]:
    """Return, for each boundary, a sample that was taken a little before its commit."""
    found: list[EndsSample] = []
    for boundary in one.evidence.boundaries:
        at_s = next(at for at, sample in watching.taken if sample.group_end > boundary.last)
        early = [sample for at, sample in watching.taken if at < at_s - TOO_EARLY_S]
        found.append(early[-1] if early else watching.taken[0][1])
    return found


def wait_for_offsets(cluster: KafkaCluster, topics: VectorTopics) -> None:
    deadline = time.monotonic() + 180  # a commit every 30 s, at three levels
    while len(cluster.group_offsets(topics.application_id)) < 12:
        assert time.monotonic() < deadline, "the application does not commit"
        time.sleep(0.5)


def test_a_point_that_waits_for_commits_loses_nothing_and_says_its_number(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Whether it is exact, is decided by what the application does close to its commits."""
    with running(cluster, tmp_path, rate=1_000) as topics:
        recorder = Recorder(topics.application, cluster, Warehouse(tmp_path / "warehouse"))
        point = recorder.take(commit_wait_s=20)
    verdict = judge_point(read_vectors(cluster, topics), point)
    assert verdict.losses == 0, point.reason
    assert verdict.repeats <= point.most_repeats, point.reason
    assert point.method in (Method.PASSIVE_COMMITS, Method.OFFSETS_FIRST)
    if point.method is Method.OFFSETS_FIRST:
        assert "passive_commits" in point.reason


@pytest.mark.drill
@pytest.mark.alone
def test_a_point_of_a_running_application_is_exact_and_others_take_points_meanwhile(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    warehouse = Warehouse(tmp_path / "warehouse")
    with running(cluster, tmp_path, rate=1_000) as topics:
        recorder = Recorder(topics.application, cluster, warehouse)
        exact = exact_point(recorder)
        saved = in_flight_of(Repository.of(warehouse, topics.application_id), exact, topics)
        there = records_of(cluster, exact, topics)
        with KafkaCluster(cluster.connection) as other:
            meanwhile = taken_meanwhile(recorder, Recorder(topics.application, other, warehouse))
    history = read_vectors(cluster, topics)
    assert [judge_point(history, exact)] == [Verdict(0, 0, exact.in_flight)]
    assert saved == there
    assert {one.level for one in exact.commits} == {0, 1, 2}
    assert {one.repeats for one in exact.commits} == {exact.repeats_bound} == {0}
    assert exact.repeats_at_most == {}
    points = Repository.of(warehouse, topics.application_id).points.newest(2)
    assert points[1] == meanwhile
    assert meanwhile.method is Method.OFFSETS_FIRST
    assert meanwhile.repeats_bound is None
    assert judge_point(history, points[0]).losses == 0
    assert behind(points[0], meanwhile) == []


def exact_point(recorder: Recorder) -> RecoveryPoint:
    reasons: list[str] = []
    for _ in range(4):
        point = recorder.take(commit_wait_s=30)
        if point.guarantee is Guarantee.EXACT:
            assert point.method is Method.PASSIVE_COMMITS
            return point
        reasons.append(point.reason)
    pytest.fail("\n".join(reasons))


def taken_meanwhile(waits: Recorder, other: Recorder) -> RecoveryPoint:
    """Return a point that another recorder took while the first one waited for commits."""
    for _ in range(5):
        waiting = threading.Thread(target=lambda: waits.take(commit_wait_s=20))
        waiting.start()
        point = other.take()
        was_waiting = waiting.is_alive()
        waiting.join(120)
        if was_waiting:
            return point
    pytest.fail("the other recorder took no point while the first one waited")


def judge_point(history: VectorHistory, point: RecoveryPoint) -> Verdict:
    cuts = point.partitions
    return history.judge(
        {cut.id: cut.end for cut in cuts},
        point.group.committed,
        {cut.id: cut.excluded for cut in cuts},
    )


def behind(later: RecoveryPoint, earlier: RecoveryPoint) -> list[TopicPartitionId]:
    """Return what the earlier point has and the later one does not have."""
    ends = {cut.id: cut.whole_below for cut in later.partitions}
    offsets = {one.id: one.offset for one in later.group_offsets}
    return [
        *(cut.id for cut in earlier.partitions if ends[cut.id] < cut.end),
        *(one.id for one in earlier.group_offsets if offsets[one.id] < one.offset),
    ]


def in_flight_of(
    repo: Repository, point: RecoveryPoint, topics: VectorTopics
) -> dict[TopicPartitionId, list[tuple[int, bytes]]]:
    """Return the saved repartition records of a point."""
    found: dict[TopicPartitionId, list[tuple[int, bytes]]] = {}
    for row in repo.saved_records.of_point(point).to_pylist():
        if row["topic"] in (topics.by_customer, topics.by_group):
            p = TopicPartitionId(row["topic"], row["partition"])
            found.setdefault(p, []).append((row["offset"], row["value"]))
    return found


def records_of(
    cluster: KafkaCluster, point: RecoveryPoint, topics: VectorTopics
) -> dict[TopicPartitionId, list[tuple[int, bytes]]]:
    """Return the same records, from the logs."""
    found: dict[TopicPartitionId, list[tuple[int, bytes]]] = {}
    with cluster.raw_log() as reader:
        for cut in point.partitions:
            if cut.topic in (topics.by_customer, topics.by_group):
                asked = OffsetRange(point.group.offset_in(cut) or 0, cut.end)
                batches = reader.read({cut.id: asked}, deadline_s=30)[cut.id] if asked else ()
                records = [r for batch in batches for r in batch.records()]
                kept = [
                    (r.offset, r.value or b"")
                    for r in records
                    if r.offset in asked and cut.holds(r.offset)
                ]
                if kept:
                    found[cut.id] = kept
    return found


def test_no_cut_without_members(cluster: KafkaCluster) -> None:
    topics = VectorTopics(unique_name("vector"), unique_name("v") + ".")
    topics.create(cluster)
    with cluster.raw_log() as reader:
        scene = Scene(topics.application, cluster, reader, cluster.metadata().topics)
        found = PassiveCommits(scene, wait_s=1).take()
    assert isinstance(found, NotTaken)
    assert "the group is not stable" in found.reason
