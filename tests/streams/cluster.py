"""One broker for a whole test session, and names that no other test uses."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster


def connection_to(bootstrap_servers: str) -> KafkaConnection:
    """A connection with a limit that fits a busy machine."""
    return KafkaConnection(bootstrap_servers=bootstrap_servers, request_timeout_seconds=30)


def unique_name(prefix: str) -> str:
    """Return a name for a topic, group or application that only the calling test has."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


@contextmanager
def passing_cluster(folder: Path, **options: Any) -> Iterator[LocalCluster]:
    """A local cluster that is killed at the end: an orderly stop of several nodes takes seconds.

    Nobody needs what it holds then; `options` are those of `LocalCluster`.
    """
    with LocalCluster(folder, **options) as cluster:
        try:
            yield cluster
        finally:
            cluster.stop(timeout_s=0.0)


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker shared by all tests of the session: use unique names, change no cluster setting."""
    directory: Path = tmp_path_factory.mktemp("kafka-cluster")
    with passing_cluster(directory) as cluster:
        yield cluster


@pytest.fixture
def cluster(kafka_cluster: LocalCluster) -> Iterator[KafkaCluster]:
    """The control plane of the session's broker."""
    with KafkaCluster(connection_to(kafka_cluster.bootstrap_servers)) as cluster:
        yield cluster
