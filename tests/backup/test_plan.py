"""What a run reads of a window, what Kafka can no longer give, and what adds up to what."""

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.backup.commits import commit_groups
from kstreams_assets.backup.planner import LogState, plan_span, read_ranges
from kstreams_assets.backup.windows import Edges
from kstreams_assets.model.lineage import Continuation, Origins
from kstreams_assets.model.restored_ranges import RestoredRange
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.model.spans import (
    LOSSES,
    Gap,
    GapCause,
    Position,
    SpanContent,
    SpanPlan,
    SpanResult,
)
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from spark_resources.work import ReadRange
from tests.backup.samples import backup, cut, point, result, span, window, window_backup

T0 = TopicPartitionId("t", 0)
T1 = TopicPartitionId("t", 1)
HERE = Position("life-1", 100)
VANISHED = Edges(T0, HERE, HERE, 100, vanished=True)


def _edges(start: int | None, end: int, *, life: str = "life-1", log_start: int = 0) -> Edges:
    begin = None if start is None else Position("life-1", start)
    return Edges(T0, begin, Position(life, end), log_start)


def _log(start: int, committed: int | None = None, *, life: str | None = "life-1") -> LogState:
    return LogState(life, start, committed)


NEW_LIFE = _log(3, life="life-2")
GONE = _log(0, life=None)
# (edges, log, of a repartition topic) -> start, read start, end; gaps
SPANS = {
    "whole": (_edges(100, 150), _log(20), False, "100 100 150"),
    "empty": (_edges(100, 100), _log(100), False, "100 100 100"),
    "retention: a part": (_edges(100, 150), _log(120), False, "100 120 150; retention 100-120"),
    "retention: all": (_edges(100, 150), _log(500), False, "100 150 150; retention 100-150"),
    "new partition": (_edges(None, 50, log_start=7), _log(7), False, "7 7 50"),
    "recreated in the window": (
        *(_edges(900, 50, life="life-2", log_start=3), NEW_LIFE, False),
        "3 3 50; topic_recreated 900-None",
    ),
    "recreated since": (_edges(100, 150), NEW_LIFE, False, "100 150 150; topic_recreated 100-150"),
    "deleted since": (_edges(100, 150), GONE, False, "100 150 150; topic_deleted 100-150"),
    "vanished, recreated": (VANISHED, NEW_LIFE, False, "100 100 100; topic_recreated 100-None"),
    "vanished": (VANISHED, GONE, False, "100 100 100; topic_deleted 100-None"),
    "purged": (_edges(100, 150), _log(130, 140), True, "100 140 150; purged 100-140"),
    "lost, above the committed offset": (
        *(_edges(100, 150), _log(145, 140), True),
        "100 145 150; purged 100-140; retention 140-145",
    ),
    "committed, of no repartition topic": (_edges(100, 150), _log(0, 140), False, "100 100 150"),
    "committed further on": (_edges(100, 150), _log(0, 800), True, "100 150 150; purged 100-150"),
}


@pytest.mark.parametrize("case", SPANS)
def test_plan_span(case: str) -> None:
    edges, log, repartition, expected = SPANS[case]
    plan = plan_span(window(3), edges, log, repartition=repartition)
    gaps = "".join(f"; {gap.cause} {gap.start}-{gap.end}" for gap in plan.gaps)
    assert f"{plan.start} {plan.read_start} {plan.end}{gaps}" == expected
    assert (plan.window, plan.partition, plan.topic_id) == (window(3), T0, edges.end.topic_id)
    assert all(g.offsets == (None if g.end is None else g.end - g.start) for g in plan.gaps)
    assert plan.log_start == log.log_start
    assert plan.continues == (edges.start is not None and edges.start.topic_id == plan.topic_id)


