"""Commits on demand that are asked for by HTTP, for recorders that may not write to the cluster."""

import http.client
import logging
import time
from pathlib import Path
from typing import Final

import pytest
from pydantic import SecretStr

from kstreams_assets.errors import KafkaError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.control import ControlEndpoints
from kstreams_assets.kafka.journal import read_journal
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import HOST, LocalCluster, choose_ports
from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.recovery.barrier import Barrier
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.recovery.scene import NotTaken
from kstreams_assets.secret import Secret
from kstreams_assets.settings import RecoveryPointSettings
from tests.recovery.test_barrier import asked, control_of, cyclic, on_demand
from tests.recovery.test_journal_method import topics
from tests.recovery.test_passive_commits import judge_point
from tests.recovery.vector_oracle import read_vectors
from tests.streams.vector_app import VectorApp, VectorTopics, orders
from tests.timing import eventually

__all__ = ["topics"]
pytestmark = pytest.mark.kafka

TOKEN: Final = "a-token-of-this-test-only"


@pytest.fixture
def ports() -> list[int]:
    return [one.client for one in choose_ports(2)]


def endpoints(ports: list[int], token: str = TOKEN) -> ControlEndpoints:
    urls = [f"http://localhost:{port}" for port in ports]
    return ControlEndpoints(urls, Secret.of(SecretStr(token)))


def serving(servers: str, topics: VectorTopics, folder: Path, port: int) -> VectorApp:
    """An instance without a control topic; its token is in a file, as Kubernetes mounts secrets."""
    secrets = folder.with_name("secrets")
    secrets.mkdir(exist_ok=True)
    (secrets / "token").write_text(TOKEN, "utf-8")
    providers = "org.apache.kafka.common.config.provider"
    config = {
        "kstreams.assets.control.topic": "",
        "kstreams.assets.control.http.address": f"{HOST}:{port}",
        "kstreams.assets.control.http.token": f"${{directory:{secrets}:token}}",
        "config.providers": "directory",
        "config.providers.directory.class": f"{providers}.DirectoryConfigProvider",
    }
    return on_demand(servers, topics, folder, config)


def status(port: int, method: str, path: str, token: str = TOKEN) -> int:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_points_are_taken_at_once_without_the_right_to_write_to_the_cluster(
    kafka_cluster: LocalCluster,
    cluster: KafkaCluster,
    topics: VectorTopics,
    ports: list[int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = kafka_cluster.bootstrap_servers
    apps = [serving(servers, topics, tmp_path / f"app{n}", port) for n, port in enumerate(ports)]
    settings = RecoveryPointSettings(
        control_urls=tuple(endpoints(ports).urls), control_token=endpoints(ports).token
    )
    wrong = settings.model_copy(update={"control_token": endpoints(ports, "x" * 16).token})
    with apps[0], apps[1], orders(servers, topics, rate=500):
        with asked(cluster, topics, control=endpoints(ports)):
            order = Recorder(topics.application, cluster, Warehouse(tmp_path / "one"), settings)
            cycle = Recorder(cyclic(topics), cluster, Warehouse(tmp_path / "two"), settings)
            points = [order.take(commit_wait_s=3)]
            time.sleep(1)
            points.append(cycle.take(commit_wait_s=2))
        denied = Recorder(topics.application, cluster, Warehouse(tmp_path / "three"), wrong)
        caplog.set_level(logging.INFO)
        points.append(denied.take(commit_wait_s=0.5))
        assert not [one for one in cluster.topics() if one == control_of(topics)]
        statuses = [
            status(ports[0], "POST", "/commit/a-1", "y" * 16),
            status(ports[0], "POST", "/stop/a-1"),
            status(ports[0], "POST", f"/commit/{'a' * 65}"),
            status(ports[0], "GET", "/commit/a-1"),
            status(ports[0], "POST", "/commit/a-1"),
        ]
        time.sleep(1)
        endpoints(ports[:1] * 2).send("hold")  # one instance by two addresses
        with pytest.raises(KafkaError, match="less than a second ago"):
            endpoints(ports[:1]).send("hold")
        apps[1].kill()
        time.sleep(1)
        with pytest.raises(KafkaError, match=f":{ports[1]}.*Connection refused"):
            endpoints(ports).send("hold", "in-vain")
        time.sleep(1)  # longer than a hold lasts by itself
        releases = read_journal(cluster, topics.application_id, deadline_s=30).releases
        logs = "".join(app.log_file.read_text("utf-8") for app in apps)
    history = read_vectors(cluster, topics)
    assert [(one.method, one.guarantee) for one in points[:2]] == [
        (Method.JOURNAL, Guarantee.EXACT),
        (Method.BARRIER, Guarantee.EXACT),
    ], [one.reason for one in points]
    for one in points[:2]:
        assert (judge_point(history, one).repeats, judge_point(history, one).losses) == (0, 0)
    assert judge_point(history, points[2]).losses == 0
    assert [one for one in releases if one.held == "in-vain" and not one.by_recorder] == []
    assert statuses == [401, 404, 404, 405, 204]
    assert "does not accept the token" in caplog.text
    assert TOKEN not in logs + caplog.text
    assert "x" * 16 not in caplog.text


def test_an_instance_whose_endpoint_cannot_start_runs_and_costs_no_point(
    kafka_cluster: LocalCluster,
    cluster: KafkaCluster,
    topics: VectorTopics,
    ports: list[int],
    tmp_path: Path,
) -> None:
    """Two instances on one host with the same address: the second one only says so."""
    servers = kafka_cluster.bootstrap_servers
    apps = [serving(servers, topics, tmp_path / f"app{n}", ports[0]) for n in range(2)]
    control = endpoints(ports[:1])
    with (
        apps[0],
        orders(servers, topics, rate=200),
        asked(cluster, topics, control=control) as (scene, _),
        apps[1],
    ):
        assert eventually(lambda: "already in use" in apps[1].log_file.read_text("utf-8"))

        def reason() -> str:
            found = Barrier(scene, control).take()
            return found.reason if isinstance(found, NotTaken) else ""

        assert eventually(lambda: "2 of 4 threads did not stop" in reason())


@pytest.mark.parametrize("token", ["line\nbreak-in-a-token", "t\u00f6ken-with-a-letter"])
def test_a_token_that_http_cannot_send_is_not_shown(token: str) -> None:
    with pytest.raises(KafkaError, match="printable ASCII") as caught:
        endpoints([1], token).send("commit")
    assert token not in str(caught.getrepr(chain=True))


def test_a_missing_token_or_host_is_named() -> None:
    with pytest.raises(KafkaError, match=r"recovery_points\.control_token.*NO_SUCH_TOKEN"):
        ControlEndpoints(["http://localhost:1"], Secret(env="NO_SUCH_TOKEN")).send("commit")
    with pytest.raises(KafkaError, match=r"no-such-host\.invalid:1 was not found"):
        ControlEndpoints(["http://no-such-host.invalid:1"], endpoints([1]).token).send("commit")
