"""Windows tile the log, whatever happens and in whatever order they are materialised."""

import gc
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kstreams_assets.backup.planner import LogState, plan_span
from kstreams_assets.backup.windows import Edges, WindowEdges
from kstreams_assets.model.point import PartitionCut, PointInstant, RecoveryPoint
from kstreams_assets.model.point_bounds import at_edges
from kstreams_assets.model.spans import Position, RecordedSpan, SpanPlan, Window
from kstreams_assets.offsets import TopicPartitionId
from tests.backup.samples import STEP_MS, cut, point, window
from tests.timing import processor_time

T0 = TopicPartitionId("t", 0)


def _spans(
    points: Sequence[RecoveryPoint],
    windows: Iterable[Window],
    recorded: Sequence[RecordedSpan] = (),
) -> dict[tuple[str, int], tuple[int, int]]:
    """(window key, partition) -> span, for one run over these windows."""
    edges = WindowEdges(points, recorded)
    return {
        (each.key, edge.partition.partition): (plan.start, plan.end)
        for each in windows
        for edge in edges.partitions_of(each, {"t"})
        for plan in [plan_span(each, edge, LogState(edge.end.topic_id, 0), repartition=False)]
    }


def _recorded(
    index: int,
    start: int,
    end: int,
    *,
    topic_id: str = "life-1",
    continues: bool = True,
    partition: int = 0,
) -> RecordedSpan:
    return RecordedSpan(
        window(index), TopicPartitionId("t", partition), topic_id, start, end, continues
    )


class TestEdges:
    """Where windows end."""

    def test_a_window_ends_where_the_last_point_before_its_end_stood(self) -> None:
        points = [point(3, cut(0, 5)), point(7, cut(0, 9)), point(12, cut(0, 20))]
        assert _spans(points, [window(0), window(1)]) == {
            ("w0000", 0): (0, 9),
            ("w0001", 0): (9, 20),
        }

    def test_a_point_at_the_closing_instant_belongs_to_the_next_window(self) -> None:
        points = [point(9, cut(0, 5)), point(10, cut(0, 8))]
        assert _spans(points, [window(0), window(1)]) == {
            ("w0000", 0): (0, 5),
            ("w0001", 0): (5, 8),
        }

    def test_a_late_point_closes_the_window_it_was_taken_for(self) -> None:
        late = point(14, cut(0, 8), closes_window_end_ms=10)
        edges = WindowEdges([late])
        assert edges.closing_point(window(0)) is late
        assert edges.point_before(9) is None

    def test_a_window_without_a_point_is_empty_and_stands_where_the_last_did(self) -> None:
        points = [point(3, cut(0, 5)), point(25, cut(0, 9))]
        assert _spans(points, map(window, range(3))) == {
            ("w0000", 0): (0, 5),
            ("w0001", 0): (5, 5),
            ("w0002", 0): (5, 9),
        }

    def test_nothing_is_known_before_the_first_point(self) -> None:
        assert WindowEdges([point(13, cut(0, 5))]).partitions_of(window(0), {"t"}) == []
        assert WindowEdges([]).closing_point(window(0)) is None

    def test_only_the_wanted_topics(self) -> None:
        edges = WindowEdges([point(3, cut(0, 5), cut(0, 7, topic="u"))])
        found = edges.partitions_of(window(0), {"u"})
        assert [edge.partition for edge in found] == [TopicPartitionId("u", 0)]

    def test_a_new_partition_begins_at_its_log_start(self) -> None:
        points = [point(3, cut(0, 5)), point(13, cut(0, 9), cut(1, 30, log_start=4))]
        assert WindowEdges(points).partitions_of(window(1), {"t"}) == [
            Edges(T0, Position("life-1", 5), Position("life-1", 9), 0),
            Edges(TopicPartitionId("t", 1), None, Position("life-1", 30), 4),
        ]

    def test_a_recreated_topic_ends_in_its_new_life(self) -> None:
        points = [point(3, cut(0, 500)), point(13, cut(0, 9, topic_id="life-2", log_start=2))]
        (edge,) = WindowEdges(points).partitions_of(window(1), {"t"})
        assert edge == Edges(T0, Position("life-1", 500), Position("life-2", 9), 2)


