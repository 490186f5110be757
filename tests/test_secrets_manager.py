"""Secrets of AWS Secrets Manager, of a real client and moto's server."""

import json
import logging
import pickle
import socket
import time
import traceback
from typing import Any

import pytest

from kstreams_assets.errors import ConfigurationError, SecretNotFoundError
from kstreams_assets.kafka.connection import CarriedConnection, KafkaConnection, PasswordSasl
from kstreams_assets.secret import MASK, Secret, mask_secrets
from kstreams_assets.secrets_manager import _KEPT_S
from tests.moto_server import REGION, Moto, moto, moto_server

__all__ = ["moto", "moto_server"]

CLEAR = "hunter2-of-aws"


def secret(**place: Any) -> Secret:
    """As the YAML has it."""
    return Secret.model_validate({"aws": place})


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what was read before be read again."""
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + _KEPT_S + 1)


def free_endpoint() -> str:
    """The URL of a port where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


class TestValues:
    def test_by_name_and_by_arn(self, moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
        arn = moto.secret(CLEAR, "kafka/by-name")
        assert secret(name="kafka/by-name").resolve("sasl.password") == CLEAR
        monkeypatch.delenv("AWS_REGION")
        monkeypatch.delenv("AWS_DEFAULT_REGION")
        assert secret(name=arn).resolve("sasl.password") == CLEAR  # an ARN contains the region

    def test_of_a_region_and_an_endpoint(self, moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
        arn = moto.secret(CLEAR)
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        found = secret(name=arn.split(":")[-1], region=REGION, endpoint=moto.endpoint)
        # Without its random ending the name of an ARN is the name of the secret.
        found = secret(name=arn.split(":")[-1][:-7], region=REGION, endpoint=moto.endpoint)
        assert found.resolve("sasl.password") == CLEAR

    def test_a_key_of_json(self, moto: Moto) -> None:
        arn = moto.secret(json.dumps({"username": "bob", "password": CLEAR, "pin": 1234}))
        assert secret(name=arn, key="password").resolve("sasl.password") == CLEAR
        assert secret(name=arn, key="username").resolve("registry.username") == "bob"
        assert secret(name=arn, key="pin").resolve("ssl.key_password") == "1234"

    def test_binary(self, moto: Moto) -> None:
        assert secret(name=moto.secret(CLEAR.encode())).resolve("x") == CLEAR

    def test_a_connection_gets_it_and_tasks_too(self, moto: Moto) -> None:
        connection = KafkaConnection(
            bootstrap_servers="localhost:1",
            security_protocol="SASL_PLAINTEXT",  # pyright: ignore[reportArgumentType]
            sasl=PasswordSasl(
                mechanism="SCRAM-SHA-512", username="bob", password=secret(name=moto.secret(CLEAR))
            ),
        )
        carried = pickle.loads(pickle.dumps(CarriedConnection.of(connection)))  # noqa: S301
        opened = carried.opened()
        assert isinstance(opened.sasl, PasswordSasl)
        assert opened.sasl.password.resolve("sasl.password") == CLEAR
        assert connection.scrub(f"refused {CLEAR}") == f"refused {MASK}"


class TestWhenItIsRead:
    def test_not_before_it_is_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Definitions load, and commands that need no Kafka run, without AWS."""
        monkeypatch.setenv("AWS_ENDPOINT_URL", free_endpoint())
        named = secret(name="kafka/absent", key="password", region=REGION)
        assert named.peek() is None
        assert pickle.loads(pickle.dumps(named)) == named  # noqa: S301 (its own bytes)
        assert Secret.model_validate(named.model_dump()) == named

    def test_a_rotated_value_is_seen_after_some_minutes(
        self, moto: Moto, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arn = moto.secret(CLEAR)
        named = secret(name=arn)
        assert named.resolve("x") == CLEAR
        moto.client("secretsmanager").put_secret_value(SecretId=arn, SecretString="rotated")
        assert named.resolve("x") == CLEAR
        later(monkeypatch)
        assert named.resolve("x") == "rotated"

    def test_keys_of_one_secret_are_one_request(self, moto: Moto) -> None:
        arn = moto.secret(json.dumps({"username": "bob", "password": CLEAR}))
        assert secret(name=arn, key="username").resolve("x") == "bob"
        assert secret(name=arn, key="password").peek() == CLEAR

    def test_the_last_value_is_used_while_aws_is_away(
        self, moto: Moto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        named = secret(name=moto.secret(CLEAR))
        assert named.resolve("x") == CLEAR
        later(monkeypatch)
        monkeypatch.setenv("AWS_ENDPOINT_URL", free_endpoint())
        assert named.resolve("x") == CLEAR
        assert "its last value is used" in caplog.text
        assert CLEAR not in caplog.text

    def test_a_deleted_secret_is_not_used_any_more(
        self, moto: Moto, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arn = moto.secret(CLEAR)
        named = secret(name=arn)
        assert named.resolve("x") == CLEAR
        later(monkeypatch)
        moto.client("secretsmanager").delete_secret(SecretId=arn)
        with pytest.raises(SecretNotFoundError, match="InvalidRequestException"):
            named.resolve("x")


def refused(named: Secret) -> str:
    """What the error says, which contains no value, also in its stack trace."""
    with pytest.raises(SecretNotFoundError) as caught:
        named.resolve("sasl.password")
    assert CLEAR not in "".join(traceback.format_exception(caught.value))
    assert caught.value.setting == "sasl.password"
    return str(caught.value)


class TestProblems:
    def test_there_is_none(self, moto: Moto) -> None:
        text = refused(secret(name="kafka/absent"))
        assert "AWS secret kafka/absent: ResourceNotFoundException" in text
        assert "correct `name` and `region`" in text

    def test_no_json(self, moto: Moto) -> None:
        text = refused(secret(name=moto.secret(CLEAR), key="password"))
        assert "it is not a JSON object. Remove `key`, or store JSON." in text

    @pytest.mark.parametrize(
        ("value", "problem"),
        [({"passwort": CLEAR}, "is missing in its JSON"), ({"password": [CLEAR]}, "is not text")],
    )
    def test_not_this_key(self, moto: Moto, value: object, problem: str) -> None:
        text = refused(secret(name=moto.secret(json.dumps(value)), key="password"))
        assert f"key password {problem}" in text

    def test_empty(self, moto: Moto) -> None:
        arn = moto.secret(json.dumps({"password": ""}))
        assert "is absent or empty" in refused(secret(name=arn, key="password"))

    def test_no_credentials(self, moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, "/nowhere")
        text = refused(secret(name="kafka/x"))
        assert "there are no AWS credentials" in text
        assert "AWS_PROFILE" in text

    def test_no_region(self, moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_REGION")
        monkeypatch.delenv("AWS_DEFAULT_REGION")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
        assert "its region is unknown. Set `region`" in refused(secret(name="kafka/x"))

    def test_no_such_profile(self, moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
        assert "profile (other)" in refused(secret(name="kafka/x", profile="other"))

    def test_nothing_answers(self, moto: Moto) -> None:
        text = refused(secret(name="kafka/x", endpoint=free_endpoint()))
        assert "Could not connect to the endpoint URL" in text
        assert "Check region, endpoint and network" in text

    def test_an_endpoint_that_is_no_url(self, moto: Moto) -> None:
        assert "Write `endpoint` as a URL" in refused(secret(name="kafka/x", endpoint="nowhere"))

    @pytest.mark.parametrize(
        "written", [{"aws": {"name": "x"}, "env": "X"}, {"aws": {"name": "x"}, "value": CLEAR}]
    )
    def test_one_place(self, written: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match="exactly one place") as caught:
            Secret.model_validate(written)
        assert CLEAR not in str(caught.value)


def test_no_log_shows_it(moto: Moto, caplog: pytest.LogCaptureFixture) -> None:
    """At level DEBUG, botocore would write the whole answer."""
    named = secret(name=moto.secret(CLEAR))
    with caplog.at_level(logging.DEBUG):
        assert named.resolve("x") == CLEAR
    assert "GetSecretValue" in caplog.text
    assert CLEAR not in f"{caplog.text} {named!r} {named}"
    assert mask_secrets(f"a library says {CLEAR}") == f"a library says {MASK}"
