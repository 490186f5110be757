"""The Spark job of a snapshot: what it reads, chooses and writes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.layout import LAYOUT_PROPERTY
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.files import NewFile
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.committer import commit, uncommitted
from kstreams_assets.repository.ktable_files import open_table, prepare_table, window_files
from kstreams_assets.store import StorePath
from spark_resources import ktable_rows as ktable_newest
from spark_resources.data_files import NewFolder, SnapshotFile
from spark_resources.failures import SparkJobError
from spark_resources.ktable_job import snapshot_rows, write_files
from spark_resources.resource import SparkSessionResource
from spark_resources.work import SnapshotWork
from tests.ktables.stored_log import table_rows
from tests.restore.span_files import Stored, span_file

pytestmark = pytest.mark.spark

TEXT = Format(Encoding.STRING)
_FILE_BYTES = 128 * 1024 * 1024
LONGS = StoreFormat(key=Format(Encoding.LONG), value=TEXT)


def _work(
    *files: StorePath,
    store: StoreFormat = LONGS,
    saved_file: StorePath | None = None,
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


def _write(spark: SparkSessionResource, path: Path, work: SnapshotWork) -> list[NewFile]:
    with snapshot_rows(spark.spark_session, work, {}) as rows:
        prepare_table(path, rows.schema_json)
        with uncommitted(path) as folder:
            files = rows.write(folder, compression="zstd", compression_level=1, most_problems=20)
    _commit(path, files, work.window)
    return files


def _commit(path: Path, files: Sequence[NewFile], window: str) -> None:
    with warehouse_lock(path.parent / ".locks" / "test.lock", purpose="test", wait_s=0) as writer:
        table, about = open_table(path), {"run_id": "test"}
        assert table is not None
        commit(path, table, files, writer=writer, replaces=[{"window": window}], provenance=about)


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
    (file,) = _write(spark, path, _work(span_file(tmp_path / "a.parquet", records)))
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
        "headers": [
            {"key": "h", "value": b"1", "key_bytes": None},
            {"key": "h", "value": None, "key_bytes": None},
        ],
        "key": _key(7),
        "value": b"new",
    }
    assert [row["offset"] for row in rows] == [1, 2, 3]
    assert 30 < file.payload_bytes < 600
    assert file.about == {
        "rows": {"0": 3},
        "problem_rows": 2,
        "problems": [[0, 2, "key: 7 bytes where a long has 8"], [0, 3, "null key"]],
    }
    table = DeltaTable(path)
    assert table.metadata().configuration[LAYOUT_PROPERTY] == "1"
    assert len(window_files(path)["w"]) == 1


def test_other_windows_stay_and_no_rows_are_a_window_too(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    work = _work(span_file(tmp_path / "a.parquet", _stored([0, 1])))
    _write(spark, path, work)
    _write(spark, path, replace(work, window="x"))
    files = _write(spark, path, _work())
    assert (files, _offsets(path), _offsets(path, "x")) == ([], [], [0, 1])


def test_of_files_at_the_edges_only_the_ranges_count(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    base = _work(span_file(tmp_path / "base.parquet", _stored(range(10))))
    _write(spark, path, base)
    files = window_files(path)["w"]
    work = replace(
        _work(),
        window="x",
        base_files=tuple(file.path for file in files),
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
    (made,) = _write(spark, path, _work(file, saved_file=saved))
    assert (_offsets(path), made.records) == ([1], 1)
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
        assert len(window_files(path)["w"]) == count


def test_the_cause_of_a_failure_is_told(spark: SparkSessionResource, tmp_path: Path) -> None:
    with pytest.raises(SparkJobError, match=r"(?i)not.*exist|no such file"):
        _write(spark, tmp_path / "table", _work(tmp_path / "gone.parquet"))


def test_a_window_that_an_earlier_release_wrote_with_spark_is_replaced(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    path, window = tmp_path / "table", "2026-11-21-13:00"
    work = replace(_work(span_file(tmp_path / "a.parquet", _stored(range(3)))), window=window)
    with snapshot_rows(spark.spark_session, work, {}) as rows:
        earlier = rows.rows.withColumn("window", F.lit(window))
        earlier.write.format("delta").partitionBy("window").save(str(path))
        earlier = earlier.withColumn("window", F.lit("x"))
        earlier.write.format("delta").mode("append").save(str(path))
    _write(spark, path, replace(_work(), window=window))
    assert (_offsets(path, window), _offsets(path, "x")) == ([], [0, 1, 2])
    _write(spark, path, work)
    assert (_offsets(path, window), _offsets(path, "x")) == ([0, 1, 2], [0, 1, 2])
    read = spark.spark_session.read.format("delta").load(str(path)).where(F.col("window") == window)
    assert sorted(row["decoded_key"] for row in read.collect()) == [0, 1, 2]


def test_every_type_that_decoding_gives_is_kept(
    spark: SparkSessionResource, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    window = pa.field("window", pa.string(), nullable=False)  # as earlier releases made it
    DeltaTable.create(path, pa.schema([window, ("key", pa.binary())]), partition_by=["window"])
    values = {
        "first": "named_struct('n', 1, 's', 2S, 'd', 1.5D, 'f', 2.5F, 'b', true, 't', 'x')",
        "second": "named_struct('n', 1, 'day', date'2026-11-21', 'at', timestamp'2026-11-21 10:00',"
        " 'local', timestamp_ntz'2026-11-21 10:00', 'sum', 12.34BD,"
        " 'map', map('k', named_struct('x', 1L)), 'list', array(named_struct('y', array(1))))",
    }
    for window, value in values.items():
        rows = spark.spark_session.sql(
            "SELECT 0 AS partition, 1L AS offset, -1L AS timestamp_ms, 'k' AS decoded_key,"
            f" {value} AS decoded_value, cast(null AS string) AS decode_error,"
            " array(named_struct('key', 'h', 'value', x'00')) AS headers, x'01' AS key,"
            " x'02' AS value"
        )
        prepare_table(path, rows.schema.json())
        with uncommitted(path) as folder:
            task = SnapshotFile(NewFolder(folder, "zstd", 1), window, 20)
            files = write_files(rows, task.write, folder)
        _commit(path, files, window)
    found = spark.spark_session.read.format("delta").load(str(path))
    ours = {row["window"]: row["decoded_value"] for row in found.collect()}
    assert (ours["first"]["s"], ours["first"]["f"], ours["first"]["map"]) == (2, 2.5, None)
    assert ours["second"]["local"] == datetime(2026, 11, 21, 10)
    assert (ours["second"]["sum"], ours["second"]["t"]) == (Decimal("12.34"), None)
    assert (ours["second"]["map"]["k"]["x"], ours["second"]["list"][0]["y"]) == (1, [1])
    (row,) = table_rows(path, "second")
    assert row["decoded_value"]["at"] == datetime(2026, 11, 21, 10, tzinfo=UTC)
    (action,) = pa.table(DeltaTable(path).get_add_actions(flatten=True)).slice(0, 1).to_pylist()
    assert (action["min.offset"], action["max.timestamp_ms"]) == (1, -1)
