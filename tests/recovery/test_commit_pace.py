"""The pace of a passive cut: dense around expected commits, within its budget."""

import random
from bisect import bisect
from itertools import pairwise

import pytest

from kstreams_assets.recovery.commit_pace import CommitPace


def samples(pace: CommitPace, commits: dict[str, list[float]], *, until_s: float) -> list[float]:
    """Return when samples are taken while every thread matters; each takes 4 ms."""
    found: list[float] = []
    pending = sorted((at, thread) for thread, of in commits.items() for at in of)
    now = 0.0
    while now < until_s:
        while pending and pending[0][0] <= now:
            pace.committed(pending.pop(0)[1], now)
        found.append(now)
        pace.spend(now)
        now += 0.004 + pace.pause_s(now, commits)
    return found


def is_proven(commit: float, found: list[float]) -> bool:
    """Whether the samples before and after lie between the flush and the next record."""
    number = bisect(found, commit)
    return commit - found[number - 1] < 0.02 and found[number] - commit < 0.008


def test_long_intervals_are_sampled_densely_around_commits_only() -> None:
    source = random.Random(1)
    times = [30 * n + source.uniform(0, 0.1) for n in range(1, 21)]
    found = samples(CommitPace(), {"a": times}, until_s=600)
    assert len(found) / 600 < 50
    late = found[len(found) // 2 :]
    for at in (one for one in times if one > late[0] + 60):
        before = max(one for one in late if one < at)
        assert at - before < 0.015, at


def test_the_budget_holds_for_many_threads_with_short_intervals() -> None:
    commits = {f"t{n}": [n / 10 + k * 1.01 for k in range(120)] for n in range(10)}
    found = samples(CommitPace(burst=100), commits, until_s=120)
    assert len(found) <= 50 * 120 + 100


@pytest.mark.parametrize("threads", [1, 3, 10])
def test_a_budget_that_is_too_small_for_every_commit_covers_some_of_each_thread(
    threads: int,
) -> None:
    source = random.Random(threads)
    commits = {
        f"t{n}": [n / threads + k * 1.03 + source.uniform(0, 0.02) for k in range(300)]
        for n in range(threads)
    }
    found = samples(CommitPace(), commits, until_s=300)
    assert len(found) <= 50 * 300 + 600
    for times in commits.values():
        # The saved requests of the start are spent after a minute.
        later = [at for at in times if 60 < at < 300]
        proven = [at for at in later if is_proven(at, found)]
        assert max(b - a for a, b in pairwise([60, *proven, 300])) < 25


def test_a_thread_without_commits_costs_no_more_than_the_budget() -> None:
    pace = CommitPace(burst=100)
    found = samples(pace, {"a": [1.0, 2.0, 3.0], "b": []}, until_s=60)
    assert len(found) <= 50 * 60 + 100
