"""A backup of the simulated application, which has no cluster: its increments can be merged."""

from types import SimpleNamespace
from typing import Any

import pytest

from kstreams_assets.backup import run as run_module
from kstreams_assets.backup.commits import Committer
from kstreams_assets.backup.context import RunContext
from kstreams_assets.backup.run import BackupRun
from tests.streams.workbench import NoSpark
from tests.upkeep.simulated_app import SimulatedApp


def without_cluster(patch: pytest.MonkeyPatch) -> None:
    """Nothing can be read, again or for the first time."""
    patch.setattr(Committer, "complete", lambda *_: ())
    patch.setattr(Committer, "back_up", lambda *_: [])
    patch.setattr(run_module, "take_last_point", lambda _: None)


def backup_run(app: SimulatedApp) -> BackupRun:
    """A run of all topics, for a time `without_cluster`."""
    cluster: Any = SimpleNamespace(
        topics=list, require_read=lambda _: None, describe_topics=lambda _: {}
    )
    settings = app.settings
    ctx = RunContext(settings, settings.topics, cluster, NoSpark(), "run", 0, new_lineage=True)
    return BackupRun(ctx)
