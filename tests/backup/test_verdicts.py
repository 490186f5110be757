"""Checks: green, red, warning, and what they tell."""

from dataclasses import replace

import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.backup.result import TopicBackup
from kstreams_assets.backup.verdicts import CHANGELOG_CHECKS, CHECKS, checks_of, evaluate
from kstreams_assets.checks import Evaluation, Severity
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore, StoredTopic
from kstreams_assets.model.spans import Gap, GapCause, TopicFacts
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from tests.backup.samples import FACTS, application, backup, cut, point, result, span, window_backup

APPLICATION = application(
    AppTopic("t", TopicRoles({TopicRole.INPUT})),
    AppTopic("in", TopicRoles({TopicRole.INPUT}), subtopologies=(0,)),
    AppTopic("rep", TopicRoles({TopicRole.REPARTITION}), subtopologies=(1,)),
    AppTopic("wide", TopicRoles({TopicRole.INPUT}), subtopologies=(1,)),
    AppTopic("log", TopicRoles({TopicRole.CHANGELOG}), stores=("s",), subtopologies=(1,)),
    AppTopic("table", TopicRoles({TopicRole.INPUT, TopicRole.CHANGELOG}), subtopologies=(1,)),
    AppTopic("out", TopicRoles({TopicRole.OUTPUT})),
)
GREEN, RED, WARNING = "green", "red", "warning"


def _judged(
    check: str,
    made: TopicBackup,
    *,
    opening: RecoveryPoint | None = None,
    closing: RecoveryPoint | None = None,
) -> Evaluation:
    window = window_backup(made)
    window = replace(window, opening=opening or window.opening, closing=closing or window.closing)
    (found,) = (each for each in evaluate(window, APPLICATION) if each.check == check)
    return found


def _assert_told(verdict: Evaluation, outcome: str, *texts: str) -> None:
    found = GREEN if verdict.passed else RED if verdict.severity is Severity.ERROR else WARNING
    assert found == outcome, verdict
    for text in texts:
        assert text in verdict.explanation


MARKER = Gap(GapCause.TRANSACTION_MARKER, 10, 20, 3)
LOST = Gap(GapCause.RETENTION, 10, 20, 10)
MISSING = result(span(0, 9, partition=1), records=5)
DOUBLED = result(span(0, 9, partition=2), records=10)
HUNDREDS = [result(span(0, 9, partition=n), records=8) for n in range(300)]
ACCOUNTS = {
    "nothing at all": ([], GREEN, "0 records", 0),
    "explained": ([result(span(10, 20), MARKER)], GREEN, "7 records, 3 offsets without one.", 0),
    "a loss": ([result(span(10, 20), LOST)], GREEN, "", 0),
    "kept": ([result(span(0, 9), kept=True)], GREEN, "the earlier backup was kept", 0),
    "missing": ([result(span(0, 9)), MISSING], RED, "t-1: 4 offsets unaccounted", 4),
    "doubled": ([result(span(0, 9)), DOUBLED], RED, "t-2: -1 offsets unaccounted", 1),
    "hundreds in a short text": (HUNDREDS, RED, "and 290 more", 300),
}


@pytest.mark.parametrize("case", ACCOUNTS)
def test_every_offset_accounted(case: str) -> None:
    spans, outcome, text, unaccounted = ACCOUNTS[case]
    verdict = _judged("every_offset_accounted", backup(*spans))
    _assert_told(verdict, outcome, text)
    assert verdict.numbers["unaccounted"] == unaccounted
    assert ("t-0: " in verdict.explanation) == (spans is HUNDREDS)
    assert "t-10: " not in verdict.explanation


def test_red_while_kafka_holds_what_the_first_window_passed_over() -> None:
    passed_over = {TopicPartitionId("t", 0): OffsetRange(0, 186_532)}
    made = replace(backup(result(span(10, 20))), below_first=passed_over)
    verdict = _judged("every_offset_accounted", made)
    _assert_told(verdict, RED, "t-0: offsets 0 to 186531")
    assert verdict.numbers["below_first_window"] == 186_532


LOSSES = (GapCause.RETENTION, GapCause.TOPIC_RECREATED, GapCause.TOPIC_DELETED)


OTHERS = (GapCause.LOG_TRUNCATED, GapCause.NOT_RESTORED)


@pytest.mark.parametrize("cause", [c for c in GapCause if c not in OTHERS])
def test_no_source_loss(cause: GapCause) -> None:
    whole = result(span(0, 9, topic="in"))
    lost = result(span(10, 20, topic="in", partition=3), Gap(cause, 10, 14, 4))
    verdict = _judged("no_source_loss", backup(whole, lost, topic="in"))
    if cause in LOSSES:
        _assert_told(verdict, RED, f"in-3: offsets 10 to 13 ({cause.value}).", "retention.ms")
        assert "in-0" not in verdict.explanation
    else:
        _assert_told(verdict, GREEN)
    assert verdict.numbers == {
        "lost_offsets": 4 * (cause in LOSSES),
        "losses": int(cause in LOSSES),
    }


