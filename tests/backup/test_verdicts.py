"""Checks: green, red, warning, and what they tell."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.backup.result import TopicLife
from kstreams_assets.backup.verdicts import (
    CHANGELOG_CHECKS,
    CHECKS,
    checks_of,
    compaction_cannot_outrun_backup,
    every_offset_accounted,
    judge,
    no_source_loss,
    partitions_aligned,
    topic_unchanged,
)
from kstreams_assets.checks import Evaluation, Severity
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.warehouse.spans import Gap, GapCause, TopicFacts
from tests.backup.samples import FACTS, application, backup, result, span, window_backup


def _is(verdict: Evaluation, *, passed: bool, severity: Severity = Severity.ERROR) -> bool:
    return (verdict.passed, verdict.severity) == (passed, severity)


class TestEveryOffsetAccounted:
    """No offset is missing or doubled without a cause."""

    def test_red_while_kafka_holds_what_the_first_window_passed_over(self) -> None:
        passed_over = {TopicPartitionId("t", 0): OffsetRange(0, 186_532)}
        made = replace(backup(result(span(10, 20))), below_first=passed_over)
        verdict = every_offset_accounted(made)
        assert not verdict.passed
        assert "t-0: offsets 0 to 186531" in verdict.explanation
        assert verdict.numbers["below_first_window"] == 186_532

    def test_green_with_and_without_explained_gaps(self) -> None:
        marker = Gap(GapCause.TRANSACTION_MARKER, 10, 20, 3)
        verdict = every_offset_accounted(backup(result(span(10, 20), marker)))
        assert _is(verdict, passed=True)
        assert verdict.explanation == "7 records, 3 offsets without one."
        assert verdict.numbers == {
            "offsets": 10,
            "records": 7,
            "missing_offsets": 3,
            "unaccounted": 0,
        }
        assert every_offset_accounted(backup()).passed

    def test_a_loss_is_accounted_for(self) -> None:
        lost = Gap(GapCause.RETENTION, 10, 20, 10)
        assert every_offset_accounted(backup(result(span(10, 20), lost))).passed

    def test_red_names_partition_and_number(self) -> None:
        good, missing, doubled = (
            result(span(0, 9, partition=0)),
            result(span(0, 9, partition=1), records=5),
            result(span(0, 9, partition=2), records=10),
        )
        verdict = every_offset_accounted(backup(good, missing, doubled))
        assert _is(verdict, passed=False)
        assert "t-1: 4 offsets unaccounted; t-2: -1 offsets unaccounted" in verdict.explanation
        assert "t-0" not in verdict.explanation
        assert verdict.numbers["unaccounted"] == 5

    def test_an_earlier_backup_that_was_kept_says_so(self) -> None:
        verdict = every_offset_accounted(backup(result(span(0, 9), kept=True)))
        assert verdict.passed
        assert "the earlier backup was kept" in verdict.explanation

    def test_hundreds_of_partitions_are_a_short_text(self) -> None:
        spans = [result(span(0, 9, partition=n), records=8) for n in range(300)]
        text = every_offset_accounted(backup(*spans)).explanation
        assert "t-9: " in text
        assert "and 290 more" in text
        assert "t-10: " not in text


class TestNoSourceLoss:
    """Kafka still held everything."""

    @pytest.mark.parametrize(
        "cause",
        [
            GapCause.TRANSACTION_MARKER,
            GapCause.ABORTED,
            GapCause.COMPACTED,
            GapCause.PURGED,
            GapCause.UNEXPLAINED,
        ],
    )
    def test_green(self, cause: GapCause) -> None:
        gap = Gap(cause, 10, 20, 3)
        verdict = no_source_loss(backup(result(span(10, 20), gap)))
        assert _is(verdict, passed=True)
        assert verdict.numbers == {"lost_offsets": 0, "losses": 0}

    @pytest.mark.parametrize(
        "cause", [GapCause.RETENTION, GapCause.TOPIC_RECREATED, GapCause.TOPIC_DELETED]
    )
    def test_red_names_topic_partition_offsets_and_cause(self, cause: GapCause) -> None:
        gap = Gap(cause, 10, 14, 4)
        other = result(span(0, 9, topic="orders", partition=0))
        lost = result(span(10, 20, topic="orders", partition=3), gap)
        verdict = no_source_loss(backup(other, lost, topic="orders"))
        assert _is(verdict, passed=False)
        assert f"orders-3: offsets 10 to 13 ({cause.value})." in verdict.explanation
        assert "orders-0" not in verdict.explanation
        assert verdict.numbers == {"lost_offsets": 4, "losses": 1}
        assert verdict.subject == "orders"

    def test_a_loss_of_unknown_size(self) -> None:
        gap = Gap(GapCause.TOPIC_RECREATED, 900, None, None)
        verdict = no_source_loss(backup(result(span(0, 9), gap)))
        assert not verdict.passed
        assert "t-0: from offset 900 on, end unknown (topic_recreated)" in verdict.explanation
        assert verdict.numbers == {"lost_offsets": 0, "losses": 1}


class TestTopicUnchanged:
    """The topic is the one of the window before."""

    def test_green(self) -> None:
        assert _is(topic_unchanged(backup()), passed=True)

    def test_green_for_the_first_window(self) -> None:
        assert topic_unchanged(backup(opened=None, previous_facts=None)).passed

    @pytest.mark.parametrize(
        ("opened", "closed", "now"),
        [
            ("life-1", "life-2", "life-2"),  # in the window
            ("life-1", "life-1", "life-2"),  # since the window
            ("life-1", "life-2", "life-3"),
        ],
    )
    def test_red_when_recreated(self, opened: str, closed: str, now: str) -> None:
        verdict = topic_unchanged(
            backup(
                opened=TopicLife(opened, 1),
                closed=TopicLife(closed, 1),
                facts=replace(FACTS, topic_id=now),
            )
        )
        assert _is(verdict, passed=False)
        ids = " -> ".join(dict.fromkeys([opened, closed, now]))
        assert f"deleted and created anew (ids {ids})" in verdict.explanation

    def test_red_when_gone(self) -> None:
        verdict = topic_unchanged(backup(facts=None))
        assert _is(verdict, passed=False)
        assert "The topic is gone" in verdict.explanation

    def test_a_warning_when_partitions_were_added(self) -> None:
        verdict = topic_unchanged(backup(closed=TopicLife("life-1", 4)))
        assert _is(verdict, passed=False, severity=Severity.WARN)
        assert "partitions 1 -> 4" in verdict.explanation

    def test_a_warning_when_configs_changed(self) -> None:
        now = TopicFacts("life-1", 1, 3, (("cleanup.policy", "compact"), ("retention.ms", "5")))
        verdict = topic_unchanged(backup(facts=now))
        assert _is(verdict, passed=False, severity=Severity.WARN)
        assert "cleanup.policy unset -> compact; retention.ms 1000 -> 5" in verdict.explanation
        back = topic_unchanged(backup(facts=FACTS, previous_facts=now))
        assert "cleanup.policy compact -> unset" in back.explanation


class TestPartitionsAligned:
    """All partitions, as many as the sub-topology needs."""

    APPLICATION = application(
        AppTopic("in", TopicRoles({TopicRole.INPUT}), subtopologies=(0,)),
        AppTopic("rep", TopicRoles({TopicRole.REPARTITION}), subtopologies=(1,)),
        AppTopic("wide", TopicRoles({TopicRole.INPUT}), subtopologies=(1,)),
        AppTopic("log", TopicRoles({TopicRole.CHANGELOG}), stores=("s",), subtopologies=(1,)),
        AppTopic("table", TopicRoles({TopicRole.INPUT, TopicRole.CHANGELOG}), subtopologies=(1,)),
        AppTopic("out", TopicRoles({TopicRole.OUTPUT})),
    )

    def _judged(self, topic: str, present: int, **counts: int) -> Evaluation:
        spans = [result(span(0, 1, topic=topic, partition=n)) for n in range(present)]
        return partitions_aligned(backup(*spans, topic=topic), self.APPLICATION, counts)

    def test_a_changelog_has_as_many_as_the_widest_topic_its_sub_topology_reads(self) -> None:
        assert self._judged("log", 4, log=4, rep=2, wide=4, **{"in": 8}).passed
        verdict = self._judged("log", 4, log=4, rep=6, wide=4, **{"in": 4})
        assert _is(verdict, passed=False)
        assert "4 partitions, but rep has 6" in verdict.explanation

    def test_topics_of_other_sub_topologies_do_not_count(self) -> None:
        assert self._judged("log", 4, log=4, rep=4, **{"in": 8}).passed

    @pytest.mark.parametrize("topic", ["in", "out", "rep", "table"])
    def test_other_topics_may_have_any_number(self, topic: str) -> None:
        assert self._judged(topic, 2, **{topic: 2, "wide": 9}).passed

    def test_a_partition_that_is_not_in_the_backup(self) -> None:
        verdict = self._judged("out", 2, out=4)
        assert _is(verdict, passed=False)
        assert "Partitions [2, 3]" in verdict.explanation
        assert verdict.numbers == {"partitions": 4}

    def test_nothing_is_known_of_a_window_before_the_first_point(self) -> None:
        assert self._judged("log", 0).passed


class TestCompactionCannotOutrunBackup:
    """Windows of the samples are 10 ms long."""

    def _judged(
        self, configs: Mapping[str, str], *unproven: str, hole: int | None = None
    ) -> Evaluation:
        settings = {"cleanup.policy": "compact", **configs}
        facts = TopicFacts("life-1", 1, 3, tuple(sorted(settings.items())))
        thinned = replace(result(span(0, 9)), first_hole=hole, contiguity_known=True)
        made = replace(backup(thinned, facts=facts), unproven_points=unproven)
        return compaction_cannot_outrun_backup(made)

    def test_green_when_compaction_waits_for_longer_than_a_window(self) -> None:
        verdict = self._judged({"min.compaction.lag.ms": "11"})
        assert _is(verdict, passed=True, severity=Severity.WARN)
        assert "enough if the backup comes within 1 ms" in verdict.explanation
        assert verdict.numbers == {
            "min_compaction_lag_ms": 11,
            "window_ms": 10,
            "spans_with_holes": 0,
            "unproven_points": 0,
        }

    @pytest.mark.parametrize("lag", [{}, {"min.compaction.lag.ms": "10"}])
    def test_a_warning_when_it_does_not(self, lag: dict[str, str]) -> None:
        verdict = self._judged(lag)
        assert _is(verdict, passed=False, severity=Severity.WARN)
        assert "min.compaction.lag.ms=20" in verdict.explanation

    def test_compacted_and_deleted(self) -> None:
        assert not self._judged({"cleanup.policy": "compact,delete"}).passed

    def test_a_topic_that_is_not_compacted(self) -> None:
        verdict = self._judged({"cleanup.policy": "delete"})
        assert verdict.passed
        assert "not compacted (cleanup.policy=delete)" in verdict.explanation

    def test_points_that_lost_their_proof_are_named(self) -> None:
        verdict = self._judged({"min.compaction.lag.ms": "11"}, "point-3", "point-4", hole=4)
        assert _is(verdict, passed=False, severity=Severity.WARN)
        assert "point-3; point-4" in verdict.explanation
        assert verdict.numbers["spans_with_holes"] == 1

    def test_holes_that_spoilt_no_point(self) -> None:
        assert self._judged({"min.compaction.lag.ms": "11"}, hole=4).passed

    def test_a_topic_that_is_gone(self) -> None:
        assert compaction_cannot_outrun_backup(backup(facts=None)).passed


def test_changelogs_have_one_check_more() -> None:
    changelog = replace(backup(topic="log"), role="changelog")
    source = replace(backup(topic="table"), role="changelog+input")
    window = window_backup(changelog, source, backup(topic="in"))
    found: dict[str, list[str]] = {}
    for verdict in judge(window, TestPartitionsAligned.APPLICATION):
        found.setdefault(verdict.subject, []).append(verdict.check)
    assert found == {
        "log": [*CHECKS, *CHANGELOG_CHECKS],
        "table": [*CHECKS, *CHANGELOG_CHECKS],
        "in": [*CHECKS],
    }
    assert [*checks_of(is_changelog=True)] == found["log"]
    assert [*checks_of(is_changelog=False)] == found["in"]


def test_each_check_of_each_topic_once() -> None:
    window = window_backup(backup(topic="in"), backup(topic="out"), index=5)
    verdicts = judge(window, TestPartitionsAligned.APPLICATION)
    assert [(v.subject, v.check) for v in verdicts] == [
        (topic, check) for topic in ("in", "out") for check in CHECKS
    ]
    assert {v.window for v in verdicts} == {"w0000"}


def test_each_check_says_when_it_is_red() -> None:
    assert all("Red: " in text for text in CHECKS.values())
    assert all("Warning: " in text for text in CHANGELOG_CHECKS.values())
