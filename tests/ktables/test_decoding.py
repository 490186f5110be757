"""Rows that this process decodes are those that Spark makes of the same bytes."""

import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kstreams_assets.app.store_columns import KEY_PARTS
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.ktables.decoding import decode_rows
from spark_resources.ktable_columns import with_decoded_columns
from spark_resources.resource import SparkSessionResource
from tests.ktables.kafka_formats import written

STRING, LONG, INT = Format(Encoding.STRING), Format(Encoding.LONG), Format(Encoding.INT)
ALL_TYPES: Final = Format(
    Encoding.JSON,
    "a BIGINT, b STRING, c STRUCT<d INT, e: ARRAY<STRUCT<f SMALLINT>>>, g MAP<STRING, DOUBLE>,"
    " h DECIMAL(6, 2), i DATE, j TIMESTAMP, k TIMESTAMP_NTZ, l BINARY, m FLOAT, n BOOLEAN,"
    " o TINYINT",
)
PLAIN: Final = [
    Format(encoding)
    for encoding in Encoding
    if encoding not in (Encoding.JSON, Encoding.AVRO, Encoding.PROTOBUF)
]
COLUMNS: Final = (
    "partition INT, offset BIGINT, timestamp_ms BIGINT,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, key BINARY, value BINARY"
)
SLOW: Final = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

NAMES: Final = "abcghijklmno"
JSON_TEXTS: Final = [
    "{}",
    ' {"a": 1, "unknown": [{}, "x\\u00e4"]}\n',
    '{"a": 1, "a": 2}',
    '{"a": 1.0}',
    '{"a": "1"}',
    '{"a": 9223372036854775808}',
    '{"a": 01}',
    '{"a": 1,}',
    '{"a" 1}',
    "{'a': 1}",
    '[{"a": 1}]',
    '{"a": 1}{"a": 2}',
    '{"a": 1},{"a": 2}',
    "null",
    "",
    "5",
    '{"b": 5}',
    '{"b": 5.50}',
    '{"b": true}',
    '{"b": {"x": [1,  2]}}',
    '{"b": "\\ud83d\\ude00\\n"}',
    '{"b": "tab\there"}',
    '{"c": {"d": 1, "e": [{"f": 3}, null, {}]}}',
    '{"c": {"d": "x"}}',
    '{"c": 5}',
    '{"c": {"e": [{"f": 70000}]}}',
    '{"g": {"x": 1, "y": null, "z": 2.5}}',
    '{"g": {"x": "NaN", "y": -Infinity}}',
    '{"g": {"x": "no"}}',
    '{"h": 1.005}',
    '{"h": "1,234.5"}',
    '{"h": 12345.6}',
    '{"h": -0.004}',
    '{"i": "2026-11-27"}',
    '{"i": "2026-2"}',
    '{"i": "27.11.2026"}',
    '{"j": "2026-11-27T10:11:12.345678Z"}',
    '{"j": "2026-11-27 10:11:12+02:00"}',
    '{"j": "2026-11-27"}',
    '{"j": 1700000000}',
    '{"j": "at noon"}',
    '{"k": "2026-11-27T10:11:12.5"}',
    '{"k": "x"}',
    '{"l": "AQI="}',
    '{"l": "*"}',
    '{"m": 0.1}',
    '{"m": "Infinity"}',
    '{"n": false}',
    '{"n": "false"}',
    '{"o": -128}',
    '{"o": 200}',
    '{"o": 256}',
    '{"a": ""}',
    '{"b": ""}',
]


def by_spark(
    spark: SparkSessionResource, records: Sequence[Record], store: StoreFormat
) -> list[tuple[Any, ...]]:
    """The columns after the raw ones."""
    rows = [
        (0, offset, 7, headers, key, value) for offset, (key, value, headers) in enumerate(records)
    ]
    frame = with_decoded_columns(spark.spark_session.createDataFrame(rows, COLUMNS), store, {})
    found = frame.orderBy("offset").toArrow().to_pylist()
    names = [name for name, _, _ in KEY_PARTS.get(store.kind, ()) if not name.startswith("valid")]
    columns = (*names, "decoded_key", "decoded_value", "decode_error")
    return [tuple(row[name] for name in columns) for row in found]


