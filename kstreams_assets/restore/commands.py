"""Runs the operator's commands around a restore: one stops the application, one starts it."""

import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError, ProcessError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.process import GuardedProcess
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.restore.command_sources import (
    asked_commands,
    command_environment,
    unnamed_command,
)
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.planner import plan_again
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.secret import mask_secrets
from kstreams_assets.settings import ApplicationSettings, CommandSettings

_SHOWN_LINES: Final = 20
_SHOWN_CHARACTERS: Final = 300
"""Per line."""
_ASKED_EVERY_S: Final = 1.0

Report = Callable[[str], None]


def require_programs(request: RestoreRequest) -> None:
    """Check that the programs of both commands exist, before anything is restored.

    Raises:
        ConfigurationError: A program is missing.
    """
    for name, command in (("before", request.before_command), ("after", request.after_command)):
        if command is None:
            continue
        program = shlex.split(command)[0]
        if shutil.which(program) is None:
            raise ConfigurationError(
                f"The {name} command cannot be started: program {program!r} is missing or not"
                " executable.",
                remedy="Correct the command, or PATH; nothing was restored.",
            )


def run_before(
    settings: ApplicationSettings, plan: RestorePlan, target: KafkaConnection, *, report: Report
) -> RestorePlan:
    """Run the command before a restore without blockers, then plan again for the changed target.

    Afterwards the group has to be empty: this waits for it, and the new plan has a blocker if it
    is not. Without a command the plan stays unchanged. `report` receives lines of text.

    Raises:
        KStreamsAssetsError: The command failed or took too long; no record was written.
            As `plan_again`.
    """
    request = plan.request
    commands = asked_commands(settings, request)
    if commands.before_command is None:
        return plan
    failed = "No record was written."
    environment = command_environment(commands, "before", _facts(plan))
    timeout_s = commands.command_timeout_seconds
    _run("before", commands.before_command, timeout_s, environment, failed=failed, report=report)
    _await_empty_group(plan.group, target, timeout_s, report)
    # Without it, members of the group are a blocker.
    done = request.model_copy(update={"before_command": None})
    return plan_again(settings, replace(plan, request=done), target)


def run_after(restore: StoredRestore, commands: CommandSettings, *, report: Report) -> None:
    """Run the command after a restore whose group offsets are committed.

    The command comes from `commands`, never from the stored row of the restore. If only the row
    names one, `report` receives a line that says so.

    Raises:
        KStreamsAssetsError: It failed or took too long; the restore is complete anyway.
    """
    if commands.after_command is None:
        if note := unnamed_command(restore, "after"):
            report(f"NOTE {note}")
        return
    failed = f"Restore {restore.restore_id} is complete: its group offsets are committed."
    environment = command_environment(commands, "after", _facts(restore))
    timeout_s = commands.command_timeout_seconds
    _run("after", commands.after_command, timeout_s, environment, failed=failed, report=report)


def _facts(restore: RestorePlan | StoredRestore) -> dict[str, str]:
    """Return the facts of the restore for a command, by the suffix of the variable's name."""
    is_plan = isinstance(restore, RestorePlan)
    point_id = restore.point_id if not is_plan else restore.point.id if restore.point else ""
    return {
        "ID": restore.restore_id,
        "APPLICATION_ID": restore.application_id,
        "POINT_ID": point_id,
        "GROUP": restore.group,
        "TARGET": restore.target_bootstrap_servers,
        "TARGET_CLUSTER_ID": restore.target_cluster_id,
        "MODE": (restore.request.mode if is_plan else restore.mode).value,
    }


def _run(
    name: str,
    command: str,
    timeout_s: float,
    environment: Mapping[str, str],
    *,
    failed: str,
    report: Report,
) -> None:
    """Run one command without a shell; kill it with its children at the timeout.

    `environment` is complete, and there is no input. The last lines of its output are reported.
    """
    shown = mask_secrets(command)
    report(f"The {name} command runs: {shown}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kstreams-restore-") as folder:
        try:
            with GuardedProcess(
                shlex.split(command),
                log_file=Path(folder) / "output",
                environment=environment,
            ) as process:
                try:
                    code = process.wait(timeout_s=timeout_s)
                except TimeoutError:
                    process.kill()
                    code = None
                output = process.log_tail(_SHOWN_LINES)
        except ProcessError as error:
            problem = f"could not be started: {str(error).rstrip('.')}"
            raise _failure(name, shown, problem, failed) from None
    for line in output.splitlines():
        report(f"  {mask_secrets(line)[:_SHOWN_CHARACTERS]}")
    if code != 0:
        problem = f"ended with exit code {code}"
        if code is None:
            problem = f"did not end within {timeout_s:g} s and was killed"
        raise _failure(name, shown, problem, failed)
    report(f"The {name} command is done after {time.monotonic() - began:.1f} s.")


def _await_empty_group(
    group: str, target: KafkaConnection, timeout_s: float, report: Report
) -> None:
    """Wait for the members to leave: members of a killed process leave at a session timeout."""
    deadline = time.monotonic() + timeout_s
    reported = False
    with KafkaCluster(target) as cluster:
        while (state := cluster.group_state(group)) is not None and not state.is_empty:
            if time.monotonic() >= deadline:
                return
            if not reported:
                report(f"Group {group} is still {state.state}; waiting until it is empty.")
                reported = True
            time.sleep(_ASKED_EVERY_S)


def _failure(name: str, command: str, problem: str, failed: str) -> KStreamsAssetsError:
    """Return the error for a failed command; `failed` describes the state of the restore."""
    return KStreamsAssetsError(
        f"The {name} command {problem}: {command}. {failed}",
        remedy="Check its output, then run the restore again; it writes no record twice."
        if name == "before"
        else "Check its output, fix the cause, and perform the action of the command manually.",
    )
