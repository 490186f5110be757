"""Finds the commands around a restore: in the YAML, or in the operator's own process. Pure.

A row of the table `restores` and the configuration of a Dagster run never name a program. Anyone
who can write the warehouse, or may start a run, could otherwise run any program as the operator.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.point import taken_at_of
from kstreams_assets.model.restores import RestoreMode, StoredRestore
from kstreams_assets.restore.request import RestoreRequest, fields_of_request, parse_instant
from kstreams_assets.settings import LOCAL, ApplicationSettings, CommandSettings, TargetSettings
from spark_resources.java import small_environment

_KUBERNETES: Final = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG")
"""How `kubectl` finds its cluster: addresses and the name of a file, no secrets."""

_YAML_KEYS: Final = {
    "before_command": "restore.before_command",
    "after_command": "restore.after_command",
    "command_timeout_s": "restore.command_timeout_seconds",
}


def with_target(values: Mapping[str, Any], settings: ApplicationSettings) -> dict[str, Any]:
    """Add the settings of the declared target to the values of a request, by field.

    These are the connection or local cluster, the prefix and the commands. A given prefix,
    application id or command wins. None counts as not given.

    Raises:
        ConfigurationError: The prefix of the target needs a window, and none is given.
    """
    given = {name: value for name, value in values.items() if value is not None}
    name = given.get("target") or settings.default_target
    target = settings.declared_targets.get(name) if name is not None else None
    if target is not None:
        if target.connection is None:
            given["target"] = LOCAL if name == LOCAL else f"{LOCAL}:{name}"
        if target.prefix and not given.get("prefix"):
            given["prefix"] = _prefix(target, given, settings)
            own_id = f"{given['prefix']}{settings.application_id}"
            given["application_id"] = given.get("application_id") or own_id
    group = given.get("application_id") or settings.application_id
    mode = given.get("mode", RestoreMode.STATE)
    configured = configured_commands(settings, target=given.get("target"), group=group, mode=mode)
    defaults = {
        "before_command": configured.before_command,
        "after_command": configured.after_command,
        "command_timeout_s": configured.command_timeout_seconds,
    }
    return {name: value for name, value in defaults.items() if value is not None} | given


def _prefix(target: TargetSettings, given: Mapping[str, Any], settings: ApplicationSettings) -> str:
    """Return the prefix of a target, for the window that is restored."""
    if not target.is_per_window:
        return target.prefix
    point_ms = taken_at_of(given.get("point_id") or "")
    if "window" in given:
        window = given["window"]
    elif "as_of_ms" in given:
        window = WindowCalendar(settings.windows).key_at(parse_instant(given["as_of_ms"]))
    elif point_ms is not None:
        window = WindowCalendar(settings.windows).key_at(point_ms)
    else:
        raise ConfigurationError(
            f"The prefix of this target is {target.prefix!r}, and no window is given.",
            remedy="Give a window (in Dagster: a partition), a time or a recovery point.",
        )
    return target.prefix_of(window)


def configured_commands(
    settings: ApplicationSettings, *, target: str | None, group: str, mode: str
) -> CommandSettings:
    """Return the commands of the YAML for a restore to this target and group; else no commands.

    They stop and start the application that continues from such a restore. `target` is a name or
    host:port, None for the default. Without declared targets, commands in `restore` apply to every
    cluster but a local one. No application continues from a restore in mode `logs`.
    """
    none = settings.restore.model_copy(update={"before_command": None, "after_command": None})
    if mode == RestoreMode.LOGS:
        return none
    application_id = settings.application_id
    for declared in targets_meant(settings, target):
        if declared.may_be_group(group, application_id):
            return declared
    is_local = target is not None and target.partition(":")[0] == LOCAL
    is_undeclared = not settings.declared_targets and not is_local
    if is_undeclared and group == application_id:
        return settings.restore
    return none


def targets_meant(settings: ApplicationSettings, target: str | None) -> list[TargetSettings]:
    """Return the declared targets of this name, or on these servers (the default first)."""
    declared, default = settings.declared_targets, settings.default_target
    if target is None or target in declared:
        name = default if target is None else target
        return [] if name is None else [declared[name]]
    return [
        declared[name]
        for name in sorted(declared, key=lambda name: name != default)
        if (connection := declared[name].connection) is not None
        and _servers(connection.bootstrap_servers) == _servers(target)
    ]


def asked_commands(settings: ApplicationSettings, request: RestoreRequest) -> CommandSettings:
    """Return the commands of a request, by default those of the YAML."""
    group = request.application_id or settings.application_id
    return configured_commands(
        settings, target=request.target, group=group, mode=request.mode
    ).model_copy(
        update={
            "before_command": request.before_command,
            "after_command": request.after_command,
            "command_timeout_seconds": request.command_timeout_s,
        }
    )


def refuse_commands_of_run(values: Mapping[str, Any]) -> None:
    """Raise if the configuration of a Dagster run sets commands, by field.

    Raises:
        ConfigurationError: It names a program or its timeout.
    """
    for name, field, spelling in fields_of_request():
        if spelling.of_operator and values[name] not in (None, field.default):
            raise ConfigurationError(
                f"The configuration of this run sets {name}. Dagster takes commands from the YAML"
                " of the application only: otherwise any user who can start a run could run any"
                " program on this host.",
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
    """Yield notes on commands that do not run; `stored` is the restore that the plan continues."""
    applied = configured_commands(settings, target=request.target, group=group, mode=request.mode)
    meant = [*targets_meant(settings, request.target), *targets_meant(settings, None)]
    commands = meant[0] if meant else settings.restore
    for name, of_yaml, applies, asked in (
        ("before", commands.before_command, applied.before_command, request.before_command),
        ("after", commands.after_command, applied.after_command, request.after_command),
    ):
        if asked is not None:
            continue
        if of_yaml is not None and request.mode is RestoreMode.LOGS:
            yield (
                f"The {name} command of the YAML does not run: no application continues from a"
                " restore in mode logs."
            )
        elif of_yaml is not None and applies is None:
            yield (
                f"The {name} command of the YAML does not run: it belongs to the declared target"
                f" and group {settings.application_id}, and this restore goes elsewhere. Give"
                f" --{name}-command where this one needs a command."
            )
        if stored is not None and (note := unnamed_command(stored, name)):
            yield note


def unnamed_command(stored: StoredRestore, name: str) -> str | None:
    """Return why a command named by a stored restore does not run; None without such a command."""
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
    """Return the complete environment of a command: facts of the restore, but no secrets.

    `step` is before or after. Variables named by `restore.pass_on` come from this process.
    """
    own = {f"KSTREAMS_RESTORE_{name}": value for name, value in facts.items()}
    own["KSTREAMS_RESTORE_STEP"] = step
    # An environment cannot contain this character; facts come from a warehouse.
    own = {name: value.replace("\0", "") for name, value in own.items()}
    return small_environment((*_KUBERNETES, *commands.pass_on), own)


def _servers(addresses: str) -> frozenset[str]:
    return frozenset(address.strip() for address in addresses.split(","))
