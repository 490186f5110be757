"""An increment: tasks write files, they are looked at, and one commit refers to them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.errors import WarehouseError
from kstreams_assets.layout import LAYOUT_PROPERTY, NewerLayoutError
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.files import NewFile
from kstreams_assets.model.spans import SpanId
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.committer import commit, sweep, uncommitted
from kstreams_assets.repository.records import (
    contents_of,
    ensure_records,
    file_actions,
    open_records,
)
from kstreams_assets.store import file_digest
from spark_resources.data_files import FILE, NewFolder, SpanEdges, SpanFiles
from tests.repository.spans_on_disk import span_files

KEY_WITH_COLON = "2026-11-21-13:30"
BATCH = pa.schema([("topic", pa.string()), *FILE])


def _record(offset: int, **columns: Any) -> dict[str, Any]:
    return {
        "topic": "t",
        "partition": 0,
        "offset": offset,
        "timestamp_ms": 1000 + offset,
        "timestamp_type": 0,
        "headers": None,
        "key": b"k",
        "value": b"v" * 10,
    } | columns


def _edges(*spans: tuple[str, int, int]) -> SpanEdges:
    windows, starts, ends = zip(*spans, strict=True)
    return SpanEdges(windows, starts, ends)


SPANS = {
    ("t", 0): _edges(("w", 0, 10), ("x", 10, 100)),
    ("t", 1): _edges(("w", 0, 100)),
    ("u", 0): _edges((KEY_WITH_COLON, 0, 100)),
}


def _written(path: Path, *tasks: Sequence[Sequence[dict[str, Any]]]) -> list[NewFile]:
    """What each task writes of its batches, in one increment."""
    ensure_records(path)
    with uncommitted(path) as folder:
        pass
    task = SpanFiles(NewFolder(folder, "zstd", 1), SPANS)
    return [
        NewFile.from_task_row(folder, row)
        for batches in tasks
        for made in task.write(chain.from_iterable(_by_partition(batch) for batch in batches))
        for row in made.to_pylist()
    ]


def _by_partition(
    records: Sequence[dict[str, Any]],
) -> Iterator[tuple[TopicPartitionId, pa.RecordBatch]]:
    for (topic, partition), of_it in groupby(records, itemgetter("topic", "partition")):
        yield TopicPartitionId(topic, partition), pa.RecordBatch.from_pylist([*of_it], schema=FILE)


def _committed(path: Path, files: Sequence[NewFile]) -> int | None:
    return _commit(path, files, [file.values for file in files])


def _commit(
    path: Path, files: Sequence[NewFile], replaces: Sequence[Mapping[str, str]]
) -> int | None:
    lock = path.parents[1] / ".locks" / f"{path.name}.lock"
    with warehouse_lock(lock, purpose="test", wait_s=0) as writer:
        table, about = ensure_records(path), {"run_id": "r"}
        return commit(path, table, files, writer=writer, replaces=replaces, provenance=about)


def _span(window: str = "w", topic: str = "t", partition: int = 0) -> SpanId:
    return SpanId(window, TopicPartitionId(topic, partition))


def _offsets(path: Path, span: SpanId) -> list[int]:
    return [
        offset
        for file in span_files(path, span)
        for offset in pq.ParquetFile(file.path).read(["offset"])["offset"].to_pylist()
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a records table may lie."""
    return tmp_path / "records" / "shop"


def test_nothing_is_there_before_the_first_backup(path: Path) -> None:
    assert open_records(path) is None
    assert span_files(path, _span()) == []
    sweep(path, open_records(path))
    assert _commit(path, [], [{"window": "w", "topic": "t"}]) is None


def test_batches_are_cut_into_spans(path: Path) -> None:
    of_zero = [[_record(n) for n in range(4)], [_record(n) for n in range(4, 15)]]
    of_others = [[_record(3, partition=1), _record(5, topic="u"), _record(7, topic="u")]]
    files = _written(path, of_zero, of_others)
    assert _committed(path, files) == 1
    assert {span: _offsets(path, span) for span in contents_of(path, files)} == {
        _span(): [*range(10)],
        _span("x"): [*range(10, 15)],
        _span(partition=1): [3],
        _span(KEY_WITH_COLON, "u"): [5, 7],
    }


def test_what_a_span_holds(path: Path) -> None:
    headers = [
        {"key": "h", "value": None, "key_bytes": None},
        {"key": "h\ufffd", "value": b"x", "key_bytes": b"h\xff"},
    ]
    records = [
        _record(0, value=None, headers=headers),
        _record(1, key=None, timestamp_ms=-1),
        _record(3, value=b"", timestamp_ms=0),
        _record(4, timestamp_ms=1),
    ]
    files = _written(path, [records])
    content = contents_of(path, files)[_span()]
    assert (content.records, content.files) == (4, 1)
    assert (content.tombstones, content.null_keys, content.non_positive_timestamps) == (1, 1, 2)
    assert (content.first_offset, content.last_offset) == (0, 4)
    assert (content.min_timestamp_ms, content.max_timestamp_ms) == (-1, 1000)
    _committed(path, files)
    (file,) = span_files(path, _span())
    (written,) = content.written
    assert (written.size, written.digest) == (file.path.stat().st_size, file_digest(file.path))
    assert content.stored_bytes == written.size
    stored = pq.ParquetFile(file.path, page_checksum_verification=True).read().to_pylist()
    assert stored == [{k: v for k, v in one.items() if k != "topic"} for one in records]
    (action,) = file_actions(path).to_pylist()
    assert (action["first"], action["last"], action["earliest"]) == (0, 4, -1)


