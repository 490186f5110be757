"""What most tests of the control plane use: the session's broker, asked with a short limit."""

from collections.abc import Iterator

import pytest

from kstreams_assets.kafka import groups, raw_log, throttle, transactions
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.local.cluster import LocalCluster
from tests.timing import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of those who ask a broker in memory; not for tests with a real one."""
    clock = Clock()
    for module in (groups, raw_log, throttle, transactions):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def connection(kafka_cluster: LocalCluster) -> KafkaConnection:
    """How the session's broker is reached."""
    return KafkaConnection(
        bootstrap_servers=kafka_cluster.bootstrap_servers, request_timeout_seconds=10
    )


@pytest.fixture
def cluster(connection: KafkaConnection) -> Iterator[KafkaCluster]:
    """Its control plane."""
    with KafkaCluster(connection) as cluster:
        yield cluster


@pytest.fixture
def reader(connection: KafkaConnection) -> Iterator[RawLogReader]:
    """Its raw log."""
    with RawLogReader(connection) as reader:
        yield reader
