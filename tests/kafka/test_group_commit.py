"""Committing and deleting a group's offsets from outside."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import Consumer
from kafka.protocol.consumer import OffsetCommitResponse

from kstreams_assets.errors import ClusterUnavailableError, KafkaError, KafkaRequestError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.coordinator_log import CONSUMER_OFFSETS, group_commits
from kstreams_assets.kafka.groups import GroupRequests, GroupState
from kstreams_assets.kafka.wire import Coordinated, WireClient
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from tests.kafka.transacting import await_assignment, internal_batches
from tests.streams.cluster import unique_name
from tests.timing import Clock

LARGEST = 4096  # offset.metadata.max.bytes, by default
METADATA = ("AgAAAAAAAAPo", "AgAAAZ+/8PoBAAAA==", "", "x" * LARGEST, "ünï\x00code")


@pytest.mark.kafka
class TestRealBroker:
    """What a broker takes and refuses."""

    @pytest.fixture
    def topic(self, cluster: KafkaCluster) -> str:
        """A new topic of five partitions."""
        name = unique_name("topic")
        cluster.create_topics([TopicSpec(name, 5)])
        return name

    def _consumer(self, cluster: KafkaCluster, group: str, **settings: str) -> Consumer:
        names = {key.replace("_", "."): value for key, value in settings.items()}
        servers = cluster.connection.bootstrap_servers
        return Consumer({"bootstrap.servers": servers, "group.id": group, **names})

    def test_metadata_byte_for_byte_and_never_a_leader_epoch(
        self, cluster: KafkaCluster, topic: str
    ) -> None:
        group = unique_name("group")
        wanted = {
            TopicPartitionId(topic, number): CommittedOffset(100 + number, text, leader_epoch=7)
            for number, text in enumerate(METADATA)
        }
        cluster.commit_group_offsets(group, wanted)
        found = cluster.group_offsets(group)
        assert found == {
            partition: CommittedOffset(offset.offset, offset.metadata, None)
            for partition, offset in wanted.items()
        }
        # librdkafka now and then reads metadata wrongly, so the other witness is the log itself
        batches = internal_batches(cluster, cluster.raw_log(), CONSUMER_OFFSETS, group)
        written = [commit for batch in batches for commit in group_commits(batch, group)]
        assert [(c.partition, c.offset, c.metadata, c.leader_epoch) for c in written] == [
            (number, 100 + number, text, None) for number, text in enumerate(METADATA)
        ]

    def test_an_absent_group_is_created_and_others_offsets_stay(
        self, cluster: KafkaCluster, topic: str
    ) -> None:
        group = unique_name("group")
        one, two = TopicPartitionId(topic, 0), TopicPartitionId(topic, 1)
        assert cluster.group_state(group) is None
        cluster.commit_group_offsets(group, {})
        assert cluster.group_state(group) is None
        cluster.commit_group_offsets(group, {one: CommittedOffset(3, "a")})
        assert cluster.group_state(group) == GroupState(group, "classic", "Empty", 0)
        cluster.commit_group_offsets(group, {two: CommittedOffset(4, "b")})
        cluster.commit_group_offsets(group, {two: CommittedOffset(2, "c")})
        assert cluster.group_offsets(group) == {
            one: CommittedOffset(3, "a"),
            two: CommittedOffset(2, "c"),
        }

    def test_refusals_name_their_partitions(self, cluster: KafkaCluster, topic: str) -> None:
        group = unique_name("group")
        good, large, absent = (TopicPartitionId(topic, number) for number in (0, 1, 9))
        with pytest.raises(KafkaRequestError) as caught:
            cluster.commit_group_offsets(
                group,
                {
                    good: CommittedOffset(1, ""),
                    large: CommittedOffset(1, "x" * (LARGEST + 1)),
                    absent: CommittedOffset(1, ""),
                },
            )
        error = caught.value
        assert "1 partition(s) have their new offsets, 2 have not" in error.remedy
        told = str(error)
        assert f"{large} (OffsetMetadataTooLargeError: its 4097 characters" in told
        assert "offset.metadata.max.bytes" in told
        assert f"{absent} (UnknownTopicOrPartitionError" in told
        assert "do not start the application" in told
        assert cluster.group_offsets(group) == {good: CommittedOffset(1, "")}

    def test_more_offsets_than_one_batch_may_hold(self, cluster: KafkaCluster) -> None:
        """1.2 MB of metadata, with a message.max.bytes of 1 MiB."""
        topic, group = unique_name("wide"), unique_name("group")
        cluster.create_topics([TopicSpec(topic, 300)])
        wanted = {
            TopicPartitionId(topic, number): CommittedOffset(number, str(number).zfill(LARGEST))
            for number in range(300)
        }
        cluster.commit_group_offsets(group, wanted)
        assert cluster.group_offsets(group) == wanted
        cluster.delete_topics([topic])

    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_a_group_in_use_is_left_alone(
        self, cluster: KafkaCluster, topic: str, protocol: str
    ) -> None:
        group = unique_name("group")
        one = TopicPartitionId(topic, 0)
        cluster.commit_group_offsets(group, {one: CommittedOffset(3, "before")})
        consumer = self._consumer(cluster, group, group_protocol=protocol)
        consumer.subscribe([topic])
        await_assignment(consumer)
        for change in (
            lambda: cluster.commit_group_offsets(group, {one: CommittedOffset(9, "after")}),
            lambda: cluster.delete_group_offsets(group, [one]),
        ):
            with pytest.raises(KafkaError) as caught:
                change()
            told = f"Group {group} is in use ({protocol} group, state Stable)"
            assert told in caught.value.problem
            assert "Stop every instance" in caught.value.remedy
            assert "session.timeout.ms" in caught.value.remedy
        assert cluster.group_offsets(group) == {one: CommittedOffset(3, "before")}
        consumer.close()
        cluster.commit_group_offsets(group, {one: CommittedOffset(9, "after")})
        assert cluster.group_offsets(group) == {one: CommittedOffset(9, "after")}

    def test_delete(self, cluster: KafkaCluster, topic: str) -> None:
        group = unique_name("group")
        one, two, three = (TopicPartitionId(topic, number) for number in range(3))
        cluster.delete_group_offsets(group, [one])  # there is no such group
        cluster.commit_group_offsets(
            group, {one: CommittedOffset(1, "a"), two: CommittedOffset(2, "b")}
        )
        cluster.delete_group_offsets(group, [])
        assert list(cluster.group_offsets(group)) == [one, two]
        elsewhere = TopicPartitionId(unique_name("missing"), 0)
        cluster.delete_group_offsets(group, [one, three, TopicPartitionId(topic, 77), elsewhere])
        assert cluster.group_offsets(group) == {two: CommittedOffset(2, "b")}
        cluster.delete_group_offsets(group, [two])
        assert cluster.group_offsets(group) == {}

    def test_operations_of_a_group_there_or_not(self, cluster: KafkaCluster, topic: str) -> None:
        group = unique_name("group")
        everything = {"READ", "DESCRIBE", "DELETE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}
        assert cluster.group_operations(group) == everything
        cluster.commit_group_offsets(group, {TopicPartitionId(topic, 0): CommittedOffset(1, "")})
        assert cluster.group_operations(group) == everything


class FakeWire:
    """Stands for a WireClient whose coordinator gives each partition these error codes in turn."""

    def __init__(self, *codes: int, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self.codes = list(codes)
        self.asked = 0
        self.forgotten = 0

    def coordinator(self, kind: Coordinated, key: str, *, operation: str) -> int:
        """As WireClient."""
        assert (kind, key, bool(operation)) == (Coordinated.GROUP, "g", True)
        return 0

    def forget_coordinator(self, kind: Coordinated, key: str) -> None:
        """As WireClient."""
        assert (kind, key) == (Coordinated.GROUP, "g")
        self.forgotten += 1

    def request(self, make: Callable[[], Any], **_: object) -> Any:
        """The first partition is fine, the second has the code whose turn it is."""
        make()
        self.asked += 1
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        topic = OffsetCommitResponse.OffsetCommitResponseTopic
        entry = topic.OffsetCommitResponsePartition
        parts = [entry(partition_index=n, error_code=(0, code)[n]) for n in range(2)]
        return OffsetCommitResponse(topics=[topic(name="t", partitions=parts)])

    def unavailable(self, operation: str, timeout_s: float, reason: str) -> ClusterUnavailableError:
        """As WireClient."""
        return ClusterUnavailableError(
            bootstrap_servers="fake", operation=operation, timeout_s=timeout_s, reason=reason
        )


OFFSETS = {TopicPartitionId("t", number): CommittedOffset(1, "") for number in range(2)}


@pytest.mark.usefixtures("clock")
def test_a_coordinator_that_loads_or_moves_is_asked_again() -> None:
    wire = FakeWire(14, 15, 16, 0)
    GroupRequests(cast("WireClient", wire)).commit_group_offsets("g", OFFSETS)
    assert (wire.asked, wire.forgotten) == (4, 3)


def test_asking_again_is_bounded(clock: Clock) -> None:
    wire = FakeWire(14, timeout_s=0.8)
    started = clock.now_s
    with pytest.raises(ClusterUnavailableError, match="CoordinatorLoadInProgressError"):
        GroupRequests(cast("WireClient", wire)).commit_group_offsets("g", OFFSETS)
    assert clock.now_s - started < 2
    assert wire.asked > 1
