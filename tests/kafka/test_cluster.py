"""The control plane against a real broker."""

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaAdminClient
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PythonTopicPartition

import kstreams_assets.kafka.groups as groups_module
from kstreams_assets.errors import (
    ClusterUnavailableError,
    KafkaRequestError,
    TopicNotFoundError,
    UnstableGroupOffsetsError,
)
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.groups import GroupState
from kstreams_assets.kafka.transactions import transactional_id_pattern
from kstreams_assets.kafka.wire import kafka_python_arguments
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from tests.kafka.transacting import await_assignment
from tests.streams.cluster import unique_name
from tests.timing import eventually

STREAMS_UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.mark.kafka
class TestAnswers:
    """What a broker that is there answers."""

    @pytest.fixture
    def topic(self, cluster: KafkaCluster) -> str:
        """A new topic of three partitions."""
        name = unique_name("topic")
        cluster.create_topics([TopicSpec(name, 3, configs={"retention.ms": "-1"})])
        return name

    @pytest.fixture
    def producer(self, connection: KafkaConnection) -> Producer:
        """A plain producer."""
        return Producer({"bootstrap.servers": connection.bootstrap_servers})

    def _transactional(self, connection: KafkaConnection, transactional_id: str) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": connection.bootstrap_servers,
                "transactional.id": transactional_id,
                "log_level": 0,
            }
        )
        producer.init_transactions(10)
        return producer

    def test_both_clients_tell_the_same_topic_ids(self, cluster: KafkaCluster) -> None:
        """In Kafka's own notation: librdkafka has two other characters, seen in some ids only."""
        names = [unique_name("identified") for _ in range(30)]
        cluster.create_topics([TopicSpec(name, 2) for name in names])
        described, told = cluster.describe_topics(names), cluster.metadata()
        for name in names:
            assert told.topics[name].topic_id == described[name].topic_id
            assert told.topics[name].partitions == described[name].partitions
        ids = "".join(told.topics[name].topic_id for name in names)
        assert set(ids) & set("-_")
        assert not set(ids) & set("+/=")
        assert told.cluster_id == cluster.cluster_id()

    def test_cluster_id_is_the_formatted_one(
        self, cluster: KafkaCluster, kafka_cluster: LocalCluster
    ) -> None:
        assert cluster.cluster_id() == (kafka_cluster.data_dir / "cluster.id").read_text()

    def test_topics(self, cluster: KafkaCluster, topic: str) -> None:
        assert cluster.topics()[topic] == 3

    def test_description(self, cluster: KafkaCluster, topic: str) -> None:
        description = cluster.describe_topics([topic])[topic]
        assert (description.partitions, description.replication_factor) == (3, 1)
        assert description.explicit_configs == {"retention.ms": "-1"}
        assert description.effective_configs["retention.ms"] == "-1"
        assert description.effective_configs["cleanup.policy"] == "delete"
        assert "READ" in description.authorized_operations
        assert len(description.topic_id) == 22

    def test_recreated_topic_has_another_id(self, cluster: KafkaCluster, topic: str) -> None:
        before = cluster.describe_topics([topic])[topic].topic_id
        cluster.delete_topics([topic])
        assert eventually(lambda: topic not in cluster.topics())
        cluster.create_topics([TopicSpec(topic, 3)])
        assert cluster.describe_topics([topic])[topic].topic_id != before

    def test_all_missing_topics_are_named(self, cluster: KafkaCluster, topic: str) -> None:
        with pytest.raises(TopicNotFoundError) as caught:
            cluster.describe_topics(["missing-b", topic, "missing-a"])
        assert caught.value.topics == ("missing-a", "missing-b")

    def test_creating_twice_is_refused(self, cluster: KafkaCluster, topic: str) -> None:
        with pytest.raises(KafkaRequestError, match="already exists"):
            cluster.create_topics([TopicSpec(topic, 3)])

    def test_offsets(
        self, cluster: KafkaCluster, connection: KafkaConnection, producer: Producer, topic: str
    ) -> None:
        one, two, three = (TopicPartitionId(topic, number) for number in range(3))
        for index in range(10):
            producer.produce(topic, b"x", partition=0, timestamp=1_000 + index)
        producer.flush(10)
        open_one = self._transactional(connection, unique_name("tx"))
        open_one.begin_transaction()
        open_one.produce(topic, b"y", partition=1)
        open_one.flush(10)
        assert cluster.high_watermarks([three, two, one]) == {one: 10, two: 1, three: 0}
        assert cluster.last_stable_offsets([one, two]) == {one: 10, two: 0}
        assert cluster.offsets_for_times({one: 1_004, three: 1_004}) == {one: 4, three: None}
        open_one.commit_transaction(10)
        # markers are written after the commit has returned
        assert eventually(lambda: cluster.last_stable_offsets([two])[two] > 0)
        assert cluster.high_watermarks([two]) == {two: 2}
        assert cluster.delete_records({one: 4}) == {one: 4}
        assert cluster.log_start_offsets([one, two]) == {one: 4, two: 0}
        assert cluster.last_stable_offsets([]) == {}

    def test_missing_partition_is_told_at_once(
        self, connection: KafkaConnection, topic: str
    ) -> None:
        began = time.monotonic()
        with KafkaCluster(connection, timeout_s=120) as cluster:
            with pytest.raises(TopicNotFoundError, match="partition 7"):
                cluster.high_watermarks([TopicPartitionId(topic, 7), TopicPartitionId(topic, 0)])
            missing = [TopicPartitionId("missing", 0), TopicPartitionId(topic, 0)]
            with pytest.raises(TopicNotFoundError, match="missing"):
                cluster.high_watermarks(missing)
        assert time.monotonic() - began < 60

    def test_group_offsets_keep_the_metadata_exactly(
        self, cluster: KafkaCluster, connection: KafkaConnection, topic: str
    ) -> None:
        group = unique_name("group")
        metadata = ["AgAAAAAAAAPo", "", "ünï\x00code"]
        assert cluster.group_offsets(group) == {}  # waits for the coordinator
        admin = KafkaAdminClient(**kafka_python_arguments(connection))
        admin.alter_group_offsets(  # pyright: ignore[reportAttributeAccessIssue]
            group,
            {
                PythonTopicPartition(topic, number): OffsetAndMetadata(
                    5 + number,
                    text,
                    None,  # pyright: ignore[reportArgumentType]
                )
                for number, text in enumerate(metadata)
            },
        )
        admin.close()
        assert cluster.group_offsets(group) == {
            TopicPartitionId(topic, number): CommittedOffset(5 + number, text)
            for number, text in enumerate(metadata)
        }

    def test_partitions_without_offset_are_absent(
        self, cluster: KafkaCluster, connection: KafkaConnection, topic: str
    ) -> None:
        group = unique_name("group")
        consumer = Consumer({"bootstrap.servers": connection.bootstrap_servers, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 1, 3)], asynchronous=False)
        consumer.close()
        assert list(cluster.group_offsets(group)) == [TopicPartitionId(topic, 1)]
        assert cluster.group_offsets(unique_name("nobody")) == {}

    @pytest.mark.parametrize("first_offset", [False, True])
    def test_group_offsets_wait_for_an_open_transaction(
        self,
        cluster: KafkaCluster,
        connection: KafkaConnection,
        topic: str,
        first_offset: bool,
    ) -> None:
        group = unique_name("group")
        consumer = Consumer({"bootstrap.servers": connection.bootstrap_servers, "group.id": group})
        if not first_offset:
            consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        producer = self._transactional(connection, unique_name("tx"))
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, 9)], consumer.consumer_group_metadata(), 10
        )
        calls = []

        def end_it() -> None:
            calls.append(1)
            if len(calls) == 2:
                producer.commit_transaction(10)

        one = TopicPartitionId(topic, 0)
        asked = [one] if first_offset else None
        offsets = cluster.group_offsets(group, partitions=asked, before_retry=end_it)
        assert offsets[one].offset == 9
        assert len(calls) >= 2
        consumer.close()

    def test_waiting_for_a_transaction_is_bounded(
        self,
        cluster: KafkaCluster,
        connection: KafkaConnection,
        topic: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(groups_module, "UNSTABLE_LIMIT_S", 0.5)
        group = unique_name("group")
        consumer = Consumer({"bootstrap.servers": connection.bootstrap_servers, "group.id": group})
        producer = self._transactional(connection, unique_name("tx"))
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 2, 9)], consumer.consumer_group_metadata(), 10
        )
        with pytest.raises(UnstableGroupOffsetsError) as caught:
            cluster.group_offsets(group, partitions=[TopicPartitionId(topic, 2)])
        assert caught.value.partitions == (f"{topic}-2",)
        producer.abort_transaction(10)
        consumer.close()

    def test_group_state(
        self, cluster: KafkaCluster, connection: KafkaConnection, topic: str
    ) -> None:
        group = unique_name("group")
        assert cluster.group_state(group) is None
        for protocol in ("classic", "consumer"):
            name = f"{group}-{protocol}"
            consumer = Consumer(
                {
                    "bootstrap.servers": connection.bootstrap_servers,
                    "group.id": name,
                    "group.protocol": protocol,
                }
            )
            consumer.subscribe([topic])
            await_assignment(consumer)
            members = 1 if protocol == "classic" else None
            assert cluster.group_state(name) == GroupState(name, protocol, "Stable", members)
            consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
            consumer.close()
            state = cluster.group_state(name)
            assert state == GroupState(name, protocol, "Empty", 0)
            assert state is not None
            assert state.is_empty

    def test_transactional_topics_of_one_application(
        self, cluster: KafkaCluster, connection: KafkaConnection, topic: str
    ) -> None:
        application = unique_name("orders")
        other = unique_name("other")
        cluster.create_topics([TopicSpec(other, 1)])
        producers = []
        for name, target in ((application, topic), (f"{application}-eu", other)):
            producer = self._transactional(connection, f"{name}-{STREAMS_UUID}-1")
            producer.begin_transaction()
            producer.produce(target, b"x")
            producer.flush(10)
            producers.append(producer)
        seen = cluster.transactional_topics(application)
        assert seen.topics == {topic}
        assert seen.transactional_ids == (f"{application}-{STREAMS_UUID}-1",)
        assert seen.reason is None
        for producer in producers:
            producer.abort_transaction(10)
        unseen = cluster.transactional_topics("nobody")
        assert unseen.topics == frozenset()
        assert "nobody" in str(unseen.reason)


