"""Which windows are requested next: once each, oldest first, failed ones with a pause."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstreams_assets.backup.requests import (
    FIRST_PAUSE_S,
    LONGEST_OUTAGE_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_WINDOWS,
    Attempt,
    BackupRequest,
    Paused,
    WindowStatus,
    next_request,
    pause_s,
)
from tests.backup.samples import window

NOW_MS = 1_000_000_000
ALL = frozenset({"t", "u"})
TICK_MS = 30_000


def closed(count: int, *, done: Sequence[int] = ()) -> list[WindowStatus]:
    """Windows 0 to `count`, of which some are backed up."""
    return [WindowStatus(window(i), frozenset() if i in done else ALL) for i in range(count)]


def failed(first: int, last: int, *, ago_s: float = 10_000.0) -> Attempt:
    """A run of these windows that failed."""
    ended_at_ms = NOW_MS - round(ago_s * 1000)
    return Attempt(window(first).key, window(last).key, ended_at_ms, succeeded=False)


def ask(windows: Sequence[WindowStatus], *attempts: Attempt) -> BackupRequest:
    """The request; fails the test when there is none."""
    found = next_request(windows, attempts, now_ms=NOW_MS)
    assert isinstance(found, BackupRequest), found
    return found


def indices(request: BackupRequest) -> list[int]:
    """The numbers of the windows."""
    return [w.start_ms // 10 for w in request.windows]


class TestRanges:
    """What one run takes."""

    def test_nothing_is_due(self) -> None:
        assert next_request([], [], now_ms=NOW_MS) is None
        assert next_request(closed(3, done=[0, 1, 2]), [], now_ms=NOW_MS) is None

    def test_adjacent_windows_are_one_request(self) -> None:
        request = ask(closed(4))
        assert indices(request) == [0, 1, 2, 3]
        assert (request.topics, request.attempt) == (ALL, 1)

    def test_the_oldest_gap_comes_first_and_ends_at_what_is_done(self) -> None:
        assert indices(ask(closed(9, done=[0, 1, 4, 5, 6]))) == [2, 3]

    def test_a_run_is_bounded(self) -> None:
        assert indices(ask(closed(500))) == list(range(MAX_WINDOWS))

    def test_windows_that_lack_other_topics_are_another_request(self) -> None:
        windows = closed(4)
        windows[0] = replace(windows[0], missing=frozenset({"u"}))
        windows[1] = replace(windows[1], missing=frozenset({"u"}))
        request = ask(windows)
        assert indices(request) == [0, 1]
        assert request.topics == {"u"}


class TestFailures:
    """They pause, shrink, and hold up nobody."""

    def test_a_failed_window_pauses_and_the_others_go_on(self) -> None:
        request = ask(closed(5), failed(0, 2, ago_s=FIRST_PAUSE_S - 1))
        assert (indices(request), request.attempt) == ([3, 4], 1)

    def test_it_comes_back_after_the_pause_apart_from_fresh_ones(self) -> None:
        request = ask(closed(5), failed(0, 2, ago_s=FIRST_PAUSE_S + 1))
        assert (indices(request), request.attempt) == ([0, 1, 2], 2)

    def test_all_paused(self) -> None:
        found = next_request(
            closed(4, done=[3]),
            [failed(0, 1, ago_s=10), failed(2, 2, ago_s=20)],
            now_ms=NOW_MS,
        )
        assert found == Paused(3, NOW_MS + (FIRST_PAUSE_S - 20) * 1000)

    def test_the_pause_doubles_up_to_a_bound(self) -> None:
        pauses = [pause_s(failures) for failures in range(1, 8)]
        assert pauses == [60, 120, 240, 480, 960, 1_800, 1_800]
        assert pause_s(10_000) == LONGEST_PAUSE_S
        twice = [failed(0, 0, ago_s=300), failed(0, 0, ago_s=119)]
        assert isinstance(next_request(closed(1), twice, now_ms=NOW_MS), Paused)
        assert ask(closed(1), twice[0], failed(0, 0, ago_s=121)).attempt == 3

    def test_ranges_shrink_to_one_window(self) -> None:
        windows = closed(MAX_WINDOWS)
        sizes = [
            len(ask(windows, *[failed(0, MAX_WINDOWS - 1)] * failures).windows)
            for failures in range(6)
        ]
        assert sizes == [200, 50, 12, 3, 1, 1]

    def test_ranges_grow_again_with_each_recovery(self) -> None:
        windows = closed(MAX_WINDOWS)
        outage = [failed(0, MAX_WINDOWS - 1)] * 4
        recovery = Attempt(window(0).key, window(0).key, NOW_MS - 1, succeeded=True, again=True)
        before = replace(recovery, ended_at_ms=outage[0].ended_at_ms - 1)
        sizes = [
            len(ask(windows, *outage, *[recovery] * count, before).windows) for count in range(6)
        ]
        assert sizes == [1, 3, 12, 50, 200, 200]

    def test_a_run_that_began_before_the_first_due_window_counts(self) -> None:
        windows = closed(5)[2:]
        assert indices(ask(windows, failed(0, 2, ago_s=1))) == [3, 4]

    def test_runs_of_windows_that_are_no_longer_known_count_for_nothing(self) -> None:
        assert indices(ask(closed(5)[3:], failed(0, 2, ago_s=1))) == [3, 4]

    def test_runs_that_fail_in_a_row_pause_every_window(self) -> None:
        outage = [failed(i, i, ago_s=30 - i) for i in range(3)]
        found = next_request(closed(9), outage, now_ms=NOW_MS)
        assert found == Paused(9, NOW_MS + (FIRST_PAUSE_S - 28) * 1000)
        worked = Attempt(window(7).key, window(7).key, NOW_MS - 1_000, succeeded=True)
        assert indices(ask(closed(9), *outage, worked)) == [3, 4, 5, 6, 7, 8]

    def test_runs_that_lacked_one_topic_are_no_outage(self) -> None:
        """Somebody's open transaction in one topic must not delay the others."""
        partly = [replace(failed(i, i, ago_s=30 - i), partly_done=True) for i in range(3)]
        assert indices(ask(closed(9), *partly)) == [3, 4, 5, 6, 7, 8]

    def test_an_outage_never_pauses_for_long(self) -> None:
        outage = [failed(0, 0, ago_s=LONGEST_OUTAGE_PAUSE_S)] * 50
        assert indices(ask(closed(9), *outage)) == list(range(1, 9))

    def test_a_clock_that_was_set_back_delays_nothing(self) -> None:
        assert ask(closed(1), failed(0, 0, ago_s=-86_400)).attempt == 2


