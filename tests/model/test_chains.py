"""How far the spans of a partition reach, and where they were thinned out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.model.chains import Chain, StoredSpan, chains_of, merge_spans
from kstreams_assets.model.point import new_point_id
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import Gap, GapCause, SpanContent, SpanPlan, SpanResult, Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import merge_rows, spans_of
from kstreams_assets.repository.rows import rows_of
from tests.backup.stored import stored_span

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class TestUnbrokenEnd:
    """From the begin of the life on, without a missing window."""

    def _end(self, *spans: StoredSpan) -> int | None:
        return Chain(spans).unbroken_end

    def test_spans_in_any_order(self) -> None:
        first = stored_span(0, 10, index=0, continues=False)
        second, third = stored_span(10, 20, index=1), stored_span(20, 25, index=2)
        assert self._end(third, first, second) == 25

    def test_a_missing_window_ends_it(self) -> None:
        first, third = stored_span(0, 10, continues=False), stored_span(20, 25, index=2)
        assert self._end(first, third) == 10

    def test_a_life_whose_begin_was_never_backed_up(self) -> None:
        assert self._end(stored_span(10, 20, index=3)) is None

    def test_nothing_below_the_first_span_was_left_to_back_up(self) -> None:
        assert self._end(stored_span(10, 20, index=3, log_start=12, read_start=12)) == 20

    def test_an_empty_window_is_no_break(self) -> None:
        first, empty = stored_span(0, 10, continues=False), stored_span(10, 10, index=1)
        assert self._end(first, empty, stored_span(10, 12, index=2)) == 12

    def test_what_kafka_had_lost_is_no_break(self) -> None:
        lost = stored_span(10, 20, index=1, read_start=15)
        assert self._end(stored_span(0, 10, continues=False), lost) == 20

    def test_a_span_that_lacks_records_for_no_known_cause_is_one(self) -> None:
        doubtful = stored_span(10, 20, index=1, complete=False)
        assert self._end(stored_span(0, 10, continues=False), doubtful) == 10


_DRAWN = st.lists(
    st.tuples(
        st.integers(0, 2),  # offsets
        st.sampled_from([None, None, None, 0, 1]),  # first hole
        st.sampled_from([True, True, True, True, False]),  # complete
        st.sampled_from([0, 0, 0, 0, 1]),  # lost before it was read
        st.sampled_from([0, 0, 0, 0, 1]),  # windows that are not recorded
        st.integers(0, 60),  # recorded at
        st.sampled_from([None, 0, 1, 30]),  # closed so long before
    ),
    max_size=12,
)


class TestFolded:
    """Spans put together answer as the spans one by one."""

    def _spans(
        self, drawn: list[tuple[int, int | None, bool, int, int, int, int | None]]
    ) -> list[StoredSpan]:
        spans: list[StoredSpan] = []
        at = index = 0
        for length, hole, complete, lost, skipped, recorded, before in drawn:
            index += skipped
            spans.append(
                stored_span(
                    at + skipped,
                    at + skipped + length,
                    index=index,
                    read_start=at + skipped + min(lost, length),
                    complete=complete,
                    continues=bool(spans),
                    first_hole=None if hole is None or not length else at + skipped,
                    recorded_at_ms=recorded * HOUR_MS,
                    closed_at_ms=None if before is None else (recorded - before) * HOUR_MS,
                )
            )
            at, index = at + skipped + length, index + 1
        return spans

    @given(_DRAWN)
    def test_every_answer_is_the_same(
        self, drawn: list[tuple[int, int | None, bool, int, int, int, int | None]]
    ) -> None:
        spans = self._spans(drawn)
        if not spans:
            assert merge_spans(spans) == []
            return
        one, other = Chain(spans), Chain(merge_spans(spans[::-1]))
        offsets = range(30)
        assert (one.begin, one.unbroken_end) == (other.begin, other.unbroken_end)
        for offset in offsets:
            assert one.recorded.reach(offset) == other.recorded.reach(offset)
            assert one.stored.reach(offset) == other.stored.reach(offset)
            assert one.stored.next_start(offset) == other.stored.next_start(offset)
            for instant_ms in (0, 30 * HOUR_MS):
                assert one.hole_read_after(2, offset, instant_ms) == other.hole_read_after(
                    2, offset, instant_ms
                )
        assert one.late_holes(DAY_MS) == other.late_holes(DAY_MS)

    def test_a_year_of_windows_is_one_span(self) -> None:
        spans = [stored_span(n, n + 1, index=n) for n in range(9000)]
        [span] = merge_spans(spans)
        assert (span.start, span.end) == (0, 9000)
        assert (span.window, span.last_window) == (spans[0].window, spans[-1].window)

    def test_where_holes_do_not_matter(self) -> None:
        spans = [stored_span(n, n + 1, index=n, first_hole=n) for n in range(9)]
        assert len(merge_spans(spans)) == len(merge_spans(spans, holes_matter={"t"})) == 9
        [span] = merge_spans(spans, holes_matter={"u"})
        assert Chain([span]).stored.reach(0) == 9


_ROW = st.tuples(
    st.sampled_from(["t", "u"]),
    st.integers(0, 1),  # partition
    st.sampled_from(["life-1", "life-2"]),
    st.integers(0, 4),  # window
    st.integers(0, 3),  # start
    st.integers(0, 2),  # offsets
    st.sampled_from([0, 0, 0, 1]),  # lost before it was read
    st.sampled_from([None, None, None, 1]),  # first hole
    st.sampled_from([True, True, True, False]),  # looked for holes
    st.sampled_from([None, None, GapCause.UNEXPLAINED, GapCause.TOPIC_DELETED]),
    st.integers(0, 60),  # recorded at
    st.sampled_from([None, 0, 1, 30, -1]),  # closed so long before
)


class TestFoldedRows:
    """Rows of the ledger put together without an object for each."""

    @given(st.lists(_ROW, max_size=14), st.sampled_from([None, set(), {"t"}, {"t", "u"}]))
    def test_as_their_spans(self, drawn: list[tuple], matter: set[str] | None) -> None:
        table = rows_of(LedgerEntry).write([self._entry(*row) for row in drawn])
        spans = spans_of(table) if drawn else []
        assert merge_rows(table, holes_matter=matter) == merge_spans(spans, holes_matter=matter)

    def test_a_chain_of_every_partition(self) -> None:
        rows = [
            ("t", partition, "life-1", index, index, 1, 0, None, True, None, index, 0)
            for index in range(200)
            for partition in range(2)
        ]
        table = rows_of(LedgerEntry).write([self._entry(*row) for row in rows])
        found = merge_rows(table)
        assert found == merge_spans(spans_of(table))
        assert [(span.start, span.end) for span in found] == [(0, 200), (0, 200)]

    def _entry(
        self,
        topic: str,
        partition: int,
        life: str,
        index: int,
        start: int,
        length: int,
        lost: int,
        hole: int | None,
        looked: bool,
        cause: GapCause | None,
        recorded: int,
        before: int | None,
    ) -> LedgerEntry:
        window = Window(index * HOUR_MS, (index + 1) * HOUR_MS, f"w{index:04d}")
        plan = SpanPlan(
            window=window,
            partition=TopicPartitionId(topic, partition),
            topic_id=life,
            start=start,
            end=start + length,
            read_start=start + min(lost, length),
            continues=index > 0,
        )
        gaps = () if cause is None else (Gap(cause, start, start + length, length),)
        closed_ms = None if before is None else (recorded - before) * HOUR_MS
        return LedgerEntry(
            application_id="shop",
            result=SpanResult(plan, SpanContent(), gaps, first_hole=hole, contiguity_known=looked),
            recovery_point_id=None if closed_ms is None else new_point_id(closed_ms),
            delta_version=1,
            run_id="run",
            recorded_at_ms=recorded * HOUR_MS,
            ledger_version=index,
        )


class TestHoles:
    """A hole below an end, in a span that was read after an instant."""

    @given(
        st.lists(
            st.tuples(st.integers(1, 5), st.none() | st.integers(0, 4), st.integers(0, 9)),
            min_size=1,
            max_size=12,
        ),
        st.integers(0, 30),
        st.integers(0, 60),
        st.integers(0, 9),
    )
    def test_against_every_span(
        self, drawn: list[tuple[int, int | None, int]], start: int, end: int, instant_ms: int
    ) -> None:
        spans: list[StoredSpan] = []
        at = 0
        for index, (length, hole, recorded) in enumerate(drawn):
            first_hole = None if hole is None else at + min(hole, length - 1)
            spans.append(
                stored_span(
                    at, at + length, index=index, first_hole=first_hole, recorded_at_ms=recorded
                )
            )
            at += length
        harmful = {
            s.first_hole
            for s in spans
            if s.first_hole is not None
            and s.first_hole < end
            and s.end > start
            and s.recorded_at_ms > instant_ms  # the version is one less
        }
        found = Chain(spans).hole_read_after(start, end, instant_ms)
        assert (found in harmful) if harmful else found is None

    def test_a_span_read_before_the_instant_is_harmless(self) -> None:
        chain = Chain([stored_span(0, 10, first_hole=4, recorded_at_ms=100)])
        assert chain.hole_read_after(0, 10, 99) == 4
        assert chain.hole_read_after(0, 10, 100) is None
        assert chain.hole_read_after(0, 4, 99) is None


def test_lives_and_partitions_are_apart() -> None:
    spans = [
        stored_span(0, 10),
        stored_span(0, 5, index=1, topic_id="life-2"),
        stored_span(0, 7, partition=1),
        stored_span(10, 12, index=1),
    ]
    ends = {life: [s.end for s in chain.spans] for life, chain in chains_of(spans).items()}
    assert ends == {
        ("t", 0, "life-1"): [10, 12],
        ("t", 0, "life-2"): [5],
        ("t", 1, "life-1"): [7],
    }


def test_neighbours_of_an_offset_that_no_span_holds() -> None:
    first, third = stored_span(0, 10), stored_span(20, 30, index=2)
    chain = Chain([first, third])
    assert chain.neighbours(10) == (first, third)
    assert chain.neighbours(30) == (third, None)
    assert Chain([third]).neighbours(5) == (None, third)


class TestLateHoles:
    """Where a deletion may have gone before it was backed up."""

    def _days(self, read_after_h: dict[int, int] | None = None) -> list[StoredSpan]:
        """Five days of hourly windows with holes, read an hour, or as said, after their end."""
        after = read_after_h or {}
        return [
            stored_span(
                10 * hour,
                10 * hour + 10,
                index=hour,
                continues=hour > 0,
                first_hole=10 * hour,
                recorded_at_ms=(hour + 1 + after.get(hour, 1)) * HOUR_MS,
                closed_at_ms=(hour + 1) * HOUR_MS,
            )
            for hour in range(120)
        ]

    def test_regular_backups_stay_proved_for_days(self) -> None:
        assert Chain(self._days()).late_holes(DAY_MS) == ()

    def test_an_outage_of_the_backups_leaves_doubts_about_its_windows_alone(self) -> None:
        """The windows of hours 40 to 79 are all read at hour 80."""
        spans = self._days({hour: 79 - hour for hour in range(40, 80)})
        late = [hole.start // 10 for hole in Chain(spans).late_holes(DAY_MS)]
        assert late == [*range(40, 69)]  # the cut before hour 69 was made 11 hours before

    @pytest.mark.parametrize("closed_at_ms", [None, 1000 * HOUR_MS])
    def test_without_a_time_that_can_be_right_the_first_reading_counts(
        self, closed_at_ms: int | None
    ) -> None:
        spans = [replace(span, closed_at_ms=closed_at_ms) for span in self._days()]
        late = [hole.start // 10 for hole in Chain(spans).late_holes(DAY_MS)]
        assert late == [*range(12, 120)]

    def test_a_cut_above_the_hole_says_nothing_about_it(self) -> None:
        first, second = self._days()[:2]
        late = replace(second, start=5, first_hole=5, recorded_at_ms=DAY_MS, closed_at_ms=None)
        early = replace(first, recorded_at_ms=0, closed_at_ms=None)
        cut = replace(first, first_hole=None, recorded_at_ms=DAY_MS, closed_at_ms=DAY_MS)
        assert len(Chain([early, cut, late]).late_holes(DAY_MS)) == 1

    @given(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1), st.booleans()), max_size=6),
        st.integers(0, 20),
        st.integers(21, 60),
        st.lists(st.integers(0, 6), min_size=2, max_size=2),
        st.lists(st.sampled_from([0, 1, 6, 20, 60]), min_size=11, max_size=11),
    )
    def test_no_deleted_key_comes_back_unnoticed(
        self,
        others: list[tuple[int, int, bool]],
        written_h: int,
        deleted_h: int,
        cleaned_after_h: list[int],
        waits: list[int],
    ) -> None:
        """A log that is cleaned as Kafka does it; windows of 6 h that are read some time later."""
        first_h = deleted_h + cleaned_after_h[0]
        writes = [*others, (written_h, 2, True), (deleted_h, 2, False)]
        log = _CompactedLog(sorted(writes), [first_h, first_h + 24 + cleaned_after_h[1]])
        spans, restored, start = [], {}, 0
        for index, wait_h in enumerate(waits):
            closed_h = 6 * (index + 1)
            end = log.end(closed_h)
            held = log.held(closed_h + wait_h, start, end)
            hole = next((o for o in range(start, end) if o not in held), None)
            spans.append(
                stored_span(
                    start,
                    end,
                    index=index,
                    continues=index > 0,
                    first_hole=hole,
                    recorded_at_ms=(closed_h + wait_h) * HOUR_MS,
                    closed_at_ms=closed_h * HOUR_MS,
                )
            )
            restored |= {log.records[o][1]: log.records[o][2] for o in held}
            start = end
        state = {key: alive for _, key, alive in log.records}
        back = [key for key, alive in restored.items() if alive and not state[key]]
        assert not back or Chain(spans).late_holes(DAY_MS)


class _CompactedLog:
    """Records (hour, key, whether it is a value), written and then cleaned at these hours."""

    def __init__(self, records: list[tuple[int, int, bool]], cleanings: list[int]) -> None:
        self.records = records
        self._removed_h: dict[int, int] = {}
        horizon_h: dict[int, int] = {}
        for now_h in cleanings:
            newest = {key: o for o, (_, key, _) in enumerate(records[: self.end(now_h)])}
            for offset in range(self.end(now_h)):
                _, key, alive = records[offset]
                gone = newest[key] != offset
                if not alive and not gone:
                    gone = now_h >= horizon_h.setdefault(offset, now_h + 24)
                if gone:
                    self._removed_h.setdefault(offset, now_h)

    def end(self, hour: int) -> int:
        """The end of the log at an hour."""
        return sum(written_h <= hour for written_h, _, _ in self.records)

    def held(self, hour: int, start: int, end: int) -> list[int]:
        """The offsets that were still there."""
        return [o for o in range(start, end) if self._removed_h.get(o, hour + 1) > hour]
