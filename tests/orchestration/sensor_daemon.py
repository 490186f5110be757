"""One round of Dagster's sensor daemon; with the name of a milestone, it is killed there.

Usage: sensor_daemon.py DAGSTER_HOME [MILESTONE]
"""

import contextlib
import logging
import signal
import sys
from pathlib import Path

from dagster._core.errors import DagsterInvariantViolationError
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.sensor import execute_sensor_iteration

from kstreams_assets.orchestration.keys import backups_sensor
from tests.backup.samples import APPLICATION_ID
from tests.orchestration.requesting import instance_at

_ROUNDS = 3


def one_round(home: Path, milestone: str | None = None) -> None:
    """Evaluate the sensors that are due and submit what they request."""
    origin = InProcessCodeLocationOrigin(
        LoadableTargetOrigin(
            executable_path=sys.executable,
            module_name="tests.orchestration.sensor_location",
            attribute="defs",
        ),
        location_name="sensor_location",
    )
    crash = {backups_sensor(APPLICATION_ID): {milestone: signal.SIGKILL}} if milestone else None
    with (
        instance_at(home) as instance,
        WorkspaceProcessContext(instance, InProcessWorkspaceLoadTarget(origin)) as workspace,
    ):
        logger = logging.getLogger("sensor daemon of a test")
        for _ in range(_ROUNDS):
            look = execute_sensor_iteration(workspace, logger, None, None, debug_crash_flags=crash)
            # Of two daemons one is the first to note the sensor; the other's loop goes on.
            with contextlib.suppress(DagsterInvariantViolationError):
                list(look)
                return


if __name__ == "__main__":
    one_round(Path(sys.argv[1]), *sys.argv[2:])
