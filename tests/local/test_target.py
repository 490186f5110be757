"""kstreams_assets/local/target.py: a throwaway cluster that keeps its data."""

import stat
import threading
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from kstreams_assets.errors import (
    AuthenticationFailedError,
    ConfigurationError,
    KStreamsAssetsError,
)
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection, PasswordSasl
from kstreams_assets.local.target import local_target, local_targets, remove_local_target, serve
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.secret import Secret
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store.locks import WarehouseLockedError
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
            with KafkaCluster(connection.at(servers)) as cluster:
                assert cluster.cluster_id() == made
                assert cluster.group_offsets("orders") == offset
            until.set()

    serve(settings, "drill", announce=announce, until=until)
    assert until.is_set()
    assert remove_local_target(settings, "drill").directory == found.directory
    assert local_targets(settings) == []
    assert not found.directory.exists()


@pytest.mark.kafka
def test_nobody_gets_in_without_the_password(settings: ApplicationSettings) -> None:
    with local_target(settings, "drill") as connection:
        (found,) = local_targets(settings)
        password = (found.directory / "password").read_text()
        broker = _broker(found.directory)
        ports = {
            one.laddr.port for one in broker.net_connections() if one.status == psutil.CONN_LISTEN
        }
        assert len(ports) == 3  # of clients, of brokers, of the controller
        for port in ports:
            with pytest.raises(KafkaException):
                AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}).list_topics(
                    timeout=3
                )
        assert isinstance(connection.sasl, PasswordSasl)
        sasl = connection.sasl.model_copy(update={"password": Secret.of(SecretStr("wrong"))})
        wrong = connection.model_copy(update={"sasl": sasl})
        with pytest.raises(AuthenticationFailedError), KafkaCluster(wrong) as cluster:
            cluster.cluster_id()
        with KafkaCluster(connection) as cluster:
            assert cluster.cluster_id()
        assert not any(password in argument for argument in broker.cmdline())
        holders = [
            path
            for path in found.directory.rglob("*")
            if path.is_file() and password.encode() in path.read_bytes()
        ]
        names = {path.name for path in holders}
        assert names == {"password", "client.properties", "node-0.properties"}
        assert {stat.S_IMODE(path.stat().st_mode) for path in holders} == {0o600}
        assert f"bootstrap.servers={connection.bootstrap_servers}".replace(":", "\\:") in (
            found.client_properties.read_text()
        )


def _broker(directory: Path) -> psutil.Process:
    (broker,) = (
        process
        for process in psutil.Process().children(recursive=True)
        if process.name() == "java" and any(str(directory) in part for part in process.cmdline())
    )
    return broker


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
        with pytest.raises(KStreamsAssetsError, match="There is no local cluster"):
            serve(settings, name, announce=pytest.fail, until=threading.Event())
        with pytest.raises(KStreamsAssetsError, match="There is no local cluster"):
            remove_local_target(settings, name)
    assert (home / "something-else").is_dir()
