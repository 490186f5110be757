"""Command that starts the application on the cluster of a drill, without secrets."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.clients import java_config
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.settings import PLACEHOLDER, ApplicationSettings
from spark_resources.jars import verify_jars
from spark_resources.java import find_java, small_environment


@dataclass(frozen=True, slots=True)
class DrillCommand:
    """Program with arguments, complete environment, and working directory."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    working_directory: Path | None


def require_command(settings: ApplicationSettings) -> None:
    """Check before a restore that the application can be started.

    Raises:
        ConfigurationError: The YAML has no command, or the program or the working directory is
            missing.
    """
    if not settings.drill.command:
        raise ConfigurationError(
            f"drill.command of {settings.application_id} is missing, so a drill cannot start the"
            " application.",
            remedy="Set drill.command in the YAML: program and arguments, with the placeholders"
            " {client_properties} and {state_dir}.",
        )
    command = drill_command(
        settings,
        connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"),
        client_properties=Path(),
        state_dir=Path(),
    )
    program = command.arguments[0]
    folder = command.working_directory
    if folder is not None and not folder.is_dir():
        raise _cannot_start(program, f"{folder} is not a folder")
    # A name is searched in PATH, a path is relative to the working directory.
    sought = str((folder or Path.cwd()) / program) if os.sep in program else program
    if shutil.which(sought, path=command.environment.get("PATH")) is None:
        raise _cannot_start(program, "the program is missing or not executable")


def _cannot_start(program: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"The drill cannot start {program!r}: {problem}.",
        remedy="Correct drill.command (or drill.working_directory) in the YAML. Nothing was"
        " restored.",
    )


def require_machine() -> None:
    """Check that this machine can restore: Java, and the jars of Spark and Kafka.

    Raises:
        JavaNotFoundError, JarsMissingError: A part is missing, independent of the application.
    """
    find_java()
    verify_jars("spark", hashes=False)
    verify_jars("kafka", hashes=False)


def drill_command(
    settings: ApplicationSettings,
    *,
    connection: KafkaConnection,
    client_properties: Path,
    state_dir: Path,
) -> DrillCommand:
    """Return the command for one drill on the cluster of `connection`."""
    values = {
        "client_properties": str(client_properties.absolute()),
        "bootstrap_servers": connection.bootstrap_servers,
        "sasl_jaas_config": java_config(connection).get("sasl.jaas.config", ""),
        "application_id": settings.application_id,
        "state_dir": str(state_dir.absolute()),
        "python": sys.executable,
    }
    drill = settings.drill
    own = {name: _filled(value, values) for name, value in drill.environment.items()}
    folder = drill.working_directory
    return DrillCommand(
        arguments=tuple(_filled(argument, values) for argument in drill.command),
        environment=small_environment(drill.pass_on, own),
        working_directory=None if folder is None else Path(folder),
    )


def _filled(text: str, values: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)