def test_what_came_after_the_restored_point_is_named() -> None:
    lost = Gap(GapCause.NOT_RESTORED, 120, 170, 50)
    made = backup(result(span(0, 60, topic_id="life-2", read_start=40), lost, records=20))
    verdict = _judged("no_source_loss", made)
    _assert_told(
        verdict, RED, "Not restored: t-0: offsets 120 to 169 (not_restored)", "send the records"
    )
    assert verdict.numbers == {"lost_offsets": 50, "losses": 1}


def _restore(topic_id: str, cluster_id: str) -> StoredRestore:
    return StoredRestore(
        application_id="app",
        restore_id="r1",
        state=RestoreState.COMMITTED,
        changed_at_ms=2,
        created_at_ms=1,
        run_id="run-1",
        point_id="point-1",
        group="app",
        target_cluster_id=cluster_id,
        target_bootstrap_servers="b:1",
        mode=RestoreMode.STATE,
        request="{}",
        topics=(StoredTopic("t", "t", topic_id, (0,), 5),),
    )


@pytest.mark.parametrize(
    ("topic_id", "cluster_id", "outcome"),
    [("life-2", "cluster-2", GREEN), ("life-9", "cluster-2", GREEN), ("life-9", "cluster", RED)],
    ids=["the restore wrote it", "left out of the restore", "recreated since"],
)
def test_a_topic_of_the_cluster_that_a_restore_leads_to_is_unchanged(
    topic_id: str, cluster_id: str, outcome: str
) -> None:
    made = backup(result(span(0, 60, topic_id="life-2")), facts=replace(FACTS, topic_id="life-2"))
    window = replace(window_backup(made), opening=point(1, cut(0, 5)))
    window = replace(window, restores=(_restore(topic_id, cluster_id),))
    (found,) = (one for one in evaluate(window, APPLICATION) if one.check == "topic_unchanged")
    _assert_told(found, outcome, "continues from restore r1" if outcome is GREEN else "created")


def test_losses_of_unknown_size_and_of_a_truncated_log() -> None:
    gone = Gap(GapCause.TOPIC_RECREATED, 900, None, None)
    verdict = _judged("no_source_loss", backup(result(span(0, 9), gone)))
    _assert_told(verdict, RED, "t-0: from offset 900 on, end unknown (topic_recreated)")
    assert verdict.numbers == {"lost_offsets": 0, "losses": 1}
    truncated = Gap(GapCause.LOG_TRUNCATED, 0, 4, 4)
    verdict = _judged("no_source_loss", backup(result(span(0, 9), truncated)))
    _assert_told(verdict, RED, "unclean.leader.election.enable=false")


def _seen(life: str, partitions: int = 1) -> RecoveryPoint:
    return point(5, *(cut(number, 9, topic_id=life) for number in range(partitions)))


COMPACTED = TopicFacts("life-1", 1, 3, (("cleanup.policy", "compact"), ("retention.ms", "5")))


UNSEEN, FIRST, SECOND = point(1), _seen("life-1"), _seen("life-2")
ANEW, AGAIN = replace(FACTS, topic_id="life-2"), replace(FACTS, topic_id="life-3")
# as the points at both ends saw it, as it is now, as it was noted before
LIVES = {
    "the same": (FIRST, FIRST, FACTS, FACTS, GREEN, ""),
    "first window": (UNSEEN, FIRST, FACTS, None, GREEN, ""),
    "recreated in the window": (FIRST, SECOND, ANEW, FACTS, RED, "recreated (ids life-1 -> life"),
    "since the window": (FIRST, FIRST, ANEW, FACTS, RED, "(ids life-1 -> life-2)"),
    "twice": (FIRST, SECOND, AGAIN, FACTS, RED, "(ids life-1 -> life-2 -> life-3)"),
    "while no point saw it": (UNSEEN, SECOND, ANEW, FACTS, RED, "(ids life-1 -> life-2)"),
    "gone": (FIRST, FIRST, None, FACTS, RED, "The topic is gone"),
    "wider": (FIRST, _seen("life-1", 4), FACTS, FACTS, WARNING, "partitions 1 -> 4"),
    "configs": (FIRST, FIRST, COMPACTED, FACTS, WARNING, "cleanup.policy unset -> compact; reten"),
    "configs again": (FIRST, FIRST, FACTS, COMPACTED, WARNING, "cleanup.policy compact -> unset"),
}


@pytest.mark.parametrize("case", LIVES)
def test_topic_unchanged(case: str) -> None:
    opening, closing, facts, previous, outcome, text = LIVES[case]
    made = backup(facts=facts, previous_facts=previous)
    verdict = _judged("topic_unchanged", made, opening=opening, closing=closing)
    _assert_told(verdict, outcome, text)