class TestFirstWindow:
    """The first window of the schedule begins at the log start, whatever points exist."""

    OLD = point(-5, cut(0, 50, log_start=2))

    def test_a_point_older_than_the_first_window(self) -> None:
        points = [self.OLD, point(3, cut(0, 60, log_start=2)), point(13, cut(0, 70))]
        expected = {("w0000", 0): (2, 60), ("w0001", 0): (60, 70)}
        assert _spans(points, [window(0), window(1)]) == expected
        alone = {k: v for i in (1, 0) for k, v in _spans(points, [window(i)]).items()}
        assert alone == expected

    def test_without_a_point_of_its_own_it_holds_what_the_older_one_saw(self) -> None:
        points = [self.OLD, point(13, cut(0, 70))]
        assert _spans(points, [window(0), window(1)]) == {
            ("w0000", 0): (2, 50),
            ("w0001", 0): (50, 70),
        }

    def test_after_a_later_window(self) -> None:
        points = [self.OLD, point(3, cut(0, 60, log_start=2)), point(13, cut(0, 70))]
        assert _spans(points, [window(0)], [_recorded(1, 60, 70)]) == {("w0000", 0): (2, 60)}

    def test_it_goes_on_where_the_ledger_ends_if_the_start_was_moved_later(self) -> None:
        points = [self.OLD, point(3, cut(0, 60, log_start=2))]
        before = _recorded(-3, 2, 40, continues=False)
        assert _spans(points, [window(0)], [before]) == {("w0000", 0): (40, 60)}

    def test_a_window_that_was_put_before_it_takes_in_what_it_passed_over(self) -> None:
        """An earlier release let it begin at the older point; its edges stay."""
        points = [self.OLD, point(3, cut(0, 60, log_start=2))]
        edges = WindowEdges(points, [_recorded(0, 50, 60)], begins_ms=-STEP_MS)
        (edge,) = edges.partitions_of(window(-1), {"t"})
        assert edge == Edges(T0, None, Position("life-1", 50), 2)

    def test_of_a_topic_that_ended_before_it_closed_everything_is_lost(self) -> None:
        for closing in (point(3, absent_topics=["t"]), point(3, cut(0, 9, topic_id="life-2"))):
            (edge,) = WindowEdges([self.OLD, closing]).partitions_of(window(0), {"t"})
            assert edge.start == Position("life-1", 2)

    def test_of_a_topic_that_had_gone_before_nothing_is_told(self) -> None:
        gone = point(-2, absent_topics=["t"])
        points = [self.OLD, gone, point(3, cut(0, 9, topic_id="life-2"))]
        assert _spans(points, [window(0)]) == {("w0000", 0): (0, 9)}


class TestVanished:
    """Partitions that were there when a window opened, and not when it closed."""

    POINTS = (
        point(3, cut(0, 500)),
        point(13, absent_topics=["t"]),
        point(23, cut(0, 9, topic_id="life-2", log_start=2)),
    )

    def test_a_deleted_topic_ends_in_the_window_in_which_it_went(self) -> None:
        (edge,) = WindowEdges(self.POINTS).partitions_of(window(1), {"t"})
        here = Position("life-1", 500)
        assert edge == Edges(T0, here, here, 500, vanished=True)

    @pytest.mark.parametrize("recorded", [False, True])
    def test_its_end_is_told_once(self, recorded: bool) -> None:
        ledger = [_recorded(1, 500, 500)] if recorded else []
        (edge,) = WindowEdges(self.POINTS, ledger).partitions_of(window(2), {"t"})
        assert edge == Edges(T0, None, Position("life-2", 9), 2)

    def test_a_topic_recreated_with_fewer_partitions(self) -> None:
        points = [point(3, cut(0, 5), cut(1, 7)), point(13, cut(0, 9, topic_id="life-2"))]
        kept, gone = WindowEdges(points).partitions_of(window(1), {"t"})
        assert kept.end == Position("life-2", 9)
        assert (gone.partition.partition, gone.vanished) == (1, True)
        assert gone.start == gone.end == Position("life-1", 7)


