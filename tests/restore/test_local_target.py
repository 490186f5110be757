"""restore/local_target.py: a throwaway cluster that keeps its data."""

import threading
from pathlib import Path

import pytest

from kstreams_assets.errors import ConfigurationError, LocalTargetNotFoundError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.positions import CommittedOffset, TopicPartitionId
from kstreams_assets.kafka.topics import TopicSpec
from kstreams_assets.restore.local_target import (
    local_target,
    local_targets,
    remove_local_target,
    serve,
)
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.lock import WarehouseLockedError
from tests.restore.after_commit import settings_of

SOURCE = KafkaConnection(bootstrap_servers="127.0.0.1:1")


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    return settings_of("orders", SOURCE, tmp_path / "warehouse")


@pytest.mark.kafka
def test_data_stays_until_it_is_removed(settings: ApplicationSettings) -> None:
    offset = {TopicPartitionId("totals", 0): CommittedOffset(0, "m")}
    with local_target(settings, "drill") as connection, KafkaCluster(connection) as cluster:
        made = cluster.cluster_id()
        cluster.create_topics([TopicSpec("totals", 1)])
        cluster.commit_group_offsets("orders", offset)
        with pytest.raises(WarehouseLockedError), local_target(settings, "drill", wait_s=0):
            pytest.fail("it runs twice on the same data")
        with pytest.raises(WarehouseLockedError):
            remove_local_target(settings, "drill")
    (found,) = local_targets(settings)
    assert found.name == "drill"
    assert found.directory == settings.warehouse.root / "local_clusters" / "orders" / "drill"
    assert found.bytes > 0
    until = threading.Event()

    def announce(line: str) -> None:
        if line.startswith("bootstrap.servers="):
            _, _, servers = line.partition("=")
            with KafkaCluster(KafkaConnection(bootstrap_servers=servers)) as cluster:
                assert cluster.cluster_id() == made
                assert cluster.group_offsets("orders") == offset
            until.set()

    serve(settings, "drill", announce=announce, until=until)
    assert until.is_set()
    assert remove_local_target(settings, "drill").directory == found.directory
    assert local_targets(settings) == []
    assert not found.directory.exists()


def test_names_that_are_no_folders(settings: ApplicationSettings) -> None:
    for name in ("", ".", "..", "a/b", "../a", "a b"):
        with (
            pytest.raises(ConfigurationError, match="cannot be called"),
            local_target(settings, name),
        ):
            pytest.fail("it was started")
    assert not settings.warehouse.root.exists()


def test_what_was_never_made(settings: ApplicationSettings) -> None:
    home = settings.warehouse.root / "local_clusters" / "orders"
    (home / "something-else").mkdir(parents=True)
    for name in ("something-else", "..", "nothing"):
        with pytest.raises(LocalTargetNotFoundError):
            serve(settings, name, announce=pytest.fail, until=threading.Event())
        with pytest.raises(LocalTargetNotFoundError):
            remove_local_target(settings, name)
    assert (home / "something-else").is_dir()
