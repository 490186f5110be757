"""companion/ in a running application: its journal against the logs, and failures it survives."""

import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient

from examples.order_processor.application import Guarantee
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.coordinator_log import (
    CONSUMER_OFFSETS,
    coordinator_partition,
    group_commits,
)
from kstreams_assets.kafka.journal import CommitBoundary, journal_topic, read_journal
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from spark_resources.companion import COMPANION_PROPERTIES, build_companion
from spark_resources.jars import JarSet
from spark_resources.java import JavaProgram
from tests.backup.acls import PASSWORD, secure_cluster
from tests.recovery.history import read_history
from tests.recovery.oracle import Cut, violations
from tests.streams.cluster import connection_to, unique_name
from tests.streams.oracle_app import SOURCE, OracleApp, OracleTopics, create_topics
from tests.streams.oracle_load import OracleLoad
from tests.timing import eventually

__all__ = ["secure_cluster"]
pytestmark = pytest.mark.kafka

PARTITIONS: Final = 2
DAY_MS: Final = str(24 * 60 * 60 * 1000)
NO_PURGE: Final = {"repartition.purge.interval.ms": "3600000"}

Offsets = Mapping[TopicPartitionId, int]


@pytest.fixture
def topics() -> OracleTopics:
    return OracleTopics(unique_name("app"), unique_name("oracle") + ".")


def journalled(
    servers: str,
    topics: OracleTopics,
    folder: Path,
    *,
    jar_set: JarSet = "kafka",
    threads: int = 1,
    guarantee: Guarantee = "at_least_once",
    config: Mapping[str, str] | None = None,
) -> OracleApp:
    """An application with the companion, whose topics exist."""
    create_topics(servers, topics, partitions=PARTITIONS)
    source = Path(__file__).with_name("JournalledApp.java")
    return OracleApp(
        servers,
        topics,
        state_dir=folder / "state",
        guarantee=guarantee,
        threads=threads,
        config={**COMPANION_PROPERTIES, **NO_PURGE, **(config or {})},
        program=JavaProgram(source, jar_set, also=(SOURCE,), jars=(build_companion(),)),
    )


def metrics(app: OracleApp) -> tuple[int, int]:
    """How many boundaries the application's journal has written, and dropped."""
    found = re.findall(r"^JOURNAL (\d+) (\d+) ", app.log_file.read_text("utf-8"), re.MULTILINE)
    return (int(found[-1][0]), int(found[-1][1])) if found else (0, 0)


def is_drained(cluster: KafkaCluster, topics: OracleTopics) -> bool:
    partitions = [
        TopicPartitionId(name, number)
        for name in (topics.orders, topics.repartition)
        for number in range(PARTITIONS)
    ]
    ends = cluster.high_watermarks(partitions)
    committed = cluster.group_offsets(topics.application_id)
    return all(p in committed and committed[p].offset == ends[p] for p in partitions)


def work(app: OracleApp, cluster: KafkaCluster, topics: OracleTopics, *, orders: int) -> None:
    """Let a running application work off some orders."""
    with OracleLoad(cluster.connection.bootstrap_servers, topics.orders, rate=1000) as load:
        assert eventually(lambda: load.count >= orders)
        load.stop()
    assert eventually(lambda: is_drained(cluster, topics))
    assert app.running


def commits_in_log(cluster: KafkaCluster, group: str) -> dict[TopicPartitionId, list[int]]:
    """The committed offsets of each partition, in their order, as the coordinator stored them."""
    number = coordinator_partition(group, cluster.topics()[CONSUMER_OFFSETS])
    partition = TopicPartitionId(CONSUMER_OFFSETS, number)
    end = cluster.high_watermarks([partition])[partition]
    found: dict[TopicPartitionId, list[int]] = defaultdict(list)
    with cluster.raw_log() as reader:
        batches = reader.read({partition: OffsetRange(0, end)}, deadline_s=30)[partition]
        for batch in batches:
            for commit in group_commits(batch, group):
                assert commit.offset is not None
                found[TopicPartitionId(commit.topic, commit.partition)].append(commit.offset)
    return dict(found)


def by_thread(boundaries: tuple[CommitBoundary, ...]) -> dict[str, list[CommitBoundary]]:
    found: dict[str, list[CommitBoundary]] = defaultdict(list)
    for boundary in boundaries:
        found[boundary.thread].append(boundary)
    return dict(found)


