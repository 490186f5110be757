"""tests/streams/OracleApp.java under load, built with today's and with older jars."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.jars import JarSet, verify_jars
from tests.recovery.history import read_history
from tests.recovery.oracle import Check, Cut, History, violations
from tests.recovery.oracle_records import last
from tests.streams.cluster import unique_name
from tests.streams.oracle_app import OracleApp, OracleTopics, create_topics
from tests.streams.oracle_load import OracleLoad, Sent
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.drill]

PARTITIONS = 4
CONFIG = {"session.timeout.ms": "6000", "repartition.purge.interval.ms": "3600000"}
FAR_END = 1 << 40


@pytest.fixture
def topics() -> OracleTopics:
    return OracleTopics(unique_name("app"), unique_name("oracle") + ".")


@pytest.fixture(scope="module")
def old_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    jars = verify_jars("kafka39", hashes=False)
    with LocalCluster(tmp_path_factory.mktemp("old"), jars=jars, heap_mb=256) as cluster:
        yield cluster


def cluster_of(broker: LocalCluster) -> KafkaCluster:
    return KafkaCluster(KafkaConnection(bootstrap_servers=broker.bootstrap_servers))


def await_drained(broker: LocalCluster, topics: OracleTopics) -> None:
    """Wait until every order is read and has passed the repartition topic."""
    inputs = [TopicPartitionId(topics.orders, number) for number in range(PARTITIONS)]
    internal = [TopicPartitionId(topics.repartition, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + 60
    with cluster_of(broker) as cluster:
        while True:
            ends = cluster.high_watermarks(inputs + internal)
            offsets = cluster.group_offsets(topics.application_id)
            lag = {each: ends[each] - offsets[each].offset for each in ends if each in offsets}
            # The marker of a transaction may stand between a repartition offset and the end.
            if len(lag) == len(ends) and all(
                left <= (0 if each in inputs else 1) for each, left in lag.items()
            ):
                return
            assert time.monotonic() < deadline, lag
            time.sleep(0.2)


def final_cut(broker: LocalCluster, topics: OracleTopics, history: History) -> Cut:
    """Everything there is, of an application that does not run."""
    with cluster_of(broker) as cluster:
        offsets = cluster.group_offsets(topics.application_id)
    parts = (
        history.repartition or {},
        history.changelog,
        history.outputs,
        history.ticks_changelog,
        history.ticks_outputs,
    )
    return Cut(
        committed={each: committed.offset for each, committed in offsets.items()},
        ends={each: FAR_END for partitions in parts for each in partitions},
    )


def run_load(broker: LocalCluster, topics: OracleTopics, *apps: OracleApp) -> Sent:
    """Let the applications work off five seconds of a thousand orders each, then stop them."""
    try:
        for app in apps:
            app.start()
        with OracleLoad(broker.bootstrap_servers, topics.orders, rate=1000) as load:
            assert eventually(lambda: load.count >= 5_000)
            sent = load.stop()
        await_drained(broker, topics)
    finally:
        for app in apps:
            app.stop()
    return sent


def judge(broker: LocalCluster, topics: OracleTopics, sent: Sent) -> History:
    """Hold the end of a run against its whole history."""
    history = read_history(broker.bootstrap_servers, topics)
    assert sum(map(len, history.inputs.values())) == sent.count >= 4500
    assert all(len(records) for records in history.outputs.values())
    cut = final_cut(broker, topics, history)
    assert violations(history, cut) == []
    # Nothing is in flight any more: what is lost in one place is missing at the end.
    behind = {each: end - 20 for each, end in cut.committed.items() if each.topic == topics.orders}
    twice = violations(history, Cut({**cut.committed, **behind}, cut.ends))
    assert {violation.check for violation in twice} == {Check.NOTHING_LOST_OR_TWICE}
    return history


def ticks(history: History) -> list[int]:
    """The last counter of each task that has ticked."""
    counters = last(history.ticks_outputs.values(), len(history.names)).counts
    return [int(each) for each in counters if each]


def await_ticks(broker: LocalCluster, topics: OracleTopics, *, tasks: int, at_least: int) -> None:
    """Wait until so many tasks have ticked so often; at most every second record is a marker."""
    partitions = [TopicPartitionId(topics.ticks, number) for number in range(tasks)]
    deadline = time.monotonic() + 60
    with cluster_of(broker) as cluster:
        while min((ends := cluster.high_watermarks(partitions)).values()) < 2 * at_least:
            assert time.monotonic() < deadline, ends
            time.sleep(0.2)


@pytest.mark.parametrize(
    "jar_sets",
    [("kafka",), ("kafka39",), ("kafka39", "kafka")],
    ids=["today", "older", "both side by side"],
)
def test_totals_and_ticks_after_a_load(
    kafka_cluster: LocalCluster,
    topics: OracleTopics,
    tmp_path: Path,
    jar_sets: tuple[JarSet, ...],
) -> None:
    create_topics(kafka_cluster.bootstrap_servers, topics, partitions=PARTITIONS)
    apps = [
        OracleApp(
            kafka_cluster.bootstrap_servers,
            topics,
            state_dir=tmp_path / jar_set,
            jar_set=jar_set,
            threads=2,
            punctuate_ms=100,
            config=CONFIG,
        )
        for jar_set in jar_sets
    ]
    sent = run_load(kafka_cluster, topics, *apps)
    history = judge(kafka_cluster, topics, sent)
    assert [each > 20 for each in ticks(history)] == [True] * PARTITIONS


def test_an_older_application_on_its_own_broker(
    old_broker: LocalCluster, topics: OracleTopics, tmp_path: Path
) -> None:
    create_topics(old_broker.bootstrap_servers, topics, partitions=PARTITIONS)
    app = OracleApp(
        old_broker.bootstrap_servers,
        topics,
        state_dir=tmp_path / "state",
        jar_set="kafka39",
        config=CONFIG,
    )
    history = judge(old_broker, topics, run_load(old_broker, topics, app))
    assert ticks(history) == []


def test_ticks_are_committed_without_any_offset(
    kafka_cluster: LocalCluster, topics: OracleTopics, tmp_path: Path
) -> None:
    create_topics(kafka_cluster.bootstrap_servers, topics, partitions=1, quiet_partitions=2)
    with OracleApp(
        kafka_cluster.bootstrap_servers,
        topics,
        state_dir=tmp_path / "state",
        punctuate_ms=50,
        config=CONFIG,
    ):
        await_ticks(kafka_cluster, topics, tasks=2, at_least=12)
    history = read_history(kafka_cluster.bootstrap_servers, topics)
    assert [each > 10 for each in ticks(history)] == [True, True]
    with cluster_of(kafka_cluster) as cluster:
        assert cluster.group_offsets(topics.application_id) == {}
    assert violations(history, final_cut(kafka_cluster, topics, history)) == []


def test_a_killed_instance_with_wiped_state_counts_on(
    kafka_cluster: LocalCluster, topics: OracleTopics, tmp_path: Path
) -> None:
    create_topics(kafka_cluster.bootstrap_servers, topics, partitions=PARTITIONS)
    app = OracleApp(
        kafka_cluster.bootstrap_servers,
        topics,
        state_dir=tmp_path / "state",
        punctuate_ms=100,
        config=CONFIG,
    )
    with OracleLoad(kafka_cluster.bootstrap_servers, topics.orders, rate=1000) as load:
        with app:
            time.sleep(2)
            app.kill()
        assert app.state_dir.is_dir()
        app.wipe_state()
        assert not app.state_dir.exists()
        with app:
            assert eventually(lambda: load.count >= 5_000)
            sent = load.stop()
            await_drained(kafka_cluster, topics)
    judge(kafka_cluster, topics, sent)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_load_with_pauses_sends_nothing_in_them(
    kafka_cluster: LocalCluster, topics: OracleTopics, compression: str
) -> None:
    create_topics(kafka_cluster.bootstrap_servers, topics, partitions=PARTITIONS)
    with OracleLoad(
        kafka_cluster.bootstrap_servers,
        topics.orders,
        rate=2000,
        compression="lz4" if compression == "lz4" else "zstd",
        burst_s=0.5,
        pause_s=60,
    ) as load:
        assert eventually(lambda: load.count)
        time.sleep(1.5)
        sent = load.stop()
    assert 0 < sent.count <= 1000  # a busy machine sends less in half a second; without pause: 3000
    ends = {TopicPartitionId(topics.orders, number) for number in range(PARTITIONS)}
    with cluster_of(kafka_cluster) as cluster:
        assert sum(cluster.high_watermarks(ends).values()) == sent.count
