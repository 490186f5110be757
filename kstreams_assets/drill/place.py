"""Where a drill takes place: a throwaway cluster and a folder, both gone afterwards."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.local_target import (
    local_target,
    local_targets,
    remove_local_target,
    require_local_target,
)
from kstreams_assets.settings import ApplicationSettings

_DRILL: Final = "drill-"
_KEPT: Final = "kept-drill-"
_APPLICATION: Final = "application"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrillPlace:
    """The cluster's name and connection; the state directory is empty at first.

    State directory and log lie in the cluster's folder, and go with it.
    """

    name: str
    connection: KafkaConnection
    client_properties: Path
    state_dir: Path
    log_file: Path


def reports_folder(settings: ApplicationSettings) -> Path:
    """Where the reports of an application's drills are."""
    return settings.warehouse.root / "drill_reports" / settings.application_id


@contextmanager
def drill_place(
    settings: ApplicationSettings, drill_id: str, *, keep: bool
) -> Iterator[DrillPlace]:
    """A cluster of this drill alone for the block; with `keep` it stays, stopped.

    What an earlier drill left whose process was killed is removed first: to be used by one process
    at a time. Raises what `local_target` raises.
    """
    _remove_leftovers(settings)
    name = f"{_KEPT if keep else _DRILL}{drill_id}"
    try:
        protected = not settings.drill.open_cluster
        with local_target(settings, name, protected=protected) as connection:
            target = require_local_target(settings, name)
            folder = target.directory / _APPLICATION
            state_dir = folder / "state"
            state_dir.mkdir(parents=True)
            log_file = folder / "application.log"
            yield DrillPlace(name, connection, target.client_properties, state_dir, log_file)
    finally:
        if not keep:
            _remove_leftovers(settings)


def _remove_leftovers(settings: ApplicationSettings) -> None:
    """Remove clusters of drills that have ended, or were killed; kept ones stay.

    Never raises: a drill's result must not be lost for what it leaves behind.
    """
    try:
        for found in local_targets(settings):
            if found.name.startswith(_DRILL):
                remove_local_target(settings, found.name)
    except (KStreamsAssetsError, OSError) as error:
        _log.warning("What a drill left behind stays for now: %s", error)
