"""Which cluster is meant."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.errors import ConfigurationError, WarehouseError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.secret import Secret
from kstreams_assets.orchestration.restore import RestoreConfig
from kstreams_assets.restore.request import RestoreRequest, parse_instant
from kstreams_assets.restore.target import (
    local_name_of,
    open_stored_target,
    open_target,
    target_connection,
)
from kstreams_assets.settings import ApplicationSettings, RestoreSettings
from kstreams_assets.warehouse.restores import RestoreState
from kstreams_assets.warehouse.table import make_warehouse
from tests.restore import outcomes

NOON = RestoreRequest(as_of_ms=1_795_262_400_250)


@pytest.mark.parametrize(
    ("target", "request_", "name"),
    [
        (None, NOON, None),
        ("broker:9092", NOON, None),
        ("local:9092", NOON, None),
        ("localhost:9092", NOON, None),
        ("local", RestoreRequest(), "newest"),
        ("local", NOON, "20261121T120000.250Z"),
        ("local", RestoreRequest(point_id="20261121T1.2Z-9f"), "20261121T1.2Z-9f"),
        ("local", RestoreRequest(point_id="a/../b"), "a_.._b"),
        ("local:trial", NOON, "trial"),
    ],
)
def test_local_name(target: str | None, request_: RestoreRequest, name: str | None) -> None:
    assert request_.model_copy(update={"target": target}).local_name == name


def test_only_a_local_cluster_has_one_replica_by_itself(tmp_path: Path) -> None:
    settings = outcomes.settings(tmp_path)
    assert (
        RestoreConfig.model_validate({"target": "local"}).request(settings).replication_factor == 1
    )
    assert (
        RestoreConfig.model_validate({"target": "a:1"}).request(settings).replication_factor is None
    )
    three = RestoreConfig.model_validate({"target": "local:x", "replication_factor": 3}).request(
        settings
    )
    assert three.replication_factor == 3


def _with_target(settings: ApplicationSettings, **connection: object) -> ApplicationSettings:
    target = KafkaConnection.model_validate(
        {"bootstrap_servers": "b:1", "request_timeout_seconds": 7, **connection}
    )
    return replace(settings, restore=RestoreSettings(target=target))


def test_other_servers_keep_the_settings_of_the_target(tmp_path: Path) -> None:
    sasl = {"mechanism": "PLAIN", "username": "u", "password": Secret(env="X")}
    settings = _with_target(
        outcomes.settings(tmp_path), security_protocol="SASL_PLAINTEXT", sasl=sasl
    )
    assert target_connection(settings, None) == settings.restore.target
    other = target_connection(settings, "b:2")
    assert other.bootstrap_servers == "b:2"
    assert (other.sasl, other.request_timeout_seconds) == (
        target_connection(settings, None).sasl,
        7,
    )


@pytest.mark.parametrize(
    ("target", "allowed", "refused"),
    [
        ("b:9,B:10", (), None),
        ("evil:9092", (), "evil"),
        ("b:1,evil:1", (), "evil"),
        ("k1.dr.example.com:1,k2.dr.example.com:1", ("*.dr.example.com",), None),
        ("dr.example.com.evil:1", ("*.dr.example.com",), r"dr\.example\.com\.evil"),
    ],
)
def test_credentials_go_only_where_they_belong(
    tmp_path: Path, target: str, allowed: tuple[str, ...], refused: str | None
) -> None:
    sasl = {"mechanism": "PLAIN", "username": "u", "password": Secret(env="X")}
    settings = _with_target(
        outcomes.settings(tmp_path),
        security_protocol="SASL_PLAINTEXT",
        sasl=sasl,
        credentials_for=allowed,
    )
    if refused is None:
        assert target_connection(settings, target).bootstrap_servers == target
        return
    with pytest.raises(ConfigurationError, match=rf"sent to {refused}\..*credentials_for"):
        target_connection(settings, target)


def test_an_ipv6_address_is_the_host_that_it_is(tmp_path: Path) -> None:
    sasl = {"mechanism": "PLAIN", "username": "u", "password": Secret(env="X")}
    settings = _with_target(
        outcomes.settings(tmp_path),
        bootstrap_servers="[::1]:1",
        security_protocol="SASL_PLAINTEXT",
        sasl=sasl,
    )
    assert target_connection(settings, "[::1]:2").bootstrap_servers == "[::1]:2"


def test_settings_without_credentials_go_anywhere(tmp_path: Path) -> None:
    settings = _with_target(outcomes.settings(tmp_path))
    assert target_connection(settings, "other:1").request_timeout_seconds == 7


def test_without_a_target_nothing_of_the_source_is_used(tmp_path: Path) -> None:
    settings = replace(
        outcomes.settings(tmp_path, target=None),
        connection=KafkaConnection(bootstrap_servers="a:1", request_timeout_seconds=9),
    )
    assert target_connection(settings, "c:2") == KafkaConnection(bootstrap_servers="c:2")
    with pytest.raises(ConfigurationError, match="No target cluster is given"):
        target_connection(settings, None)


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01T00:00Z", "1795262400"])
def test_no_instant(text: str) -> None:
    with pytest.raises(ConfigurationError, match="ISO 8601"):
        parse_instant(text)


def test_instants_are_rounded_down_also_before_1970() -> None:
    assert parse_instant("2026-11-21T12:00:00.2509+00:00") == NOON.as_of_ms
    assert parse_instant(" 2026-11-21T13:00:00.250+01:00 ") == NOON.as_of_ms
    assert parse_instant("1969-12-31T23:59:59.9999Z") == -1


@pytest.mark.kafka
def test_a_local_cluster_is_found_again_by_its_id(tmp_path: Path) -> None:
    settings = outcomes.settings(tmp_path / "warehouse")
    with (
        pytest.raises(WarehouseError, match="there is no warehouse"),
        open_target(settings, RestoreRequest(target="local:trial")),
    ):
        pytest.fail("it was started")
    assert not settings.warehouse.root.exists()
    make_warehouse(settings.warehouse.root)
    with open_target(settings, RestoreRequest(target="local:trial")) as connection:
        assert connection.bootstrap_servers.startswith("127.0.0.1:")
        with KafkaCluster(connection) as cluster:
            cluster_id = cluster.cluster_id()
    plan = replace(outcomes.plan(RestoreRequest()), target_cluster_id=cluster_id)
    restore = outcomes.stored(plan, RestoreState.VERIFIED)
    assert local_name_of(settings, restore) == "trial"
    with (
        open_stored_target(settings, restore) as connection,
        KafkaCluster(connection) as cluster,
    ):
        assert cluster.cluster_id() == cluster_id
    elsewhere = replace(restore, target_cluster_id="another")
    assert local_name_of(settings, elsewhere) is None
    with open_stored_target(settings, elsewhere) as connection:
        assert connection.bootstrap_servers == outcomes.TARGET
    with open_stored_target(settings, restore, "moved:2") as connection:
        assert connection.bootstrap_servers == "moved:2"
