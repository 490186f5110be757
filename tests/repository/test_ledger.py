"""The table `windows`, as deltalake writes and reads it."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kstreams_assets.backup.result import TopicBackup
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.spans import Gap, GapCause, RecordedSpan, SpanContent, SpanResult
from kstreams_assets.repository.ledger import Ledger
from tests.backup.samples import APPLICATION_ID, backup, result, span, window
from tests.repository.disk import on_disk
from tests.timing import processor_time

GAPS = (
    Gap(GapCause.TOPIC_RECREATED, 900, None, None),
    Gap(GapCause.RETENTION, 10, 14, 4),
    Gap(GapCause.TRANSACTION_MARKER, 14, 20, 2),
)

FULL = SpanResult(
    span(10, 20, index=1, read_start=14, continues=False, gaps=GAPS, log_start=14),
    SpanContent(
        records=4,
        bytes=100,
        stored_bytes=70,
        files=1,
        tombstones=2,
        null_keys=1,
        non_positive_timestamps=1,
        first_offset=14,
        last_offset=18,
        min_timestamp_ms=-1,
        max_timestamp_ms=1_700_000_000_000,
    ),
    GAPS,
    first_hole=10,
    contiguity_known=True,
)
STORED = replace(FULL, plan=replace(FULL.plan, gaps=()))
"""What was planned to be missing is in the gaps of the result."""


def _one(index: int, *spans: SpanResult, topic: str = "t") -> TopicBackup:
    return backup(*spans, index=index, topic=topic)


def _recorded(index: int, start: int, *, partition: int = 0, topic: str = "t") -> RecordedSpan:
    plan = span(start, start + 10, index=index, partition=partition, topic=topic)
    return RecordedSpan(
        plan.window, plan.partition, plan.topic_id, plan.start, plan.end, plan.continues
    )


def _order(spans: Sequence[RecordedSpan]) -> list[RecordedSpan]:
    return sorted(spans, key=lambda s: (s.partition, s.window))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The ledger of an application in an empty warehouse."""
    return Ledger(Warehouse(tmp_path), APPLICATION_ID)


class TestRows:
    """What is recorded comes back."""

    def test_an_empty_warehouse(self, ledger: Ledger, tmp_path: Path) -> None:
        assert ledger.entries() == []
        assert ledger.done({"t"}) == {}
        assert ledger.recorded_spans([window(0)], ["t"]) == []
        ledger.record([], run_id="run-1")
        assert list(tmp_path.iterdir()) == []

    def test_a_row_comes_back_as_it_was(self, ledger: Ledger) -> None:
        before_ms = time.time_ns() // 1_000_000
        ledger.record([_one(1, FULL)], run_id="run-1")
        (entry,) = ledger.entries()
        assert entry.result == STORED
        assert (entry.recovery_point_id, entry.delta_version) == ("point-1", 3)
        assert entry.run_id == "run-1"
        assert before_ms <= entry.recorded_at_ms <= time.time_ns() // 1_000_000

    def test_a_span_without_records(self, ledger: Ledger) -> None:
        empty = result(span(5, 5, index=2))
        ledger.record([replace(_one(2, empty), delta_version=None)], run_id="run-1")
        (entry,) = ledger.entries()
        assert entry.result == empty
        assert entry.delta_version is None

    def test_the_independent_reader_sees_times_and_offsets(
        self, ledger: Ledger, tmp_path: Path
    ) -> None:
        ledger.record([_one(1, FULL)], run_id="run-1")
        (row,) = DeltaTable(tmp_path / "windows").to_pyarrow_table().to_pylist()
        assert (row["window"], row["window_start_ms"], row["window_end_ms"]) == ("w0001", 10, 20)
        assert (row["start"], row["end"], row["read_start"], row["log_start"]) == (10, 20, 14, 14)
        assert row["gaps"][1] == {"cause": "retention", "start": 10, "end": 14, "offsets": 4}

    def test_order_and_filters(self, ledger: Ledger) -> None:
        spans = [result(span(0, 9, index=1, topic="u", partition=n)) for n in (1, 0)]
        ledger.record(
            [_one(1, *spans, topic="u"), _one(2, result(span(9, 9, index=2))), _one(1, FULL)],
            run_id="run-1",
        )
        assert [(e.result.plan.window.key, str(e.result.partition)) for e in ledger.entries()] == [
            ("w0001", "t-0"),
            ("w0001", "u-0"),
            ("w0001", "u-1"),
            ("w0002", "t-0"),
        ]
        assert len(ledger.entries(windows={"w0001"})) == 3
        assert len(ledger.entries(topics={"t"})) == 2
        assert len(ledger.entries(windows={"w0001"}, topics={"t"})) == 1
        assert ledger.entries(windows=set()) == []


