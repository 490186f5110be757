"""The one description of a connection: what it accepts and what it refuses."""

import pickle
from pathlib import Path

import dagster as dg
import pytest
from pydantic import SecretStr, ValidationError

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection, OAuthBearerSasl, SecurityProtocol
from tests.kafka.tls import Authority

ISSUED = Authority().issue("client")
SERVERS = {"bootstrap_servers": "a:9092"}
PLAIN = {"mechanism": "PLAIN", "username": "u", "password": {"env": "PW"}}
OIDC = {
    "mechanism": "OAUTHBEARER",
    "client_id": "c",
    "client_secret": {"env": "CS"},
    "token_endpoint_url": "https://idp/token",
}


def _connection(**settings: object) -> KafkaConnection:
    return KafkaConnection.model_validate(SERVERS | settings)


def test_least() -> None:
    connection = _connection()
    assert connection.security_protocol is SecurityProtocol.PLAINTEXT
    assert connection.request_timeout_seconds == 30
    assert list(connection.secrets()) == []


def test_servers_as_list_or_text() -> None:
    assert _connection(bootstrap_servers=["a:1", "b:2"]).bootstrap_servers == "a:1,b:2"
    assert _connection(bootstrap_servers="a:1, b:2").bootstrap_servers == "a:1,b:2"
    assert _connection(bootstrap_servers="[::1]:9092").bootstrap_servers == "[::1]:9092"


@pytest.mark.parametrize("servers", ["a", "a:", ":9092", "a:x", "a:1,", ""])
def test_servers_without_port_are_refused(servers: str) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        _connection(bootstrap_servers=servers)


