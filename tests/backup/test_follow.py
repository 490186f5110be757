"""A follower covers points within seconds, whatever happens to it."""

import json
import random
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import requests

from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.settings import KeepSettings
from kstreams_assets.upkeep.copy import CopyJob, CopyResult
from kstreams_assets.upkeep.expire import ExpireJob, ExpireResult
from kstreams_assets.upkeep.verify import VerifyJob
from tests.backup.following import Following, new_following
from tests.backup.writing import producer
from tests.recovery.history import read_topics
from tests.recovery.trial import (
    NO_PURGE,
    QUICK_SESSIONS,
    Trial,
    application_of,
    disturbance,
    new_trial,
    running,
    wrong_points,
)
from tests.store.place import warehouse_at
from tests.streams.cluster import unique_name
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.cluster, pytest.mark.on_store]


@pytest.fixture
def following(kafka_cluster: LocalCluster, tmp_path: Path) -> Iterator[Following]:
    """An application that is one topic."""
    topic = unique_name("orders")
    servers = kafka_cluster.bootstrap_servers
    with KafkaCluster(KafkaConnection(bootstrap_servers=servers)) as cluster:
        cluster.create_topics([TopicSpec(topic, 2)])
    found = new_following(tmp_path, servers, unique_name("app"), {topic: "input"}, "hour")
    yield found
    found.end_if_it_runs()


def _send(following: Following, count: int) -> None:
    sender = producer(following.settings.connection.bootstrap_servers)
    (topic,) = following.settings.topics
    for number in range(count):
        sender.produce(topic.name, b"%d" % number, partition=number % 2)
    assert sender.flush(30) == 0


def test_points_are_covered_and_a_signal_ends_it(following: Following) -> None:
    assert following.run("follow", "status").returncode == 1
    following.start()
    following.wait_until_it_has_all()
    _send(following, 100)
    following.wait_until_it_has_all()
    status = following.run("follow", "status", "--json")
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["follower"]["records"] == 100
    _send(following, 31)
    following.wait_until_it_has_all()
    assert following.end() == 0
    (topic,) = following.settings.topics
    assert sum(map(len, following.records(topic.name).values())) == 131
    assert following.covered_points()
    ended = following.run("follow", "status")
    assert ended.returncode == 1
    assert "It has ended." in ended.stdout


def test_one_follower_of_an_application(following: Following) -> None:
    following.start()
    following.wait_until_it_has_all()
    second = following.run("follow")
    assert second.returncode == 2
    assert "is held by" in second.stderr
    assert "follower" in second.stderr
    assert following.end(signal.SIGINT) == 0


def _get(url: str) -> tuple[int, str]:
    answer = requests.get(url, timeout=20)
    return answer.status_code, answer.text


def test_what_a_probe_and_prometheus_see_when_the_brokers_go_and_come(tmp_path: Path) -> None:
    topic = unique_name("orders")
    with LocalCluster(tmp_path / "cluster") as local:
        servers = local.bootstrap_servers
        with KafkaCluster(KafkaConnection(bootstrap_servers=servers)) as cluster:
            cluster.create_topics([TopicSpec(topic, 2)])
        following = new_following(
            tmp_path, servers, "shop", {topic: "input"}, "hour", objective_s=12
        )
        try:
            following.start("--listen", "127.0.0.1:0")
            following.wait_until_it_has_all()
            url = following.log.read_text().split("health on ")[1].split()[0]
            assert eventually(lambda: _get(url) == (200, "ok\n"))
            metrics = _get(url.replace("/health", "/metrics"))[1]
            assert 'kstreams_follower_failures{application_id="shop"} 0.0' in metrics
            local.stop_node(0)
            following.wait_for(lambda status: status.failures)
            assert eventually(lambda: _get(url)[0] == 503)
            assert re.match(r"shop: The newest covered point is \d+ s old, over 12", _get(url)[1])
            local.start_node(0)
            following.wait_until_it_has_all()
            assert eventually(lambda: _get(url) == (200, "ok\n"))
            assert following.end() == 0
        finally:
            following.end_if_it_runs()
    assert "Trying again" in following.log.read_text()


@dataclass(frozen=True)
class _Tried:
    """An application under load and its follower; `roles` are those of its topics."""

    trial: Trial
    following: Following
    roles: Mapping[str, str]


