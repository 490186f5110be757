"""The command of a drill."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from kstreams_assets.drill.command import DrillCommand, drill_command, require_command
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection, PasswordSasl, SecurityProtocol
from kstreams_assets.secret import Secret
from kstreams_assets.settings import ApplicationSettings, DrillSettings
from tests.restore.after_commit import settings_of


def _settings(tmp_path: Path, drill: DrillSettings) -> ApplicationSettings:
    connection = KafkaConnection(bootstrap_servers="localhost:1")
    return replace(settings_of("shop", connection, tmp_path), drill=drill)


def _command(settings: ApplicationSettings, state_dir: Path) -> DrillCommand:
    sasl = PasswordSasl(mechanism="PLAIN", username="u", password=Secret.of(SecretStr("pw1")))
    connection = KafkaConnection(
        bootstrap_servers="h:9", security_protocol=SecurityProtocol.SASL_PLAINTEXT, sasl=sasl
    )
    file = Path("/client.properties")
    return drill_command(
        settings, connection=connection, client_properties=file, state_dir=state_dir
    )


def test_placeholders_are_filled_in(tmp_path: Path) -> None:
    drill = DrillSettings(
        command=(
            *("{python}", "-c", "print({})", "--on={bootstrap_servers}", "{application_id}"),
            "{client_properties}",
        ),
        environment={"STATE_DIR": "{state_dir}/x", "JAAS": "{sasl_jaas_config}"},
        working_directory=str(tmp_path),
    )
    settings = _settings(tmp_path, drill)
    require_command(settings)
    found = _command(settings, tmp_path / "state")
    assert found.arguments == (
        sys.executable,
        "-c",
        "print({})",
        "--on=h:9",
        "shop",
        "/client.properties",
    )
    assert found.environment["STATE_DIR"] == f"{tmp_path}/state/x"
    assert 'password="pw1"' in found.environment["JAAS"]
    assert "pw1" not in repr(found)
    assert found.environment["PATH"] == os.environ["PATH"]
    assert found.working_directory == tmp_path


def test_only_what_it_is_told_to_pass_reaches_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter3")
    drill = DrillSettings(
        command=("run", "{client_properties}", "{state_dir}"),
        environment={"MODE": "drill"},
        pass_on=("KAFKA_PASSWORD", "NOT_THERE"),
    )
    settings = _settings(tmp_path, drill)
    found = _command(settings, tmp_path).environment
    assert found["KAFKA_PASSWORD"] == "hunter2"
    assert found["MODE"] == "drill"
    assert "hunter3" not in found.values()
    assert found.keys() >= {"PATH"}
    assert "NOT_THERE" not in found


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("run", "{state_dir}"), "start on its own cluster"),
        (("run", "{client_properties}"), "may find old state"),
        (
            ("run", "{client_properties}", "{state_dir}", "{bootstrap}"),
            "unknown placeholder {bootstrap}",
        ),
        (("run", "{bootstrap_servers}", "{state_dir}"), "requires a password"),
        (("run", "{sasl_jaas_config}", "{client_properties}", "{state_dir}"), "every user of the"),
    ],
)
def test_what_a_command_must_get(command: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DrillSettings(command=command)
    assert told in str(caught.value)


def test_a_password_may_come_by_environment_or_be_left_out() -> None:
    command = ("run", "{bootstrap_servers}", "{state_dir}")
    DrillSettings(command=command, environment={"JAAS": "{sasl_jaas_config}"})
    DrillSettings(command=command, open_cluster=True)


def test_not_declared(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"drill\.command"):
        require_command(_settings(tmp_path, DrillSettings()))


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    arguments = ("{client_properties}", "{state_dir}")
    here = str(tmp_path)
    program = tmp_path / "run.sh"
    for name in ("no-such-program", "./run.sh"):
        drill = DrillSettings(command=(name, *arguments), working_directory=here)
        with pytest.raises(ConfigurationError, match="the program is missing"):
            require_command(_settings(tmp_path, drill))
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    drill = DrillSettings(command=("./run.sh", *arguments), working_directory=here)
    require_command(_settings(tmp_path, drill))
    with pytest.raises(ConfigurationError, match="is not a folder"):
        require_command(
            _settings(tmp_path, drill.model_copy(update={"working_directory": f"{here}/none"}))
        )
