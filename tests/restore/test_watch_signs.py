"""restore/watch_signs.py, watch_judge.py, watch_troubles.py: what observations over time mean."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.watch import (
    Assessment,
    Evaluator,
    Expected,
    Health,
    Limits,
    Observation,
    PartitionSeen,
    Sign,
)

DAY_MS = 86_400_000
A, B = TopicPartitionId("a", 0), TopicPartitionId("b", 0)
IDS = {"a": "id-a", "b": "id-b"}
LIMITS = Limits(
    timeout_s=100,
    not_started_after_s=10,
    not_stable_after_s=20,
    not_moving_after_s=30,
    restored_per_s=100,
)
EXPECTED = Expected(
    group="app",
    topic_ids=IDS,
    committed={A: 10, B: 20},
    required=frozenset({A, B}),
    committed_at_ms=0,
)


def partition(committed: int | None, end: int, left: int | None = None, **more: Any):
    """A partition whose records are all there is; `left` tells them where markers are too."""
    start = more.get("log_start", 0) if committed is None else committed
    count = max(0, end - start) if left is None else left
    values = {
        "log_start": 0,
        "high_watermark": end,
        "next_record": start if count else None,
        "records_left": count,
    }
    return PartitionSeen(committed=committed, end=end, **values | more)


def seen(
    at_s: float,
    partitions: Mapping[TopicPartitionId, PartitionSeen],
    state: str | None = "Stable",
    **more: Any,
) -> Observation:
    values: dict[str, Any] = {"at_ms": int(at_s * 1000), "topic_ids": IDS, "members": 1}
    group_type = None if state is None else "classic"
    return Observation(
        at_s=at_s, group_type=group_type, group_state=state, partitions=partitions, **values | more
    )


def judged(observations: Iterable[Observation], expected: Expected = EXPECTED) -> list[Assessment]:
    evaluator = Evaluator(expected, LIMITS)
    return [evaluator.evaluate(observation) for observation in observations]


def signs(assessment: Assessment) -> list[str]:
    return [trouble.subject for trouble in assessment.troubles]


def test_healthy_once_all_is_read_that_was_there_twice() -> None:
    start = {A: partition(10, 15), B: partition(20, 20)}
    done = {A: partition(15, 15), B: partition(20, 20)}
    found = judged(
        [
            seen(0, start, state=None),
            seen(3, start, state="PreparingRebalance"),
            seen(6, start),
            seen(9, done),
            seen(12, done),
        ]
    )
    assert [assessment.health for assessment in found] == [
        Health.WAITING,
        Health.CATCHING_UP,
        Health.CATCHING_UP,
        Health.CATCHING_UP,
        Health.HEALTHY,
    ]
    assert [a.records_left for a in found] == [5, 5, 5, 0, 0]
    assert [a.moved for a in found] == [0, 0, 0, 1, 1]
    assert [a.has_ended for a in found] == [False] * 4 + [True]


def test_markers_behind_the_last_record_are_no_lag() -> None:
    markers = {A: partition(14, 16, left=0), B: partition(20, 22, left=0)}
    assert judged([seen(at, markers) for at in (0, 3, 6)])[-1].health is Health.HEALTHY


def test_under_load_it_is_healthy_behind_the_newest_records() -> None:
    # 100 records more at each look, read up to where the log ended the look before
    def loaded(step: int) -> dict[TopicPartitionId, PartitionSeen]:
        return {A: partition(10 + 100 * step, 110 + 100 * step), B: partition(20, 20)}

    found = judged([seen(3 * step, loaded(step)) for step in range(3)])
    assert [a.health for a in found] == [Health.CATCHING_UP, Health.CATCHING_UP, Health.HEALTHY]
    assert found[-1].records_left == 100


def test_what_it_writes_to_itself_on_the_way_is_to_be_read_too() -> None:
    inner = TopicPartitionId("app-inner-repartition", 0)
    only_input = {A: partition(10, 15), B: partition(20, 20)}
    input_read = {A: partition(15, 15), B: partition(20, 20), inner: partition(None, 5)}
    all_read = input_read | {inner: partition(5, 5)}
    found = judged(
        [seen(0, only_input), seen(3, input_read), seen(6, input_read), seen(9, all_read)]
    )
    assert [a.health is Health.HEALTHY for a in found] == [False, False, False, True]


def test_a_rebalance_begins_anew() -> None:
    done = {A: partition(15, 15), B: partition(20, 20)}
    states = ["Stable", "Stable", "PreparingRebalance", "Stable", "Stable", "Stable"]
    found = judged([seen(3 * at, done, state=state) for at, state in enumerate(states)])
    assert [a.health is Health.HEALTHY for a in found] == [False] * 5 + [True]


def test_not_counted_records_are_told_as_a_bound() -> None:
    rest = partition(10, 1_000_010, next_record=10, records_left=None)
    (found,) = judged([seen(0, {A: rest, B: partition(20, 20)})])
    assert (found.records_left, found.counted) == (1_000_000, False)
    assert "at most 1,000,000 records left" in str(found)


def stuck(at_s: float, state: str = "Stable") -> Observation:
    return seen(at_s, {A: partition(10, 15), B: partition(20 + int(at_s), 999)}, state=state)


def test_offsets_that_do_not_move_in_one_partition() -> None:
    found = judged([stuck(at) for at in (0, 10, 20, 29, 30)])
    assert [signs(a) for a in found] == [[], [], [], [], [Sign.NOT_MOVING]]
    assert found[-1].health is Health.UNHEALTHY
    problem = found[-1].troubles[0].found
    assert "a-0 (offset 10, 5 records left)" in problem
    assert "b-0" not in problem


def test_an_application_that_loads_its_stores_has_the_time_for_it() -> None:
    # 2,000 records at 100 a second: 20 s more
    expected = replace(EXPECTED, changelog_records={"c": 1_500, "d": 500}, topic_ids=IDS)
    found = judged([stuck(at) for at in (0, 30, 49, 50)], expected)
    assert [signs(a) for a in found] == [[], [], [], [Sign.NOT_MOVING]]
    assert "2,000 records" in found[-1].troubles[0].action


def test_standing_still_counts_from_when_the_group_is_stable() -> None:
    states = {0: "Stable", 20: "PreparingRebalance", 25: "Stable", 54: "Stable", 55: "Stable"}
    found = judged([stuck(at, state) for at, state in states.items()])
    assert [signs(a) for a in found] == [[], [], [], [], [Sign.NOT_MOVING]]


def test_partitions_with_markers_only_may_stand_still() -> None:
    rest = {A: partition(10, 12, left=0), B: partition(20, 20)}
    found = judged([seen(at, rest) for at in (0, 40, 80)])
    assert found[-1].health is Health.HEALTHY


def test_never_committed_partitions_that_must_be_read() -> None:
    expected = replace(EXPECTED, committed={}, required=frozenset({A}))
    found = judged([seen(at, {A: partition(None, 7)}) for at in (0, 31)], expected)
    assert signs(found[-1]) == [Sign.NOT_MOVING]
    assert "a-0 (no offset, 7 records left)" in found[-1].troubles[0].found


def test_a_leader_epoch_ahead_is_stale_when_seen_twice() -> None:
    stale = partition(10, 15, leader_epoch=7, current_epoch=2)
    found = judged([seen(at, {A: stale, B: partition(20, 20)}) for at in (0, 3)])
    assert [signs(a) for a in found] == [[], [Sign.STALE_LEADER_EPOCH]]
    assert "a-0 (offset 10 with epoch 7, the partition has 2)" in found[1].troubles[0].text


@pytest.mark.parametrize(
    ("first", "second"),
    [((10, 3, 2), (12, 3, 3)), ((10, 2, 2), (10, 2, 2)), ((10, None, 2), (10, None, 2))],
    ids=["an election the broker had not heard of", "its own epoch", "no epoch"],
)
def test_other_leader_epochs_are_fine(first: Any, second: Any) -> None:
    found = judged(
        seen(
            at,
            {A: partition(offset, 15, leader_epoch=own, current_epoch=now), B: partition(20, 20)},
        )
        for at, (offset, own, now) in enumerate((first, second))
    )
    assert signs(found[-1]) == []


@pytest.mark.parametrize(
    ("of_a", "sign", "told"),
    [
        (partition(None, 15), Sign.OFFSETS_GONE, "a-0 (10 was committed)"),
        (partition(9, 15), Sign.OFFSETS_RESET, "a-0 (9; 10 was committed)"),
        (partition(16, 15), Sign.OFFSETS_OUT_OF_RANGE, "a-0 (16; the log holds 0 to 15)"),
        (
            partition(10, 15, log_start=11),
            Sign.OFFSETS_OUT_OF_RANGE,
            "a-0 (10; the log holds 11 to 15)",
        ),
    ],
)
def test_offsets_that_are_not_where_they_were(of_a: PartitionSeen, sign: Sign, told: str) -> None:
    for state in (None, "Stable"):
        (found,) = judged([seen(0, {A: of_a, B: partition(20, 20)}, state=state)])
        assert found.health is Health.UNHEALTHY
        assert signs(found) == [sign]
        assert told in found.troubles[0].found


def test_offsets_beyond_the_last_stable_offset_are_in_the_log() -> None:
    # at-least-once applications read records of open transactions
    ahead = partition(14, 12, high_watermark=15)
    (found,) = judged([seen(0, {A: ahead, B: partition(20, 20)})])
    assert signs(found) == []


def test_a_topic_made_anew_explains_its_offsets() -> None:
    for ids in ({"a": "id-other", "b": "id-b"}, {"b": "id-b"}):
        lost = {A: partition(None, 0), B: partition(20, 20)}
        (found,) = judged([seen(0, lost, topic_ids=ids)])
        assert signs(found) == [Sign.TOPIC_REPLACED]
        assert "topic a." in found.troubles[0].found


def test_restored_records_that_were_deleted() -> None:
    changelog = TopicPartitionId("c", 3)
    expected = replace(EXPECTED, kept_from={changelog: 5})
    rest = {A: partition(10, 15), B: partition(20, 20)}
    found = judged([seen(at, rest, log_starts={changelog: at + 5}) for at in (0, 1)], expected)
    assert [signs(a) for a in found] == [[], [Sign.RECORDS_DELETED]]
    assert "c-3 (log start 6, restored from 5)" in found[1].troubles[0].found


def test_a_group_without_members() -> None:
    rest = {A: partition(10, 15), B: partition(20, 20)}
    found = judged(
        seen(at, rest, state="Empty", new_groups=("app2",) * (at == 10)) for at in (0, 9, 10)
    )
    assert [signs(a) for a in found] == [[], [], [Sign.NOT_STARTED]]
    assert found[-1].health is Health.WAITING
    assert "group app2" in found[-1].troubles[0].found
    assert "application.id is app and" in found[-1].troubles[0].action


def test_offsets_of_a_group_that_never_started_expire() -> None:
    rest = {A: partition(10, 15), B: partition(20, 20)}
    for days, expected in ((4, [Sign.NOT_STARTED]), (6, [Sign.NOT_STARTED, Sign.OFFSETS_EXPIRE])):
        found = judged(seen(at, rest, state="Empty", at_ms=days * DAY_MS) for at in (0, 10))
        assert signs(found[-1]) == expected
    gone = {A: partition(None, 15), B: partition(None, 20)}
    (found,) = judged([seen(0, gone, state=None, at_ms=8 * DAY_MS)])
    assert signs(found) == [Sign.OFFSETS_GONE]
    assert "8.0 days ago" in found.troubles[0].found
    assert "offsets.retention.minutes" in found.troubles[0].found


def test_a_group_that_stays_unstable() -> None:
    rest = {A: partition(10, 15), B: partition(20, 20)}
    states = {0: "NotReady", 19: "NotReady", 20: "NotReady", 21: "Stable"}
    found = judged([seen(at, rest, state=state) for at, state in states.items()])
    assert [signs(a) for a in found] == [[], [], [Sign.NOT_STABLE], []]
    assert found[2].health is Health.CATCHING_UP


def test_time_is_up() -> None:
    def moving(at: int) -> dict[TopicPartitionId, PartitionSeen]:
        return {A: partition(10 + at, 1_000), B: partition(20, 20)}

    found = judged([seen(at, moving(at)) for at in (0, 50, 99, 100)])
    assert [a.health for a in found] == [Health.CATCHING_UP] * 3 + [Health.TIMED_OUT]