def by_this_process(records: Sequence[Record], store: StoreFormat) -> list[tuple[Any, ...]]:
    """The same columns."""
    keys, values, headers = zip(*records, strict=True)
    found = decode_rows(keys, values, headers, store, {})
    parts = found.parts.values()
    columns = (*parts, found.keys.to_pylist(), found.values.to_pylist(), found.errors)
    return list(zip(*columns, strict=True))


def _require_same(
    spark: SparkSessionResource, records: Sequence[Record], store: StoreFormat
) -> None:
    spark_rows, rows = by_spark(spark, records, store), by_this_process(records, store)
    for record, expected, found in zip(records, spark_rows, rows, strict=True):
        assert _plain(found) == _plain(expected), record


def _plain(value: object) -> object:
    """Comparable: NaN is equal to itself, and a time zone has one name."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return struct.pack(">d", value) if isinstance(value, float) else value


def _records(values: Sequence[bytes]) -> list[Record]:
    return [(value, value, []) for value in values]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('{"b": {"x": [1,  2.50, "\\u0001"]}}', "b", '{"x":[1,2.5,"\\u0001"]}'),
        ('{"c": {"d": 1, "e": [{"f": 3}]}}', "c", {"d": 1, "e": [{"f": 3}]}),
        ('{"g": {"x": 1, "y": null}}', "g", [("x", 1.0), ("y", None)]),
        ('{"o": -128}', "o", -128),
    ],
)
def test_a_json_object_of_declared_types(text: str, field: str, value: object) -> None:
    store = StoreFormat(key=STRING, value=ALL_TYPES)
    ((key, found, error),) = by_this_process([(b"k", text.encode(), [])], store)
    assert (key, error) == ("k", None)
    assert found == {**dict.fromkeys(NAMES), field: value}


def test_problems_name_what_was_found() -> None:
    window = struct.pack(">qi", -5, -7)
    keys = [b"k" + window, b"\xff" + window, b"x" * 11, None]
    store = StoreFormat(kind=StoreKind.WINDOW, key=STRING, value=INT, window_size_ms=10)
    found = by_this_process([(key, b"12345678", []) for key in keys], store)
    value = "value: 8 bytes where an int has 4"
    before = "key: 1 byte, not UTF-8, where a string is declared (before the window); "
    short = "key: 11 bytes where the key of a window has at least 12; "
    assert found == [
        (-5, 5, -7, "k", None, value),
        (-5, 5, -7, None, None, before + value),
        (*(None,) * 5, short + value),
        (*(None,) * 5, "null key; " + value),
    ]


@pytest.mark.spark
class TestAsSpark:
    """The oracle: the columns of a KTable."""

    def test_json(self, spark: SparkSessionResource) -> None:
        store = StoreFormat(key=STRING, value=ALL_TYPES)
        _require_same(spark, _records([text.encode() for text in JSON_TEXTS]), store)

    @pytest.mark.parametrize("kind", [*StoreKind])
    def test_what_kafka_streams_writes(self, kind: StoreKind, spark: SparkSessionResource) -> None:
        windowed: Mapping[str, Any] = {"window_size_ms": 1_000}
        more: dict[StoreKind, Mapping[str, Any]] = {
            StoreKind.WINDOW: windowed,
            StoreKind.SUPPRESS: {**windowed, "windowed_keys": StoreKind.WINDOW},
        }
        for value in (LONG, INT, Format()):
            store = StoreFormat(kind=kind, key=STRING, value=value, **more.get(kind, {}))
            for of_store in written().stores.values():
                records: list[Record] = [
                    (one.key, one.value, [] if one.version is None else [("v", one.version)])
                    for one in of_store
                ]
                _require_same(spark, records, store)

    @settings(max_examples=3, deadline=None, suppress_health_check=SLOW)
    @given(st.lists(st.binary(max_size=40), min_size=60, max_size=60))
    def test_any_bytes(self, spark: SparkSessionResource, values: list[bytes]) -> None:
        for format_ in PLAIN:
            _require_same(spark, _records(values), StoreFormat(key=format_, value=format_))
        for kind in StoreKind:
            _require_same(spark, _records(values), StoreFormat(kind=kind, key=STRING, value=LONG))