class TestFrozen:
    """What the ledger holds is never moved."""

    def test_a_recorded_window_keeps_its_span(self) -> None:
        points = [point(3, cut(0, 5)), point(9, cut(0, 8, log_start=3)), point(13, cut(0, 20))]
        recorded = [_recorded(0, 0, 5, continues=False)]
        assert _spans(points, [window(0), window(1)], recorded) == {
            ("w0000", 0): (0, 5),
            ("w0001", 0): (5, 20),
        }

    def test_a_window_ends_where_the_recorded_one_after_it_begins(self) -> None:
        points = [point(3, cut(0, 5)), point(9, cut(0, 8)), point(13, cut(0, 20))]
        recorded = [_recorded(1, 5, 20)]
        assert _spans(points, [window(0)], recorded) == {("w0000", 0): (0, 5)}

    def test_an_edge_stays_between_recorded_windows_that_are_not_its_neighbours(self) -> None:
        late = point(44, cut(0, 90), closes_window_end_ms=20)
        points = [point(3, cut(0, 5)), late]
        recorded = [_recorded(0, 0, 5), _recorded(3, 30, 40)]
        assert _spans(points, map(window, range(1, 3)), recorded) == {
            ("w0001", 0): (5, 30),
            ("w0002", 0): (30, 30),
        }

    def test_a_point_that_stands_behind_a_recorded_window(self) -> None:
        recorded = [_recorded(0, 0, 50, continues=False)]
        points = [point(3, cut(0, 30)), point(15, cut(0, 40)), point(25, cut(0, 60))]
        assert _spans(points, [window(2)], recorded) == {("w0002", 0): (50, 60)}

    def test_a_recorded_partition_is_told_even_if_no_point_knows_it_any_more(self) -> None:
        recorded = [_recorded(0, 0, 5, partition=1)]
        assert _spans([point(3, cut(0, 5))], [window(0)], recorded) == {
            ("w0000", 0): (0, 5),
            ("w0000", 1): (0, 5),
        }

    def test_the_beginning_of_a_life_says_nothing_about_the_window_before(self) -> None:
        recorded = [_recorded(1, 0, 9, topic_id="life-2", continues=False)]
        points = [point(3, cut(0, 5)), point(13, cut(0, 9, topic_id="life-2"))]
        assert _spans(points, [window(0)], recorded) == {("w0000", 0): (0, 5)}


class TestLatePoints:
    """A point taken late, with points of the next window older than it."""

    POINTS = (
        point(13, cut(0, 100)),
        point(14, cut(0, 150), closes_window_end_ms=10),
        point(25, cut(0, 300)),
    )

    def test_no_offset_is_in_two_windows_of_one_run(self) -> None:
        assert _spans(self.POINTS, map(window, range(3))) == {
            ("w0000", 0): (0, 150),
            ("w0001", 0): (150, 150),
            ("w0002", 0): (150, 300),
        }

    def test_each_window_alone_gives_the_same(self) -> None:
        alone = {k: v for i in range(3) for k, v in _spans(self.POINTS, [window(i)]).items()}
        assert alone == _spans(self.POINTS, map(window, range(3)))

    def test_a_life_that_has_ended_does_not_come_back(self) -> None:
        points = [
            point(13, cut(0, 100)),
            point(14, cut(0, 7, topic_id="life-2"), closes_window_end_ms=10),
            point(25, cut(0, 9, topic_id="life-2")),
        ]
        assert _spans(points, map(window, range(3))) == {
            ("w0000", 0): (0, 7),
            ("w0001", 0): (7, 7),
            ("w0002", 0): (7, 9),
        }


