"""Altering topics, and asking beforehand what would be refused, against a real broker."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from kafka.protocol.admin import DeleteTopicsResponse
from kafka.protocol.metadata import MetadataResponse

from kstreams_assets.errors import (
    ClusterUnavailableError,
    KafkaRequestError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.topics import TopicRequests, TopicSpec
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.local.cluster import LocalCluster
from tests.streams.cluster import unique_name
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


def _await_configs(cluster: KafkaCluster, topic: str, wanted: Mapping[str, str]) -> None:
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
    _await_configs(cluster, one, left)
    _await_configs(cluster, two, RELAXED)
    # removing what is not there is fine
    cluster.alter_topic_configs({one: {"retention.bytes": None}, two: dict.fromkeys(RELAXED)})
    _await_configs(cluster, two, {})
    _await_configs(cluster, one, left)
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
    _await_configs(cluster, topic, {})


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
def test_topics_are_changed_while_a_broker_is_dead(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=3) as brokers:
        connection = KafkaConnection(
            bootstrap_servers=brokers.bootstrap_servers, request_timeout_seconds=10
        )
        with KafkaCluster(connection) as cluster:
            cluster.create_topics([TopicSpec("before", 3, replication_factor=3)])
            brokers.kill_node(2)
            for number in range(5):  # now and then the dead one is named as the controller
                name = f"t{number}"
                cluster.create_topics([TopicSpec(name, 1, replication_factor=2)])
                cluster.alter_topic_configs({name: {"retention.ms": "-1"}})
                _await_configs(cluster, name, {"retention.ms": "-1"})
            cluster.delete_topics([f"t{number}" for number in range(5)])


@dataclass
class FakeWire:
    """Answers that broker 1 is the controller, then broker 2; `codes` answer changes."""

    dead: set[int] = field(default_factory=set)
    codes: list[int] = field(default_factory=lambda: [0])
    timeout_s: float = 2.0
    bootstrap_servers: str = "fake:1"
    controllers: list[int] = field(default_factory=lambda: [1, 2])
    sent: list[int] = field(default_factory=list)

    def metadata(self, _topics: object, *, node: int | None = None, **_: object) -> Any:
        """As WireClient."""
        if node in self.dead:
            raise self.unavailable("metadata", 1.0, f"broker {node} is dead")
        if node is not None:
            return MetadataResponse()
        controller = self.controllers.pop(0) if len(self.controllers) > 1 else self.controllers[0]
        return MetadataResponse(controller_id=controller)

    def request(self, _make: Callable[[], Any], *, node: int, retry: bool, **_: object) -> Any:
        """The answer of a broker to a change."""
        assert not retry
        self.sent.append(node)
        code = self.codes.pop(0)
        if code < 0:
            raise self.unavailable("delete_topics", 1.0, "cut off")
        result = DeleteTopicsResponse.DeletableTopicResult(name="t", error_code=code)
        return DeleteTopicsResponse(responses=[result])

    def unavailable(self, operation: str, timeout_s: float, reason: str) -> ClusterUnavailableError:
        """As WireClient."""
        return ClusterUnavailableError(
            bootstrap_servers="fake", operation=operation, timeout_s=timeout_s, reason=reason
        )

    def delete(self) -> list[int]:
        """Delete a topic; the brokers that were asked to."""
        TopicRequests(cast(WireClient, self)).delete_topics(["t"])
        return self.sent


def test_changes_go_to_a_controller_that_answers() -> None:
    assert FakeWire().delete() == [1]
    assert FakeWire(dead={1}).delete() == [2]
    assert FakeWire(codes=[41, 0]).delete() == [1, 2]  # NOT_CONTROLLER


def test_changes_are_sent_once() -> None:
    """Whether they were made cannot be known when the connection breaks off meanwhile."""
    cut_off = FakeWire(codes=[-1, 0])
    with pytest.raises(ClusterUnavailableError, match="cut off"):
        cut_off.delete()
    assert cut_off.sent == [1]
    with pytest.raises(ClusterUnavailableError, match="dead"):
        FakeWire(dead={1, 2}).delete()
