"""The command of a drill, with its placeholders filled in."""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.drill.settings import DrillSettings
from kstreams_assets.errors import (
    ConfigurationError,
    DrillCommandNotFoundError,
    DrillNotDeclaredError,
)
from kstreams_assets.settings import ApplicationSettings
from spark_resources.jars import verify_jars
from spark_resources.java import find_java

PLACEHOLDERS: Final = {
    "bootstrap_servers": "host:port of the drill's cluster",
    "application_id": "the application.id",
    "state_dir": "an empty folder for state.dir",
    "python": "the Python that runs the drill",
}
"""What stands in braces in a command or an environment, and what it becomes."""

_NEEDED: Final = {
    "bootstrap_servers": "or the application would start on its own cluster",
    "state_dir": "or it may find old state",
}
_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_]+)\}")


_PASSED_ON: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"),
    "JAVA_HOME",
)
"""What of the drill's own environment every application gets: nothing that may hold a secret."""


@dataclass(frozen=True, slots=True)
class DrillCommand:
    """Program and arguments, the whole environment, and where it runs."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: Path | None


def check_placeholders(settings: DrillSettings) -> None:
    """Refuse a command that does not get what it must.

    Raises:
        ConfigurationError: A placeholder is not known, or the drill's cluster or its empty state
            directory is not handed over.
    """
    used = set(_used([*settings.command, *settings.environment.values()]))
    unknown = sorted(used - PLACEHOLDERS.keys())
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise ConfigurationError(
            f"drill.command has {{{unknown[0]}}}, which is not known.", remedy=f"Known are {known}."
        )
    for name, why in _NEEDED.items():
        if name not in used:
            raise ConfigurationError(
                f"Neither drill.command nor drill.environment has {{{name}}}.",
                remedy=f"Hand it to the application, {why}.",
            )


def require_command(settings: ApplicationSettings) -> None:
    """Look whether the application can be started at all, before anything is restored.

    Raises:
        DrillNotDeclaredError: The YAML has no command.
        DrillCommandNotFoundError: The program or the working directory is not there.
        ConfigurationError: See `check_placeholders`.
    """
    if not settings.drill.command:
        raise DrillNotDeclaredError(application_id=settings.application_id)
    check_placeholders(settings.drill)
    command = drill_command(settings, bootstrap_servers="", state_dir=Path())
    program = command.arguments[0]
    folder = command.working_directory
    if folder is not None and not folder.is_dir():
        raise DrillCommandNotFoundError(program=program, problem=f"{folder} is no folder")
    # A name is looked for in PATH, a path from the working directory on.
    sought = str((folder or Path.cwd()) / program) if os.sep in program else program
    if shutil.which(sought, path=command.environment.get("PATH")) is None:
        raise DrillCommandNotFoundError(
            program=program, problem="there is no such program, or it may not be run"
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
    settings: ApplicationSettings, *, bootstrap_servers: str, state_dir: Path
) -> DrillCommand:
    """The command for one drill."""
    values = {
        "bootstrap_servers": bootstrap_servers,
        "application_id": settings.application_id,
        "state_dir": str(state_dir.absolute()),
        "python": sys.executable,
    }
    drill = settings.drill
    own = {name: _filled(value, values) for name, value in drill.environment.items()}
    passed_on = {
        name: os.environ[name] for name in (*_PASSED_ON, *drill.pass_on) if name in os.environ
    }
    folder = drill.working_directory
    return DrillCommand(
        arguments=tuple(_filled(argument, values) for argument in drill.command),
        environment={**passed_on, **own},
        working_directory=None if folder is None else Path(folder),
    )


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def _used(texts: Iterable[str]) -> list[str]:
    return [name for text in texts for name in _PLACEHOLDER.findall(text)]
