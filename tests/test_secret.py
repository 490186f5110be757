"""Secrets are read late and shown never."""

import copy
import logging
import pickle
import traceback
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from kstreams_assets.errors import ConfigurationError, SecretNotFoundError
from kstreams_assets.secret import Secret

CLEAR = "hunter2-in-clear"


class Holder(BaseModel):
    """Something with a secret in it, as a YAML component has."""

    password: Secret


def test_environment_variable_is_read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Holder.model_validate({"password": {"env": "A_PASSWORD"}}).password
    with pytest.raises(SecretNotFoundError) as caught:
        secret.resolve("sasl.password")
    assert caught.value.setting == "sasl.password"
    assert caught.value.source == "environment variable A_PASSWORD"
    monkeypatch.setenv("A_PASSWORD", CLEAR)
    assert secret.resolve("sasl.password") == CLEAR
    monkeypatch.setenv("A_PASSWORD", "")
    with pytest.raises(SecretNotFoundError):
        secret.resolve("sasl.password")


def test_file_is_read_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "password"
    secret = Holder.model_validate({"password": {"file": str(file)}}).password
    with pytest.raises(SecretNotFoundError, match=str(file)):
        secret.resolve("sasl.password")
    file.write_text(f" {CLEAR} \n")
    assert secret.resolve("sasl.password") == f" {CLEAR} "


def test_secret_str_in_python() -> None:
    assert Holder.model_validate({"password": SecretStr(CLEAR)}).password.resolve("x") == CLEAR


@pytest.mark.parametrize(
    "written",
    [
        CLEAR,
        [CLEAR],
        {"value": CLEAR},
        {"env": "A", "file": CLEAR},
        {"env": "", "file": None},
        {},
        {"env": "A", CLEAR: "x"},
    ],
)
def test_anything_else_is_refused_and_not_shown(written: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Holder.model_validate({"password": written})
    shown = "".join(traceback.format_exception(caught.value))
    assert "{env: NAME}" in str(caught.value)
    if not isinstance(written, dict) or CLEAR not in written:
        assert CLEAR not in shown


def test_wrong_type_of_a_place_does_not_show_it() -> None:
    with pytest.raises(ValidationError) as caught:
        Secret.model_validate({"env": [CLEAR]})
    assert CLEAR not in str(caught.value)


def test_nothing_shows_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_PASSWORD", CLEAR)
    for secret in (Secret.of(SecretStr(CLEAR)), Secret(env="A_PASSWORD")):
        holder = Holder(password=secret)
        secret.resolve("x")
        with caplog.at_level(logging.DEBUG):
            logging.getLogger("test").info("%s %r", holder, secret)
        shown = (
            f"{holder}{holder!r}{secret}{secret!r}{holder.model_dump()}{holder.model_dump_json()}"
            f"{secret.model_dump()}{holder.model_json_schema()}{caplog.text}{vars(secret)}"
        )
        assert CLEAR not in shown


def test_a_value_is_not_pickled() -> None:
    with pytest.raises(ConfigurationError, match="another process"):
        pickle.dumps(Holder(password=Secret.of(SecretStr(CLEAR))))


def test_a_name_is_pickled(tmp_path: Path) -> None:
    for secret in (Secret(env="A_PASSWORD"), Secret(file=str(tmp_path / "x"))):
        holder = Holder(password=secret)
        assert pickle.loads(pickle.dumps(holder)) == holder  # noqa: S301 (its own bytes)


def test_copies_keep_the_value() -> None:
    secret = Secret.of(SecretStr(CLEAR))
    assert copy.deepcopy(Holder(password=secret)).password.resolve("x") == CLEAR
    assert secret == Secret.of(SecretStr(CLEAR))
    assert secret != Secret.of(SecretStr("other"))


def test_dump_can_be_read_again() -> None:
    dumped = Holder(password=Secret(env="A_PASSWORD")).model_dump()
    assert dumped == {"password": {"env": "A_PASSWORD"}}
    assert Holder.model_validate(dumped) == Holder(password=Secret(env="A_PASSWORD"))


def test_it_is_frozen() -> None:
    with pytest.raises(ValidationError):
        Secret(env="A").env = "B"  # type: ignore[misc]
