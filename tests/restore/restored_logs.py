"""Logs of every kind, and where their records went."""

from dataclasses import dataclass
from itertools import accumulate

from hypothesis import strategies as st

from kstreams_assets.offsets import OffsetMap, runs_of


@dataclass(frozen=True, slots=True)
class Restored:
    """A partition after a restore: offsets of the restored records, log start and ends."""

    log_start: int
    log_end: int
    source: tuple[int, ...]
    target: tuple[int, ...]
    target_start: int
    target_end: int

    @property
    def map(self) -> OffsetMap:
        """The map made from the offsets."""
        return OffsetMap(runs_of(self.source, self.target), self.target_end)

    @property
    def offsets(self) -> range:
        """Every source offset that somebody may have committed, and some beyond."""
        return range(max(0, self.log_start - 2), self.log_end + 3)


_STRETCHES = st.lists(
    st.tuples(
        st.sampled_from(["records", "marker", "aborted", "compacted"]),
        st.integers(1, 5),
    ),
    max_size=12,
)
"""What a log consists of. Only records reach the target; all the rest are gaps to the map."""


@st.composite
def logs(draw: st.DrawFn) -> Restored:
    """Any log, restored into a target that was empty or not and may have gaps itself."""
    log_start = draw(st.integers(0, 4))
    source: list[int] = []
    offset = log_start
    for kind, length in draw(_STRETCHES):
        stretch = range(offset, offset + (1 if kind == "marker" else length))
        source += stretch if kind == "records" else ()
        offset = stretch.stop
    target_start = draw(st.integers(0, 4))
    steps = draw(
        st.lists(st.sampled_from([1, 1, 1, 2, 4]), min_size=len(source), max_size=len(source))
    )
    ends = list(accumulate(steps, initial=target_start))
    return Restored(
        log_start, offset, tuple(source), tuple(ends[:-1]), target_start, target_end=ends[-1]
    )