class TestReplace:
    """A window and topic is replaced as a whole, and nothing else with it."""

    def test_only_the_same_window_and_topic(self, ledger: Ledger) -> None:
        first = [
            _one(1, FULL),
            _one(2, result(span(20, 30, index=2))),
            _one(1, result(span(0, 9, index=1, topic="u")), topic="u"),
        ]
        ledger.record(first, run_id="run-1")
        two = [result(span(10, 20, index=1, partition=n)) for n in (0, 1)]
        ledger.record([_one(1, *two)], run_id="run-2")
        assert [
            (e.result.plan.window.key, str(e.result.partition), e.run_id) for e in ledger.entries()
        ] == [
            ("w0001", "t-0", "run-2"),
            ("w0001", "t-1", "run-2"),
            ("w0001", "u-0", "run-1"),
            ("w0002", "t-0", "run-1"),
        ]

    def test_other_applications_are_left_alone(self, ledger: Ledger, tmp_path: Path) -> None:
        other = Ledger(Warehouse(tmp_path), "shop's-eu")
        other.record([_one(1, FULL)], run_id="run-1")
        ledger.record([_one(1, FULL)], run_id="run-2")
        other.record([_one(1, FULL)], run_id="run-3")
        assert [e.run_id for e in ledger.entries()] == ["run-2"]
        assert [e.run_id for e in other.entries()] == ["run-3"]

    def test_names_with_a_quote(self, ledger: Ledger) -> None:
        spans = [result(span(0, 9, index=1, topic="it's"))]
        for run_id in ("run-1", "run-2"):
            ledger.record([_one(1, *spans, topic="it's")], run_id=run_id)
        assert [entry.run_id for entry in ledger.entries()] == ["run-2"]

    def test_one_commit_for_many_windows(self, ledger: Ledger, tmp_path: Path) -> None:
        ledger.record([_one(0, result(span(0, 1)))], run_id="run-1")
        before = DeltaTable(tmp_path / "windows").version()
        ledger.record([_one(i, result(span(0, 1, index=i))) for i in range(50)], run_id="run-2")
        assert DeltaTable(tmp_path / "windows").version() == before + 1


class TestRecordedSpans:
    """Their own rows, and the nearest of each partition on either side."""

    def _fill(self, ledger: Ledger) -> None:
        ledger.record(
            [
                *[_one(i, result(span(10 * i, 10 * i + 10, index=i))) for i in (0, 1, 3, 6, 8)],
                _one(
                    2,
                    *[
                        result(span(10 * n, 10 * n + 10, index=2, topic="u", partition=n))
                        for n in (0, 1)
                    ],
                    topic="u",
                ),
            ],
            run_id="run-1",
        )

    def test_nearest_on_either_side(self, ledger: Ledger) -> None:
        self._fill(ledger)
        assert _order(ledger.recorded_spans([window(2), window(4)], {"t", "u"})) == [
            _recorded(1, 10),
            _recorded(3, 30),
            _recorded(6, 60),
            _recorded(2, 0, topic="u"),
            _recorded(2, 10, partition=1, topic="u"),
        ]

    def test_a_neighbour_of_one_partition_is_no_neighbour_of_another(self, ledger: Ledger) -> None:
        self._fill(ledger)
        assert _order(ledger.recorded_spans([window(7)], {"t", "u"})) == [
            _recorded(6, 60),
            _recorded(8, 80),
            _recorded(2, 0, topic="u"),
            _recorded(2, 10, partition=1, topic="u"),
        ]

    def test_only_the_wanted_topics(self, ledger: Ledger) -> None:
        self._fill(ledger)
        assert _order(ledger.recorded_spans([window(2)], {"u"})) == [
            _recorded(2, 0, topic="u"),
            _recorded(2, 10, partition=1, topic="u"),
        ]

    def test_the_beginning_of_a_life_is_told(self, ledger: Ledger) -> None:
        ledger.record([_one(1, FULL)], run_id="run-1")
        (found,) = ledger.recorded_spans([window(1)], ["t"])
        assert not found.continues

    def test_no_window_no_span(self, ledger: Ledger) -> None:
        self._fill(ledger)
        assert ledger.recorded_spans([], ["t"]) == []