SINCE = Continuation(
    cast("StoredRestore", None),
    point(5, cut(0, 120)),
    point(7, cut(0, 170)),
    Origins(
        {
            ("t", 0, "life-2"): RestoredRange(
                "app", "r1", "point-5", RestoreState.COMMITTED,
                T0, T0, "life-2", OffsetRange(0, 40),
            )
        }
    ),
)  # fmt: skip
"""The point at offset 120 was restored, another one at 170 was the last before the loss."""
LEFT = _edges(150, 60, life="life-2")
CONTINUED = {
    "the first window there": (
        *(LEFT, _log(0, life="life-2"), False),
        "0 40 60; not_restored 120-170; restored 0-40",
    ),
    "records in flight": (
        *(LEFT, _log(0, 50, life="life-2"), True),
        "0 50 60; not_restored 120-170; restored 0-40; purged 40-50",
    ),
    "nothing was written since": (
        *(_edges(150, 40, life="life-2"), _log(0, life="life-2"), False),
        "0 40 40; not_restored 120-170; restored 0-40",
    ),
    "a window that had closed before": (_edges(150, 170), NEW_LIFE, False, "150 150 150"),
    "the same, backed up already": (
        *(replace(_edges(150, 170), recorded=True), NEW_LIFE, False),
        "150 170 170; topic_recreated 150-170",
    ),
    "not on the new cluster": (VANISHED, GONE, False, "100 100 100; not_restored 120-170"),
    "gone there since": (
        *(_edges(None, 60, life="life-2"), GONE, False),
        "0 60 60; restored 0-40; topic_deleted 40-60",
    ),
    "another topic since": (
        *(_edges(900, 50, life="life-3"), _log(0, life="life-3"), False),
        "0 0 50; not_restored 120-900",
    ),
    "later windows": (
        *(Edges(T0, Position("life-2", 60), Position("life-2", 80), 0), _log(0, life="life-2")),
        *(False, "60 60 80"),
    ),
}


@pytest.mark.parametrize("case", CONTINUED)
def test_plan_span_of_an_application_that_continues_from_a_restore(case: str) -> None:
    edges, log, repartition, expected = CONTINUED[case]
    plan = plan_span(window(3), edges, log, repartition=repartition, since=SINCE)
    gaps = "".join(f"; {gap.cause} {gap.start}-{gap.end}" for gap in plan.gaps)
    assert f"{plan.start} {plan.read_start} {plan.end}{gaps}" == expected
    held = result(plan, *plan.gaps, records=plan.to_read)
    assert held.unaccounted == 0


@given(
    start=st.none() | st.integers(0, 30),
    length=st.integers(0, 30),
    first=st.integers(0, 30),
    log_start=st.integers(0, 80),
    committed=st.none() | st.integers(0, 80),
    repartition=st.booleans(),
    ends_as=st.sampled_from(["life-1", "life-2"]),
    now=st.sampled_from(["life-1", "life-2", None]),
)
def test_every_offset_is_read_or_in_one_gap(
    start: int | None,
    length: int,
    first: int,
    log_start: int,
    committed: int | None,
    repartition: bool,
    ends_as: str,
    now: str | None,
) -> None:
    edges = _edges(start, (start or 0) + length, life=ends_as, log_start=first)
    log = LogState(now, log_start, committed)
    plan = plan_span(window(3), edges, log, repartition=repartition)
    assert plan.start <= plan.read_start <= plan.end
    inside = sorted((g.start, g.end) for g in plan.gaps if g.end is not None)
    reached = plan.start
    for begin, end in inside:
        assert begin == reached
        reached = end
    assert reached == plan.read_start
    if plan.to_read:
        assert now == ends_as
        assert plan.read_start >= log_start


@pytest.mark.parametrize(
    ("gap", "text"),
    [
        (Gap(GapCause.RETENTION, 5, 9, 4), "offsets 5 to 8 (retention)"),
        (Gap(GapCause.ABORTED, 5, 9, 2), "2 offsets within 5 to 8 (aborted)"),
        (
            Gap(GapCause.TOPIC_RECREATED, 5, None, None),
            "from offset 5 on, end unknown (topic_recreated)",
        ),
    ],
)
def test_a_gap_in_words(gap: Gap, text: str) -> None:
    assert gap.describe() == text
    assert gap.is_loss == (gap.cause in LOSSES)


MARKER = Gap(GapCause.TRANSACTION_MARKER, 10, 20, 3)
RETENTION = Gap(GapCause.RETENTION, 0, 10, 10)
RECREATED = Gap(GapCause.TOPIC_RECREATED, 500, None, None)
UNEXPLAINED = Gap(GapCause.UNEXPLAINED, 10, 20, 2)
OF_AN_EARLIER_TOPIC = Gap(GapCause.TOPIC_RECREATED, 2, 7, 5)


