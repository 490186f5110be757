"""Which of some neighbours are put together: few stay, and little is written anew."""

from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.upkeep.expire import first_index

_RATIO = 4


def test_an_empty_window_at_the_end_does_not_keep_those_before_it_apart() -> None:
    assert first_index([900, 800, 700, 0], ratio=_RATIO) == 0


def test_a_large_one_waits_until_there_is_enough_behind_it() -> None:
    assert first_index([1_000, 10, 10], ratio=_RATIO) == 1
    assert first_index([1_000, 200, 60], ratio=_RATIO) == 0


@given(st.lists(st.integers(0, 10_000), max_size=40))
def test_each_one_that_stays_outweighs_all_behind_it(sizes: list[int]) -> None:
    first = first_index(sizes, ratio=_RATIO)
    assert all(sizes[at] > _RATIO * sum(sizes[at + 1 :]) for at in range(first))


@given(st.lists(st.integers(0, 10_000), max_size=200))
def test_done_after_every_window_all_is_written_a_few_times_only(sizes: list[int]) -> None:
    pieces: list[int] = []
    written = 0
    for size in sizes:
        pieces.append(size)
        first = first_index(pieces, ratio=_RATIO)
        if len(pieces) - first >= 2:
            pieces[first:] = [sum(pieces[first:])]
            written += pieces[-1]
    assert len(pieces) <= 8
    assert written <= 12 * max(1, sum(sizes)) * max(1, len(sizes)).bit_length()
