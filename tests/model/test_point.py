"""A recovery point on its own, and which points bound windows."""

import re

from kstreams_assets.model.point import effective_points, new_point_id
from kstreams_assets.offsets import TopicPartitionId
from tests.backup.samples import cut, point


def test_a_cut_is_found_by_its_partition() -> None:
    found = point(5, cut(0, 3), cut(1, 9), cut(0, 4, topic="u"))
    assert found.cut(TopicPartitionId("t", 1)) == cut(1, 9)
    assert found.cut(TopicPartitionId("u", 0)) == cut(0, 4, topic="u")
    assert found.cut(TopicPartitionId("t", 2)) is None


def test_equal_points_are_equal() -> None:
    assert point(5, cut(0, 3)) == point(5, cut(0, 3))
    assert point(5, cut(0, 3)) != point(5, cut(0, 4))
    assert "_by_id" not in repr(point(5, cut(0, 3)))


def test_a_point_counts_when_it_was_taken_or_just_before_the_end_it_closes() -> None:
    assert point(15, cut(0, 3)).effective_at_ms == 15
    assert point(15, cut(0, 3), closes_window_end_ms=10).effective_at_ms == 9


def test_points_older_than_a_late_one_do_not_count_after_it() -> None:
    first, passed_over, late, last = (
        point(5),
        point(13),
        point(14, closes_window_end_ms=10),
        point(17),
    )
    assert effective_points([passed_over, last, late, first]) == [first, late, last]
    assert effective_points([]) == []


def test_ids_sort_by_time_and_are_never_the_same() -> None:
    instants = [0, 1, 999, 1000, 1_795_261_203_250, 1_795_261_203_251]
    ids = [new_point_id(instant) for instant in instants]
    assert ids == sorted(ids)
    assert re.fullmatch(r"20261121T114003\.250Z-[0-9a-f]{6}", ids[4])
    assert len({new_point_id(5) for _ in range(50)}) == 50