@pytest.mark.parametrize(
    ("jar_set", "protocol"),
    [
        ("kafka39", "classic"),
        pytest.param("kafka43", "classic", marks=pytest.mark.drill),
        ("kafka", "classic"),
        pytest.param("kafka", "streams", marks=pytest.mark.drill),
    ],
)
def test_boundaries_are_the_commits_and_the_acknowledged_ends(
    kafka_cluster: LocalCluster,
    cluster: KafkaCluster,
    topics: OracleTopics,
    tmp_path: Path,
    jar_set: JarSet,
    protocol: str,
) -> None:
    servers = kafka_cluster.bootstrap_servers
    config = {} if protocol == "classic" else {"group.protocol": protocol}
    app = journalled(servers, topics, tmp_path, jar_set=jar_set, threads=2, config=config)
    with app:
        work(app, cluster, topics, orders=1_000)
        committed = sum(map(len, commits_in_log(cluster, topics.application_id).values()))
        assert committed
        assert eventually(lambda: metrics(app)[0] > 0)
    part = read_journal(cluster, topics.application_id, deadline_s=30)
    assert part.unreadable == 0
    threads = by_thread(part.boundaries)
    assert len(threads) == 2
    for boundaries in threads.values():
        assert [b.number for b in boundaries] == [*range(1, len(boundaries) + 1)]
        assert len({b.run for b in boundaries}) == 1
        assert boundaries[0].regular
    in_journal: dict[TopicPartitionId, list[int]] = defaultdict(list)
    for boundary in part.boundaries:
        for partition, offset in boundary.committed.items():
            in_journal[partition].append(offset)
    assert in_journal == commits_in_log(cluster, topics.application_id)
    ends: dict[TopicPartitionId, int] = {}
    for boundary in part.boundaries:
        for partition, end in boundary.acknowledged.items():
            ends[partition] = max(end, ends.get(partition, 0))
    assert {p.topic for p in ends} == {topics.repartition, topics.changelog, topics.totals}
    assert ends == cluster.high_watermarks(ends)
    journal = journal_topic(topics.application_id)
    assert cluster.topics()[journal] == 1
    assert cluster.topic_configs([journal])[journal]["retention.ms"] == DAY_MS
    rest = read_journal(
        cluster, topics.application_id, start=part.boundaries[-1].record_offset, deadline_s=30
    )
    assert rest.boundaries == part.boundaries[-1:]
    assert rest.next_offset == part.next_offset
    none = read_journal(cluster, topics.application_id, start=part.next_offset, deadline_s=30)
    assert (none.boundaries, none.next_offset) == ((), part.next_offset)