@dataclass
class World:
    """Windows that close, runs that succeed or fail, and the sensor that looks every 30 s."""

    windows: list[WindowStatus]
    fails: Callable[[Sequence[int]], bool]
    now_ms: int = NOW_MS
    attempts: list[Attempt] = field(default_factory=list)
    requested: list[list[int]] = field(default_factory=list)
    done: Counter[int] = field(default_factory=Counter)

    def tick(self) -> None:
        """One look, and the run it led to."""
        self.now_ms += TICK_MS
        request = next_request(self.windows, self.attempts, now_ms=self.now_ms)
        if not isinstance(request, BackupRequest):
            return
        chosen = indices(request)
        self.requested.append(chosen)
        succeeded = not self.fails(chosen)
        if succeeded:
            self.done.update(chosen)
            for index in chosen:
                self.windows[index] = replace(self.windows[index], missing=frozenset())
        ends = request.windows[0].key, request.windows[-1].key
        again = request.attempt > 1
        self.attempts.append(Attempt(*ends, self.now_ms, succeeded, again))

    def close(self) -> None:
        """One more window closes."""
        self.windows.append(WindowStatus(window(len(self.windows)), ALL))

    @property
    def is_done(self) -> bool:
        """Whether every window is backed up."""
        return not any(w.missing for w in self.windows)


class TestCatchingUp:
    """Every window once, none forgotten."""

    def test_five_hundred_windows(self) -> None:
        world = World(closed(500), fails=lambda chosen: False)
        while not world.is_done:
            world.tick()
        assert [len(chosen) for chosen in world.requested] == [200, 200, 100]
        assert world.done == Counter(range(500))

    def test_windows_that_close_meanwhile(self) -> None:
        world = World(closed(500), fails=lambda chosen: False)
        for _ in range(20):
            world.tick()
            world.close()
        world.tick()
        assert world.done == Counter(range(520))
        flat = [index for chosen in world.requested for index in chosen]
        assert flat == sorted(flat)

    def test_one_window_that_can_never_be_backed_up_ends_alone(self) -> None:
        world = World(closed(500), fails=lambda chosen: 250 in chosen)
        for _ in range(2_000):
            world.tick()
        assert world.done == Counter(set(range(500)) - {250})
        assert world.requested[-1] == [250]
        hours = 2_000 * TICK_MS / 3_600_000
        assert sum(chosen == [250] for chosen in world.requested) <= hours * 2 + 6

    @pytest.mark.parametrize("outage_h", [1, 8])
    def test_an_outage_is_healed_in_a_few_runs(self, outage_h: int) -> None:
        down = True
        world = World([], fails=lambda chosen: down)
        for _ in range(outage_h * 60):  # windows of a minute, two looks in each
            world.close()
            world.tick()
            world.tick()
        down = False
        healed = len(world.requested)
        for _ in range(LONGEST_PAUSE_S * 1000 // TICK_MS + 60):
            world.tick()
        assert world.is_done
        assert set(world.done.values()) == {1}
        assert healed <= outage_h * 12 + 20
        assert len(world.requested) - healed <= 25

    @settings(max_examples=40, deadline=None)
    @given(seed=st.integers(0, 2**32), rate=st.floats(0, 0.6), count=st.integers(1, 500))
    def test_random_failures(self, seed: int, rate: float, count: int) -> None:
        randomness = random.Random(seed)
        world = World(closed(count), fails=lambda chosen: randomness.random() < rate)
        for _ in range(20_000):
            if world.is_done:
                break
            world.tick()
        assert world.done == Counter(range(count))
        for chosen in world.requested:
            assert chosen == list(range(chosen[0], chosen[-1] + 1))
            assert len(chosen) <= MAX_WINDOWS
