"""Why offsets hold no record: proved from the log."""

import tracemalloc
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.backup.accounting import Accountant, LogInspection, explain, first_hole
from kstreams_assets.backup.planner import TopicPlan
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_batch import RangeTally, RawBatch
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.model.spans import Gap, GapCause, SpanContent, SpanId, SpanResult
from tests.backup.samples import span, window

_KINDS = ("visible", "aborted", "marker", "hole")


def _log(kinds: list[str]) -> list[RawBatch]:
    """A log of one batch for each offset that holds something."""
    return [
        RawBatch(
            base_offset=offset,
            last_offset=offset,
            record_count=1,
            producer_id=1,
            producer_epoch=0,
            is_transactional=True,
            is_control=kind == "marker",
            control_type="commit" if kind == "marker" else None,
            max_timestamp=0,
            aborted=None if kind == "undecided" else kind == "aborted",
        )
        for offset, kind in enumerate(kinds)
        if kind != "hole"
    ]


def _look(log: list[RawBatch], start: int, end: int, *, visible_from: int = 0) -> LogInspection:
    """What a look at this log gives of a range; below `visible_from` it was gone."""
    tally = RangeTally(start, end)
    tally.skip(visible_from)
    for batch in log:
        tally.add(batch)
    tally.finish()
    return LogInspection(tally)


def _explained(
    kinds: list[str], start: int, end: int, stored: int
) -> tuple[dict[GapCause, int], int]:
    """(cause -> offsets, offsets unaccounted) of a span of which `stored` records are stored."""
    plan = span(0, end, read_start=start, gaps=[Gap(GapCause.PURGED, 0, start, start)])
    gaps = explain(plan, stored, _look(_log(kinds), start, end))
    assert all((gap.start, gap.end) == (start, end) for gap in gaps)
    result = SpanResult(plan, SpanContent(records=stored), (*plan.gaps, *gaps))
    return {gap.cause: gap.offsets or 0 for gap in gaps}, result.unaccounted


@given(st.lists(st.sampled_from(_KINDS), max_size=20), st.data())
def test_against_the_log_offset_by_offset(kinds: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(kinds)))
    end = data.draw(st.integers(start, len(kinds)))
    inside = Counter(kinds[start:end])
    found, unaccounted = _explained(kinds, start, end, inside["visible"])
    expected = {
        GapCause.TRANSACTION_MARKER: inside["marker"],
        GapCause.ABORTED: inside["aborted"],
        GapCause.COMPACTED: inside["hole"],
    }
    assert found == {cause: count for cause, count in expected.items() if count}
    assert unaccounted == 0


@given(st.lists(st.sampled_from(_KINDS), min_size=1, max_size=20), st.data())
def test_a_record_that_the_log_has_and_the_backup_lacks(
    kinds: list[str], data: st.DataObject
) -> None:
    inside = Counter(kinds)
    stored = data.draw(st.integers(0, inside["visible"]))
    found, unaccounted = _explained(kinds, 0, len(kinds), stored)
    assert unaccounted == found.get(GapCause.UNEXPLAINED, 0) == inside["visible"] - stored
    assert found.get(GapCause.COMPACTED, 0) == inside["hole"]


@given(st.lists(st.sampled_from(["visible", "aborted", "marker"]), max_size=20), st.integers(1, 9))
def test_a_record_that_is_stored_twice(kinds: list[str], doubled: int) -> None:
    """Markers and aborted records make no room for it."""
    _, unaccounted = _explained(kinds, 0, len(kinds), kinds.count("visible") + doubled)
    assert unaccounted == -doubled


@given(st.lists(st.sampled_from(_KINDS), max_size=20), st.data())
def test_records_compacted_between_the_read_and_the_scan(
    kinds: list[str], data: st.DataObject
) -> None:
    stored = kinds.count("visible")
    now = [
        "hole" if data.draw(st.booleans(), label=f"{offset} is removed") else kind
        for offset, kind in enumerate(kinds)
    ]
    found, unaccounted = _explained(now, 0, len(now), stored)
    assert unaccounted == 0
    assert GapCause.UNEXPLAINED not in found


def test_a_record_of_an_open_transaction_is_not_passed_over() -> None:
    found, unaccounted = _explained(["visible", "undecided", "marker"], 0, 3, 1)
    assert found == {GapCause.TRANSACTION_MARKER: 1, GapCause.UNEXPLAINED: 1}
    assert unaccounted == 1


def test_a_span_that_was_not_read_has_nothing_to_explain() -> None:
    assert _explained(["visible"] * 3, 3, 3, 0) == ({}, 0)