def test_every_cut_at_two_boundaries_is_exact(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: OracleTopics, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    # Without linger a thread's next batches follow its commit at once.
    app = journalled(servers, topics, tmp_path, config={"linger.ms": "0"})
    with app:
        work(app, cluster, topics, orders=2_000)
    boundaries = read_journal(cluster, topics.application_id, deadline_s=30).boundaries
    history = read_history(servers, topics)
    assert len(boundaries) >= 10
    cuts = [*_cuts(boundaries, topics)]
    assert [violations(history, cut) for cut in cuts] == [[]] * len(cuts)
    # The ends of the next commit are too late, those of the commit before too early.
    for shift in (1, -1):
        wrong = [*_cuts(boundaries, topics, ends_from=shift)]
        assert any(violations(history, cut) for cut in wrong)


def _cuts(
    boundaries: tuple[CommitBoundary, ...], topics: OracleTopics, *, ends_from: int = 0
) -> Iterator[Cut]:
    """A cut for each two neighbours: the reader of the repartition topic first, then its writer."""
    offsets: list[Offsets] = []
    for boundary in boundaries:
        offsets.append({**(offsets[-1] if offsets else {}), **boundary.committed})
    for index in range(1, len(boundaries) - 2):
        reader, writer = boundaries[index + ends_from], boundaries[index + 1]
        committed = {p: o for p, o in offsets[index].items() if p.topic == topics.repartition}
        committed |= {p: o for p, o in offsets[index + 1].items() if p.topic == topics.orders}
        ends = {p: e for p, e in reader.acknowledged.items() if p.topic != topics.repartition}
        ends |= {p: e for p, e in writer.acknowledged.items() if p.topic == topics.repartition}
        yield Cut(committed, ends)


def test_the_application_runs_on_while_its_journal_is_deleted(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: OracleTopics, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    name = unique_name("journal")
    app = journalled(servers, topics, tmp_path, config={"kstreams.assets.journal.topic": name})
    with app:
        work(app, cluster, topics, orders=200)
        assert eventually(lambda: metrics(app)[0] > 0)
        admin.delete_topics([name])[name].result(30)
        assert eventually(lambda: name not in cluster.topics())
        work(app, cluster, topics, orders=200)

        def has_new_journal() -> bool:
            work(app, cluster, topics, orders=10)
            return name in cluster.topics() and bool(
                read_journal(cluster, topics.application_id, topic=name, deadline_s=30).boundaries
            )

        assert eventually(has_new_journal)
        assert metrics(app)[1] > 0
    part = read_journal(cluster, topics.application_id, topic=name, deadline_s=30)
    assert part.boundaries[0].number > 1


def test_the_application_runs_on_without_a_right_to_write(
    secure_cluster: LocalCluster, topics: OracleTopics, tmp_path: Path
) -> None:
    """The journal's user may do nothing; the application's user may do everything."""
    servers = secure_cluster.internal_bootstrap_servers
    login = f'ScramLoginModule required username="bob" password="{PASSWORD}";'
    own = {
        "bootstrap.servers": secure_cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f"org.apache.kafka.common.security.scram.{login}",
    }
    _runs_on_without_a_journal(servers, topics, tmp_path, own)


def test_the_application_runs_on_without_a_broker_for_its_journal(
    kafka_cluster: LocalCluster, topics: OracleTopics, tmp_path: Path
) -> None:
    own = {"bootstrap.servers": "127.0.0.1:1"}
    _runs_on_without_a_journal(kafka_cluster.bootstrap_servers, topics, tmp_path, own)


def _runs_on_without_a_journal(
    servers: str, topics: OracleTopics, folder: Path, own: Mapping[str, str]
) -> None:
    config = {f"kstreams.assets.journal.{name}": value for name, value in own.items()}
    app = journalled(servers, topics, folder, config=config)
    with app, KafkaCluster(connection_to(servers)) as cluster:
        work(app, cluster, topics, orders=1_000)
        assert eventually(lambda: metrics(app)[1] > 0)
        work(app, cluster, topics, orders=200)
        assert journal_topic(topics.application_id) not in cluster.topics()
    assert metrics(app)[0] == 0
    log = app.log_file.read_text("utf-8")
    assert f"Topic {journal_topic(topics.application_id)} was not created" in log
    assert "Exception in thread" not in log


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"producer.interceptor.classes": ""}, "AckInterceptor is not configured"),
        pytest.param(
            {"acks": "0"}, "gets acknowledgements without offsets", marks=pytest.mark.drill
        ),
    ],
)
def test_no_boundary_is_written_without_known_ends(
    kafka_cluster: LocalCluster,
    cluster: KafkaCluster,
    topics: OracleTopics,
    tmp_path: Path,
    config: Mapping[str, str],
    reason: str,
) -> None:
    app = journalled(kafka_cluster.bootstrap_servers, topics, tmp_path, config=config)
    with app:
        work(app, cluster, topics, orders=200)
        assert eventually(lambda: metrics(app)[1] > 0)
        assert reason in app.log_file.read_text("utf-8")
    assert metrics(app)[0] == 0


@pytest.mark.drill
def test_an_exactly_once_application_does_not_notice_the_companion(
    kafka_cluster: LocalCluster, cluster: KafkaCluster, topics: OracleTopics, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    app = journalled(servers, topics, tmp_path, guarantee="exactly_once_v2", threads=2)
    with app:
        work(app, cluster, topics, orders=1_000)
        assert journal_topic(topics.application_id) not in cluster.topics()
        log = app.log_file.read_text("utf-8")
        assert "commit journal" not in log
        assert "Exception" not in log
    assert metrics(app) == (0, 0)
    history = read_history(servers, topics)
    committed = {p: o.offset for p, o in cluster.group_offsets(topics.application_id).items()}
    written = [
        TopicPartitionId(name, number)
        for name in (topics.repartition, topics.changelog, topics.totals)
        for number in range(PARTITIONS)
    ]
    assert violations(history, Cut(committed, cluster.high_watermarks(written))) == []


def test_the_jar_is_for_java_11_and_contains_its_sources() -> None:
    with zipfile.ZipFile(build_companion()) as jar:
        names = set(jar.namelist())
        compiled = jar.read("kstreamsassets/companion/Journal.class")
    assert int.from_bytes(compiled[6:8], "big") == 55
    assert "kstreamsassets/companion/Journal.java" in names
