"""Altering topics, and asking beforehand what would be refused, against a real broker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from kstreams_assets.errors import KafkaRequestError, TopicNotFoundError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from spark_resources.jars import verify_jars
from tests.streams.cluster import passing_cluster, unique_name
from tests.timing import eventually

LONGEST_MS = str(2**63 - 1)
RELAXED = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": LONGEST_MS,
    "message.timestamp.after.max.ms": LONGEST_MS,
    "min.compaction.lag.ms": LONGEST_MS,
    "max.compaction.lag.ms": LONGEST_MS,
    "segment.ms": LONGEST_MS,
    "max.message.bytes": "104857600",
}


def await_configs(cluster: KafkaCluster, topic: str, wanted: Mapping[str, str]) -> None:
    """Brokers learn of a change a moment later."""
    assert eventually(lambda: cluster.describe_topics([topic])[topic].explicit_configs == wanted), (
        cluster.describe_topics([topic])
    )


@pytest.mark.kafka
def test_configs_are_set_removed_and_left(cluster: KafkaCluster) -> None:
    one, two = unique_name("one"), unique_name("two")
    before = {"retention.ms": "1000", "cleanup.policy": "compact", "segment.bytes": "1048576"}
    cluster.create_topics([TopicSpec(one, 1, configs=before), TopicSpec(two, 1)])
    cluster.alter_topic_configs(
        {
            one: {"retention.ms": "-1", "cleanup.policy": None, "max.message.bytes": "2000000"},
            two: RELAXED,
        }
    )
    left = {"segment.bytes": "1048576", "retention.ms": "-1", "max.message.bytes": "2000000"}
    await_configs(cluster, one, left)
    await_configs(cluster, two, RELAXED)
    # removing what is not there is fine
    cluster.alter_topic_configs({one: {"retention.bytes": None}, two: dict.fromkeys(RELAXED)})
    await_configs(cluster, two, {})
    await_configs(cluster, one, left)
    cluster.alter_topic_configs({one: {}})
    cluster.alter_topic_configs({})


@pytest.mark.kafka
def test_alterations_that_are_refused(cluster: KafkaCluster) -> None:
    topic = unique_name("topic")
    cluster.create_topics([TopicSpec(topic, 1)])
    with pytest.raises(TopicNotFoundError) as absent:
        cluster.alter_topic_configs({"missing": {"retention.ms": "1"}, topic: {}})
    assert absent.value.topics == ("missing",)
    for name, value in (("retention.ms", "soon"), ("retention.years", "7")):
        with pytest.raises(KafkaRequestError, match=name) as refused:
            cluster.alter_topic_configs({topic: {name: value, "segment.ms": "5000"}})
        assert refused.value.resource == f"topic {topic}"
    await_configs(cluster, topic, {})


@pytest.mark.kafka
def test_problems_of_topics_before_they_are_created(cluster: KafkaCluster) -> None:
    there, fine, odd, many, long = (unique_name(name) for name in "abcde")
    cluster.create_topics([TopicSpec(there, 1)])
    specs = [
        TopicSpec(there, 1),
        TopicSpec(fine, 3, configs=RELAXED),
        TopicSpec(odd, 1, configs={"retention.ms": "soon"}),
        TopicSpec(f"{odd}-name", 1, configs={"retention.years": "7"}),
        TopicSpec(many, 1, replication_factor=3),
        TopicSpec(long * 20, 1),
    ]
    problems = cluster.validate_topics(specs)
    told = {
        there: "already exists",
        odd: "retention.ms",
        f"{odd}-name": "retention.years",
        many: "replication",
        long * 20: "249",
    }
    assert set(problems) == set(told)
    for name, words in told.items():
        problem = problems[name]
        assert isinstance(problem, KafkaRequestError)
        assert words in problem.reason.lower()
        assert problem.resource == f"topic {name}"
    assert cluster.validate_topics([]) == {}
    assert cluster.validate_topics([TopicSpec(fine, 3)]) == {}
    assert not {fine, odd, many} & set(cluster.topics())


@pytest.mark.kafka
def test_broker_ids(cluster: KafkaCluster) -> None:
    assert cluster.broker_ids() == (1,)


@pytest.mark.kafka
@pytest.mark.drill
@pytest.mark.parametrize("release", ["kafka39", "kafka43"])
def test_earlier_releases_are_changed_alike(
    release: Literal["kafka39", "kafka43"], tmp_path: Path
) -> None:
    """The other tests run on the newest one."""
    jars = verify_jars(release, hashes=False)
    one, two = TopicSpec("one", 2, 1, {"retention.ms": "1000", "segment.ms": "5000"}), "two"
    with (
        passing_cluster(tmp_path, jars=jars, heap_mb=256) as broker,
        KafkaCluster(broker.connection) as cluster,
    ):
        cluster.create_topics([one, TopicSpec(two, 1)])
        cluster.alter_topic_configs({one.name: {"retention.ms": "-1", "segment.ms": None}})
        await_configs(cluster, one.name, {"retention.ms": "-1"})
        assert cluster.topic_defaults()["cleanup.policy"] == "delete"
        problems = cluster.validate_topics([one, TopicSpec("many", 1, 3), TopicSpec("three", 1)])
        assert problems.keys() == {one.name, "many"}
        cluster.delete_topics([one.name, two])
        assert eventually(lambda: not {one.name, two} & cluster.topics().keys())
