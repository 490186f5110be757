"""Sets of offsets, against plain sets."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kstreams_assets.app.model import TopicRole
from kstreams_assets.model.point import PartitionCut, RecoveryPoint
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.points import OffsetRanges
from kstreams_assets.repository.rows import rows_of
from tests.backup.samples import point


class ProvenRange(NamedTuple):
    """Offsets of one incarnation of a topic that a backup holds without a hole."""

    topic_id: str
    start: int
    end: int


TOP = 30
TOPICS = ("a", "b")
LIVES = ("life-1", "life-2")
_ROLES = st.sets(
    st.sampled_from([TopicRole.CHANGELOG, TopicRole.REPARTITION, TopicRole.INPUT])
).map(frozenset)


def excluded_ranges(numbers: set[int]) -> tuple[OffsetRange, ...]:
    """Disjoint ranges in order."""
    ordered = sorted(numbers)
    return tuple(map(OffsetRange, ordered[::2], ordered[1::2]))


CUTS = st.builds(
    PartitionCut,
    topic=st.sampled_from(TOPICS),
    partition=st.integers(0, 2),
    topic_id=st.sampled_from(LIVES),
    log_start=st.just(0),
    end=st.integers(0, TOP),
    roles=_ROLES,
    excluded=st.sets(st.integers(0, TOP), max_size=6).map(excluded_ranges),
    saved_from=st.none() | st.integers(0, TOP),
)
PROVEN = st.dictionaries(
    st.builds(TopicPartitionId, st.sampled_from(TOPICS), st.integers(0, 2)),
    st.lists(
        st.builds(ProvenRange, st.sampled_from(LIVES), st.integers(0, TOP), st.integers(0, TOP)),
        max_size=3,
    ),
)
EVERY = pa.Table.from_pylist(
    [
        {"topic": topic, "partition": partition, "topic_id": life, "offset": offset}
        for topic in TOPICS
        for partition in range(3)
        for life in LIVES
        for offset in range(TOP)
    ],
    schema=pa.schema(
        [
            SCHEMA_FIELD
            for SCHEMA_FIELD in (
                pa.field("topic", pa.string()),
                pa.field("partition", pa.int32()),
                pa.field("topic_id", pa.string()),
                pa.field("offset", pa.int64()),
            )
        ]
    ),
)


def saved(cut: PartitionCut, row: dict[str, object]) -> bool:
    """Whether a cut has saved this offset: the definition, one offset at a time."""
    offset = row["offset"]
    assert isinstance(offset, int)
    return (
        cut.saved_from is not None
        and (cut.topic, cut.partition, cut.topic_id)
        == (row["topic"], row["partition"], row["topic_id"])
        and cut.saved_from <= offset
        and cut.holds(offset)
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(CUTS, max_size=6))
def test_cuts(cuts: list[PartitionCut]) -> None:
    expected = [any(saved(cut, row) for cut in cuts) for row in EVERY.to_pylist()]
    assert OffsetRanges.of_cuts(cuts).mask(EVERY).tolist() == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(CUTS, max_size=4), max_size=4), PROVEN)
def test_points_as_columns(
    cuts: list[list[PartitionCut]], proven: dict[TopicPartitionId, list[ProvenRange]]
) -> None:
    rows = [point(number, *of_one) for number, of_one in enumerate(cuts)]
    table = rows_of(RecoveryPoint).write(rows)

    def is_proven(cut: PartitionCut, offset: int) -> bool:
        return (
            TopicRole.CHANGELOG in cut.roles
            and TopicRole.REPARTITION not in cut.roles
            and any(
                known.topic_id == cut.topic_id and known.start <= offset < known.end
                for known in proven.get(cut.id, ())
            )
        )

    expected = [
        any(
            saved(cut, row) and not is_proven(cut, row["offset"])
            for of_one in cuts
            for cut in of_one
        )
        for row in EVERY.to_pylist()
    ]
    ranges = OffsetRanges.of_points(table["partitions"], proven)
    assert ranges.mask(EVERY).tolist() == expected


def test_a_million_rows_take_no_time() -> None:
    count = 1_000_000
    rows = pa.table(
        {
            "topic": pa.array(["a", "b"] * (count // 2)),
            "topic_id": pa.array(["life-1"] * count),
            "partition": pa.array(np.arange(count, dtype=np.int32) % 12),
            "offset": pa.array(np.arange(count)),
        }
    )
    cuts = [
        PartitionCut("a", partition, "life-1", 0, end, saved_from=end - 7)
        for partition in range(0, 12, 2)
        for end in range(10, count, 1000)
    ]
    assert OffsetRanges.of_cuts(cuts).mask(rows).sum() > 0