@pytest.mark.parametrize("suffix", [f"{STREAMS_UUID}-12", "0_3"])
def test_transactional_ids_of_streams_match(suffix: str) -> None:
    pattern = transactional_id_pattern("orders.v1")
    assert pattern.fullmatch(f"orders.v1-{suffix}")
    assert not pattern.fullmatch(f"orders.v1-eu-{suffix}")
    assert not pattern.fullmatch(f"ordersxv1-{suffix}")


class TestNoBroker:
    """What is said, and when, while no broker answers."""

    @pytest.fixture
    def closed_port(self) -> int:
        """A port nobody listens on."""
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            return server.getsockname()[1]

    @pytest.fixture
    def silent_port(self) -> Iterator[int]:
        """A port that accepts and never says a word."""
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(50)
            yield server.getsockname()[1]

    def _assert_bounded(self, connection: KafkaConnection) -> None:
        with KafkaCluster(connection) as cluster:
            for call in (
                lambda: cluster.describe_topics(["t"]),
                cluster.topics,
                lambda: cluster.high_watermarks([TopicPartitionId("t", 0)]),
                lambda: cluster.group_offsets("g"),
                lambda: cluster.transactional_topics("a"),
            ):
                started = time.monotonic()
                with pytest.raises(ClusterUnavailableError) as caught:
                    call()
                assert time.monotonic() - started < 15  # without it clients take 30 s and more
                assert caught.value.bootstrap_servers == connection.bootstrap_servers
                assert caught.value.timeout_s == connection.request_timeout_seconds

    def test_nobody_listens(self, closed_port: int) -> None:
        address = f"127.0.0.1:{closed_port}"
        nowhere = KafkaConnection(bootstrap_servers=address, request_timeout_seconds=0.5)
        self._assert_bounded(nowhere)

    def test_clients_write_nothing_to_standard_error(self, closed_port: int) -> None:
        """In a process of its own, because here pytest takes what logging would print."""
        program = f"""
from kstreams_assets.errors import ClusterUnavailableError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection

connection = KafkaConnection(
    bootstrap_servers="127.0.0.1:{closed_port}", request_timeout_seconds=1
)
with KafkaCluster(connection) as cluster:
    for call in (lambda: cluster.describe_topics(["t"]), lambda: cluster.group_offsets("g")):
        try:
            call()
        except ClusterUnavailableError:
            print("unavailable")
"""
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        assert result.stderr == ""
        assert result.stdout.split() == ["unavailable"] * 2

    @pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
    def test_somebody_listens_and_is_silent(self, silent_port: int, protocol: str) -> None:
        self._assert_bounded(
            KafkaConnection.model_validate(
                {
                    "bootstrap_servers": f"127.0.0.1:{silent_port}",
                    "security_protocol": protocol,
                    "request_timeout_seconds": 0.5,
                }
            )
        )

    def test_attempts_to_reconnect_are_no_errors_in_the_log(
        self, closed_port: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        connection = KafkaConnection(
            bootstrap_servers=f"127.0.0.1:{closed_port}", request_timeout_seconds=1
        )
        with KafkaCluster(connection) as cluster, pytest.raises(ClusterUnavailableError):
            cluster.describe_topics(["t"])
        assert not [entry for entry in caplog.records if "librdkafka" in entry.name]


@pytest.mark.kafka
def test_a_broker_that_comes_back_is_used_again(guarded_cluster: LocalCluster) -> None:
    topic, group = unique_name("back"), unique_name("back")
    one = TopicPartitionId(topic, 0)
    connection = KafkaConnection(bootstrap_servers=guarded_cluster.internal_bootstrap_servers)
    with KafkaCluster(connection) as patient:
        patient.create_topics([TopicSpec(topic, 1)])
        patient.commit_group_offsets(group, {one: CommittedOffset(1, "a")})
    with KafkaCluster(connection, timeout_s=2) as cluster:
        calls = (
            lambda: cluster.describe_topics([topic]),
            lambda: cluster.commit_group_offsets(group, {one: CommittedOffset(2, "b")}),
            lambda: cluster.group_offsets(group),
        )
        for call in calls:
            _until_it_answers(call)
        guarded_cluster.kill_node(0)
        try:
            for call in calls:
                with pytest.raises(ClusterUnavailableError):
                    call()
        finally:
            guarded_cluster.start_node(0)
        for call in calls:
            _until_it_answers(call)
        assert cluster.group_offsets(group) == {one: CommittedOffset(2, "b")}


def _until_it_answers(call: Callable[[], object]) -> None:
    """A broker may be slow, and its group coordinator still be loading."""
    for _ in range(20):
        try:
            call()
        except ClusterUnavailableError:
            continue
        return
    pytest.fail("the broker did not come back")
