"""How the application is started on a cluster of a drill, without what is secret."""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kstreams_assets.errors import (
    ConfigurationError,
)
from kstreams_assets.kafka.clients import java_config
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.settings import ApplicationSettings, DrillSettings
from spark_resources.jars import verify_jars
from spark_resources.java import find_java, small_environment

PLACEHOLDERS: Final = {
    "client_properties": "a file with bootstrap.servers, the password and all else a Kafka client"
    " of the drill's cluster needs, as Java properties",
    "bootstrap_servers": "host:port of the drill's cluster",
    "sasl_jaas_config": "the cluster's sasl.jaas.config, in environment only; security.protocol is"
    " SASL_PLAINTEXT, sasl.mechanism PLAIN",
    "application_id": "the application.id",
    "state_dir": "an empty folder for state.dir",
    "python": "the Python that runs the drill",
}
"""What stands in braces in a command or an environment, and what it becomes."""

_CLUSTER: Final = ("bootstrap_servers", "client_properties")
_PASSWORD: Final = ("client_properties", "sasl_jaas_config")
_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_]+)\}")


@dataclass(frozen=True, slots=True)
class DrillCommand:
    """Program and arguments, the whole environment, and where it runs."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    working_directory: Path | None


def check_placeholders(settings: DrillSettings) -> None:
    """Refuse a command that does not get what it must.

    Raises:
        ConfigurationError: A placeholder is not known or is where it must not be, or the drill's
            cluster, its password or its empty state directory is not handed over.
    """
    used = set(_used([*settings.command, *settings.environment.values()]))
    unknown = sorted(used - PLACEHOLDERS.keys())
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise ConfigurationError(
            f"drill.command has {{{unknown[0]}}}, which is not known.", remedy=f"Known are {known}."
        )
    if "sasl_jaas_config" in _used(settings.command):
        raise ConfigurationError(
            "drill.command has {sasl_jaas_config}: every user of the machine could read it.",
            remedy="Hand it over in drill.environment, or use {client_properties}.",
        )
    _require_one(("state_dir",), used, "or it may find old state")
    _require_one(_CLUSTER, used, "or it would start on its own cluster")
    if not settings.open_cluster:
        _require_one(
            _PASSWORD,
            used,
            "whose cluster listens with a password. Where it cannot take one, set"
            " drill.open_cluster: any user of this machine can then read the restored records while"
            " the drill runs",
        )


def _require_one(names: tuple[str, ...], used: set[str], why: str) -> None:
    if used.isdisjoint(names):
        texts = " or ".join(f"{{{name}}}" for name in names)
        raise ConfigurationError(
            f"Neither drill.command nor drill.environment has {texts}.",
            remedy=f"Hand it to the application, {why}.",
        )


def require_command(settings: ApplicationSettings) -> None:
    """Look whether the application can be started at all, before anything is restored.

    Raises:
        ConfigurationError: The YAML has no command.
        ConfigurationError: The program or the working directory is not there.
        ConfigurationError: See `check_placeholders`.
    """
    if not settings.drill.command:
        raise ConfigurationError(
            f"Nothing says how {settings.application_id} is started in a drill.",
            remedy="Give drill.command in the YAML: program and arguments, with"
            " {client_properties} and {state_dir} where they belong.",
        )
    check_placeholders(settings.drill)
    command = drill_command(
        settings,
        connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"),
        client_properties=Path(),
        state_dir=Path(),
    )
    program = command.arguments[0]
    folder = command.working_directory
    if folder is not None and not folder.is_dir():
        raise _cannot_start(program, f"{folder} is no folder")
    # A name is looked for in PATH, a path from the working directory on.
    sought = str((folder or Path.cwd()) / program) if os.sep in program else program
    if shutil.which(sought, path=command.environment.get("PATH")) is None:
        raise _cannot_start(program, "there is no such program, or it may not be run")


def _cannot_start(program: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"The drill cannot start {program!r}: {problem}.",
        remedy="Correct drill.command (or drill.working_directory) in the YAML; nothing was"
        " restored.",
    )


def require_machine() -> None:
    """Look whether this machine can restore at all: its Java, and the jars of Spark and Kafka.

    Raises:
        JavaNotFoundError, JarsMissingError: It cannot; that says nothing about the application.
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
    """The command for one drill, on the cluster of `connection`."""
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
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def _used(texts: Iterable[str]) -> list[str]:
    return [name for text in texts for name in _PLACEHOLDER.findall(text)]
