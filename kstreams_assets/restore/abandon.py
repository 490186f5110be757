"""Giving a restore up that nobody goes on with."""

from kstreams_assets.restore.steps import Step, newest_locked, require
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.restores import RestoresTable, RestoreState, StoredRestore


def abandon(settings: ApplicationSettings, restore: StoredRestore) -> StoredRestore:
    """Record that nobody goes on with a restore; the record.

    Its recovery point may expire, and neither `expire` nor backups wait for it any more. The target
    is not touched: topics of the restore stay there. A later run of the same restore is planned by
    what is on the target then.

    Raises:
        RestoreStateError: Its group offsets are committed, or it is finished.
        WarehouseLockedError: It is being run.
    """
    require(restore, Step.ABANDON)
    with newest_locked(settings, restore, Step.ABANDON) as (newest, lock):
        return RestoresTable(settings.warehouse).change(
            newest,
            writer=lock,
            state=RestoreState.FINISHED,
            # A finished restore without committed offsets is none that an application goes on from.
            committed=None,
            problem="It was given up.",
        )
