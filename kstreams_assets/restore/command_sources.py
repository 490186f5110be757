"""Where the programs around a restore come from: the YAML, or the operator's own process. Pure.

A row of the table `restores` and the configuration of a Dagster run never name a program. Whoever
can write the warehouse, or may start a run, could otherwise run any program as the operator.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.restore.request import LOCAL, RestoreRequest, fields_of_request
from kstreams_assets.settings import ApplicationSettings, CommandSettings
from kstreams_assets.warehouse.restores import StoredRestore
from spark_resources.java import small_environment

_KUBERNETES: Final = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG")
"""Where `kubectl` finds its cluster: addresses and the name of a file, no secrets."""

_YAML_KEYS: Final = {
    "before_command": "restore.before_command",
    "after_command": "restore.after_command",
    "command_timeout_s": "restore.command_timeout_seconds",
}


def with_configured_commands(
    values: Mapping[str, Any], settings: ApplicationSettings
) -> dict[str, Any]:
    """The values of a request by field, with the commands of the YAML where they give none.

    None is as if a value were not given.
    """
    given = {name: value for name, value in values.items() if value is not None}
    group = given.get("application_id") or settings.application_id
    configured = configured_commands(settings, target=given.get("target"), group=group)
    defaults = {
        "before_command": configured.before,
        "after_command": configured.after,
        "command_timeout_s": configured.timeout_s,
    }
    return {name: value for name, value in defaults.items() if value is not None} | given


def configured_commands(
    settings: ApplicationSettings, *, target: str | None, group: str
) -> CommandSettings:
    """The settings of the YAML, without its commands for a restore that they are not meant for.

    They stop and start the application on `restore.target`, under its own name. A restore to
    another cluster (`target`, None for that of the YAML), or under another name, must not stop it.
    """
    commands = settings.restore.commands
    own = settings.restore.target
    if target is None or (own is None and target.partition(":")[0] != LOCAL):
        is_own_target = True
    else:
        is_own_target = own is not None and _servers(target) == _servers(own.bootstrap_servers)
    if is_own_target and group == settings.application_id:
        return commands
    return replace(commands, before=None, after=None)


def asked_commands(settings: ApplicationSettings, request: RestoreRequest) -> CommandSettings:
    """The commands of a request, which hold those of the YAML where none were given."""
    return replace(
        settings.restore.commands,
        before=request.before_command,
        after=request.after_command,
        timeout_s=request.command_timeout_s,
    )


def refuse_commands_of_run(values: Mapping[str, Any]) -> None:
    """Refuse what the configuration of a Dagster run says of commands, by field.

    Raises:
        ConfigurationError: It names a program, or how long one may take.
    """
    for name, field, spelling in fields_of_request():
        if spelling.of_operator and values[name] not in (None, field.default):
            raise ConfigurationError(
                f"The configuration of this run sets {name}. Dagster takes commands from the YAML"
                " of the application only: whoever may start a run could otherwise run any program"
                " on this host.",
                remedy=f"Set {_YAML_KEYS[name]} in the YAML and leave {name} out here, or run"
                " kstreams-assets restore run with the option from a shell.",
            )


def command_notes(
    settings: ApplicationSettings,
    request: RestoreRequest,
    *,
    group: str,
    stored: StoredRestore | None,
) -> Iterable[str]:
    """Notes of a plan on commands that do not run; `stored` is the restore that it continues."""
    commands = settings.restore.commands
    applied = configured_commands(settings, target=request.target, group=group)
    for name, of_yaml, applies, asked in (
        ("before", commands.before, applied.before, request.before_command),
        ("after", commands.after, applied.after, request.after_command),
    ):
        if asked is not None:
            continue
        if of_yaml is not None and applies is None:
            yield (
                f"The {name} command of the YAML does not run: it belongs to restore.target and"
                f" group {settings.application_id}, and this restore goes elsewhere. Give"
                f" --{name}-command where this one needs a command."
            )
        if stored is not None and (note := unnamed_command(stored, name)):
            yield note


def unnamed_command(stored: StoredRestore, name: str) -> str | None:
    """Why a command that the row of a restore names does not run; None where it names none."""
    if stored.asked.get(f"{name}_command") is None:
        return None
    return (
        f"The stored request of restore {stored.restore_id} names {name}_command, and this run"
        f" names none: no {name} command runs, since commands are never taken from the warehouse."
        f" Give --{name}-command, or set restore.{name}_command in the YAML of the application."
    )


def command_environment(
    commands: CommandSettings, step: str, facts: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of a command: nothing secret, and facts of the restore by their names.

    `step` is before or after. Variables that `restore.pass_on` names come from this process.
    """
    own = {f"KSTREAMS_RESTORE_{name}": value for name, value in facts.items()}
    own["KSTREAMS_RESTORE_STEP"] = step
    # An environment cannot hold this character; facts come from a warehouse.
    own = {name: value.replace("\0", "") for name, value in own.items()}
    return small_environment((*_KUBERNETES, *commands.pass_on), own)


def _servers(addresses: str) -> frozenset[str]:
    return frozenset(address.strip() for address in addresses.split(","))
