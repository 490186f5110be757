"""The last record of each key, of more keys than are remembered at a time."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kstreams_assets.offsets import OffsetRange, RangeSet
from spark_resources import span_tasks
from spark_resources.data_files import FILE
from spark_resources.span_tasks import LastOfEachKey, _Choice, _Seen

Record = tuple[bytes | None, bytes | None]


def _batches(records: Sequence[Record], start: int, size: int) -> list[pa.RecordBatch]:
    rows = [
        {
            "partition": 0,
            "offset": start + 3 * number,
            "timestamp_ms": 1,
            "timestamp_type": 0,
            "headers": None,
            "key": key,
            "value": value,
        }
        for number, (key, value) in enumerate(records)
    ]
    return [
        pa.RecordBatch.from_pylist(rows[at : at + size], schema=FILE)
        for at in range(0, len(rows), size)
    ]


def _kept(keeps: LastOfEachKey, batches: Sequence[pa.RecordBatch]) -> tuple[list[int], int]:
    """The offsets that stay, and how often all records were seen."""
    choice, times = _Choice(keeps), 0
    while not choice.is_complete:
        for batch in batches:
            choice.see(batch.select(["offset", "key"]))
        choice.decide()
        times += 1
    kept = [batch["offset"].filter(pa.array(choice.stays(batch))) for batch in batches]
    return [offset for of_batch in kept for offset in of_batch.to_pylist()], times


def _expected(keeps: LastOfEachKey, batches: Sequence[pa.RecordBatch]) -> list[int]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    undecided = {r["key"] for r in rows if keeps.undecided.holds(r["offset"])}
    decided = [r for r in rows if not keeps.undecided.holds(r["offset"])]
    last = {r["key"]: r["offset"] for r in decided}
    kept = [
        r["offset"]
        for r in rows
        if r["offset"] >= keeps.floor
        and (
            keeps.undecided.holds(r["offset"])
            or r["key"] is None
            or (
                last.get(r["key"]) == r["offset"]
                and not (
                    keeps.without_deletions and r["value"] is None and r["key"] not in undecided
                )
            )
        )
    ]
    return sorted(kept)


KEYS = st.one_of(
    st.none(), st.binary(max_size=3), st.sampled_from([b"", b"\0", b"\0\0", b"k" * 900])
)


@pytest.mark.parametrize(("most", "at_once"), [(2, 1), (5, 3), (2_000_000, 500_000)])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(st.tuples(KEYS, st.sampled_from([None, b"v"])), max_size=40),
    undecided=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 20)), max_size=2),
    floor=st.integers(0, 60),
    without_deletions=st.booleans(),
    size=st.integers(1, 9),
)
def test_what_stays_is_what_compaction_leaves(
    most: int,
    at_once: int,
    records: list[Record],
    undecided: list[tuple[int, int]],
    floor: int,
    without_deletions: bool,
    size: int,
) -> None:
    ranges = RangeSet([OffsetRange(start, start + length) for start, length in undecided])
    keeps = LastOfEachKey(ranges, floor, without_deletions)
    batches = _batches(records, 7, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_tasks, "_MOST_KEYS", most)
        patch.setattr(span_tasks, "_CHOSEN_AT_ONCE", at_once)
        assert _kept(keeps, batches)[0] == _expected(keeps, batches)


def test_what_is_held_does_not_grow_with_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_tasks, "_MOST_KEYS", 1_000)
    monkeypatch.setattr(span_tasks, "_CHOSEN_AT_ONCE", 200)
    held: list[int] = []
    original = _Seen.last_of_each

    def noting(parts: Sequence[_Seen]) -> _Seen:
        held.append(sum(len(part.rows) for part in parts))
        return original(parts)

    monkeypatch.setattr(_Seen, "last_of_each", noting)
    records: list[Record] = [(b"customer-%031d" % (n % 20_000), b"v") for n in range(25_000)]
    batches = _batches(records, 0, 100)
    kept, times = _kept(LastOfEachKey(RangeSet(), 0, True), batches)
    assert kept == [3 * n for n in range(5_000, 25_000)]
    assert max(held) <= 1_000 + 200 + 100
    assert 20 <= times <= 64


def test_few_bytes_for_each_key() -> None:
    """It was 470."""
    seen = _Seen.of(pa.array([b"k%d" % n for n in range(1_000)]), np.arange(1_000), b"salt")
    assert sum(half.nbytes for half in _Seen.last_of_each([seen])) == 24 * 1_000
