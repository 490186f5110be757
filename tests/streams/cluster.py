"""One broker for a whole test session, and names that no other test uses."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstreams_assets.local.cluster import LocalCluster


def unique_name(prefix: str) -> str:
    """Return a name for a topic, group or application that only the calling test has."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker shared by all tests of the session: use unique names, change no cluster setting."""
    directory: Path = tmp_path_factory.mktemp("kafka-cluster")
    with LocalCluster(directory) as cluster:
        yield cluster
