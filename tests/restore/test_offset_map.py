"""Translation of offsets: for every log and every offset, and with a million runs."""

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstreams_assets.errors import OffsetMapError
from kstreams_assets.offsets import (
    OffsetMap,
    OffsetRun,
    OffsetRuns,
    TopicPartitionId,
    merge_runs,
    runs_of,
)
from tests.restore.restored_logs import Restored, logs
from tests.timing import processor_time

PARTITION = TopicPartitionId("shop-totals-changelog", 3)
MILLION = 1_000_000


class TestOfEveryLog:
    """What has to hold for any log and any offset."""

    @settings(deadline=None)
    @given(logs())
    def test_it_rises(self, restored: Restored) -> None:
        offset_map = restored.map
        mapped = [offset_map.map(offset) for offset in restored.offsets]
        assert mapped == sorted(mapped)
        own = [offset_map.map(offset) for offset in restored.source]
        assert own == list(restored.target)

    @settings(deadline=None)
    @given(logs())
    def test_as_many_records_lie_below(self, restored: Restored) -> None:
        offset_map = restored.map
        for offset in restored.offsets:
            below = sum(source < offset for source in restored.source)
            assert sum(target < offset_map.map(offset) for target in restored.target) == below
            assert offset_map.records_below(offset) == below

    @settings(deadline=None)
    @given(logs())
    def test_it_stays_in_the_target_log(self, restored: Restored) -> None:
        offset_map = restored.map
        mapped = {offset_map.map(offset) for offset in restored.offsets}
        assert restored.target_start <= min(mapped)
        assert max(mapped) == offset_map.map(restored.log_end) == restored.target_end

    @settings(deadline=None)
    @given(logs())
    def test_the_log_start_is_the_target_start(self, restored: Restored) -> None:
        assert restored.map.map(restored.log_start) == restored.target_start
        assert restored.map.target_start == restored.target_start

    @settings(deadline=None)
    @given(logs())
    def test_a_gap_leads_to_the_next_record(self, restored: Restored) -> None:
        offset_map = restored.map
        pairs = list(zip(restored.source, restored.target, strict=True))
        for offset in restored.offsets:
            later = [pair for pair in pairs if pair[0] >= offset]
            source, target = later[0] if later else (None, restored.target_end)
            assert offset_map.first_source(offset) == source
            assert offset_map.map(offset) == target

    @settings(deadline=None)
    @given(logs())
    def test_back_to_the_source(self, restored: Restored) -> None:
        offset_map = restored.map
        source_of = dict(zip(restored.target, restored.source, strict=True))
        for target in range(max(0, restored.target_start - 2), restored.target_end + 3):
            assert offset_map.source_of(target) == source_of.get(target)

    @settings(deadline=None)
    @given(logs())
    def test_runs_are_the_fewest(self, restored: Restored) -> None:
        runs = runs_of(restored.source, restored.target)
        steps = zip(
            zip(restored.source, restored.target, strict=True),
            zip(restored.source[1:], restored.target[1:], strict=True),
            strict=False,
        )
        breaks = sum((s2 - s1, t2 - t1) != (1, 1) for (s1, t1), (s2, t2) in steps)
        assert len(runs) == (breaks + 1 if restored.source else 0)
        assert restored.map.records == len(restored.source)

    @settings(deadline=None)
    @given(logs(), st.data())
    def test_attempts_that_were_interrupted(self, restored: Restored, data: st.DataObject) -> None:
        """Each attempt told a stretch; some were told twice, and in any order."""
        count = len(restored.source)
        cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=4)))
        reach = data.draw(st.integers(0, 3))
        attempts = [
            runs_of(
                restored.source[max(0, start - reach) : end],
                restored.target[max(0, start - reach) : end],
            )
            for start, end in zip([0, *cuts], [*cuts, count], strict=True)
        ]
        merged = merge_runs(data.draw(st.permutations(attempts)))
        assert merged == restored.map.runs
        assert merge_runs([merged, merged]) == merged