def test_a_span_of_two_files(path: Path) -> None:
    files = _written(path, [[_record(7), _record(8)]], [[_record(5), _record(6, value=None)]])
    content = contents_of(path, files)[_span()]
    assert (content.records, content.files, content.tombstones) == (4, 2, 1)
    assert (content.first_offset, content.last_offset) == (5, 8)
    _committed(path, files)
    assert _offsets(path, _span()) == [5, 6, 7, 8]


def test_bytes_are_those_of_keys_values_and_headers(path: Path) -> None:
    headers = [{"key": "h", "value": b"x" * 500}]
    records = [_record(n, value=bytes([n]) * 2000, headers=headers) for n in range(10)]
    files = _written(path, [records])
    assert 10 * 2500 < contents_of(path, files)[_span()].bytes < 10 * 2500 * 1.3


@pytest.mark.parametrize("offsets", [(3, 3), (5, 4)])
def test_records_out_of_order_are_refused(path: Path, offsets: tuple[int, int]) -> None:
    first, second = offsets
    for batches in ([[_record(first), _record(second)]], [[_record(first)], [_record(second)]]):
        with pytest.raises(ValueError, match="out of order"):
            _written(path, batches)


def test_a_record_that_was_not_asked_for_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="offset 100 of t-0 was not requested"):
        _written(path, [[_record(99), _record(100)]])


def test_a_window_that_is_read_again_is_replaced_in_one_commit(path: Path) -> None:
    first = _written(path, [[_record(n) for n in range(20)]])
    _committed(path, first)
    again = [file for file in _written(path, [[_record(n) for n in range(5)]])]
    assert _committed(path, again) == 2
    assert _offsets(path, _span()) == [0, 1, 2, 3, 4]
    assert _offsets(path, _span("x")) == [*range(10, 20)]
    assert _commit(path, [], [{"window": "x", "topic": "t"}]) == 3
    assert _offsets(path, _span("x")) == []
    assert _commit(path, [], [{"window": "x", "topic": "t"}]) is None


def test_a_window_that_an_earlier_release_wrote_is_replaced(path: Path) -> None:
    ensure_records(path)
    rows = [{**_record(n, topic="u"), "window": KEY_WITH_COLON} for n in range(3)]
    earlier = pa.Table.from_pylist(rows, schema=pa.schema([("window", pa.string()), *BATCH]))
    write_deltalake(path, earlier, mode="append")
    assert _offsets(path, _span(KEY_WITH_COLON, "u")) == [0, 1, 2]
    _committed(path, _written(path, [[_record(5, topic="u")]]))
    assert _offsets(path, _span(KEY_WITH_COLON, "u")) == [5]


def test_what_was_not_committed_is_swept_and_what_was_stays(path: Path) -> None:
    kept = _written(path, [[_record(n) for n in range(20)]])
    _committed(path, kept)
    # killed between the commit and the end of its mark
    mark = path / Path(kept[0].path).parts[0] / "_uncommitted"
    mark.touch()
    left = _written(path, [[_record(n) for n in range(5)]])

    sweep(path, open_records(path))

    assert not (path / left[0].path).parent.exists()
    assert not mark.exists()
    assert _offsets(path, _span()) == [*range(10)]


def test_a_failure_before_the_commit_leaves_nothing(path: Path) -> None:
    ensure_records(path)

    def refused() -> None:
        with uncommitted(path) as folder:
            (folder / "a.parquet").touch()
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refused()
    assert [entry.name for entry in path.iterdir()] == ["_delta_log"]


def test_a_file_that_cannot_be_seen_is_an_error_before_the_commit(path: Path) -> None:
    (file,) = _written(path, [[_record(1)]])
    (path / file.path).unlink()
    with pytest.raises(WarehouseError, match=r"is missing, although Spark has just written it"):
        contents_of(path, [file])


def test_a_newer_layout_is_refused(path: Path) -> None:
    _committed(path, _written(path, [[_record(0)]]))
    DeltaTable(path).alter.set_table_properties({LAYOUT_PROPERTY: "2"}, raise_if_not_exists=False)
    for use in (lambda: ensure_records(path), lambda: file_actions(path)):
        with pytest.raises(NewerLayoutError, match=r"records/shop has layout version 2"):
            use()
