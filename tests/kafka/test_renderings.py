"""One connection, three clients."""

import re
import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from kstreams_assets.errors import ConfigurationError, SecretNotFoundError
from kstreams_assets.kafka.clients import (
    java_config,
    librdkafka_config,
)
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.wire import ClientCredentialsTokenProvider, kafka_python_arguments
from tests.kafka.tls import Authority

AUTHORITY = Authority()
ISSUED = AUTHORITY.issue("client")


def _connection(**settings: object) -> KafkaConnection:
    return KafkaConnection.model_validate({"bootstrap_servers": "a:1,b:2"} | settings)


def _password(
    mechanism: str,
    password: str = "pw",  # noqa: S107
    username: str = "user",
) -> KafkaConnection:
    sasl = {"mechanism": mechanism, "username": username, "password": SecretStr(password)}
    return _connection(security_protocol="SASL_PLAINTEXT", sasl=sasl)


def _mutual(key: str, **ssl_settings: object) -> KafkaConnection:
    settings = {
        "ca": AUTHORITY.root,
        "certificate": ISSUED.chain,
        "private_key": SecretStr(key),
    } | ssl_settings
    return _connection(security_protocol="SSL", ssl=settings)


OIDC = _connection(
    security_protocol="SASL_SSL",
    sasl={
        "mechanism": "OAUTHBEARER",
        "client_id": "id",
        "client_secret": SecretStr("cs"),
        "token_endpoint_url": "https://idp/token",
        "scope": "kafka",
    },
)


