"""Sets of offsets, against plain sets."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.offsets import OffsetRange, RangeSet

TOP = 30
RANGES = st.lists(st.builds(OffsetRange, st.integers(0, TOP), st.integers(0, TOP)), max_size=8)


def offsets(ranges: list[OffsetRange] | RangeSet) -> set[int]:
    return {offset for one in ranges for offset in range(one.start, one.end)}


def is_normal(found: RangeSet) -> bool:
    """None empty, in order, none touches the next."""
    edges = [edge for one in found for edge in (one.start, one.end)]
    return all(a < b for a, b in itertools.pairwise(edges))


@given(RANGES, RANGES)
def test_algebra(one: list[OffsetRange], other: list[OffsetRange]) -> None:
    left, right = RangeSet(one), RangeSet(other)

    for found, expected in (
        (left, offsets(one)),
        (left | other, offsets(one) | offsets(other)),
        (left - other, offsets(one) - offsets(other)),
        (left & other, offsets(one) & offsets(other)),
        (left - right, offsets(one) - offsets(other)),
        (left & right, offsets(one) & offsets(other)),
    ):
        assert is_normal(found)
        assert offsets(found) == expected
        assert found.size == len(expected)


@given(RANGES, st.integers(0, TOP), st.integers(0, TOP))
def test_questions(ranges: list[OffsetRange], start: int, end: int) -> None:
    found, known = RangeSet(ranges), offsets(ranges)
    asked = set(range(start, end))

    assert found.holds(start) == (start in known)
    assert found.covers(start, end) == (asked <= known)
    assert offsets(found.clip(start, end)) == asked & known
    assert found.reach(start) == next(at for at in range(start, TOP + 2) if at not in known)
    following = [one.start for one in found if one.start > start]
    assert found.next_start(start) == (following[0] if following else None)


@given(RANGES)
def test_by_the_column(ranges: list[OffsetRange]) -> None:
    every = np.arange(TOP)
    columns = [np.array([getattr(r, name) for r in ranges], np.int64) for name in ("start", "end")]

    assert set(every[RangeSet(ranges).mask(every)].tolist()) == offsets(ranges)
    assert RangeSet.of_arrays(*columns) == RangeSet(ranges)


def test_is_a_value() -> None:
    some = RangeSet([OffsetRange(5, 9), OffsetRange(0, 2), OffsetRange(2, 3)])

    assert some == (OffsetRange(0, 3), OffsetRange(5, 9))
    assert hash(some) == hash(tuple(some))
    assert pickle.loads(pickle.dumps(some)) == some  # noqa: S301
    assert (some[0], some[-1], some[:1]) == (OffsetRange(0, 3), OffsetRange(5, 9), some[:1])
    assert repr(some) == "RangeSet(0-3, 5-9)"
    assert some != "0-3"
    with pytest.raises(IndexError):
        _ = some[2]
