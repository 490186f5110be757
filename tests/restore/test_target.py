"""What is seen of the target: topics, offsets, configs, the group; what brokers would refuse."""

from dataclasses import replace

import pytest

from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.plan import TopicPlan
from kstreams_assets.restore.planner import plan_topics
from kstreams_assets.restore.target import inspect_target, refused_topics
from tests.backup.writing import producer
from tests.restore.planning_samples import findings, target
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka


def test_topics_that_are_there(cluster: KafkaCluster) -> None:
    name, absent = unique_name("seen"), unique_name("absent")
    cluster.create_topics([TopicSpec(name, 11, 1, {"retention.ms": "5000000"})])
    sender = producer(cluster.connection.bootstrap_servers)
    for partition in (2, 2, 10):
        sender.produce(name, b"v", partition=partition)
    assert sender.flush(20) == 0
    cluster.delete_records({TopicPartitionId(name, 2): 1})
    found = inspect_target(cluster, [name, absent], unique_name("group"))
    assert found.cluster_id == cluster.cluster_id()
    assert found.brokers == 1
    assert set(found.topics) == {name}
    topic = found.topics[name]
    assert topic.ends == (0, 0, 2, *[0] * 7, 1)
    assert topic.starts == (0, 0, 1, *[0] * 8)
    assert (topic.partitions, topic.replication_factor, topic.holds_records) == (11, 1, True)
    assert topic.explicit_configs == {"retention.ms": "5000000"}
    assert topic.effective_configs["message.timestamp.type"] == "CreateTime"
    assert {"READ", "WRITE", "ALTER_CONFIGS"} <= topic.operations
    assert (found.group, found.group_offsets, found.problems) == (None, {}, ())
    assert found.group_operations is not None
    assert "READ" in found.group_operations


def test_a_group_without_members_and_its_offsets(cluster: KafkaCluster) -> None:
    name, group = unique_name("seen"), unique_name("group")
    cluster.create_topics([TopicSpec(name, 1)])
    offsets = {TopicPartitionId(name, 0): CommittedOffset(0, "metadata")}
    cluster.commit_group_offsets(group, offsets)
    found = inspect_target(cluster, [], group)
    assert found.group_offsets == offsets
    assert found.group is not None
    assert (found.group.state, found.group.is_empty) == ("Empty", True)


class TestRefusedTopics:
    def _plan(self, **changes: object) -> TopicPlan:
        topics, _ = plan_topics(findings())
        return replace(topics[0], target=unique_name("new"), **changes)  # pyright: ignore[reportArgumentType]

    def test_none_of_a_plan_and_none_is_created(self, cluster: KafkaCluster) -> None:
        topic = self._plan()
        assert refused_topics(cluster, target(), [topic]) == []
        assert topic.target not in cluster.metadata().topics

    def test_a_config_that_the_brokers_do_not_know(self, cluster: KafkaCluster) -> None:
        topic = self._plan(configs={"no.such.config": "5"})
        (blocker,) = refused_topics(cluster, target(), [topic, self._plan()])
        assert blocker.subject == f"topic {topic.target}"
        assert "It cannot be created" in blocker.found
        assert "no.such.config" in blocker.found

    def test_what_is_there_need_not_be_created(self, cluster: KafkaCluster) -> None:
        topic = self._plan(configs={"no.such.config": "5"}, target_topic_id="there")
        assert refused_topics(cluster, target(), [topic]) == []

    def test_nor_what_is_there_unseen(self, cluster: KafkaCluster) -> None:
        topic = self._plan(configs={"no.such.config": "5"})
        unseen = target(unseen=frozenset({topic.target}))
        assert refused_topics(cluster, unseen, [topic]) == []

    def test_names_that_are_refused_anyway_are_not_asked_for(self, cluster: KafkaCluster) -> None:
        assert refused_topics(cluster, target(), [replace(self._plan(), target="a/b")]) == []
