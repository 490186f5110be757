"""A plan beside a follower that works: points that it is about to cover are no news."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from tests.backup.following import Following, new_following
from tests.backup.writing import producer
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.cluster]
_PLANS = 3


@pytest.fixture
def following(kafka_cluster: LocalCluster, tmp_path: Path) -> Iterator[Following]:
    """A follower of one topic, to which something writes all the time."""
    topic = unique_name("orders")
    servers = kafka_cluster.bootstrap_servers
    with KafkaCluster(KafkaConnection(bootstrap_servers=servers)) as cluster:
        cluster.create_topics([TopicSpec(topic, 2)])
    found = new_following(tmp_path, servers, unique_name("app"), {topic: "input"}, "hour")
    ended = threading.Event()
    writing = threading.Thread(target=_write, args=(servers, topic, ended))
    writing.start()
    try:
        found.start()
        yield found
    finally:
        found.end_if_it_runs()
        ended.set()
        writing.join()


def _write(servers: str, topic: str, ended: threading.Event) -> None:
    sender = producer(servers)
    while not ended.wait(0.02):
        sender.produce(topic, b"value")
        sender.poll(0)
    sender.flush(30)


def test_no_plan_speaks_of_them(following: Following) -> None:
    following.wait_until_it_has_all()
    servers = following.settings.connection.bootstrap_servers
    for _ in range(_PLANS):
        plan = following.run("restore", "plan", "--target", servers, "--prefix", "back-")
        assert "Recovery point" in plan.stdout, plan
        assert "newer point" not in plan.stdout + plan.stderr
        time.sleep(0.3)
    status = following.run("follow", "status")
    assert status.returncode == 0, status
    assert re.search(r"pid +│ +\d+ ", status.stdout)
    assert re.search(r"started_at +│ 20\S+ \(\d+ ", status.stdout)
    assert not re.search(r"\d,\d{3},\d{3}", status.stdout)
