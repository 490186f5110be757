"""restore/steps.py: each step against each state of a restore."""

import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.finish import abandon
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.steps import Step, blocker, require
from tests.restore import outcomes

S = RestoreState
WRITTEN = {S.VERIFIED, S.COMMITTED, S.ROLLED_BACK, S.FINISHED}
TAKEN = {
    Step.EVALUATE: {S.VERIFIED, S.COMMITTED},
    Step.COMMIT: {S.VERIFIED, S.COMMITTED},
    Step.WATCH: {S.COMMITTED, S.FINISHED},
    Step.FINISH: {S.COMMITTED, S.FINISHED},
    Step.START: {S.COMMITTED, S.FINISHED},
    Step.PREVIOUS_OFFSETS: {*S} - {S.FINISHED},
    Step.MAP: {S.PRODUCED, S.FAILED_VERIFICATION, *WRITTEN},
    Step.GROUP_OFFSETS: WRITTEN,
    Step.ABANDON: {S.ROLLED_BACK},
}


def restore(state: RestoreState) -> StoredRestore:
    """A restore that once committed offsets: a run of it may have started again since."""
    stored = outcomes.stored(outcomes.plan(RestoreRequest()), state)
    return replace(stored, former_offsets=(), committed=())


@pytest.mark.parametrize(("step", "state"), [*product(Step, RestoreState)])
def test_each_step_in_each_state(step: Step, state: RestoreState) -> None:
    refused = blocker(restore(state), step)
    assert (refused is None) is (state in TAKEN[step])
    if refused is not None:
        assert f" is {state}: {step} is refused." in refused.problem
        assert refused.remedy


@pytest.mark.parametrize("state", [S.PLANNED, S.PRODUCED, S.FAILED_VERIFICATION])
def test_the_application_is_not_started_on_what_is_not_proved(state: RestoreState) -> None:
    for step in (Step.WATCH, Step.FINISH, Step.GROUP_OFFSETS):
        with pytest.raises(KStreamsAssetsError, match="restore run"):
            require(restore(state), step)


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.PREVIOUS_OFFSETS])
def test_what_was_finished_and_never_committed_is_not_finished(step: Step) -> None:
    """As an earlier release left it that finished a restore which was only planned."""
    never = replace(restore(S.FINISHED), committed=None)
    with pytest.raises(KStreamsAssetsError, match="never committed"):
        require(never, step)
    assert not never.matches_backup


@pytest.mark.parametrize("state", [*RestoreState])
def test_what_never_had_offsets_can_be_given_up(state: RestoreState) -> None:
    never = replace(restore(state), former_offsets=None, committed=None)
    refused = blocker(never, Step.ABANDON)
    assert (refused is None) is (state not in (S.COMMITTED, S.FINISHED))


def test_a_restore_that_was_given_up(tmp_path: Path) -> None:
    """Nothing waits for it, and no application is taken to continue from it."""
    settings = outcomes.settings(tmp_path / "warehouse")
    table = Repository.open(settings).restores
    for number, state in enumerate((S.PLANNED, S.PRODUCED, S.VERIFIED, S.ROLLED_BACK)):
        stored = replace(
            restore(state),
            restore_id=f"r{number}",
            former_offsets=() if state is S.ROLLED_BACK else None,
            committed=() if state is S.ROLLED_BACK else None,
            changed_at_ms=time.time_ns() // 1_000_000,
        )
        table.append(stored)
        assert table.pinned() == {stored.point_id}

        abandon(settings, stored)

        assert table.pinned() == frozenset()
        assert table.writing() == []
        newest = table.newest(stored.restore_id)
        assert newest is not None
        assert not newest.matches_backup
        assert not newest.is_continued
        with pytest.raises(KStreamsAssetsError, match="is finished: restore abandon is refused"):
            abandon(settings, newest)


def test_a_restore_that_is_committed_meanwhile_is_not_given_up(tmp_path: Path) -> None:
    settings = outcomes.settings(tmp_path / "warehouse")
    seen = replace(restore(S.VERIFIED), former_offsets=None, committed=None)
    Repository.open(settings).restores.append(restore(S.COMMITTED))
    with pytest.raises(KStreamsAssetsError, match="is committed: restore abandon is refused"):
        abandon(settings, seen)
    newest = Repository(settings.warehouse, seen.application_id).restores.newest(seen.restore_id)
    assert newest is not None
    assert newest.state is S.COMMITTED


@pytest.mark.parametrize("state", [state for state in RestoreState if state is not S.FINISHED])
def test_nothing_is_rolled_back_that_was_never_committed(state: RestoreState) -> None:
    with pytest.raises(KStreamsAssetsError, match="nothing to undo"):
        require(replace(restore(state), former_offsets=None), Step.PREVIOUS_OFFSETS)
