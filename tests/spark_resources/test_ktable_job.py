"""The Spark job of a snapshot: what it reads, chooses and writes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kstreams_assets.ktables.plan import SnapshotContent, SnapshotWork
from kstreams_assets.ktables.snapshot import RowProblem
from kstreams_assets.ktables.snapshots_table import open_table, window_files
from kstreams_assets.ktables.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.warehouse.layout import LAYOUT_PROPERTY
from spark_resources import ktable_rows as ktable_newest
from spark_resources.ktable_job import write_snapshot
from spark_resources.resource import SparkSessionResource
from spark_resources.spans import SparkJobError
from tests.ktables.stored_log import table_rows
from tests.restore.span_files import Stored, span_file

pytestmark = pytest.mark.spark

TEXT = Format(Encoding.STRING)
_FILE_BYTES = 128 * 1024 * 1024
LONGS = StoreFormat(key=Format(Encoding.LONG), value=TEXT)


def _work(
    *files: str,
    store: StoreFormat = LONGS,
    saved_file: str | None = None,
    records: int = 10,
    record_bytes: float = 10.0,
) -> SnapshotWork:
    return SnapshotWork(
        window="w",
        format=store,
        partitions=(0,),
        base_files=(),
        base_ranges=None,
        whole_files=files,
        cut_files=(),
        ranges={},
        saved_file=saved_file,
        records=records,
        record_bytes=record_bytes,
    )


def _write(spark: SparkSessionResource, path: Path, work: SnapshotWork) -> SnapshotContent:
    return write_snapshot(
        spark.spark_session, path, work, schemas={}, provenance={"run_id": "test"}
    )


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _offsets(path: Path, window: str = "w") -> list[int]:
    return [row["offset"] for row in table_rows(path, window)]


def _stored(offsets: Sequence[int]) -> list[Stored]:
    return [Stored(offset, key=_key(offset)) for offset in offsets]


def test_rows_statistics_and_problems(spark: SparkSessionResource, tmp_path: Path) -> None:
    records = [
        Stored(0, b"old", _key(7)),
        Stored(1, b"new", _key(7), timestamp_ms=-1, headers=[("h", b"1"), ("h", None)]),
        Stored(2, b"bad", b"1234567"),
        Stored(3, b"keyless", None),
        Stored(4, b"gone", _key(8)),
        Stored(5, None, _key(8)),
    ]
    path = tmp_path / "table"
    content = _write(spark, path, _work(span_file(tmp_path / "a.parquet", records)))
    rows = table_rows(path, "w")
    assert list(rows[0]) == [
        "window", "partition", "offset", "timestamp_ms", "decoded_key", "decoded_value",
        "decode_error", "headers", "key", "value",
    ]  # fmt: skip
    assert rows[0] == {
        "window": "w",
        "partition": 0,
        "offset": 1,
        "timestamp_ms": -1,
        "decoded_key": 7,
        "decoded_value": "new",
        "decode_error": None,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        "key": _key(7),
        "value": b"new",
    }
    assert [row["offset"] for row in rows] == [1, 2, 3]
    assert (content.partitions[0].rows, content.problem_rows) == (3, 2)
    assert 30 < content.partitions[0].bytes < 600
    assert content.problems == (
        RowProblem(0, 2, "key: 7 bytes where a long has 8"),
        RowProblem(0, 3, "null key"),
    )
    table = DeltaTable(path)
    assert table.version() == content.delta_version
    assert table.metadata().configuration[LAYOUT_PROPERTY] == "1"
    assert len(window_files(open_table(path), path)["w"]) == 1


def test_other_windows_stay_and_no_rows_are_a_window_too(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    work = _work(span_file(tmp_path / "a.parquet", _stored([0, 1])))
    _write(spark, path, work)
    _write(spark, path, replace(work, window="x"))
    content = _write(spark, path, _work())
    assert (content.partitions, _offsets(path), _offsets(path, "x")) == ({}, [], [0, 1])


def test_of_files_at_the_edges_only_the_ranges_count(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    base = _work(span_file(tmp_path / "base.parquet", _stored(range(10))))
    _write(spark, path, base)
    files = window_files(open_table(path), path)["w"]
    work = replace(
        _work(),
        window="x",
        base_files=tuple(str(file) for file, _ in files),
        base_ranges={0: [OffsetRange(2, 4)]},
        cut_files=(span_file(tmp_path / "cut.parquet", _stored(range(20, 30))),),
        ranges={0: [OffsetRange(5, 22), OffsetRange(25, 26)]},
    )
    _write(spark, path, work)
    assert _offsets(path, "x") == [2, 3, 20, 21, 25]


def test_a_record_that_was_saved_too_counts_once(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    file = span_file(tmp_path / "a.parquet", [Stored(0, b"v", _key(1)), Stored(1, b"v", _key(2))])
    saved = span_file(tmp_path / "s.parquet", [Stored(1, b"v", _key(2)), Stored(2, None, _key(1))])
    content = _write(spark, path, _work(file, saved_file=saved))
    assert (_offsets(path), content.partitions[0].rows) == ([1], 1)
    versioned = StoreFormat(StoreKind.VERSIONED, LONGS.key, TEXT, retention_ms=10)
    _write(spark, tmp_path / "versions", _work(file, saved_file=saved, store=versioned))
    assert _offsets(tmp_path / "versions") == [1, 2]


def test_what_is_too_large_to_broadcast_is_joined_all_the_same(
    spark: SparkSessionResource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ktable_newest, "_BROADCAST_ROWS", 1)
    monkeypatch.setattr(ktable_newest, "_FEW_RECORDS", 1)
    path = tmp_path / "table"
    _write(spark, path, _work(span_file(tmp_path / "a.parquet", _stored(range(5)))))
    assert _offsets(path) == [0, 1, 2, 3, 4]


@pytest.fixture
def a_task_for_each_file(spark: SparkSessionResource) -> Iterator[None]:
    """Spark reads several small files in one task otherwise."""
    name = "spark.sql.files.openCostInBytes"
    spark.spark_session.conf.set(name, str(_FILE_BYTES))
    yield
    spark.spark_session.conf.unset(name)


@pytest.mark.usefixtures("a_task_for_each_file")
def test_files_of_a_reasonable_size(spark: SparkSessionResource, tmp_path: Path) -> None:
    path = tmp_path / "table"
    files = [
        span_file(tmp_path / f"{n}.parquet", _stored(range(10 * n, 10 * n + 10))) for n in range(9)
    ]
    for size, count in ((2.5 * _FILE_BYTES, 3), (1_000.0, 1)):
        work = _work(*files, records=90, record_bytes=size / 90)
        _write(spark, path, work)
        assert len(window_files(open_table(path), path)["w"]) == count


def test_the_cause_of_a_failure_is_told(spark: SparkSessionResource, tmp_path: Path) -> None:
    with pytest.raises(SparkJobError, match=r"(?i)not.*exist|no such file"):
        _write(spark, tmp_path / "table", _work(str(tmp_path / "gone.parquet")))
