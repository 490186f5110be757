"""A live application of Kafka's streams protocol, which librdkafka reports as dead."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.order_processor.application import OrderProcessor, create_topics
from kstreams_assets.errors import KafkaError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.groups import GroupState
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from tests.streams.cluster import unique_name
from tests.timing import DEADLINE_S

pytestmark = pytest.mark.kafka

# Brokers formatted by a version from 4.2 on have the feature streams.version=1, which the protocol
# needs; others get it by `kafka-features.sh upgrade --feature streams.version=1`.
STREAMS_PROTOCOL = {"group.protocol": "streams"}


@pytest.mark.parametrize(
    ("protocol", "members"), [("streams", None), ("classic", 1)], ids=("streams", "classic")
)
def test_running_then_stopped(
    kafka_cluster: LocalCluster,
    cluster: KafkaCluster,
    tmp_path: Path,
    protocol: str,
    members: int | None,
) -> None:
    application_id = unique_name("app")
    prefix = unique_name("streams") + "."
    orders, *_ = create_topics(kafka_cluster.bootstrap_servers, topic_prefix=prefix)
    before = {TopicPartitionId(orders, 0): CommittedOffset(0, "before")}
    cluster.commit_group_offsets(application_id, before)  # a restore's group is there already
    # classic members leave only when their session ends
    config = STREAMS_PROTOCOL if protocol == "streams" else {"session.timeout.ms": "6000"}
    with OrderProcessor(
        kafka_cluster.bootstrap_servers,
        state_dir=tmp_path / "state",
        application_id=application_id,
        topic_prefix=prefix,
        config=config,
    ):
        states = list(_states(cluster, application_id, "Stable"))
        assert not any(state.is_empty for state in states)
        assert states[-1] == GroupState(application_id, protocol, "Stable", members)
        counts = cluster.topics()
        (read,) = (cluster.group_members(application_id) or {}).values()
        topics = (orders, f"{application_id}-orders-by-customer-repartition")
        assert read == {TopicPartitionId(t, n) for t in topics for n in range(counts[t])}
        assert application_id in cluster.group_ids()
        assert "READ" in cluster.group_operations(application_id)
        for change in (cluster.commit_group_offsets, cluster.delete_group_offsets):
            with pytest.raises(KafkaError) as caught:
                change(application_id, before)
            assert f"is in use ({protocol} group, state Stable)" in caught.value.problem
    stopped = list(_states(cluster, application_id, "Empty"))[-1]
    assert cluster.group_members(application_id) is None
    assert stopped == GroupState(application_id, protocol, "Empty", 0)
    assert stopped.is_empty
    assert cluster.group_offsets(application_id) == before
    after = {TopicPartitionId(orders, 1): CommittedOffset(0, "after")}
    cluster.commit_group_offsets(application_id, after)
    cluster.delete_group_offsets(application_id, before)
    assert cluster.group_offsets(application_id) == after


def _states(cluster: KafkaCluster, group: str, last: str) -> Iterator[GroupState]:
    """The states of a group up to this one."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        state = cluster.group_state(group)
        assert state is not None
        yield state
        if state.state == last:
            return
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