@given(st.lists(st.sampled_from(_KINDS), min_size=1, max_size=20), st.data())
def test_what_was_deleted_before_the_scan_stays_unexplained(
    kinds: list[str], data: st.DataObject
) -> None:
    """A record that was not stored cannot pass for compacted once its proof is gone."""
    log_start = data.draw(st.integers(1, len(kinds)))
    stored = kinds.count("visible")
    plan = span(0, len(kinds))
    log = _log(["hole"] * log_start + kinds[log_start:])
    gaps = explain(plan, stored, _look(log, 0, len(kinds), visible_from=log_start))
    found = {gap.cause: gap.offsets for gap in gaps}
    unproved = sum(kind != "visible" for kind in kinds[:log_start])
    # Visible records of the deleted part are stored; only what had no record is in question.
    holes = kinds[log_start:].count("hole")
    assert found.get(GapCause.COMPACTED, 0) == holes
    assert found.get(GapCause.UNEXPLAINED, 0) == unproved


class TestFirstHole:
    """The lowest offset that the log did not hold any more."""

    @given(st.lists(st.sampled_from(_KINDS), max_size=20), st.data())
    def test_against_the_log_offset_by_offset(self, kinds: list[str], data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(kinds)))
        end = data.draw(st.integers(start, len(kinds)))
        expected = next((o for o in range(start, end) if kinds[o] == "hole"), None)
        assert first_hole(span(start, end), _look(_log(kinds), start, end)) == expected

    def test_markers_and_aborted_records_are_no_holes(self) -> None:
        look = _look(_log(["visible", "aborted", "marker", "undecided"]), 0, 4)
        assert first_hole(span(0, 4), look) is None

    def test_every_offset_a_record_needs_no_look(self) -> None:
        assert first_hole(span(3, 9), None) is None

    def test_what_retention_took_before_the_read(self) -> None:
        look = _look(_log(["visible"] * 9), 5, 9)
        assert first_hole(span(3, 9, read_start=5), look) == 3
        assert first_hole(span(3, 9, read_start=9), None) == 3

    def test_what_was_deleted_before_the_look(self) -> None:
        look = _look(_log(["hole"] * 5 + ["visible"] * 4), 3, 9, visible_from=5)
        assert first_hole(span(3, 9), look) == 3
        look = _look(_log(["visible"] * 9), 5, 9, visible_from=5)
        assert first_hole(span(5, 9), look) is None
        # DeleteRecords cuts through a batch, which is still there as a whole
        (first, *_) = _log(["visible"])
        whole = first._replace(last_offset=8, record_count=9)
        assert first_hole(span(3, 9), _look([whole], 3, 9, visible_from=5)) == 3


class TestResults:
    """What is recorded of each span, with the look at the log replaced."""

    KINDS = ("visible", "visible", "marker", "hole", "visible", "visible")

    def _results(
        self, monkeypatch: pytest.MonkeyPatch, role: TopicRole, *stored: int
    ) -> list[SpanResult]:
        """Two spans, [0, 3) and [3, 6), of which so many records are stored."""
        monkeypatch.setattr(RawLogReader, "scan", lambda *_, **__: iter(_log(list(self.KINDS))))
        spans = (span(0, 3), span(3, 6, index=1))
        topics = [TopicPlan(one.window, AppTopic("t", TopicRoles({role})), (one,)) for one in spans]
        contents = {
            SpanId(one.window.key, one.partition): SpanContent(records=count)
            for one, count in zip(spans, stored, strict=True)
        }
        connection = KafkaConnection(bootstrap_servers="localhost:1")
        with Accountant(connection, stall_s=1) as accountant:
            found = accountant.results(topics, contents)
        return [found[topic.id][0] for topic in topics]

    def test_changelogs_tell_their_first_hole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self._results(monkeypatch, TopicRole.CHANGELOG, 2, 2)
        assert [(r.first_hole, r.contiguity_known) for r in found] == [(None, True), (3, True)]
        assert [gap.cause for r in found for gap in r.gaps] == [
            GapCause.TRANSACTION_MARKER,
            GapCause.COMPACTED,
        ]

    def test_a_span_without_missing_offsets_is_not_looked_at(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self._results(monkeypatch, TopicRole.CHANGELOG, 2, 3)
        assert [(r.first_hole, r.contiguity_known) for r in found] == [(None, True), (None, True)]

    def test_other_topics_do_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self._results(monkeypatch, TopicRole.OUTPUT, 2, 2)
        assert [(r.first_hole, r.contiguity_known) for r in found] == [(None, False)] * 2


def test_the_look_does_not_grow_with_the_number_of_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 30_000
    (batch,) = _log(["marker"])

    def scan(*_: object, **__: object) -> Iterator[RawBatch]:
        for offset in range(count):
            yield batch._replace(base_offset=offset, last_offset=offset)

    monkeypatch.setattr(RawLogReader, "scan", scan)
    topic = AppTopic("t", TopicRoles({TopicRole.INPUT}))
    plan = TopicPlan(window(0), topic, (span(0, count),))
    connection = KafkaConnection(bootstrap_servers="localhost:1")
    with Accountant(connection, stall_s=1) as accountant:
        tracemalloc.start()
        try:
            ((result,),) = accountant.results([plan], {}).values()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert {gap.cause: gap.offsets for gap in result.gaps} == {GapCause.TRANSACTION_MARKER: count}
    assert peak < 1_000_000