EXAMPLE = OffsetMap(
    [OffsetRun(10, 100, 3), OffsetRun(20, 103, 1), OffsetRun(21, 110, 2)], 115, partition=PARTITION
)


@pytest.mark.parametrize(
    ("offset", "target", "below", "source"),
    [
        (0, 100, 0, 10),
        (10, 100, 0, 10),
        (12, 102, 2, 12),
        (13, 103, 3, 20),
        (20, 103, 3, 20),
        (21, 110, 4, 21),
        (22, 111, 5, 22),
        (23, 115, 6, None),
        (2**62, 115, 6, None),
    ],
)
def test_by_hand(offset: int, target: int, below: int, source: int | None) -> None:
    found = EXAMPLE.map(offset), EXAMPLE.records_below(offset), EXAMPLE.first_source(offset)
    assert found == (target, below, source)
    assert {type(value) for value in found} <= {int, type(None)}


def test_back_by_hand() -> None:
    found = [EXAMPLE.source_of(offset) for offset in (99, 100, 102, 103, 104, 111, 112, 115)]
    assert found == [None, 10, 12, 20, None, 22, None, None]


def test_no_record_at_all() -> None:
    empty = OffsetMap([], 7)
    assert (empty.map(0), empty.map(99), empty.target_start, empty.records) == (7, 7, 7, 0)
    assert (empty.source_of(0), empty.first_source(0), empty.records_below(5)) == (None, None, 0)
    assert list(runs_of([], [])) == list(merge_runs([])) == list(merge_runs([[], []])) == []


@pytest.mark.parametrize(
    ("runs", "end", "at", "reason"),
    [
        ([(0, 0, 0)], 9, (0, 0), "no record"),
        ([(0, 0, 2), (5, 7, -1)], 9, (5, 7), "no record"),
        ([(-1, 0, 2)], 9, (-1, 0), "negative"),
        ([(0, -2, 2)], 9, (0, -2), "negative"),
        ([(0, 0, 3), (2, 5, 1)], 9, (2, 5), "later in the source"),
        ([(5, 0, 1), (2, 5, 1)], 9, (2, 5), "later in the source"),
        ([(0, 0, 3), (5, 2, 1)], 9, (5, 2), "later in the target"),
        ([(0, 0, 1), (4, 4, 2)], 5, (4, 4), "ends at 5"),
    ],
)
def test_runs_that_cannot_be(
    runs: Sequence[tuple[int, int, int]], end: int, at: tuple[int, int], reason: str
) -> None:
    with pytest.raises(OffsetMapError, match=reason) as caught:
        OffsetMap([OffsetRun(*run) for run in runs], end, partition=PARTITION)
    error = caught.value
    assert (error.partition, error.source_offset, error.target_offset) == (str(PARTITION), *at)
    assert f"{PARTITION} is wrong at source offset {at[0]}, target offset {at[1]}" in str(error)
    assert str(error).endswith("run it again.")


@pytest.mark.parametrize(
    ("source", "target", "at"),
    [
        ([3, 4, 4], [0, 1, 2], (4, 2)),
        ([3, 5, 4], [0, 1, 2], (4, 2)),
        ([3, 4, 5], [0, 1, 1], (5, 1)),
        ([3, 4, 5], [0, 2, 1], (5, 1)),
        ([3, 4, 4], [0, 1, 1], (4, 1)),  # told twice
        ([3, 5, 4], [0, 2, 1], (4, 1)),  # both swapped
    ],
)
def test_offsets_that_do_not_rise(
    source: list[int], target: list[int], at: tuple[int, int]
) -> None:
    with pytest.raises(OffsetMapError, match="shop-totals-changelog-3") as caught:
        runs_of(source, target, partition=PARTITION)
    assert (caught.value.source_offset, caught.value.target_offset) == at


def test_offsets_without_their_counterpart() -> None:
    with pytest.raises(ValueError, match="2 source offsets and 1 target"):
        runs_of([1, 2], [0])


