"""Could the application be recovered right now?"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.rules import CompletenessRule, Place
from kstreams_assets.checks import Finding, Severity
from kstreams_assets.drill.readiness import Facts, evaluate_readiness, readiness
from kstreams_assets.drill.report import Failure, Phase, stored_drill
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.model.restorability import PointStatus, Recency, Restorability, Restorable
from kstreams_assets.model.rule_results import Outcome
from kstreams_assets.repository.repository import Repository
from tests.drill.reports import REPORT, RULE
from tests.restore.after_commit import settings_of

DAY_MS = 86_400_000
NOW_MS = REPORT.began_at_ms + DAY_MS

_POINT = PointStatus(
    id="p1",
    taken_at_ms=NOW_MS - 60_000,
    method=Method.TRANSACTIONS,
    guarantee=Guarantee.EXACT,
    sealed=True,
    covered=True,
    restorability=Restorability.EXACT,
    reason="Sealed.",
)
GOOD = Facts(
    now_ms=NOW_MS,
    recency=Recency(
        passed=True,
        explanation="The newest exact, covered point is 60 s old.",
        age_s=60.0,
        objective_s=300,
        restorable=Restorable(exact=_POINT, covered=_POINT),
    ),
    results=(RULE,),
    findings=(),
    drill=stored_drill(REPORT),
    cluster_asked=True,
)


def test_ready() -> None:
    found = evaluate_readiness(GOOD)
    assert found.ready
    assert found.why == "No blockers."
    subjects = [statement.subject for statement in found.statements]
    assert subjects == [
        "recovery point",
        "windows",
        "completeness",
        "governance",
        "drill",
        "cluster",
    ]


_NO_POINT = Restorable(exact=None, covered=_POINT)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"recency": replace(GOOD.recency, passed=False, explanation="Too old.")}, "Too old."),
        (
            {"recency": replace(GOOD.recency, explanation="No exact.", restorable=_NO_POINT)},
            "No exact.",
        ),
        (
            {"damaged_snapshots": ("store sums, window w1: file a is missing", "store b")},
            "sums, window w1: file a is missing (and 1 more)",
        ),
        ({"due": ("w1", "w2")}, "2 closed windows are not backed up, from w1 on"),
        ({"results": ()}, "were never evaluated"),
        (
            {"results": (replace(RULE, outcome=Outcome.VIOLATED, explanation="One lost."),)},
            "Rule nothing_is_lost does not hold at point p1 (restore): One lost.",
        ),
        (
            {
                "findings": (
                    Finding(
                        "governance", "changelogs_replicated: Too few.", severity=Severity.ERROR
                    ),
                )
            },
            "changelogs_replicated: Too few.",
        ),
        (
            {
                "findings": (Finding("governance", "lag: Lag.", severity=Severity.WARN),) * 5
                + (Finding("governance", "x: X.", severity=Severity.ERROR),)
            },
            "1 more findings",
        ),
        ({"drill": None}, "No restore drill has run yet. Run kstreams-assets drill."),
        ({"drill": None, "drill_declared": False}, "Give drill.command in the YAML"),
        (
            {"drill": stored_drill(replace(REPORT, failure=Failure(Phase.START, "Never up.")))},
            "failed: Never up.",
        ),
        ({"drill": stored_drill(replace(REPORT, objective_s=1.0))}, "more than the objective of 1"),
        ({"now_ms": REPORT.began_at_ms + 31 * DAY_MS}, "was 31 days ago"),
    ],
)
def test_not_ready(change: dict[str, Any], told: str) -> None:
    found = evaluate_readiness(replace(GOOD, **change))
    assert not found.ready
    assert told in found.why
    assert told in found.statements[0].text
    assert len(found.against) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"results": None}, "No completeness rule is declared"),
        ({"results": (replace(RULE, outcome=Outcome.NOT_VERIFIABLE),)}, "Not verifiable"),
        (
            {"results": (replace(RULE, outcome=Outcome.VIOLATED, severity=Severity.WARN),)},
            "does not hold",
        ),
        ({"findings": None}, "never compared"),
        ({"findings": (Finding("governance", "lag: Lag.", severity=Severity.WARN),)}, "lag: Lag."),
        ({"drill": stored_drill(replace(REPORT, objective_s=None))}, "no objective is declared"),
        ({"now_ms": REPORT.began_at_ms + 29 * DAY_MS}, "passed in 32.0 s"),
        ({"cluster_problem": "refused"}, "does not answer (refused)"),
    ],
)
def test_only_told(change: dict[str, Any], told: str) -> None:
    found = evaluate_readiness(replace(GOOD, **change))
    assert found.ready
    assert told in " ".join(statement.text for statement in found.statements)


class TestFacts:
    """What is taken from the warehouse."""

    def test_an_empty_warehouse(self, tmp_path: Path) -> None:
        connection = KafkaConnection(bootstrap_servers="127.0.0.1:1")
        settings = settings_of("shop", connection, tmp_path)
        found = readiness(settings)
        assert not found.ready
        assert "No recovery point is both exact and covered" in found.why
        assert "No restore drill has run yet." in found.why
        assert [s for s in found.statements if s.subject == "cluster"] == []

    def test_the_newest_result_of_each_rule_counts(self, tmp_path: Path) -> None:
        connection = KafkaConnection(bootstrap_servers="127.0.0.1:1")
        rules = (CompletenessRule(name=RULE.rule, query="SELECT 1", views=()),)
        settings = replace(settings_of("shop", connection, tmp_path), completeness=rules)
        Repository.open(settings).drills.record(stored_drill(REPORT))
        red = replace(RULE, outcome=Outcome.VIOLATED, explanation="Lost.", place=Place.BACKUP)
        table = Repository.open(settings).results
        table.record([red, replace(RULE, rule="an old rule", outcome=Outcome.VIOLATED)])
        found = readiness(settings, now_ms=NOW_MS)
        assert "Rule nothing_is_lost does not hold" in found.why
        assert "an old rule" not in found.why
        assert "drill" not in [s.subject for s in found.against]
        table.record([replace(RULE, place=Place.RESTORE, evaluated_at_ms=1_500)])
        assert "does not hold" in readiness(settings, now_ms=NOW_MS).why
        table.record([replace(RULE, place=Place.BACKUP, evaluated_at_ms=2_000)])
        assert "does not hold" not in readiness(settings, now_ms=NOW_MS).why

    def test_a_cluster_that_does_not_answer_is_told(self, tmp_path: Path) -> None:
        connection = KafkaConnection(bootstrap_servers="127.0.0.1:1")
        found = readiness(settings_of("shop", connection, tmp_path), ask_cluster=True)
        (cluster,) = [s for s in found.statements if s.subject == "cluster"]
        assert "does not answer" in cluster.text
        assert cluster not in found.against


def test_a_warehouse_that_others_may_read_is_reported() -> None:
    found = evaluate_readiness(replace(GOOD, warehouse_mode="0755"))
    assert found.ready
    [statement] = [s for s in found.statements if s.subject == "warehouse"]
    assert "mode 0755" in statement.text
    assert not any(s.subject == "warehouse" for s in evaluate_readiness(GOOD).statements)


def test_changelogs_that_are_not_backed_up_are_reported_and_do_not_block() -> None:
    found = evaluate_readiness(replace(GOOD, left_out_changelogs=("shop-sums-changelog",)))
    assert found.ready
    (told,) = [one.text for one in found.statements if one.subject == "backup mode"]
    assert "not selected for backup: shop-sums-changelog." in told
