"""One connection as each client gets it."""

import logging
import pickle
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from kstreams_assets import secret
from kstreams_assets.errors import ConfigurationError, SecretNotFoundError
from kstreams_assets.kafka.admin_calls import AdminConnection, UnansweredError, describe_configs
from kstreams_assets.kafka.clients import java_config
from kstreams_assets.kafka.connection import CarriedConnection, KafkaConnection
from kstreams_assets.kafka.librdkafka import LOG, librdkafka_config
from kstreams_assets.kafka.wire import ClientCredentialsTokenProvider, kafka_python_arguments
from tests.kafka.tls import Authority


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Passwords of one character, which are made up here, would be masked in all later tests."""
    before = set(secret._read)
    yield
    secret._read.clear()
    secret._read.update(before)


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


def _secrets_in_other_places(path: Path, monkeypatch: pytest.MonkeyPatch) -> KafkaConnection:
    """Secrets and certificates in files and in the environment."""
    texts = {"ca": AUTHORITY.root, "chain": ISSUED.chain, "key": ISSUED.encrypted("kp")}
    for name, text in texts.items():
        (path / name).write_text(text)
    monkeypatch.setenv("KEY_PASSWORD", "kp")
    monkeypatch.setenv("PASSWORD", "sasl-pw")
    monkeypatch.setenv("EXTRA", "extra-secret")
    return _connection(
        security_protocol="SASL_SSL",
        ssl={
            "ca": str(path / "ca"),
            "certificate": str(path / "chain"),
            "private_key": {"file": str(path / "key")},
            "key_password": {"env": "KEY_PASSWORD"},
        },
        sasl={"mechanism": "SCRAM-SHA-512", "username": "u", "password": {"env": "PASSWORD"}},
        extra_kafka_python={"socks_password": {"env": "EXTRA"}, "retry_backoff_ms": 7},
    )


class TestCarried:
    """A connection that goes to tasks in other processes, where no place of a secret is."""

    def test_it_needs_no_place_any_more_and_shows_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connection = _secrets_in_other_places(tmp_path, monkeypatch)
        here = kafka_python_arguments(connection)
        carried = CarriedConnection.of(connection)
        sent = pickle.dumps(carried)
        monkeypatch.undo()
        for file in tmp_path.iterdir():
            file.unlink()

        arrived: CarriedConnection = pickle.loads(sent)  # noqa: S301 (our own)
        opened = arrived.opened()

        there = kafka_python_arguments(opened)
        assert isinstance(there.pop("ssl_context"), ssl.SSLContext)
        assert there == {name: value for name, value in here.items() if name != "ssl_context"}
        assert there["sasl_plain_password"] == "sasl-pw"
        assert (there["socks_password"], there["retry_backoff_ms"]) == ("extra-secret", 7)
        for text in (repr(carried), repr(arrived), repr(opened)):
            assert "sasl-pw" not in text
            assert "extra-secret" not in text

    def test_one_without_secrets(self) -> None:
        connection = _connection(request_timeout_seconds=5)
        assert CarriedConnection.of(connection).opened() == connection

    def test_oidc(self) -> None:
        opened = CarriedConnection.of(OIDC).opened()
        provider = kafka_python_arguments(opened)["sasl_oauth_token_provider"]
        assert isinstance(provider, ClientCredentialsTokenProvider)


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


class TestLibrdkafka:
    """Names of librdkafka, and what it cannot do."""

    def test_plaintext(self) -> None:
        assert librdkafka_config(_connection(request_timeout_seconds=2)) == {
            "bootstrap.servers": "a:1,b:2",
            "security.protocol": "PLAINTEXT",
            "client.id": "kstreams-assets",
            "socket.timeout.ms": 2000,
            "socket.connection.setup.timeout.ms": 2000,
        }

    def test_password(self) -> None:
        config = librdkafka_config(_password("SCRAM-SHA-256"))
        assert config["sasl.mechanism"] == "SCRAM-SHA-256"
        assert (config["sasl.username"], config["sasl.password"]) == ("user", "pw")

    def test_oidc(self) -> None:
        config = librdkafka_config(OIDC)
        assert config["sasl.oauthbearer.method"] == "oidc"
        assert config["sasl.oauthbearer.client.secret"] == "cs"
        assert config["sasl.oauthbearer.scope"] == "kafka"
        assert config["https.ca.location"] == config["ssl.ca.location"]

    @pytest.mark.parametrize("password", [None, "kp"])
    def test_mutual_tls_is_inline(self, password: str | None) -> None:
        if password is None:
            config = librdkafka_config(_mutual(ISSUED.pkcs8))
        else:
            key = ISSUED.encrypted(password)
            config = librdkafka_config(_mutual(key, key_password=SecretStr(password)))
        assert config["ssl.ca.pem"] == AUTHORITY.root
        assert config["ssl.certificate.pem"] == ISSUED.chain
        assert "PRIVATE KEY" in str(config["ssl.key.pem"])
        assert config.get("ssl.key.password") == password
        assert config["ssl.endpoint.identification.algorithm"] == "https"
        lax = librdkafka_config(_mutual(ISSUED.pkcs8, verify_host_name=False))
        assert lax["ssl.endpoint.identification.algorithm"] == "none"

    def test_the_certificates_of_the_machine_are_those_of_python(self) -> None:
        paths = ssl.get_default_verify_paths()
        config = librdkafka_config(_connection(security_protocol="SSL"))
        assert config["ssl.ca.location"] == (paths.cafile or paths.capath or "probe")

    def test_every_rendering_is_accepted(self) -> None:
        raw = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "u"}
        password = {"sasl_plain_password": SecretStr("pw")}
        for connection in (
            _connection(),
            _password("PLAIN"),
            _password("SCRAM-SHA-512"),
            OIDC,
            _mutual(ISSUED.encrypted("kp"), key_password=SecretStr("kp")),
            _connection(security_protocol="SASL_PLAINTEXT", extra_kafka_python=raw | password),
            _connection(extra_librdkafka={"fetch.max.bytes": 100_000}),  # of older files
        ):
            AdminConnection(connection).close()

    def test_a_mechanism_without_a_block(self) -> None:
        raw = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "u"}
        password = {"sasl_plain_password": SecretStr("pw"), "retry_backoff_ms": 7}
        config = librdkafka_config(
            _connection(security_protocol="SASL_PLAINTEXT", extra_kafka_python=raw | password)
        )
        assert config["sasl.mechanism"] == "PLAIN"
        assert (config["sasl.username"], config["sasl.password"]) == ("u", "pw")
        own = librdkafka_config(
            _connection(
                security_protocol="SASL_PLAINTEXT",
                extra_kafka_python={"sasl_mechanism": "GSSAPI"},
                extra_librdkafka={"sasl.mechanism": "SCRAM-SHA-256"},
            )
        )
        assert own["sasl.mechanism"] == "SCRAM-SHA-256"

    @pytest.mark.parametrize("mechanism", ["GSSAPI", "AWS_MSK_IAM"])
    def test_a_mechanism_of_kafka_python_alone_is_refused(self, mechanism: str) -> None:
        connection = _connection(
            security_protocol="SASL_SSL", extra_kafka_python={"sasl_mechanism": mechanism}
        )
        with pytest.raises(
            ConfigurationError, match=rf"extra_kafka_python\.sasl_mechanism is {mechanism}"
        ):
            librdkafka_config(connection)

    @pytest.mark.parametrize("setting", ["proxy_url", "socks5_proxy"])
    def test_a_proxy_is_refused(self, setting: str) -> None:
        connection = _connection(extra_kafka_python={setting: "socks5://proxy:1080"})
        with pytest.raises(ConfigurationError, match=rf"extra_kafka_python\.{setting}"):
            librdkafka_config(connection)

    def test_settings_that_librdkafka_does_not_know_are_refused(self) -> None:
        connection = _connection(
            extra_librdkafka={"retry.password": SecretStr("hunter2"), "no.such": 1}
        )
        with pytest.raises(ConfigurationError, match="No such configuration property") as caught:
            AdminConnection(connection)
        assert "extra_librdkafka" in caught.value.remedy
        assert "hunter2" not in str(caught.value)

    def test_a_wrong_key_password_is_not_shown(self) -> None:
        connection = _mutual(ISSUED.encrypted("kp"), key_password=SecretStr("wr0ng"))
        with pytest.raises(ConfigurationError, match="does not accept") as caught:
            AdminConnection(connection)
        assert "wr0ng" not in str(caught.value)

    def test_lines_of_librdkafka_are_masked_and_no_errors(
        self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        caplog.set_level(logging.DEBUG)
        connection = _password("PLAIN", "hunter2-pw").model_copy(
            update={"extra_librdkafka": {"debug": "all"}, "bootstrap_servers": "127.0.0.1:1"}
        )
        admin = AdminConnection(connection)
        with pytest.raises(UnansweredError):
            admin.answers(describe_configs("topic", ["t"]), 2)
        LOG.log(logging.ERROR, "%s", "the password is hunter2-pw")
        admin.close()
        lines = [record for record in caplog.records if record.name == "librdkafka"]
        assert any("Connect" in record.message for record in lines)
        assert {record.levelno for record in lines} == {logging.DEBUG}
        assert "hunter2-pw" not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "render", [CarriedConnection.of, java_config, kafka_python_arguments, librdkafka_config]
)
def test_missing_secret_names_setting_and_source(render) -> None:
    sasl = {"mechanism": "PLAIN", "username": "u", "password": {"env": "NOT_SET_ANYWHERE"}}
    connection = _connection(security_protocol="SASL_PLAINTEXT", sasl=sasl)
    with pytest.raises(SecretNotFoundError) as caught:
        render(connection)
    assert caught.value.setting == "sasl.password"
    assert "NOT_SET_ANYWHERE" in caught.value.source
