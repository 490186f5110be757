"""restore/completeness.py: what keeps group offsets away; stored results decide, nothing else."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.rules import Place, Recomputation
from kstreams_assets.checks import Severity
from kstreams_assets.completeness.on_restores import (
    evaluate_restore,
    require_complete,
    require_none_blocks,
    results_of_restore,
)
from kstreams_assets.errors import KStreamsAssetsError, RestoreIncompleteError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore
from kstreams_assets.model.rule_results import Outcome, RuleKind, RuleResult
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.group_offsets import commit_group_offsets
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import ApplicationSettings
from tests.completeness.outcomes import result, rule
from tests.restore import outcomes
from tests.restore.outcomes import ORDERS

LOST, SMALL, TOLD = "nothing_lost", "small_orders", "told_only"
NOWHERE = KafkaConnection(bootstrap_servers="localhost:1")


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    """One rule that blocks, two that do not."""
    return replace(
        outcomes.settings(tmp_path / "warehouse"),
        completeness=(
            rule(LOST, views=[ORDERS]),
            rule(SMALL, views=[ORDERS], severity=Severity.WARN),
            rule(TOLD, views=[ORDERS], blocking=False),
        ),
    )


def restored(state: RestoreState = RestoreState.VERIFIED, **asked: Any) -> StoredRestore:
    """The restore that `run-1` made."""
    made = outcomes.stored(outcomes.plan(RestoreRequest()), state)
    return replace(made, request=json.dumps(asked))


def stored(settings: ApplicationSettings, *results: RuleResult) -> None:
    """Put results where an evaluation puts them."""
    Repository.open(settings).results.record(results)


def evaluated(outcome: Outcome, name: str = LOST, **more: Any) -> RuleResult:
    """The result of a rule on the restore."""
    made = result(outcome, rule=name, place=Place.RESTORE, **more)
    declared = {SMALL: (Severity.WARN, True), TOLD: (Severity.ERROR, False)}
    severity, blocking = declared.get(name, (Severity.ERROR, True))
    return replace(made, severity=severity, blocking=blocking)


def test_a_rule_that_was_not_evaluated_keeps_offsets_away(settings: ApplicationSettings) -> None:
    with pytest.raises(RestoreIncompleteError, match="rule nothing_lost was not evaluated") as one:
        require_complete(settings, restored())
    assert one.value.not_evaluated == (LOST,)
    assert "select the topics, `restored_completeness` and `group_offsets` together" in str(
        one.value
    )
    assert "run the restore again with --skip-completeness" in str(one.value)


@pytest.mark.parametrize("outcome", [Outcome.VIOLATED, Outcome.FAILED])
def test_a_blocking_rule_keeps_offsets_away(
    settings: ApplicationSettings, outcome: Outcome
) -> None:
    stored(settings, evaluated(outcome))
    with pytest.raises(RestoreIncompleteError, match="No group offset was committed") as one:
        require_complete(settings, restored())
    assert one.value.violated.keys() == {LOST}
    if outcome is Outcome.VIOLATED:
        assert one.value.violated[LOST] == "2 row(s) in violation"


@pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.NOT_VERIFIABLE])
def test_what_passed_or_cannot_be_judged_does_not(
    settings: ApplicationSettings, outcome: Outcome
) -> None:
    stored(settings, evaluated(outcome))
    require_complete(settings, restored())


def test_rules_that_do_not_block_never_do(settings: ApplicationSettings) -> None:
    red = [evaluated(Outcome.VIOLATED, name) for name in (SMALL, TOLD)]
    stored(settings, evaluated(Outcome.PASSED), *red)
    require_complete(settings, restored())
    require_none_blocks(restored(), red)


def test_a_recomputed_store_blocks(settings: ApplicationSettings) -> None:
    recomputed = (Recomputation(store="totals", source=ORDERS),)
    only = replace(settings, completeness=(), recomputed=recomputed)
    with pytest.raises(RestoreIncompleteError, match="recompute_totals was not evaluated"):
        require_complete(only, restored())
    stored(only, evaluated(Outcome.PASSED, "recompute_totals"))
    require_complete(only, restored())


def test_without_rules_nothing_is_asked(settings: ApplicationSettings) -> None:
    require_complete(replace(settings, completeness=()), restored())
    elsewhere = (rule(on=frozenset({Place.BACKUP})),)
    require_complete(replace(settings, completeness=elsewhere), restored())


def test_who_skips_them_goes_on(settings: ApplicationSettings) -> None:
    stored(settings, evaluated(Outcome.VIOLATED))
    require_complete(settings, restored(skip_completeness=True))
    with pytest.raises(RestoreIncompleteError):
        require_complete(settings, restored(skip_completeness=False))


@pytest.mark.parametrize(
    "other",
    [
        {"run_id": "run-0"},
        {"point_id": "point-0"},
        {"place": Place.BACKUP},
    ],
)
def test_results_of_something_else_do_not_count(
    settings: ApplicationSettings, other: dict[str, Any]
) -> None:
    stored(settings, replace(evaluated(Outcome.PASSED), **other))
    assert results_of_restore(settings, restored()) == {}
    with pytest.raises(RestoreIncompleteError):
        require_complete(settings, restored())


def test_the_newest_result_counts(settings: ApplicationSettings) -> None:
    stored(settings, evaluated(Outcome.PASSED, evaluated_at_ms=2_000))
    stored(settings, evaluated(Outcome.VIOLATED, evaluated_at_ms=1_000))
    require_complete(settings, restored())
    stored(settings, evaluated(Outcome.VIOLATED, evaluated_at_ms=3_000))
    with pytest.raises(RestoreIncompleteError):
        require_complete(settings, restored())


def test_the_commit_itself_refuses_before_it_connects(settings: ApplicationSettings) -> None:
    stored(settings, evaluated(Outcome.VIOLATED))
    with pytest.raises(RestoreIncompleteError, match=r"rule nothing_lost: 2 row\(s\)"):
        commit_group_offsets(settings, restored(), NOWHERE, gate=require_complete)


@dataclass
class _NoSpark:
    """A session that must not be started."""

    log: list[str] = field(default_factory=list)

    @property
    def spark_session(self) -> Any:
        raise AssertionError

    def check(self) -> None:
        raise AssertionError


class TestNothingToEvaluate:
    """Restores of which no rule can be judged; neither broker nor JVM is there."""

    def test_it_is_said_of_every_rule_and_nothing_is_kept_away(
        self, settings: ApplicationSettings
    ) -> None:
        rebuilt = replace(restored(), mode=RestoreMode.REBUILD)
        results = evaluate_restore(settings, rebuilt, NOWHERE, spark=_NoSpark())
        assert {r.rule: (r.outcome, r.blocks) for r in results} == dict.fromkeys(
            (LOST, SMALL, TOLD), (Outcome.NOT_VERIFIABLE, False)
        )
        assert {r.run_id for r in results} == {"run-1"}
        assert {r.kind for r in results} == {RuleKind.RULE}
        require_complete(settings, rebuilt)
        assert results_of_restore(settings, rebuilt).keys() == {LOST, SMALL, TOLD}

    def test_only_the_rules_that_are_asked_for(self, settings: ApplicationSettings) -> None:
        rebuilt = replace(restored(), mode=RestoreMode.REBUILD)
        results = evaluate_restore(settings, rebuilt, NOWHERE, spark=_NoSpark(), rules=[SMALL])
        assert [r.rule for r in results] == [SMALL]
        with pytest.raises(RestoreIncompleteError):
            require_complete(settings, rebuilt)

    @pytest.mark.parametrize(
        "state",
        [s for s in RestoreState if s not in (RestoreState.VERIFIED, RestoreState.COMMITTED)],
    )
    def test_only_what_was_verified(
        self, settings: ApplicationSettings, state: RestoreState
    ) -> None:
        with pytest.raises(KStreamsAssetsError, match=f"is {state}: completeness check is refused"):
            evaluate_restore(settings, restored(state), NOWHERE, spark=_NoSpark())


def test_all_that_blocks_is_named(settings: ApplicationSettings) -> None:
    two = replace(settings, completeness=(rule("a"), rule("b"), rule("c")))
    both: Sequence[RuleResult] = [evaluated(Outcome.VIOLATED, name) for name in ("a", "c")]
    stored(two, evaluated(Outcome.PASSED, "b"), *both)
    with pytest.raises(RestoreIncompleteError) as one:
        require_complete(two, restored())
    assert one.value.violated.keys() == {"a", "c"}
