"""Replicas and configs of topics, asked of any broker."""

import pytest

from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.metadata import Replicas
from kstreams_assets.offsets import TopicPartitionId
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka


def test_replicas_and_configs(cluster: KafkaCluster) -> None:
    topic, absent = unique_name("topic"), unique_name("absent")
    cluster.create_topics([TopicSpec(topic, 2, 1, {"cleanup.policy": "compact,delete"})])
    (broker,) = cluster.broker_ids()
    kept = Replicas((broker,), (broker,))
    assert cluster.replicas([topic, absent]) == {
        TopicPartitionId(topic, number): kept for number in range(2)
    }
    configs = cluster.topic_configs([topic, absent])
    assert configs.keys() == {topic}
    described = cluster.describe_topics([topic])[topic]
    assert configs[topic] == described.effective_configs
    assert configs[topic]["cleanup.policy"] == "compact,delete"
    assert configs[topic]["retention.ms"] == "604800000"


def test_nothing_is_asked_of_no_topic(cluster: KafkaCluster) -> None:
    assert cluster.replicas([]) == {}
    assert cluster.topic_configs([]) == {}
