"""Changes of topics whose answer gets lost: sent once, and then the cluster is looked at."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kstreams_assets.errors import ClusterUnavailableError, KafkaRequestError
from kstreams_assets.kafka import admin_calls, wire
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.admin_calls import AdminCalls, AdminConnection, UnansweredError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from tests.kafka.relay import Api, KafkaRelay, Loss, relaying
from tests.kafka.test_topics import await_configs
from tests.streams.cluster import unique_name
from tests.timing import eventually

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def relay(kafka_cluster: LocalCluster) -> Iterator[KafkaRelay]:
    """A relay before the session's broker."""
    port = int(kafka_cluster.bootstrap_servers.rpartition(":")[2])
    with relaying(port) as relay:
        yield relay


def _relayed(relay: KafkaRelay, timeout_s: float) -> KafkaCluster:
    address = f"127.0.0.1:{relay.port}"
    return KafkaCluster(KafkaConnection(bootstrap_servers=address), timeout_s=timeout_s)


@pytest.fixture
def relayed(relay: KafkaRelay) -> Iterator[KafkaCluster]:
    """The control plane as seen through the relay."""
    relay.requests.clear()
    with _relayed(relay, 10) as relayed:
        yield relayed


@pytest.fixture
def impatient(relay: KafkaRelay) -> Iterator[KafkaCluster]:
    """The same for changes that never arrive, which are waited for twice."""
    relay.requests.clear()
    with _relayed(relay, 2) as impatient:
        yield impatient


def test_a_topic_whose_creation_was_not_answered_is_there(
    relay: KafkaRelay, relayed: KafkaCluster
) -> None:
    names = [unique_name("lost") for _ in range(2)]
    with relay.losing(Api.CREATE_TOPICS, Loss.DONE):
        relayed.create_topics([TopicSpec(name, 3, 1, {"retention.ms": "-1"}) for name in names])
    assert relay.requests.count(Api.CREATE_TOPICS) == 1
    for name, topic in relayed.describe_topics(names).items():
        assert (name, topic.partitions) in {(name, 3) for name in names}
        assert topic.explicit_configs == {"retention.ms": "-1"}


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_topic_that_was_there_before_is_refused_although_nothing_was_answered(
    relay: KafkaRelay, relayed: KafkaCluster, partitions: int
) -> None:
    name = unique_name("before")
    relayed.create_topics([TopicSpec(name, 1)])
    with (
        relay.losing(Api.CREATE_TOPICS, Loss.DONE),
        pytest.raises(KafkaRequestError, match="already exists"),
    ):
        relayed.create_topics([TopicSpec(name, partitions)])


def test_configs_whose_change_was_not_answered_are_as_wanted(
    relay: KafkaRelay, relayed: KafkaCluster
) -> None:
    name = unique_name("lost")
    relayed.create_topics([TopicSpec(name, 1, 1, {"segment.ms": "5000", "retention.ms": "1000"})])
    with relay.losing(Api.INCREMENTAL_ALTER_CONFIGS, Loss.DONE):
        relayed.alter_topic_configs({name: {"retention.ms": "-1", "segment.ms": None}})
    assert relay.requests.count(Api.INCREMENTAL_ALTER_CONFIGS) == 1
    await_configs(relayed, name, {"retention.ms": "-1"})


def test_a_topic_whose_deletion_was_not_answered_is_gone(
    relay: KafkaRelay, relayed: KafkaCluster
) -> None:
    name = unique_name("lost")
    relayed.create_topics([TopicSpec(name, 1)])
    with relay.losing(Api.DELETE_TOPICS, Loss.DONE):
        relayed.delete_topics([name])
    assert relay.requests.count(Api.DELETE_TOPICS) == 1
    assert eventually(lambda: name not in relayed.topics())


def test_changes_that_are_not_made_are_reported_as_unknown(
    relay: KafkaRelay, impatient: KafkaCluster, cluster: KafkaCluster
) -> None:
    there, new = unique_name("there"), unique_name("new")
    cluster.create_topics([TopicSpec(there, 1)])
    calls = {
        Api.CREATE_TOPICS: lambda: impatient.create_topics([TopicSpec(new, 1)]),
        Api.INCREMENTAL_ALTER_CONFIGS: lambda: impatient.alter_topic_configs(
            {there: {"retention.ms": "1"}}
        ),
        Api.DELETE_TOPICS: lambda: impatient.delete_topics([there]),
    }
    for api, call in calls.items():
        with (
            relay.losing(api, Loss.NEVER_DONE),
            pytest.raises(ClusterUnavailableError, match="its answer was lost") as caught,
        ):
            call()
        assert (new if api is Api.CREATE_TOPICS else there) in caught.value.reason
        assert relay.requests.count(api) == 1
    assert cluster.describe_topics([there])[there].explicit_configs == {}
    assert new not in cluster.topics()


@pytest.mark.parametrize("loss", Loss)
def test_questions_are_asked_again(
    relay: KafkaRelay, relayed: KafkaCluster, monkeypatch: pytest.MonkeyPatch, loss: Loss
) -> None:
    monkeypatch.setattr(wire, "_FIRST_ATTEMPT_S", 0.5)
    name = unique_name("asked")
    relayed.create_topics([TopicSpec(name, 1)])
    relay.requests.clear()
    with relay.losing(Api.DESCRIBE_CONFIGS, loss, times=2):
        assert relayed.topic_configs([name])[name]["cleanup.policy"] == "delete"
    assert relay.requests.count(Api.DESCRIBE_CONFIGS) == 3


@pytest.mark.parametrize("listens", [False, True])
def test_what_was_never_sent_is_known(listens: bool) -> None:
    """By librdkafka's words, which an upgrade may change; then a change may be sent again."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        if not listens:
            silent.close()
        admin = AdminConnection(KafkaConnection(bootstrap_servers=address))
        with pytest.raises(UnansweredError) as caught:
            admin.answers(admin_calls.describe_configs("topic", ["t"]), 0.5)
        assert not caught.value.is_maybe_done
        assert not caught.value.is_refusal
        admin.close()


def test_a_paused_broker_creates_the_topic_when_it_runs_again(
    kafka_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was sent once, before its time was up; the topic is seen afterwards."""
    name, pid = unique_name("paused"), kafka_cluster.pid(0)
    assert pid is not None
    answers = AdminCalls._answers_of_ready_broker

    def pause_then_send(calls: AdminCalls, *change: Any) -> Any:
        calls.ask("create_topics", admin_calls.describe_configs("topic", [name]))
        monkeypatch.setattr(calls, "ask", lambda *_, **__: {})
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(2.5, os.kill, (pid, signal.SIGCONT)).start()
        try:
            return answers(calls, *change)
        finally:
            monkeypatch.undo()

    monkeypatch.setattr(AdminCalls, "_answers_of_ready_broker", pause_then_send)
    connection = KafkaConnection(bootstrap_servers=kafka_cluster.bootstrap_servers)
    with KafkaCluster(connection, timeout_s=2) as cluster:
        try:
            cluster.create_topics([TopicSpec(name, 2)])
        finally:
            os.kill(pid, signal.SIGCONT)
        assert cluster.topics()[name] == 2