class _Log:
    """One partition of a topic, as the broker holds it."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0


class WindowsTileTheLog(RuleBasedStateMachine):
    """Topics grow, are trimmed, widened, deleted and recreated; points and backups at any time.

    A backup loads what a real run loads: the points at the edges of its windows, and of the ledger
    their own rows and the nearest of each partition on either side.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lives_end = False
        self.now_ms = -25  # points may be older than the first window
        self.lives = {"t": 1, "u": 1}
        self.logs = {"t": [_Log()], "u": [_Log(), _Log()]}
        self.points: list[RecoveryPoint] = []
        self.ledger: dict[tuple[Window, TopicPartitionId], SpanPlan] = {}

    @initialize(lives_end=st.booleans())
    def start(self, lives_end: bool) -> None:
        self.lives_end = lives_end

    # --- what happens to the cluster -------------------------------------------------------------

    @rule(windows=st.integers(1, 2), into=st.integers(0, STEP_MS - 1), grow=st.integers(0, 5))
    def wait(self, windows: int, into: int, grow: int) -> None:
        self.now_ms = (self.now_ms // STEP_MS + windows) * STEP_MS + into
        self._grow(grow)

    @rule(
        topic=st.sampled_from("tu"),
        kind=st.sampled_from(["recreate", "widen", "trim", "delete"]),
        size=st.integers(1, 9),
    )
    def change(self, topic: str, kind: str, size: int) -> None:
        logs = self.logs[topic]
        if kind == "widen" and 0 < len(logs) < 3:
            logs.append(_Log())
        elif kind == "delete" and self.lives_end:
            self.logs[topic] = []
        elif kind == "trim" and logs:
            log = logs[size % len(logs)]
            log.start = min(log.end, log.start + size)
        elif kind == "recreate" and self.lives_end:
            self.lives[topic] += 1
            self.logs[topic] = [_Log() for _ in range(1 + size % 2)]

    # --- what we do ------------------------------------------------------------------------------

    @rule(grow=st.integers(0, 5))
    def take_point(self, grow: int) -> None:
        self._take(None)
        self._grow(grow)

    @precondition(lambda self: self.now_ms >= STEP_MS)
    @rule(grow=st.integers(0, 5), back=st.integers(0, 5))
    def take_late_point(self, grow: int, back: int) -> None:
        """A backup takes one for the newest closed window; older ones must do no harm either."""
        closed = self.now_ms // STEP_MS
        back = 0 if self.lives_end else min(back, closed - 1)
        self._take((closed - back) * STEP_MS)
        self._grow(grow)

    @precondition(lambda self: self.now_ms >= STEP_MS)
    @rule(
        back=st.sets(st.integers(0, 5), min_size=1, max_size=3),
        topics=st.sampled_from(["t", "u", "tu"]),
    )
    def back_up(self, back: set[int], topics: str) -> None:
        closed = self.now_ms // STEP_MS
        self._back_up([window(i) for i in sorted(closed - 1 - b for b in back) if i >= 0], topics)

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def windows_tile_each_life_of_a_partition(self) -> None:
        """Were a run to back up all closed windows now, each life would be one unbroken chain."""
        closed = [window(index) for index in range(self.now_ms // STEP_MS)]
        if not closed:
            return
        lives: dict[tuple[TopicPartitionId, str], list[SpanPlan]] = defaultdict(list)
        for (_, partition), plan in sorted(self._plan(closed, ("t", "u")).items()):
            lives[partition, plan.topic_id].append(plan)
        for (partition, topic_id), spans in lives.items():
            for before, after in itertools.pairwise(spans):
                assert after.window.start_ms == before.window.end_ms
            filled = [s for s in spans if s.end > s.start]
            for before, after in itertools.pairwise(filled):
                assert after.start == before.end
                assert after.continues
            cuts = [c for p in self.points for c in p.partitions if c.id == partition]
            assert spans[0].start in {c.log_start for c in cuts if c.topic_id == topic_id}

    def teardown(self) -> None:
        """The last window ends at the last point, whatever happened before."""
        self._take(None)
        last = window(max(self.now_ms // STEP_MS, 0))
        self.now_ms = last.end_ms
        self.windows_tile_each_life_of_a_partition()
        plans = self._plan([last], ("t", "u"))
        for each in self.points[-1].partitions:
            assert plans[last, each.id].end == each.end

    # --- how -------------------------------------------------------------------------------------

    def _grow(self, count: int) -> None:
        for logs in self.logs.values():
            for number, log in enumerate(logs):
                log.end += count + number

    def _take(self, closes_window_end_ms: int | None) -> None:
        cuts = tuple(
            PartitionCut(topic, number, f"{topic}-{self.lives[topic]}", log.start, log.end)
            for topic, logs in self.logs.items()
            for number, log in enumerate(logs)
        )
        known = {each.topic for earlier in self.points for each in earlier.partitions}
        self.points.append(
            point(
                self.now_ms,
                *cuts,
                closes_window_end_ms=closes_window_end_ms,
                absent_topics=[t for t, logs in self.logs.items() if t in known and not logs],
            )
        )
        self.now_ms += 1

    def _back_up(self, windows: Sequence[Window], topics: Collection[str]) -> None:
        if not windows:
            return
        plans = self._plan(windows, topics)
        kept = {k: s for k, s in self.ledger.items() if k[0] in windows and k[1].topic in topics}
        assert kept.keys() <= plans.keys()
        for key, before in kept.items():
            assert _as_recorded(plans[key]) == _as_recorded(before)
        self.ledger.update(plans)

    def _plan(
        self, windows: Sequence[Window], topics: Collection[str]
    ) -> dict[tuple[Window, TopicPartitionId], SpanPlan]:
        edges = WindowEdges(self._points_of(windows), self._recorded_near(windows, topics))
        return {
            (each, edge.partition): plan_span(
                each, edge, LogState(edge.end.topic_id, 0), repartition=False
            )
            for each in windows
            for edge in edges.partitions_of(each, topics)
        }

    def _points_of(self, windows: Sequence[Window]) -> list[RecoveryPoint]:
        instants = sorted(
            (PointInstant(p.id, p.taken_at_ms, p.effective_at_ms) for p in self.points),
            key=lambda i: (i.effective_at_ms, i.taken_at_ms),
        )
        ids = at_edges(instants, {edge for w in windows for edge in (w.start_ms, w.end_ms)})
        return [p for p in self.points if p.id in ids]

    def _recorded_near(
        self, windows: Sequence[Window], topics: Collection[str]
    ) -> list[RecordedSpan]:
        low, high = windows[0].start_ms, windows[-1].end_ms
        near: list[SpanPlan] = []
        partitions = {p for _, p in self.ledger if p.topic in topics}
        for partition in partitions:
            spans = sorted(
                (s for (_, p), s in self.ledger.items() if p == partition), key=lambda s: s.window
            )
            near += [s for s in spans if s.window.end_ms <= low][-1:]
            near += [s for s in spans if s.window.end_ms > low and s.window.start_ms < high]
            near += [s for s in spans if s.window.start_ms >= high][:1]
        return list(map(_as_recorded, near))


def _as_recorded(plan: SpanPlan) -> RecordedSpan:
    return RecordedSpan(
        plan.window, plan.partition, plan.topic_id, plan.start, plan.end, plan.continues
    )


TestWindowsTileTheLog = WindowsTileTheLog.TestCase
TestWindowsTileTheLog.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("recorded", [False, True])
def test_time_does_not_grow_with_windows_squared(recorded: bool) -> None:
    few = min(_seconds_for(500, recorded) for _ in range(3))
    many = min(_seconds_for(4000, recorded) for _ in range(2))
    assert many / few < 24  # in proportion: 8; squared: 64


def _seconds_for(count: int, recorded: bool) -> float:
    points = [point(STEP_MS * i + 5, cut(0, i), cut(1, i)) for i in range(count)]
    ledger = [_recorded(i, i - 1, i, partition=p) for i in range(1, count) for p in (0, 1)]
    edges = WindowEdges(points, ledger if recorded else ())
    gc.disable()  # it would look through whatever other tests keep
    try:
        with processor_time() as took:
            found = [edges.partitions_of(window(index), {"t"}) for index in range(count)]
    finally:
        gc.enable()
    assert [len(of_window) for of_window in found] == [2] * count
    return took.seconds
