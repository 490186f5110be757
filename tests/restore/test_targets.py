"""Which cluster is meant."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.errors import ConfigurationError, WarehouseError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.orchestration.restore_config import RestoreConfig
from kstreams_assets.restore.command_sources import configured_commands, with_target
from kstreams_assets.restore.request import RestoreRequest, parse_instant
from kstreams_assets.restore.target import (
    local_name_of,
    open_stored_target,
    open_target,
    target_connection,
)
from kstreams_assets.secret import Secret
from kstreams_assets.settings import (
    ApplicationSettings,
    RestoreSettings,
    TargetSettings,
    VerifyExtent,
)
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
        ("local", RestoreRequest(window="2026-11-21-12:00"), "2026-11-21-12_00"),
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


def _at(servers: str) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=servers)


def _declared(tmp_path: Path, default: str | None = None) -> ApplicationSettings:
    """Four targets: two on the same cluster, one of them for windows side by side."""
    return replace(
        outcomes.settings(tmp_path, target=None),
        restore=RestoreSettings(target=default, verify=VerifyExtent.SAMPLE),
        targets={
            "dr": TargetSettings(
                connection=_at("dr:1"), before_command="stop it", command_timeout_seconds=70
            ),
            "many": TargetSettings(
                connection=_at("dr:1"), prefix="{window}.", after_command="start one"
            ),
            "local": TargetSettings(),
            "laptop": TargetSettings(prefix="try-"),
        },
    )


def _asked(settings: ApplicationSettings, **given: object) -> RestoreRequest:
    return RestoreRequest.asked(with_target(given, settings), verify=VerifyExtent.FULL)


class TestDeclared:
    """Targets in the YAML."""

    def test_the_default(self, tmp_path: Path) -> None:
        several = _declared(tmp_path)
        with pytest.raises(ConfigurationError, match=r"No target cluster.*dr, many, local, laptop"):
            target_connection(several, None)
        one = replace(several, targets={"dr": several.targets["dr"]})
        for settings in (one, _declared(tmp_path, "dr")):
            assert target_connection(settings, None) == _at("dr:1")
            assert _asked(settings).before_command == "stop it"

    def test_a_connection_in_restore_target_is_the_target_default(self, tmp_path: Path) -> None:
        settings = outcomes.settings(tmp_path)
        assert settings.default_target == "default"
        assert target_connection(settings, "default") == settings.restore.target
        assert settings.declared_targets.keys() == {"default"}

    def test_by_name_come_commands_and_their_time(self, tmp_path: Path) -> None:
        request = _asked(_declared(tmp_path), target="dr")
        assert (request.target, request.before_command, request.command_timeout_s) == (
            "dr",
            "stop it",
            70,
        )
        assert (request.prefix, request.application_id) == ("", None)

    @pytest.mark.parametrize(
        ("name", "target", "prefix"),
        [("local", "local", ""), ("laptop", "local:laptop", "try-")],
    )
    def test_a_local_one(self, tmp_path: Path, name: str, target: str, prefix: str) -> None:
        request = _asked(_declared(tmp_path), target=name)
        assert (request.target, request.prefix, request.replication_factor) == (target, prefix, 1)

    @pytest.mark.parametrize(
        "given",
        [
            {"window": "2026-11-26-19:00"},
            {"as_of_ms": "2026-11-26T19:59:59Z"},
            {"point_id": "20261126T190001.000Z-ab12cd"},
        ],
    )
    def test_a_prefix_for_each_window(self, tmp_path: Path, given: dict[str, str]) -> None:
        settings = _declared(tmp_path)
        request = _asked(settings, target="many", **given)
        assert (request.prefix, request.application_id, request.after_command) == (
            "2026-11-26-19-00.",
            "2026-11-26-19-00.shop",
            "start one",
        )
        commands = configured_commands(
            settings, target="dr:1", group="2026-11-26-19-00.shop", mode="state"
        )
        assert commands.after_command == "start one"

    def test_a_prefix_for_each_window_needs_one(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"prefix of this target is '\{window\}\.'"):
            _asked(_declared(tmp_path), target="many")

    def test_other_names_that_are_asked_for_win(self, tmp_path: Path) -> None:
        settings = _declared(tmp_path)
        request = _asked(settings, target="many", prefix="mine-", application_id="shop-2")
        assert (request.prefix, request.application_id) == ("mine-", "shop-2")
        assert request.after_command is None

    def test_servers_are_those_of_a_target(self, tmp_path: Path) -> None:
        settings = replace(
            _declared(tmp_path, "dr"),
            targets={
                "dr": TargetSettings(connection=_at("dr:1")),
                "slow": TargetSettings(
                    connection=KafkaConnection(
                        bootstrap_servers="a:1,b:1", request_timeout_seconds=99
                    )
                ),
            },
        )
        assert target_connection(settings, "b:1, a:1").request_timeout_seconds == 99
        assert target_connection(settings, "c:1").request_timeout_seconds == 30

    def test_undeclared(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"'nowhere' is not host:port.*are dr"):
            target_connection(_declared(tmp_path), "nowhere")
        with pytest.raises(ConfigurationError, match="'laptop' is a throwaway cluster"):
            target_connection(_declared(tmp_path), "laptop")


@pytest.mark.kafka
def test_a_local_cluster_is_found_again_by_its_id(tmp_path: Path) -> None:
    settings = outcomes.settings(tmp_path / "warehouse")
    with (
        pytest.raises(WarehouseError, match="there is no warehouse"),
        open_target(settings, RestoreRequest(target="local:trial")),
    ):
        pytest.fail("it was started")
    assert not settings.warehouse.root.exists()
    settings.warehouse.make()
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
