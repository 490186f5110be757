"""The steps after the records of a restore are written, and the states that allow them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.model.tables import Lock
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store.locks import LockHandle


class Step(StrEnum):
    """A step after the run of a restore, as messages name it."""

    EVALUATE = "completeness check"
    COMMIT = "commit of the group offsets"
    WATCH = "restore watch"
    FINISH = "restore finish"
    PREVIOUS_OFFSETS = "restore previous-offsets"
    MAP = "restore map"
    GROUP_OFFSETS = "restore group-offsets"
    START = "start of the application"
    ABANDON = "restore abandon"


_MATCHING: Final = frozenset(state for state in RestoreState if state.matches_backup)
_UNPROVED: Final = frozenset(RestoreState) - _MATCHING
_COMMITTED: Final = frozenset(state for state in RestoreState if state.is_committed)

ACCEPTED: Final[Mapping[Step, frozenset[RestoreState]]] = {
    Step.EVALUATE: frozenset({RestoreState.VERIFIED, RestoreState.COMMITTED}),
    Step.COMMIT: frozenset({RestoreState.VERIFIED, RestoreState.COMMITTED}),
    Step.WATCH: _COMMITTED,
    Step.FINISH: _COMMITTED,
    # Only if former offsets are recorded: `blocker` checks that.
    Step.PREVIOUS_OFFSETS: frozenset(RestoreState) - {RestoreState.FINISHED},
    Step.MAP: frozenset({RestoreState.PRODUCED, RestoreState.FAILED_VERIFICATION, *_MATCHING}),
    Step.GROUP_OFFSETS: _MATCHING,
    Step.START: _COMMITTED,
    # No application continues from it: such a restore would be finished instead.
    Step.ABANDON: frozenset({*_UNPROVED, RestoreState.VERIFIED, RestoreState.ROLLED_BACK}),
}
"""The states of a restore that allow each step. A run is possible in every state: its plan depends
on the state of the target."""

_RUN_AGAIN: Final = "kstreams-assets restore run with the same options"
_START_AGAIN: Final = (
    "Stop the application if it runs, delete the topics of this restore on the target, then run"
    f" {_RUN_AGAIN}."
)
_MEANING: Final[Mapping[RestoreState, tuple[str, str]]] = {
    RestoreState.PLANNED: (
        "Records are missing on the target, or all of them, and the group has no offsets of this"
        " restore.",
        f"Keep the application stopped and run {_RUN_AGAIN}: it continues where it stopped. If the"
        " application has run on these topics, stop it and delete them first.",
    ),
    RestoreState.PRODUCED: (
        "The records on the target were not compared with the backup, and the group has no offsets"
        " of this restore.",
        f"Keep the application stopped and run {_RUN_AGAIN}: it writes nothing twice, compares the"
        " records and commits the offsets.",
    ),
    RestoreState.FAILED_VERIFICATION: (
        "The records on the target differ from the backup, and the group has no offsets of this"
        " restore.",
        f"Find out what else writes to the topics. {_START_AGAIN}",
    ),
    RestoreState.VERIFIED: (
        "The group has no offsets of this restore yet: an application that starts now reads from"
        " the beginning, or skips records.",
        f"Keep the application stopped and run {_RUN_AGAIN}: it commits the offsets.",
    ),
    RestoreState.COMMITTED: (
        "The group has its offsets.",
        "Start the application, and run kstreams-assets restore finish once it has caught up. To"
        " undo the restore, run kstreams-assets restore previous-offsets.",
    ),
    RestoreState.ROLLED_BACK: (
        "The group has the offsets again that it had before this restore.",
        f"To continue from this restore after all, run {_RUN_AGAIN}: it commits the offsets again.",
    ),
    RestoreState.FINISHED: (
        "The offsets and topics are the application's own now.",
        "Set offsets with kafka-consumer-groups.sh --reset-offsets if you must.",
    ),
}


def blocker(restore: StoredRestore, step: Step) -> KStreamsAssetsError | None:
    """Return why a restore in its state does not allow a step; None if it does."""
    state = restore.state
    was_committed = restore.former_offsets is not None
    if (
        state is RestoreState.FINISHED
        and restore.committed is None
        and step is not Step.PREVIOUS_OFFSETS
    ):
        problem = (
            "It was abandoned, or recorded as finished although its group offsets were never"
            " committed (an earlier release allowed that), so nothing shows that it restored"
            " anything."
        )
        remedy = _START_AGAIN
    elif state not in ACCEPTED[step]:
        problem, remedy = _MEANING[state]
    elif step is Step.ABANDON and was_committed and state is not RestoreState.ROLLED_BACK:
        problem = (
            "Its group offsets were committed once, so the application may continue from them."
        )
        remedy = "Stop the application and run kstreams-assets restore previous-offsets first."
    elif step is Step.PREVIOUS_OFFSETS and not was_committed:
        problem = "Its group offsets were never committed, so there is nothing to undo."
        remedy = "Delete the topics of the restore on the target if you do not need them."
    else:
        return None
    return KStreamsAssetsError(
        f"Restore {restore.restore_id} is {state}: {step} is refused. {problem}", remedy=remedy
    )


def require(restore: StoredRestore, step: Step) -> None:
    """Raise KStreamsAssetsError if a restore is not in a state for this step."""
    refused = blocker(restore, step)
    if refused is not None:
        raise refused


@contextmanager
def newest_locked(
    settings: ApplicationSettings, restore: StoredRestore, step: Step
) -> Iterator[tuple[Repository, StoredRestore, LockHandle]]:
    """Yield warehouse, restore in its newest state, and its lock, if the state allows the step.

    Another command may have changed the restore since it was read.

    Raises:
        KStreamsAssetsError: It is not in a state for the step.
        WarehouseLockedError: Another command holds the lock for too long.
    """
    repo = Repository.open(settings)
    with repo.writing(
        Lock.RESTORE,
        of=(restore.target_cluster_id, restore.group),
        purpose=f"{step} of restore {restore.restore_id}",
        wait_s=settings.restore.lock_wait_seconds,
    ) as lock:
        newest = repo.restores.newest(restore.restore_id) or restore
        require(newest, step)
        yield repo, newest, lock