RESULTS = {
    "all explained": (result(span(0, 20), RETENTION, MARKER, records=7), 0),
    "empty": (result(span(5, 5)), 0),
    "too few": (result(span(0, 20), RETENTION, MARKER, records=5), 2),
    "too many": (result(span(0, 20), RETENTION, MARKER, records=9), -2),
    "unexplained": (result(span(0, 20), UNEXPLAINED, records=18), 2),
    "of an earlier topic": (result(span(5, 20), OF_AN_EARLIER_TOPIC, records=10), 5),
    "of unknown size": (result(span(5, 20), RECREATED, records=15), 0),
}


@pytest.mark.parametrize("case", RESULTS)
def test_offsets_that_are_neither_a_record_nor_explained(case: str) -> None:
    found, unaccounted = RESULTS[case]
    assert found.unaccounted == unaccounted


def test_sums_over_spans() -> None:
    contents = [
        SpanContent(records=5, bytes=100, stored_bytes=40, tombstones=1),
        SpanContent(records=7, bytes=200, stored_bytes=50, tombstones=2),
    ]
    topic = backup(
        *(SpanResult(span(0, 10, partition=n), one, ()) for n, one in enumerate(contents))
    )
    assert (topic.records, topic.bytes, topic.stored_bytes) == (12, 300, 90)
    assert (topic.tombstones, topic.missing_offsets) == (3, 8)
    assert window_backup(topic, topic).records == 24


def test_spans_that_adjoin_are_one_range() -> None:
    other = span(5, 9, partition=1)
    adjacent = [span(10, 20, index=1), span(0, 10), span(20, 20, index=2), span(20, 35, index=3)]
    assert read_ranges([*adjacent, other]) == [ReadRange(T0, 0, 35), ReadRange(T1, 5, 9)]
    apart = [span(0, 10), span(20, 35, index=3), other]
    ranges = [ReadRange(T0, 0, 10), ReadRange(T0, 20, 35), ReadRange(T1, 5, 9)]
    assert read_ranges(apart) == ranges
    not_read = span(10, 20, index=1, read_start=20)
    assert read_ranges([not_read, *apart]) == ranges
    assert read_ranges([span(4, 9, read_start=9)]) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4)), max_size=9))
def test_ranges_hold_exactly_what_the_spans_read(steps: list[tuple[int, int, int]]) -> None:
    ends = [0, 0, 0]
    spans: list[SpanPlan] = []
    for index, (partition, skipped, length) in enumerate(steps):
        start = ends[partition]
        ends[partition] = start + skipped + length
        spans.append(
            span(
                start,
                ends[partition],
                index=index,
                partition=partition,
                read_start=start + skipped,
            )
        )
    reads = read_ranges(spans)
    found = sorted((r.partition, o) for r in reads for o in range(r.start, r.end))
    assert found == sorted((s.partition, o) for s in spans for o in range(s.read_start, s.end))
    for one in reads:  # none could be joined with another
        assert not any(o.partition == one.partition and o.end == one.start for o in reads)


GROUPS = {
    "bounded, in order": ({0: 4, 1: 5, 2: 2, 3: 4}, 9, 9, [(0, 1), (2, 3)]),
    "one above the limit": ({0: 1, 1: 100, 2: 1}, 10, 9, [(0,), (1,), (2,)]),
    "empty windows cost nothing": ({0: 0, 1: 0, 2: 0}, 1, 9, [(0, 1, 2)]),
    "so many windows": ({0: 0, 1: 0, 2: 0}, 1, 2, [(0, 1), (2,)]),
    "none": ({}, 1, 9, []),
}


@pytest.mark.parametrize("case", GROUPS)
def test_long_backfills_commit_in_groups(case: str) -> None:
    sizes, limit, most, groups = GROUPS[case]
    unordered = {window(i): sizes[i] for i in reversed(sizes)}
    assert commit_groups(unordered, limit_bytes=limit, most=most) == [
        tuple(map(window, group)) for group in groups
    ]
