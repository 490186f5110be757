"""restore/steps.py: each step against each state of a restore."""

from dataclasses import replace
from itertools import product

import pytest

from kstreams_assets.errors import RestoreNotVerifiedError, RestoreStateError
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.steps import Step, blocker, require
from kstreams_assets.warehouse.restores import RestoreState, StoredRestore
from tests.restore import outcomes

S = RestoreState
WRITTEN = {S.VERIFIED, S.COMMITTED, S.ROLLED_BACK, S.FINISHED}
TAKEN = {
    Step.EVALUATE: {S.VERIFIED, S.COMMITTED},
    Step.COMMIT: {S.VERIFIED, S.COMMITTED},
    Step.WATCH: {S.COMMITTED, S.FINISHED},
    Step.FINISH: {S.COMMITTED, S.FINISHED},
    Step.START: {S.COMMITTED, S.FINISHED},
    Step.ROLLBACK: {*S} - {S.FINISHED},
    Step.MAP: {S.PRODUCED, S.FAILED_VERIFICATION, *WRITTEN},
    Step.GROUP_OFFSETS: WRITTEN,
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
        with pytest.raises(RestoreNotVerifiedError, match="restore run"):
            require(restore(state), step)


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.ROLLBACK])
def test_what_was_finished_and_never_committed_is_not_finished(step: Step) -> None:
    """As an earlier release left it that finished a restore which was only planned."""
    never = replace(restore(S.FINISHED), committed=None)
    with pytest.raises(RestoreStateError, match="never committed"):
        require(never, step)
    assert not never.matches_backup


@pytest.mark.parametrize("state", [state for state in RestoreState if state is not S.FINISHED])
def test_nothing_is_rolled_back_that_was_never_committed(state: RestoreState) -> None:
    with pytest.raises(RestoreStateError, match="nothing to undo"):
        require(replace(restore(state), former_offsets=None), Step.ROLLBACK)
