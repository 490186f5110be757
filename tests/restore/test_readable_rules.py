"""restore/readable_rules.py: which rules a restored cluster can answer, and why not the others."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.model import AppTopic, Store
from kstreams_assets.app.rules import Place, Recomputation
from kstreams_assets.completeness.on_restores import rules_on_restores, why_not_evaluated
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import ApplicationSettings
from tests.completeness.outcomes import rule
from tests.restore import outcomes
from tests.restore.outcomes import BETWEEN, ORDERS, TOPICS, TOTALS

SQL = rule("sql", views=[ORDERS, "totals"])
BALANCE = rule("balance", views=["totals", "totals@before", BETWEEN], balance="a == b")
ELSEWHERE = rule("elsewhere", on=frozenset({Place.BACKUP}))


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    """Store `totals` with its changelog; two rules on restores and a recomputed store."""
    made = outcomes.settings(tmp_path / "warehouse")
    application = replace(made.application, stores=(Store("totals", TOTALS),))
    return replace(
        made,
        application=application,
        topics=TOPICS,
        completeness=(SQL, BALANCE, ELSEWHERE),
        recomputed=(Recomputation(store="totals", source=ORDERS, through=BETWEEN),),
    )


def restored(*topics: AppTopic, mode: RestoreMode = RestoreMode.STATE, **asked: Any):
    """A restore of these topics."""
    planned = outcomes.plan(RestoreRequest(), topics=topics or TOPICS)
    made = outcomes.stored(planned, RestoreState.VERIFIED)
    return replace(made, mode=mode, request=json.dumps(asked))


def not_judged(settings: ApplicationSettings, restore: StoredRestore) -> dict[str, str]:
    """Why which rule cannot be judged."""
    rules = rules_on_restores(settings)
    return {rule.name: why for rule in rules if (why := why_not_evaluated(rule, restore))}


def test_rules_of_other_places_are_none_of_them(settings: ApplicationSettings) -> None:
    names = [rule.name for rule in rules_on_restores(settings)]
    assert names == ["sql", "balance", "recompute_totals"]


def test_of_a_whole_restore_every_rule_is_judged(settings: ApplicationSettings) -> None:
    assert not_judged(settings, restored(inputs="full")) == {}


@pytest.mark.parametrize(
    ("restore", "rules", "text"),
    [
        (restored(mode=RestoreMode.REBUILD), {"sql", "balance", "recompute_totals"}, "rebuild"),
        (restored(mode=RestoreMode.LOGS), {"sql", "balance", "recompute_totals"}, "mode logs"),
        (
            restored(*TOPICS[::2]),
            {"balance", "recompute_totals"},
            f"reads {BETWEEN}, which the restore does not contain",
        ),
        (
            restored(*TOPICS[:2]),
            {"sql", "balance", "recompute_totals"},
            f"reads {TOTALS}, which the restore does not contain",
        ),
        (
            restored(inputs="tail"),
            {"sql", "recompute_totals"},
            f"reads {ORDERS}, but only its tail",
        ),
        (restored(changelog_source="snapshot"), set(), ""),
    ],
)
def test_what_is_not_there_cannot_be_judged(
    settings: ApplicationSettings, restore: StoredRestore, rules: set[str], text: str
) -> None:
    found = not_judged(settings, restore)
    assert found.keys() == rules
    assert all(text in why for why in found.values())


def test_a_log_that_was_written_from_a_snapshot(settings: ApplicationSettings) -> None:
    on_the_log = replace(settings, completeness=(rule("log", views=[TOTALS]),), recomputed=())
    found = not_judged(on_the_log, restored(changelog_source="snapshot"))
    assert "one record per key" in found["log"]
    assert not_judged(on_the_log, restored()) == {}
