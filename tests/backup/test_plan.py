"""What a run reads of a window, and what Kafka can no longer give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.backup.plan import LogState, commit_groups, plan_span, read_ranges
from kstreams_assets.backup.windows import Edges
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.warehouse.spans import LOSSES, Gap, GapCause, Position, SpanPlan
from spark_resources.work import ReadRange
from tests.backup.samples import span, window

T0 = TopicPartitionId("t", 0)
T1 = TopicPartitionId("t", 1)


def _edges(start: int | None, end: int, *, life: str = "life-1", log_start: int = 0) -> Edges:
    begin = None if start is None else Position("life-1", start)
    return Edges(T0, begin, Position(life, end), log_start)


def _plan(edges: Edges, log: LogState, *, repartition: bool = False) -> SpanPlan:
    return plan_span(window(3), edges, log, repartition=repartition)


class TestPlanSpan:
    """Every cause, alone and together."""

    def test_a_whole_span(self) -> None:
        plan = _plan(_edges(100, 150), LogState("life-1", 20))
        assert (plan.window, plan.partition, plan.topic_id) == (window(3), T0, "life-1")
        assert (plan.start, plan.end, plan.read_start, plan.to_read) == (100, 150, 100, 50)
        assert (plan.continues, plan.gaps, plan.log_start) == (True, (), 20)

    def test_an_empty_span(self) -> None:
        plan = _plan(_edges(100, 100), LogState("life-1", 100))
        assert (plan.start, plan.end, plan.to_read, plan.gaps) == (100, 100, 0, ())

    def test_retention_took_the_first_part(self) -> None:
        plan = _plan(_edges(100, 150), LogState("life-1", 120))
        assert (plan.start, plan.read_start, plan.end) == (100, 120, 150)
        assert plan.gaps == (Gap(GapCause.RETENTION, 100, 120, 20),)

    def test_retention_took_everything(self) -> None:
        plan = _plan(_edges(100, 150), LogState("life-1", 500))
        assert (plan.read_start, plan.to_read) == (150, 0)
        assert plan.gaps == (Gap(GapCause.RETENTION, 100, 150, 50),)

    def test_a_new_partition_begins_at_its_log_start(self) -> None:
        plan = _plan(_edges(None, 50, log_start=7), LogState("life-1", 7))
        assert (plan.start, plan.read_start, plan.continues, plan.gaps) == (7, 7, False, ())

    def test_a_topic_recreated_in_the_window_begins_anew_and_tells_the_loss(self) -> None:
        plan = _plan(_edges(900, 50, life="life-2", log_start=3), LogState("life-2", 3))
        assert (plan.start, plan.end, plan.read_start) == (3, 50, 3)
        assert (plan.topic_id, plan.continues) == ("life-2", False)
        assert plan.gaps == (Gap(GapCause.TOPIC_RECREATED, 900, None, None),)

    @pytest.mark.parametrize(
        ("now", "cause"), [("life-2", GapCause.TOPIC_RECREATED), (None, GapCause.TOPIC_DELETED)]
    )
    def test_a_topic_that_went_after_the_window_is_lost_whole(
        self, now: str | None, cause: GapCause
    ) -> None:
        plan = _plan(_edges(100, 150), LogState(now, 0))
        assert (plan.start, plan.read_start, plan.end) == (100, 150, 150)
        assert plan.gaps == (Gap(cause, 100, 150, 50),)

    @pytest.mark.parametrize(
        ("now", "cause"), [("life-2", GapCause.TOPIC_RECREATED), (None, GapCause.TOPIC_DELETED)]
    )
    def test_a_partition_that_vanished_in_the_window(
        self, now: str | None, cause: GapCause
    ) -> None:
        here = Position("life-1", 100)
        plan = _plan(Edges(T0, here, here, 100, vanished=True), LogState(now, 0))
        assert (plan.start, plan.end, plan.to_read) == (100, 100, 0)
        assert plan.gaps == (Gap(cause, 100, None, None),)

    def test_purged_repartition_records_are_no_loss(self) -> None:
        log = LogState("life-1", 130, committed=140)
        plan = _plan(_edges(100, 150), log, repartition=True)
        assert (plan.read_start, plan.to_read) == (140, 10)
        assert plan.gaps == (Gap(GapCause.PURGED, 100, 140, 40),)
        assert not any(gap.is_loss for gap in plan.gaps)

    def test_repartition_records_above_the_committed_offset_can_be_lost(self) -> None:
        log = LogState("life-1", 145, committed=140)
        plan = _plan(_edges(100, 150), log, repartition=True)
        assert plan.read_start == 145
        assert plan.gaps == (
            Gap(GapCause.PURGED, 100, 140, 40),
            Gap(GapCause.RETENTION, 140, 145, 5),
        )

    def test_a_committed_offset_matters_for_repartition_topics_only(self) -> None:
        plan = _plan(_edges(100, 150), LogState("life-1", 0, committed=140))
        assert (plan.read_start, plan.gaps) == (100, ())

    def test_a_committed_offset_beyond_the_window(self) -> None:
        log = LogState("life-1", 0, committed=800)
        plan = _plan(_edges(100, 150), log, repartition=True)
        assert (plan.read_start, plan.gaps) == (150, (Gap(GapCause.PURGED, 100, 150, 50),))

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
        self,
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
        plan = _plan(edges, log, repartition=repartition)
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


class TestGap:
    """In words."""

    def test_what_is_a_loss(self) -> None:
        recreated = {GapCause.TOPIC_RECREATED, GapCause.TOPIC_DELETED, GapCause.LOG_TRUNCATED}
        assert recreated | {GapCause.RETENTION} == LOSSES
        assert [c for c in GapCause if Gap(c, 0, 1, 1).is_loss] == sorted(
            LOSSES, key=list(GapCause).index
        )

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
    def test_describe(self, gap: Gap, text: str) -> None:
        assert gap.describe() == text


class TestReadRanges:
    """As few Kafka reads as possible."""

    def test_windows_that_follow_each_other_are_one_read(self) -> None:
        spans = [
            span(10, 20, index=1),
            span(0, 10, index=0),
            span(20, 20, index=2),
            span(20, 35, index=3),
            span(5, 9, index=0, partition=1),
        ]
        assert read_ranges(spans) == [(ReadRange(T0, 0, 35), ReadRange(T1, 5, 9))]

    def test_a_hole_between_spans_makes_a_second_read(self) -> None:
        spans = [span(0, 10), span(20, 35, index=3), span(5, 9, partition=1)]
        assert read_ranges(spans) == [
            (ReadRange(T0, 0, 10), ReadRange(T1, 5, 9)),
            (ReadRange(T0, 20, 35),),
        ]

    def test_what_is_not_read_makes_no_hole_of_its_own(self) -> None:
        spans = [span(0, 10), span(10, 20, index=1, read_start=20), span(20, 30, index=2)]
        assert read_ranges(spans) == [(ReadRange(T0, 0, 10),), (ReadRange(T0, 20, 30),)]

    def test_nothing_to_read(self) -> None:
        assert read_ranges([]) == []
        assert read_ranges([span(4, 9, read_start=9)]) == []

    @given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4)), max_size=9))
    def test_ranges_hold_exactly_what_the_spans_read(
        self, steps: list[tuple[int, int, int]]
    ) -> None:
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
        for read in reads:
            assert len({r.partition for r in read}) == len(read)
        found = sorted(
            (r.partition, o) for read in reads for r in read for o in range(r.start, r.end)
        )
        assert found == sorted((s.partition, o) for s in spans for o in range(s.read_start, s.end))
        per_partition = [r for read in reads for r in read]
        for one in per_partition:  # none could be joined with another
            assert not any(
                o.partition == one.partition and o.end == one.start for o in per_partition
            )


class TestCommitGroups:
    """Long backfills commit in groups."""

    def test_groups_are_bounded_and_in_order(self) -> None:
        windows = [window(i) for i in (3, 0, 2, 1)]
        sizes = {window(0): 4, window(1): 5, window(2): 2, window(3): 4}
        assert commit_groups(windows, sizes, limit_bytes=9) == [
            (window(0), window(1)),
            (window(2), window(3)),
        ]

    def test_a_window_above_the_limit_stands_alone(self) -> None:
        sizes = {window(0): 1, window(1): 100, window(2): 1}
        groups = commit_groups([window(i) for i in range(3)], sizes, limit_bytes=10)
        assert groups == [(window(0),), (window(1),), (window(2),)]

    def test_empty_windows_cost_nothing(self) -> None:
        windows = [window(i) for i in range(50)]
        assert commit_groups(windows, {}, limit_bytes=1) == [tuple(windows)]
        assert commit_groups([], {}, limit_bytes=1) == []