# a topic, its partitions in the backup, those of each topic when the window closed, why it is red
COUNTS = {
    "as the widest input": ("log", 4, {"log": 4, "rep": 2, "wide": 4, "in": 8}, ""),
    "narrower": ("log", 4, {"log": 4, "rep": 6, "wide": 4}, "4 partitions, but rep has 6"),
    "of another sub-topology": ("log", 4, {"log": 4, "rep": 4, "in": 8}, ""),
    "an input": ("in", 2, {"in": 2, "wide": 9}, ""),
    "an output": ("out", 2, {"out": 2, "wide": 9}, ""),
    "a repartition topic": ("rep", 2, {"rep": 2, "wide": 9}, ""),
    "a table's source": ("table", 2, {"table": 2, "wide": 9}, ""),
    "not in the backup": ("out", 2, {"out": 4}, "Partitions [2, 3]"),
    "before the first point": ("log", 0, {}, ""),
}


@pytest.mark.parametrize("case", COUNTS)
def test_partitions_aligned(case: str) -> None:
    topic, present, counts, red = COUNTS[case]
    cuts = [cut(n, 1, topic=name) for name, count in counts.items() for n in range(count)]
    spans = [result(span(0, 1, topic=topic, partition=n)) for n in range(present)]
    verdict = _judged("partitions_aligned", backup(*spans, topic=topic), closing=point(5, *cuts))
    _assert_told(verdict, RED if red else GREEN, red)
    assert verdict.numbers["partitions"] == counts.get(topic, 0)


WAITS = {"min.compaction.lag.ms": "11"}
POLICIES = {
    "it waits": (WAITS, (), GREEN, "within 1 ms"),
    "for a window": ({"min.compaction.lag.ms": "10"}, (), WARNING, "min.compaction.lag.ms=20"),
    "not at all": ({}, (), WARNING, "min.compaction.lag.ms=20"),
    "and deleted": ({"cleanup.policy": "compact,delete"}, (), WARNING, ""),
    "not compacted": ({"cleanup.policy": "delete"}, (), GREEN, "cleanup.policy=delete"),
    "points without proof": (WAITS, ("point-3", "point-4"), WARNING, "point-3; point-4"),
    "gone": (None, (), GREEN, ""),
}


@pytest.mark.parametrize("case", POLICIES)
def test_compaction_cannot_outrun_backup(case: str) -> None:
    """Windows of the samples are 10 ms long; a hole that spoilt no point does no harm."""
    configs, unproven, outcome, text = POLICIES[case]
    settings = {"cleanup.policy": "compact", **(configs or {})}
    facts = TopicFacts("life-1", 1, 3, tuple(sorted(settings.items())))
    thinned = replace(result(span(0, 9)), first_hole=4, contiguity_known=True)
    made = backup(thinned, facts=None if configs is None else facts)
    made = replace(made, role="changelog", unproven_points=unproven)
    verdict = _judged("compaction_cannot_outrun_backup", made)
    _assert_told(verdict, outcome, text)
    assert verdict.numbers["spans_with_holes"] == 1
    assert verdict.numbers["unproven_points"] == len(unproven)


def test_each_check_of_each_topic_once_and_changelogs_have_one_more() -> None:
    changelog = replace(backup(topic="log"), role="changelog")
    source = replace(backup(topic="table"), role="changelog+input")
    found: dict[str, list[str]] = {}
    for verdict in evaluate(window_backup(changelog, source, backup(topic="in")), APPLICATION):
        assert verdict.window == "w0000"
        found.setdefault(verdict.subject, []).append(verdict.check)
    assert found == {
        "log": [*CHECKS, *CHANGELOG_CHECKS],
        "table": [*CHECKS, *CHANGELOG_CHECKS],
        "in": [*CHECKS],
    }
    assert [*checks_of(is_changelog=True)] == found["log"]
    assert [*checks_of(is_changelog=False)] == found["in"]
    assert all("Red: " in text for text in CHECKS.values())
    assert all("Warning: " in text for text in CHANGELOG_CHECKS.values())


def test_a_window_without_a_point_is_a_warning() -> None:
    of_window = window_backup(backup(result(span(9, 9))))
    before = replace(of_window, closing=of_window.opening)
    for without in (before, replace(of_window, opening=None, closing=None)):
        assert not without.has_point
        found = {one.check: one for one in evaluate(without, application())}
        for check in ("every_offset_accounted", "no_source_loss"):
            assert not found[check].passed
            assert not found[check].is_red
            assert "Nothing was backed up: no recovery point was taken" in found[check].explanation
    assert all(one.passed for one in evaluate(of_window, application()))


def test_a_loss_in_a_window_without_a_point_stays_red() -> None:
    lost = Gap(GapCause.TOPIC_DELETED, 9, None, None)
    of_window = window_backup(backup(result(span(9, 9), lost)))
    without = replace(of_window, closing=of_window.opening)
    found = {one.check: one for one in evaluate(without, application())}
    assert found["no_source_loss"].is_red