@pytest.mark.parametrize(
    "settings",
    [
        {"bootstrap": "a:1"},
        {"security_protocol": "SASL_SSL", "sasl": PLAIN | {"mechanism": "GSSAPI"}},
        {"security_protocol": "TLS"},
    ],
)
def test_unknown_keys_and_values_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        _connection(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sasl": PLAIN}, "sasl block, but security_protocol is PLAINTEXT"),
        ({"security_protocol": "SSL", "sasl": PLAIN}, "sasl block, but security_protocol is SSL"),
        ({"ssl": {}}, "ssl block, but security_protocol is PLAINTEXT"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl": PLAIN, "ssl": {}},
            "ssl block, but security_protocol is SASL_PLAINTEXT",
        ),
        ({"security_protocol": "SASL_SSL"}, "no sasl block"),
        ({"security_protocol": "SSL", "ssl": {"certificate": "c.pem"}}, "must be set together"),
        (
            {"security_protocol": "SSL", "ssl": {"private_key": {"env": "KEY"}}},
            "must be set together",
        ),
        (
            {"security_protocol": "SSL", "ssl": {"key_password": {"env": "PW"}}},
            "without ssl.private_key",
        ),
        ({"security_protocol": "SSL", "ssl": {"ca": "trust.jks"}}, "only PEM"),
        (
            {
                "security_protocol": "SSL",
                "ssl": {"certificate": "c.pem", "private_key": {"file": "key.p12"}},
            },
            "only PEM",
        ),
        (
            {
                "security_protocol": "SSL",
                "ssl": {
                    "certificate": ISSUED.chain + ISSUED.pkcs8,
                    "private_key": {"env": "KEY"},
                },
            },
            "private key in clear",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl": OIDC | {"token_endpoint_url": "file:///x"}},
            "http or https",
        ),
        ({"extra_java": {"sasl.jaas.config": "x"}}, "in clear"),
        ({"security_protocol": "SSL", "ssl": {"truststore": "x"}}, "Unknown key.*: truststore"),
        ({"security_protocol": "SASL_SSL", "sasl": PLAIN | {"scope": "x"}}, "Unknown key.*: scope"),
        (
            {"security_protocol": "SASL_SSL", "sasl": OIDC | {"username": "x"}},
            "Unknown.*: username",
        ),
        ({"request_timeout_seconds": 0}, "above 0"),
        ({"request_timeout_seconds": float("nan")}, "above 0"),
        ({"security_protocol": "SASL_SSL", "sasl": PLAIN | {"username": ""}}, "empty"),
        ({"security_protocol": "SASL_SSL", "sasl": OIDC | {"client_id": ""}}, "empty"),
        ({"extra_librdkafka": {"ssl.keystore.password": "x"}}, "in clear"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _connection(**settings)


def test_key_is_checked_at_load_where_it_can_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = tmp_path / "key.pem"
    key.write_text(ISSUED.pkcs1)
    monkeypatch.setenv("KEY", ISSUED.pkcs1)
    for place in ({"file": str(key)}, {"env": "KEY"}, SecretStr(ISSUED.pkcs1)):
        ssl = {"certificate": ISSUED.chain, "private_key": place}
        with pytest.raises(ConfigurationError, match="PKCS#1 key") as caught:
            _connection(security_protocol="SSL", ssl=ssl)
        assert ISSUED.pkcs1.splitlines()[1] not in str(caught.value)


def test_key_that_is_not_readable_yet_is_checked_when_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ssl = {"certificate": ISSUED.chain, "private_key": {"env": "LATER"}}
    connection = _connection(security_protocol="SSL", ssl=ssl)
    monkeypatch.setenv("LATER", ISSUED.pkcs1)
    assert connection.ssl is not None
    with pytest.raises(ConfigurationError, match="PKCS#1 key"):
        connection.ssl.resolve_private_key()


def test_unknown_mechanism_through_raw_settings() -> None:
    """Kerberos, AWS IAM: no sasl block, everything in the raw settings."""
    connection = _connection(
        security_protocol="SASL_SSL", extra_java={"sasl.mechanism": "AWS_MSK_IAM"}
    )
    assert connection.sasl is None


def test_harmless_raw_settings_in_clear() -> None:
    _connection(
        extra_librdkafka={"sasl.oauthbearer.token.endpoint.url": "http://x", "fetch.max.bytes": 1},
        extra_java={"sasl.login.callback.handler.class": "x", "ssl.keystore.location": "y"},
    )


def test_mechanism_in_words() -> None:
    assert _connection().mechanism == "PLAINTEXT"
    assert _connection(security_protocol="SASL_SSL", sasl=PLAIN).mechanism == "SASL_SSL, PLAIN"


def test_errors_do_not_show_what_was_written() -> None:
    with pytest.raises(ConfigurationError, match="pasword") as caught:
        _connection(security_protocol="SASL_SSL", sasl=PLAIN | {"pasword": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValidationError) as invalid:
        _connection(password="hunter2")
    assert "hunter2" not in str(invalid.value)


def test_scrub() -> None:
    sasl = PLAIN | {"password": SecretStr("hunter2")}
    connection = _connection(
        security_protocol="SASL_SSL",
        sasl=sasl,
        extra_java={"x.password": SecretStr("other")},
    )
    assert connection.scrub("hunter2 and other") == "********** and **********"
    assert "hunter2" not in f"{connection!r}{connection}{connection.model_dump_json()}"


def test_pickle() -> None:
    connection = _connection(security_protocol="SASL_SSL", sasl=OIDC)
    copied = pickle.loads(pickle.dumps(connection))  # noqa: S301 (its own bytes)
    assert copied == connection
    assert isinstance(copied.sasl, OAuthBearerSasl)


def test_dump_can_be_read_again() -> None:
    connection = _connection(security_protocol="SASL_SSL", sasl=OIDC, ssl={"ca": "ca.pem"})
    assert KafkaConnection.model_validate_json(connection.model_dump_json()) == connection


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        _connection().bootstrap_servers = "b:1"  # type: ignore[misc]


class _Component(dg.Component, dg.Model, dg.Resolvable):
    """A component with a connection in it, without any wrapper."""

    kafka: KafkaConnection

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions()


def test_part_of_a_component() -> None:
    text = """
        kafka:
          bootstrap_servers: a:1
          security_protocol: SASL_SSL
          sasl: {mechanism: PLAIN, username: u, password: {env: PW}}
          extra_java: {max.poll.records: 5}
    """
    connection = _Component.resolve_from_yaml(text).kafka
    assert connection == _connection(
        bootstrap_servers="a:1",
        security_protocol="SASL_SSL",
        sasl=PLAIN,
        extra_java={"max.poll.records": 5},
    )


@pytest.mark.parametrize(
    "written", ["password: hunter2", "password: {env: PW}, passwd: hunter2", "password: [hunter2]"]
)
def test_secret_in_clear_in_a_component(written: str) -> None:
    text = f"""
        kafka:
          bootstrap_servers: a:1
          security_protocol: SASL_SSL
          sasl: {{mechanism: PLAIN, username: u, {written}}}
    """
    with pytest.raises(ConfigurationError) as caught:
        _Component.resolve_from_yaml(text)
    assert "hunter2" not in str(caught.value)
