"""The records of a partition come from its files each once, in order, and nothing else does."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.restores import OriginalHeaders
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.partition_records import (
    SCHEMA,
    PartitionWork,
    header_lists,
    work_offsets,
    work_records,
)
from tests.restore.span_files import Stored, work_of
from tests.restore.span_files import span_file as file_of

TARGET = TopicPartitionId("restored", 3)
span_file = partial(file_of, partition=TARGET.partition)


def _stored(offset: int, value: bytes = b"span") -> Stored:
    headers = None if offset % 3 else [("h", b"%d" % offset)]
    return Stored(offset, value, b"%d" % offset, 1_000 + offset, headers)


def _row(record: Stored) -> dict[str, object]:
    headers = record.headers and [
        {"key": key, "value": value, "key_bytes": None} for key, value in record.headers
    ]
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "headers": headers,
        "key": record.key,
        "value": record.value,
    }


def _read(work: PartitionWork, skip: int = 0) -> list[dict[str, object]]:
    batches = list(work_records(work, skip=skip))
    assert all(batch.schema == SCHEMA and batch.num_rows for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


_offset_sets = st.sets(st.integers(0, 60), max_size=40)


@given(
    spans=_offset_sets,
    saved=_offset_sets,
    cuts=st.lists(st.integers(0, 60), max_size=4),
    bounds=st.sets(st.integers(0, 61), max_size=8),
    share=st.integers(0, 100),
)
@settings(max_examples=150, deadline=None)
def test_each_record_of_the_ranges_once_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    spans: set[int],
    saved: set[int],
    cuts: list[int],
    bounds: set[int],
    share: int,
) -> None:
    folder = tmp_path_factory.mktemp("spans")
    edges = [0, *sorted(cuts), 61]
    files = [
        span_file(
            folder / f"{n}.parquet",
            (_stored(o) for o in sorted(spans) if start <= o < end),
            group=4,
        )
        for n, (start, end) in enumerate(pairwise(edges))
    ]
    saved_records = (_stored(offset, b"saved") for offset in sorted(saved))
    saved_file = span_file(folder / "saved.parquet", saved_records, group=4)
    marks = sorted(bounds)[: len(bounds) // 2 * 2]
    ranges = list(zip(marks[::2], marks[1::2], strict=True))
    expected = sorted(o for o in spans | saved if any(s <= o < e for s, e in ranges))
    work = work_of(TARGET, files, ranges, len(expected), saved_file=saved_file)

    rows = _read(work)
    assert [row["offset"] for row in rows] == expected
    assert rows == [_row(_stored(o, b"span" if o in spans else b"saved")) for o in expected]
    found = [int(o) for offsets in work_offsets(work) for o in offsets]
    assert found == expected
    skip = len(expected) * share // 100
    assert _read(work, skip) == rows[skip:]
    first = [int(o) for offsets in work_offsets(work, first=skip) for o in offsets]
    assert first == expected[:skip]


def test_null_and_empty_stay_apart(tmp_path: Path) -> None:
    headers = [("a", b"1"), ("a", None), ("a", b""), ("", b"\x00\xff"), ("a", b"1")]
    records = [
        Stored(0, key=None, value=b"", headers=None),
        Stored(1, key=b"", value=None, headers=[]),
        Stored(2, key=b"2", value=b"span", headers=headers),
    ]
    work = work_of(TARGET, [span_file(tmp_path / "f", records)], [(0, 3)], 3)
    [batch] = work_records(work)
    assert batch.column("key").to_pylist() == [None, b"", b"2"]
    assert batch.column("value").to_pylist() == [b"", None, b"span"]
    assert header_lists(batch.column("headers")) == [None, None, headers]
    assert header_lists(batch.column("headers")[2:]) == [headers]
    assert header_lists(batch.column("headers")[:2]) == [None, None]


def test_original_headers_come_behind_the_own_ones(tmp_path: Path) -> None:
    path = span_file(tmp_path / "f", map(_stored, (6, 7, 9)), group=2)
    wanted = OriginalHeaders(offset=True, timestamp=True, partition=True)
    rows = _read(work_of(TARGET, [path], [(0, 10)], 3, headers=wanted))
    assert [[(h["key"], h["value"]) for h in row["headers"]] for row in rows] == [  # pyright: ignore
        [
            *([("h", b"%d" % offset)] if offset % 3 == 0 else []),
            ("x-original-offset", b"%d" % offset),
            ("x-original-timestamp", b"%d" % (1_000 + offset)),
            ("x-source-partition", b"3"),
        ]
        for offset in (6, 7, 9)
    ]
    only = _read(work_of(TARGET, [path], [(0, 10)], 3, headers=OriginalHeaders(partition=True)))
    added = {"key": "x-source-partition", "value": b"3", "key_bytes": None}
    assert only[1]["headers"] == [added]


def test_only_row_groups_that_matter_are_read(tmp_path: Path) -> None:
    """A page that is not read may even be damaged."""
    path = span_file(tmp_path / "f", map(_stored, range(400)), group=100)
    group = pq.read_metadata(path).row_group(1)
    chunk = group.column(group.num_columns - 1)
    with open(path, "r+b") as file:
        file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        file.write(b"\xff" * chunk.total_compressed_size)
    rows = _read(work_of(TARGET, [path], [(0, 100), (200, 400)], 300))
    assert len(rows) == 300
    assert len(_read(work_of(TARGET, [path], [(0, 400)], 400), skip=200)) == 200
    with pytest.raises(KStreamsAssetsError, match=r"orders-3 .*: file .*/f cannot be read"):
        _read(work_of(TARGET, [path], [(0, 400)], 400))


def test_large_records_come_in_small_batches(tmp_path: Path) -> None:
    value = np.random.default_rng(1).bytes(200_000)
    records = [_stored(offset, value) for offset in range(400)]
    work = work_of(TARGET, [span_file(tmp_path / "f", records, group=400)], [(0, 400)], 400)
    assert max(batch.nbytes for batch in work_records(work)) < 9_000_000
    path = span_file(tmp_path / "d", records, group=400, dictionary=True)
    assert (
        max(batch.nbytes for batch in work_records(work_of(TARGET, [path], [(0, 400)], 400)))
        < 60_000_000
    )
    small = work_of(
        TARGET, [span_file(tmp_path / "g", map(_stored, range(9_000)))], [(0, 9000)], 9000
    )
    assert len(list(work_records(small))) == 2


def test_a_backup_that_is_not_as_planned_is_an_error(tmp_path: Path) -> None:
    first = span_file(tmp_path / "a", map(_stored, range(5)))
    again = span_file(tmp_path / "b", map(_stored, range(4, 8)))
    with pytest.raises(KStreamsAssetsError, match="has 5 records, the plan 6"):
        _read(work_of(TARGET, [first], [(0, 5)], 6))
    with pytest.raises(KStreamsAssetsError, match="the plan 6"):
        list(work_offsets(work_of(TARGET, [first], [(0, 5)], 6)))
    with pytest.raises(KStreamsAssetsError, match="offset 4 of its backup does not follow"):
        _read(work_of(TARGET, [first, again], [(0, 9)], 8))
    with pytest.raises(KStreamsAssetsError, match=r"orders-3 .*gone cannot be read"):
        _read(work_of(TARGET, [tmp_path / "gone"], [(0, 9)], 8))