@pytest.mark.parametrize(
    ("later", "at", "reason"),
    [
        (OffsetRun(12, 103, 4), (12, 103), "two target offsets"),  # 12 went to 102 at first
        (OffsetRun(15, 104, 1), (15, 104), "later in the target"),  # 104 holds 14
        (OffsetRun(11, 101, 1), None, ""),
    ],
)
def test_attempts_that_contradict_each_other(
    later: OffsetRun, at: tuple[int, int] | None, reason: str
) -> None:
    first = [OffsetRun(10, 100, 5), OffsetRun(30, 120, 1)]
    if at is None:
        assert merge_runs([first, [later]], partition=PARTITION) == first
        return
    with pytest.raises(OffsetMapError, match=reason) as caught:
        merge_runs([first, [later]], partition=PARTITION)
    assert (caught.value.source_offset, caught.value.target_offset) == at
    assert caught.value.partition == str(PARTITION)


def test_a_long_run_hides_a_contradiction_behind_a_short_one() -> None:
    with pytest.raises(OffsetMapError, match="two target offsets"):
        merge_runs([[OffsetRun(0, 0, 10)], [OffsetRun(2, 2, 1)], [OffsetRun(8, 9, 1)]])


class TestRunsAsColumns:
    """They read like a tuple of runs."""

    RUNS = (OffsetRun(0, 5, 2), OffsetRun(4, 7, 1), OffsetRun(9, 9, 3))

    def test_they_are_a_sequence(self) -> None:
        runs = OffsetRuns.of(self.RUNS)
        assert tuple(runs) == self.RUNS
        assert (len(runs), runs[1], runs[-1]) == (3, self.RUNS[1], self.RUNS[2])
        assert runs[1:] == self.RUNS[1:]
        assert {type(value) for run in runs for value in run} == {int}
        assert {type(value) for value in runs[0]} == {int}
        with pytest.raises(IndexError):
            runs[3]

    def test_equality(self) -> None:
        runs = OffsetRuns.of(self.RUNS)
        assert runs == self.RUNS
        assert runs == OffsetRuns.of(list(self.RUNS))
        assert hash(runs) == hash(self.RUNS)
        assert runs != self.RUNS[:2]
        assert runs != OffsetRuns.of(OffsetRun(0, 5, 2) for _ in range(3))
        assert runs != 5
        assert OffsetMap(runs, 12) == OffsetMap(self.RUNS, 12)
        assert OffsetMap(runs, 12) != OffsetMap(runs, 13)
        assert OffsetMap(runs, 12) != OffsetMap(runs[:2], 12)

    def test_what_is_shown_is_short(self) -> None:
        assert repr(OffsetRuns.of(self.RUNS[:1] * 9)).endswith(
            "(9: 0->5 x2, 0->5 x2, 0->5 x2, ...)"
        )

    def test_pickled(self) -> None:
        offset_map = OffsetMap(self.RUNS, 12)
        assert pickle.loads(pickle.dumps(offset_map)) == offset_map  # noqa: S301  (our own bytes)


def test_a_million_runs() -> None:
    """A compacted changelog: every second record survived."""
    source = np.arange(0, 2 * MILLION, 2)
    target = np.arange(MILLION)
    with processor_time() as made:
        OffsetMap(runs_of(source, target), MILLION)
    assert made.seconds < 1
    runs = runs_of(source, target)
    assert len(runs) == MILLION
    assert len(pickle.dumps(runs)) < 25 * MILLION
    offset_map = OffsetMap(runs, MILLION)
    assert [offset_map.map(offset) for offset in (0, 999_999, 1_999_999)] == [0, 500_000, MILLION]
    with processor_time() as mapped:
        for offset in range(0, MILLION, 100):
            offset_map.map(offset)
    assert mapped.seconds < 0.5
    with processor_time() as merged:
        merge_runs([runs[:600_000], runs[400_000:]])
    assert merged.seconds < 1
    assert merge_runs([runs[400_000:], runs[:600_000]]) == runs