class TestLibrdkafka:
    """Names of librdkafka."""

    def test_plaintext(self) -> None:
        config = librdkafka_config(_connection(request_timeout_seconds=5))
        assert config == {
            "bootstrap.servers": "a:1,b:2",
            "security.protocol": "PLAINTEXT",
            "client.id": "kstreams-assets",
            "socket.timeout.ms": 5000,
            "socket.connection.setup.timeout.ms": 5000,
        }

    def test_password(self) -> None:
        config = librdkafka_config(_password("SCRAM-SHA-512"))
        assert config["sasl.mechanism"] == "SCRAM-SHA-512"
        assert (config["sasl.username"], config["sasl.password"]) == ("user", "pw")

    def test_oidc(self) -> None:
        config = librdkafka_config(OIDC)
        assert config["sasl.oauthbearer.method"] == "oidc"
        assert config["sasl.oauthbearer.client.secret"] == "cs"
        assert config["sasl.oauthbearer.scope"] == "kafka"

    def test_mutual_tls(self) -> None:
        config = librdkafka_config(
            _mutual(ISSUED.encrypted("kp"), key_password=SecretStr("kp"), verify_host_name=False)
        )
        assert config["ssl.ca.pem"] == AUTHORITY.root
        assert config["ssl.certificate.pem"] == ISSUED.chain
        assert "ENCRYPTED" in str(config["ssl.key.pem"])
        assert config["ssl.key.password"] == "kp"
        assert config["ssl.endpoint.identification.algorithm"] == "none"

    def test_extras_win(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("X", "from-env")
        extras = {"client.id": "mine", "some.password": {"env": "X"}, "fetch.max.bytes": 7}
        config = librdkafka_config(_connection(extra_librdkafka=extras))
        assert config["client.id"] == "mine"
        assert config["some.password"] == "from-env"
        assert config["fetch.max.bytes"] == 7


class TestJava:
    """Names of the Java client."""

    def test_plaintext(self) -> None:
        assert java_config(_connection()) == {
            "bootstrap.servers": "a:1,b:2",
            "security.protocol": "PLAINTEXT",
        }

    def test_extras_as_java_writes_them(self) -> None:
        connection = _connection(extra_java={"max.poll.records": 50_000, "check.crcs": True})
        config = java_config(connection)
        assert (config["max.poll.records"], config["check.crcs"]) == ("50000", "true")

    @pytest.mark.parametrize(
        ("mechanism", "module"),
        [
            ("PLAIN", "plain.PlainLoginModule"),
            ("SCRAM-SHA-256", "scram.ScramLoginModule"),
            ("SCRAM-SHA-512", "scram.ScramLoginModule"),
        ],
    )
    def test_jaas(self, mechanism: str, module: str) -> None:
        config = java_config(_password(mechanism))
        assert config["sasl.mechanism"] == mechanism
        assert config["sasl.jaas.config"] == (
            f'org.apache.kafka.common.security.{module} required username="user" password="pw";'
        )

    @given(st.text(st.characters(exclude_characters="\r\n"), min_size=1))
    def test_jaas_quotes_whatever_a_password_holds(self, password: str) -> None:
        jaas = java_config(_password("PLAIN", password))["sasl.jaas.config"]
        quoted = re.fullmatch(r'.* password="((?:[^"\\]|\\.)*)";', jaas, re.DOTALL)
        assert quoted
        assert re.sub(r"\\(.)", r"\1", quoted[1], flags=re.DOTALL) == password

    @pytest.mark.parametrize("bad", ["a\nb", "a\rb"])
    def test_jaas_refuses_line_breaks(self, bad: str) -> None:
        for connection in (_password("PLAIN", bad), _password("PLAIN", "x", bad)):
            with pytest.raises(ConfigurationError, match="line break") as caught:
                java_config(connection)
            assert bad not in str(caught.value)

    def test_oidc(self) -> None:
        config = java_config(OIDC)
        assert 'clientId="id" clientSecret="cs" scope="kafka";' in config["sasl.jaas.config"]
        assert config["sasl.oauthbearer.token.endpoint.url"] == "https://idp/token"
        assert config["sasl.login.callback.handler.class"].endswith(
            "OAuthBearerLoginCallbackHandler"
        )

    def test_mutual_tls_is_inline(self, tmp_path: Path) -> None:
        certificate = tmp_path / "cert.pem"
        certificate.write_text(ISSUED.chain)
        config = java_config(_mutual(ISSUED.pkcs8, certificate=str(certificate)))
        assert config["ssl.truststore.type"] == config["ssl.keystore.type"] == "PEM"
        assert config["ssl.truststore.certificates"] == AUTHORITY.root
        assert config["ssl.keystore.certificate.chain"] == ISSUED.chain
        assert config["ssl.keystore.key"] == ISSUED.pkcs8
        assert config["ssl.endpoint.identification.algorithm"] == "https"
        lax = java_config(_mutual(ISSUED.pkcs8, verify_host_name=False))
        assert lax["ssl.endpoint.identification.algorithm"] == ""

    def test_encrypted_key_is_opened_because_java_17_cannot(self) -> None:
        config = java_config(_mutual(ISSUED.encrypted("kp"), key_password=SecretStr("kp")))
        assert config["ssl.keystore.key"] == ISSUED.pkcs8
        assert "ssl.key.password" not in config


class TestKafkaPython:
    """Arguments of kafka-python."""

    def test_plaintext(self) -> None:
        assert kafka_python_arguments(_connection(request_timeout_seconds=2)) == {
            "bootstrap_servers": ["a:1", "b:2"],
            "security_protocol": "PLAINTEXT",
            "client_id": "kstreams-assets",
            "request_timeout_ms": 2000,
        }

    def test_password(self) -> None:
        arguments = kafka_python_arguments(_password("SCRAM-SHA-256"))
        assert arguments["sasl_mechanism"] == "SCRAM-SHA-256"
        assert arguments["sasl_plain_username"] == "user"
        assert arguments["sasl_plain_password"] == "pw"

    def test_oidc(self) -> None:
        arguments = kafka_python_arguments(OIDC)
        provider = arguments["sasl_oauth_token_provider"]
        assert isinstance(provider, ClientCredentialsTokenProvider)

    @pytest.mark.parametrize("password", [None, "kp"])
    def test_mutual_tls_leaves_no_file(
        self, password: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        connection = (
            _mutual(ISSUED.pkcs8)
            if password is None
            else _mutual(ISSUED.encrypted(password), key_password=SecretStr(password))
        )
        context = kafka_python_arguments(connection)["ssl_context"]
        assert isinstance(context, ssl.SSLContext)
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert len(context.get_ca_certs()) == 1
        assert list(tmp_path.iterdir()) == []

    def test_wrong_key_password(self) -> None:
        connection = _mutual(ISSUED.encrypted("kp"), key_password=SecretStr("wr0ng"))
        with pytest.raises(ConfigurationError, match="not accepted by OpenSSL") as caught:
            kafka_python_arguments(connection)
        assert "wr0ng" not in str(caught.value)

    def test_host_name_not_verified(self) -> None:
        connection = _connection(security_protocol="SSL", ssl={"verify_host_name": False})
        context = kafka_python_arguments(connection)["ssl_context"]
        assert not context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("render", [librdkafka_config, java_config, kafka_python_arguments])
def test_missing_secret_names_setting_and_source(render) -> None:
    sasl = {"mechanism": "PLAIN", "username": "u", "password": {"env": "NOT_SET_ANYWHERE"}}
    connection = _connection(security_protocol="SASL_PLAINTEXT", sasl=sasl)
    with pytest.raises(SecretNotFoundError) as caught:
        render(connection)
    assert caught.value.setting == "sasl.password"
    assert "NOT_SET_ANYWHERE" in caught.value.source