class TestDone:
    """Which windows and topics are recorded."""

    def test_topics_of_each_window(self, ledger: Ledger) -> None:
        ledger.record(
            [
                _one(1, FULL),
                _one(1, result(span(0, 9, index=1, topic="u")), topic="u"),
                _one(2, result(span(20, 20, index=2))),
            ],
            run_id="run-1",
        )
        assert ledger.done({"t", "u"}) == {window(1): {"t", "u"}, window(2): {"t"}}
        assert ledger.done({"u"}) == {window(1): {"u"}}

    def test_a_topic_that_no_point_knew_is_done_without_a_span(self, ledger: Ledger) -> None:
        ledger.record([_one(1)], run_id="run-1")
        assert ledger.done({"t"}) == {window(1): {"t"}}
        assert ledger.entries() == []
        assert ledger.recorded_spans([window(i) for i in range(3)], ["t"]) == []
        ledger.record([_one(1, FULL)], run_id="run-2")
        assert [entry.result for entry in ledger.entries()] == [STORED]

    def test_no_topic(self, ledger: Ledger) -> None:
        ledger.record([_one(1, FULL)], run_id="run-1")
        assert ledger.done(set()) == {}
        assert ledger.recorded_spans([window(1)], []) == []


def test_a_long_ledger_stays_fast(ledger: Ledger) -> None:
    windows, topics = 500, 5
    for first in range(0, windows, 100):
        ledger.record(
            [
                _one(
                    i,
                    *[
                        result(span(10 * i, 10 * i + 10, index=i, topic=f"t{n}", partition=p))
                        for p in range(4)
                    ],
                    topic=f"t{n}",
                )
                for i in range(first, first + 100)
                for n in range(topics)
            ],
            run_id="run-1",
        )
    names = {f"t{n}" for n in range(topics)}
    with processor_time() as took:
        assert len(ledger.recorded_spans([window(250)], names)) == 3 * topics * 4
        assert len(ledger.recorded_spans([window(i) for i in range(windows)], names)) == 10_000
        assert len(ledger.done(names)) == windows
    assert took.seconds < 2


def test_many_runs_leave_few_files_and_a_window_can_be_backed_up_again(tmp_path: Path) -> None:
    ledger = Ledger(Warehouse(tmp_path), APPLICATION_ID)
    for index in range(40):
        ledger.record([_one(index, result(span(index, index + 1, index=index)))], run_id="run-1")
    again = result(span(3, 4, index=3, log_start=1))
    ledger.record([_one(3, again)], run_id="run-2")
    entries = ledger.entries()
    assert [entry.result.plan.window for entry in entries] == [window(n) for n in range(40)]
    assert [entry.run_id for entry in entries].count("run-2") == 1
    assert entries[3].result == again
    table = DeltaTable(on_disk(Warehouse(tmp_path).control("windows")))
    assert table.get_add_actions().num_rows < 12


class TestStoredSpans:
    """What restores read of the ledger."""

    TAKEN_MS = 1_763_812_803_250
    ID = "20251122T120003.250Z-9f3a1c"

    def _closed_at_ms(self, ledger: Ledger, point_id: str | None, *gaps: Gap) -> int | None:
        result = SpanResult(span(10, 20, index=1), FULL.content, gaps)
        ledger.record([replace(_one(1, result), recovery_point_id=point_id)], run_id="run-1")
        (stored,) = ledger.merged_spans({"t"}, holes_matter={"t"})
        return stored.closed_at_ms

    def test_a_span_knows_when_the_cut_was_made_that_it_ends_with(self, ledger: Ledger) -> None:
        assert self._closed_at_ms(ledger, self.ID) == self.TAKEN_MS

    @pytest.mark.parametrize("point_id", [None, "point-15", "20991122T120003.250Z-9f3a1c"])
    def test_not_known(self, ledger: Ledger, point_id: str | None) -> None:
        """No point, an id that says nothing, a clock that was ahead of the backup's."""
        assert self._closed_at_ms(ledger, point_id) is None

    def test_not_where_the_partition_was_gone_at_the_cut(self, ledger: Ledger) -> None:
        gone = Gap(GapCause.TOPIC_DELETED, 20, None, None)
        assert self._closed_at_ms(ledger, self.ID, gone) is None
