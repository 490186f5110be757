"""Views show exactly the rows of a point, decoded, under the names of topics and stores."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row

from kstreams_assets.app.rules import RuleLimits
from kstreams_assets.app.store_columns import COMMON_COLUMNS
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.errors import RuleLimitError, SparkJobError
from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.rules.view import View, ViewKind, views_of
from spark_resources.data_files import FILE
from spark_resources.resource import SparkSessionResource
from spark_resources.rules import Views, run_rule
from spark_resources.work import Content, LoggedRows, LogSource, SnapshotRows
from tests.completeness.stored_topics import ORDERS, TOTALS, StoredTopics

pytestmark = pytest.mark.spark

LIMITS = RuleLimits(timeout_seconds=120.0)
_SCHEMA = FILE.remove(FILE.get_field_index("timestamp_type"))


def record(
    offset: int, key: bytes | None, value: bytes | None, partition: int = 0
) -> dict[str, Any]:
    return {
        "partition": partition,
        "offset": offset,
        "timestamp_ms": 1_000 + offset,
        "headers": [{"key": "h", "value": b"v"}],
        "key": key,
        "value": value,
    }


@pytest.fixture(scope="module")
def views(spark: SparkSessionResource) -> Iterator[Views]:
    views = Views(spark.spark_session, {})
    yield views
    views.close()


@pytest.fixture
def names(tmp_path: Path) -> dict[str, View]:
    return dict(views_of(StoredTopics(Warehouse(tmp_path)).settings))


def source(root: Path, topic: str, *records: dict[str, Any], window: str = "w0000") -> LogSource:
    folder = root / "records" / "20261125T010203-0000abcd"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{topic}-{window}.parquet"
    pq.write_table(pa.Table.from_pylist(list(records), schema=_SCHEMA), path)
    return LogSource(
        topic, root / "records", (path,), len(records), is_whole=True, windows=(window,)
    )


def logged(of: LogSource, *ranges: tuple[int, int], partition: int = 0, **more: Any) -> LoggedRows:
    about: dict[str, Any] = {"in_flight_from": {}, "records": of.records}
    found = {partition: tuple(OffsetRange(*one) for one in ranges)}
    return LoggedRows(StoreFormat(), False, source=of, ranges=found, **{**about, **more})


def rows(views: Views, view: View, content: Content, sql: str = "SELECT * FROM v") -> list[Row]:
    content = replace(content, format=view.format)
    if isinstance(content, LoggedRows):
        content = replace(content, is_store=view.kind is ViewKind.STORE)
    views.define("v", view, content, is_shared=False)
    found = views.session.sql(sql).collect()
    views.end_evaluation()
    return found


def test_a_topic_has_its_fields_and_the_common_columns(
    views: Views, names: dict[str, View], tmp_path: Path
) -> None:
    of = source(tmp_path, ORDERS, record(4, b"k", b'{"customer": "anna", "amount": 7}'))
    [row] = rows(views, names[ORDERS], logged(of, (0, 9)))
    assert tuple(row.asDict()) == (*COMMON_COLUMNS, "customer", "amount")
    assert set(row.asDict()) == set(names[ORDERS].columns or ())
    assert (row.customer, row.amount, row._key) == ("anna", 7, "k")
    assert (row._value.customer, row._partition, row._offset) == ("anna", 0, 4)
    assert (row._timestamp_ms, row._window, row._in_flight) == (1_004, "w0000", False)
    assert row._headers == [Row(key="h", value=bytearray(b"v"), key_bytes=None)]
    assert row._decode_error is None
    [text] = rows(views, names[ORDERS], logged(of, (0, 9)), "SELECT string(_timestamp) FROM v")
    assert text[0] == "1970-01-01 00:00:01.004"


def test_only_rows_of_the_ranges_are_there(
    views: Views, names: dict[str, View], tmp_path: Path
) -> None:
    made = [record(n, b"k", b"{}", partition) for partition in (0, 1, 2) for n in range(10)]
    of = source(tmp_path, ORDERS, *made)
    ranges = {0: (OffsetRange(0, 3), OffsetRange(6, 8)), 2: (OffsetRange(9, 10),)}
    content = LoggedRows(StoreFormat(), False, of, ranges, in_flight_from={0: 7}, records=30)
    found = rows(views, names[ORDERS], content)
    assert sorted((r._partition, r._offset, r._in_flight) for r in found) == [
        (0, 0, False),
        (0, 1, False),
        (0, 2, False),
        (0, 6, False),
        (0, 7, True),
        (2, 9, False),
    ]
    assert rows(views, names[ORDERS], logged(of)) == []


def test_very_many_ranges_are_looked_up(
    views: Views, names: dict[str, View], tmp_path: Path
) -> None:
    of = source(tmp_path, ORDERS, *(record(n, b"k", b"{}") for n in range(100)))
    found = rows(views, names[ORDERS], logged(of, *((n, n + 1) for n in range(0, 100, 2))))
    assert sorted(row._offset for row in found) == list(range(0, 100, 2))


def test_saved_records_are_added_without_a_window(
    views: Views, names: dict[str, View], tmp_path: Path
) -> None:
    of = source(tmp_path, ORDERS, record(1, b"k", b'{"amount": 1}'))
    saved = tmp_path / "saved.parquet"
    made = [record(2, b"k", b'{"amount": 2}'), record(5, b"k", b'{"amount": 5}')]
    pq.write_table(pa.Table.from_pylist(made, schema=_SCHEMA), saved)
    found = rows(views, names[ORDERS], logged(of, (0, 5), saved_file=saved))
    assert sorted((r._offset, r.amount, r._window) for r in found) == [
        (1, 1, "w0000"),
        (2, 2, None),
    ]


def test_what_does_not_decode_is_a_row_with_a_reason(
    views: Views, names: dict[str, View], tmp_path: Path
) -> None:
    of = source(tmp_path, ORDERS, record(0, None, b"no JSON"), record(1, b"k", None))
    poison, deletion = sorted(
        rows(views, names[ORDERS], logged(of, (0, 9))), key=lambda row: row._offset
    )
    assert (poison._key, poison._value, poison.amount) == (None, None, None)
    assert poison._decode_error == "value: 7 bytes, not one JSON object"
    assert (deletion._value, deletion._decode_error) == (None, None)


def test_a_field_with_a_common_name_gives_way(views: Views, names: dict[str, View], tmp_path: Path):
    said = StoreFormat(value=Format(Encoding.JSON, "_offset STRING, Amount BIGINT"))
    view = View("v", names[ORDERS].kind, ORDERS, None, said, names[ORDERS].roles, None)
    of = source(tmp_path, ORDERS, record(3, b"k", b'{"_offset": "mine", "Amount": 2}'))
    [row] = rows(views, view, logged(of, (0, 9)), "SELECT _offset, _value._offset AS own, * FROM v")
    assert (row[0], row.own, row.Amount) == (3, "mine", 2)


def test_a_store_is_the_newest_row_of_each_key(
    views: Views, names: dict[str, View], tmp_path: Path
) -> None:
    of = source(
        tmp_path,
        "changelog",
        record(0, b"a", b'{"count": 1, "total": 5}'),
        record(1, b"b", b'{"count": 1, "total": 6}'),
        record(2, b"a", b'{"count": 2, "total": 9}'),
        record(3, b"b", None),
        record(4, b"c", b'{"count": 1, "total": 1}'),
    )
    saved = tmp_path / "saved.parquet"
    made = [record(2, b"a", b'{"count": 2, "total": 9}'), record(5, b"d", b'{"count": 4}')]
    pq.write_table(pa.Table.from_pylist(made, schema=_SCHEMA), saved)
    content = logged(of, (0, 4), (5, 6), saved_file=saved, window="w0007")
    found = rows(views, names["sums"], content)
    assert tuple(found[0].asDict()) == names["sums"].columns
    assert sorted((r._key, r["count"], r.total, r._offset, r._window) for r in found) == [
        ("a", 2, 9, 2, "w0007"),
        ("d", 4, None, 5, "w0007"),
    ]


def test_a_snapshot_shows_what_its_table_holds(
    views: Views, names: dict[str, View], tmp_path: Path, spark: SparkSessionResource
) -> None:
    path = tmp_path / "snapshot"
    made = spark.spark_session.sql(
        "SELECT 0 AS partition, 7L AS offset, 5L AS timestamp_ms, 'a' AS decoded_key,"
        " named_struct('count', 2L, 'total', 9L) AS decoded_value,"
        " CAST(NULL AS STRING) AS decode_error,"
        " CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers,"
        " CAST('a' AS BINARY) AS key, CAST('x' AS BINARY) AS value"
    )
    made.coalesce(1).write.parquet(str(path))
    files = tuple(path.glob("*.parquet"))
    [row] = rows(views, names["sums"], SnapshotRows(StoreFormat(), "w0007", files, 1))
    assert (row._key, row["count"], row.total, row._window) == ("a", 2, 9, "w0007")
    assert tuple(row.asDict()) == names["sums"].columns
    nothing = rows(views, names["sums"], SnapshotRows(StoreFormat(), "w0007", (), 0))
    assert nothing == []


def test_each_record_has_the_window_of_its_file(
    views: Views, names: dict[str, View], tmp_path: Path
) -> None:
    parts = [
        source(tmp_path, ORDERS, record(offset, b"k", b'{"amount": 1}'), window=f"w{offset:04}")
        for offset in range(3)
    ]
    files = tuple(file for part in parts for file in part.files)
    keys = tuple(key for part in parts for key in part.windows)
    for is_whole in (False, True):
        both = LogSource(ORDERS, parts[0].root, files, 3, is_whole, keys)
        found = rows(views, names[ORDERS], logged(both, (0, 9)))
        told = sorted((r._offset, r._window) for r in found)
        assert told == [(0, "w0000"), (1, "w0001"), (2, "w0002")]


def test_records_of_a_cluster_have_no_window(
    views: Views, names: dict[str, View], tmp_path: Path
) -> None:
    made = [record(offset, b"k", b'{"amount": 1}') for offset in range(4)]
    pq.write_table(pa.Table.from_pylist(made, _SCHEMA), tmp_path / "orders.parquet")
    files = (tmp_path / "orders.parquet",)
    ranges = {0: (OffsetRange(1, 3),)}
    for is_whole in (False, True):
        read = LogSource("restored.orders", tmp_path, files, 4, is_whole)
        found = rows(views, names[ORDERS], LoggedRows(StoreFormat(), False, read, ranges, {}, 2))
        views.end_evaluation()
        views.forget(tmp_path)
        told = sorted((r._offset, r.amount, r._window) for r in found)
        assert told == [(1, 1, None), (2, 1, None)]


def test_times_beyond_the_calendar_are_null(
    views: Views, names: dict[str, View], tmp_path: Path
) -> None:
    late = record(0, b"k", b"{}") | {"timestamp_ms": 2**62}
    early = record(1, b"k", b"{}") | {"timestamp_ms": -1}
    of = source(tmp_path, ORDERS, late, early)
    found = rows(
        views, names[ORDERS], logged(of, (0, 9)), "SELECT _timestamp, _timestamp_ms FROM v"
    )
    assert [row._timestamp is None for row in sorted(found, key=lambda r: -r._timestamp_ms)] == [
        True,
        False,
    ]


def test_what_is_kept_is_read_once(views: Views, names: dict[str, View], tmp_path: Path) -> None:
    of = source(tmp_path, TOTALS, record(0, b"k", b'{"count": 1}'))
    assert len(rows(views, names[TOTALS], logged(of, (0, 9)))) == 1
    of.files[0].unlink()
    assert len(rows(views, names[TOTALS], logged(of, (0, 9)))) == 1


def test_returned_rows_are_counted_and_the_first_shown_as_text(views: Views) -> None:
    sql = (
        "SELECT id, CAST(NULL AS STRING) AS nothing, named_struct('b', X'00ff') AS both,"
        " timestamp_millis(5) AS at FROM range(45) ORDER BY id"
    )
    found = run_rule(views.session, sql, LIMITS)
    assert found.count == 45
    assert found.sample.columns == ("id", "nothing", "both", "at")
    assert len(found.sample.rows) == 20
    assert found.sample.rows[0] == ("0", None, '{"b": "0x00ff"}', "1970-01-01T00:00:00.005+00:00")
    assert run_rule(views.session, "SELECT 1 WHERE false", LIMITS).count == 0


def test_the_text_of_a_rule_is_not_replaced_and_a_path_is_no_table(
    views: Views, tmp_path: Path
) -> None:
    found = run_rule(views.session, "SELECT '${env:PATH}' AS said", LIMITS)
    assert found.sample.rows == (("${env:PATH}",),)
    (tmp_path / "secret").write_text("hunter2\n", encoding="utf-8")
    with pytest.raises(SparkJobError):
        run_rule(views.session, f"SELECT * FROM text.`{tmp_path / 'secret'}`", LIMITS)


@pytest.mark.parametrize(
    ("rows", "returned", "count", "is_more"),
    [(100, 100, 100, False), (100, 101, 100, True), (5, 6, 5, True), (5, 5, 5, False)],
)
def test_rows_are_counted_to_a_limit(
    views: Views, rows: int, returned: int, count: int, is_more: bool
) -> None:
    sql = f"SELECT id FROM range({returned})"
    found = run_rule(views.session, sql, RuleLimits(timeout_seconds=60, max_rows=rows))
    assert (found.count, found.is_more) == (count, is_more)
    assert len(found.sample.rows) == min(returned, 20)


def test_a_join_holds_no_more_in_memory_than_it_may(views: Views) -> None:
    joined = (
        "SELECT a.id FROM range(1000) a LEFT ANTI JOIN"
        " (SELECT id, repeat(CAST(id AS STRING), 20) AS t FROM range(100000)) b"
        " ON a.id < b.id + length(b.t)"
    )
    few = RuleLimits(timeout_seconds=60, max_memory_mib=1)
    with pytest.raises(RuleLimitError, match=r"for a join in its query takes more than 1 MiB"):
        run_rule(views.session, joined, few)
    # Others of the same evaluation have their own limits.
    assert run_rule(views.session, joined, LIMITS).count == 0


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 2100000000) || repeat('y', 2100000000) AS t FROM range(4)",
        pytest.param(
            "SELECT array_join(collect_list(repeat('x', 100000000)), '') AS n FROM range(100)",
            marks=pytest.mark.drill,  # 20 s on a busy machine
        ),
    ],
)
def test_a_rule_that_needs_more_than_the_heap_is_named_and_the_next_one_runs(
    views: Views, sql: str
) -> None:
    with pytest.raises(RuleLimitError, match="needs more memory than the engine has") as raised:
        run_rule(views.session, sql, LIMITS)
    assert "KSTREAMS_ASSETS_SPARK_DRIVER_MEMORY" in str(raised.value)
    assert run_rule(views.session, "SELECT 1", LIMITS).count == 1


def test_columns_of_one_name_and_of_any_type_are_shown(views: Views) -> None:
    sql = "SELECT 1 AS a, 2 AS a, map('k', array(1)) AS m, X'00' AS b, NULL AS n, true AS t"
    found = run_rule(views.session, sql, LIMITS)
    assert found.sample.columns == ("a", "a", "m", "b", "n", "t")
    assert found.sample.rows == (("1", "2", '{"k": [1]}', "0x00", None, "true"),)