@pytest.fixture
def tried(kafka_cluster: LocalCluster, tmp_path: Path) -> Iterator[_Tried]:
    """Topics are there; neither the application nor its follower runs."""
    servers = kafka_cluster.bootstrap_servers
    trial = new_trial(servers, tmp_path)
    trial.create_topics()
    application = application_of(trial.topics, ticks=False)
    roles = {topic.name: role.value for topic in application.topics for role in topic.roles}
    following = new_following(tmp_path, servers, application.application_id, roles, "minute")
    yield _Tried(trial, following, roles)
    following.end_if_it_runs()


@pytest.mark.drill
@pytest.mark.alone
def test_a_hundred_looks_while_all_else_is_at_work(tried: _Tried, tmp_path: Path) -> None:
    """Follower, expire and copy change the warehouse meanwhile, and nothing is a false alarm."""
    trial, following = tried.trial, tried.following
    keep = KeepSettings(all="30s", hourly="1d", minimum=3)
    settings = replace(following.settings, keep=keep)
    to = warehouse_at(tmp_path / "second").root
    expired: list[ExpireResult] = []
    copied: list[CopyResult] = []

    def upkeep(over: threading.Event) -> None:
        while not over.wait(1):
            expired.append(ExpireJob(settings, run_id=f"expire-{len(expired)}").run())
            copied.append(CopyJob(settings.warehouse, to).run())

    apps = [trial.app("i0", threads=2, config={**QUICK_SESSIONS, **NO_PURGE})]
    with running(apps), trial.load(rate=500):
        following.start()
        following.wait_until_it_has_all()
        with disturbance(upkeep):
            began, looks = time.monotonic(), 0
            # Also across the ends of some windows, which are put together then.
            while looks < 100 or time.monotonic() - began < 150:
                found = VerifyJob(settings, full=looks % 2 == 1).run()
                assert found.damages == (), [str(one.finding) for one in found.damages]
                looks += 1
        following.wait_until_it_has_all()
    trial.settle()
    following.wait_until_it_has_all()
    assert following.end() == 0
    assert sum(len(done.plan.expiring) for done in expired) > 20
    assert any(done.topics for done in expired), "nothing was put together"
    assert len(copied) > 3
    assert all(done.lacking == () for done in copied)
    CopyJob(settings.warehouse, to).run()
    assert (
        VerifyJob(replace(settings, warehouse=Warehouse(to)), full=True, record=False).run().damages
        == ()
    )
    covered = following.covered_points()
    assert len(covered) >= 3
    assert wrong_points(trial, trial.history(), covered) == {}


@pytest.mark.drill
@pytest.mark.alone
def test_ten_kills_beside_cron_under_load(tried: _Tried) -> None:
    """Every covered point is exact, and the warehouse has what Kafka has, each record once."""
    trial, following, roles = tried.trial, tried.following, tried.roles
    following.every_s = 1.0
    apps = [trial.app("i0", threads=2, config={**QUICK_SESSIONS, **NO_PURGE})]
    runs: list[int] = []

    def cron(over: threading.Event) -> None:
        while not over.wait(15):
            runs.append(following.run("backup").returncode)

    source = random.Random(7)
    kills = 0
    with running(apps), trial.load(rate=2_000):
        time.sleep(2)
        with disturbance(cron):
            for _ in range(10):
                following.start()
                time.sleep(source.uniform(2, 14))
                following.kill()
                kills += 1
            following.start()
            following.wait_until_it_has_all()
    trial.settle()
    following.wait_until_it_has_all()
    assert following.end() == 0
    assert kills == 10
    assert runs
    assert set(runs) == {0}, following.log.read_text()
    covered = following.covered_points()
    exact = [point for point in covered if point.guarantee is Guarantee.EXACT]
    assert len(exact) >= kills  # how many more depends on the machine
    assert wrong_points(trial, trial.history(), covered) == {}
    ledger = Ledger(following.settings.warehouse, following.settings.application_id)
    assert ledger.done(set(roles)), "no window has closed"
    kafka = read_topics(following.settings.connection.bootstrap_servers, [*roles])
    for topic in roles:
        for partition, records in following.records(topic).items():
            if topic == trial.topics.repartition:  # what is processed is not backed up
                assert {*records} <= {*kafka[partition]}
            else:
                assert records == kafka[partition]
