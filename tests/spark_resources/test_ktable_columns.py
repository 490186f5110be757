"""Decoding on Spark: what Kafka's serializers wrote is read, all else is told; no job fails."""

import json
import math
import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from spark_resources.ktable_columns import with_decoded_columns, with_key_parts
from spark_resources.ktable_values import decoded
from spark_resources.resource import SparkSessionResource
from tests.ktables.kafka_formats import WrittenRecord, written

pytestmark = pytest.mark.spark

COLUMNS = (
    "partition INT, offset BIGINT, timestamp_ms BIGINT,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, key BINARY, value BINARY"
)
STRING, LONG, INT = Format(Encoding.STRING), Format(Encoding.LONG), Format(Encoding.INT)
JSON = Format(
    Encoding.JSON, "a BIGINT, b STRING, c STRUCT<d: INT>, e ARRAY<INT>, f DOUBLE, g BOOLEAN"
)
TINY, NORMAL, GREATEST = 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
FLOATS = [-0.0, 1.5, 0.10000000149011612, 1.401298464324817e-45, 1.1754943508222875e-38]
EXPECTED: dict[str, list[Any]] = {
    "long": [-(2**63), -1, 0, 1, 2**63 - 1],
    "int": [-(2**31), -1, 0, 1, 2**31 - 1],
    "short": [-(2**15), -1, 0, 2**15 - 1],
    "double": [-0.0, 1.5, -math.pi, TINY, NORMAL, GREATEST, -math.inf, math.nan],
    "float": [*FLOATS, 3.4028234663852886e38, -math.inf, math.nan],
    "string": ["", "plain", "\u00e4\u4e16\U0001f600", "a\0b"],
    "uuid": [str(UUID(int=0xFEDCBA98765432100000000000000001)), str(UUID(int=0))],
}
FORMATS = {
    encoding.value: Format(encoding) if encoding is not Encoding.JSON else JSON
    for encoding in Encoding
    if encoding not in (Encoding.AVRO, Encoding.PROTOBUF)
}
ODD = [
    b"",
    b"\x00" * 7,
    b"\x00" * 9,
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"00000000-0000-0000-0000-00000000000\n",
    b"00000000-0000-0000-0000-0000000000000",
    b"0000000000000000000000000000000000000",
]


def _decoded(spark: SparkSessionResource, values: Sequence[bytes | None]) -> list[Row]:
    """Each value by every format, in one job: STRUCT<value, problem> by the format's name."""
    rows = [(number, value) for number, value in enumerate(values)]
    frame = spark.spark_session.createDataFrame(rows, "number INT, value BINARY")
    columns = []
    for name, format_ in FORMATS.items():
        read = decoded(F.col("value"), format_, {})
        columns.append(F.struct(read.value.alias("value"), read.problem.alias("p")).alias(name))
    return frame.select("number", *columns).orderBy("number").collect()


def _rows(spark: SparkSessionResource, records: Sequence[WrittenRecord]) -> DataFrame:
    rows = [
        (0, offset, each.timestamp_ms, _headers(each.version), each.key, each.value)
        for offset, each in enumerate(records)
    ]
    return spark.spark_session.createDataFrame(rows, COLUMNS)


def _headers(version: bytes | None) -> list[tuple[str, bytes]]:
    return [] if version is None else [("v", b"\x01"), ("v", version), ("w", b"\x00")]


def _store(
    spark: SparkSessionResource, name: str, kind: StoreKind, **more: Any
) -> list[tuple[Any, ...]]:
    """The columns after the raw ones, of what Kafka Streams wrote for a store."""
    store = StoreFormat(**({"kind": kind, "key": STRING, "value": LONG} | more))
    found = with_decoded_columns(_rows(spark, written().stores[name]), store, {})
    return [tuple(row)[6:] for row in found.orderBy("offset").collect()]


def _same(found: object, expected: object) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        return struct.pack(">d", found) == struct.pack(">d", expected)
    return found == expected


class TestAsKafkaWritesThem:
    """Against the bytes of Kafka's own serializers."""

    def test_every_serde(self, spark: SparkSessionResource) -> None:
        pairs = [(name, data) for name, all_ in written().serdes.items() for data in all_]
        rows = _decoded(spark, [data for _, data in pairs])
        found: dict[str, list[Any]] = {}
        for (name, _), row in zip(pairs, rows, strict=True):
            assert row[name]["p"] is None
            found.setdefault(name, []).append(row[name]["value"])
        assert found.keys() == EXPECTED.keys()
        for name, values in EXPECTED.items():
            assert all(map(_same, found[name], values)), name
            assert len(found[name]) == len(values)

    def test_windows(self, spark: SparkSessionResource) -> None:
        assert _store(spark, "windows", StoreKind.WINDOW, window_size_ms=1_000) == [
            (1_000, 2_000, 0, "k", 7, None),
            (1_000, 2_000, 0, "k", -2, None),
            (1_000, 2_000, 0, "late", 7, None),
        ]

    def test_windows_of_a_join_without_a_size(self, spark: SparkSessionResource) -> None:
        assert _store(spark, "sides-outer-this-join-store", StoreKind.JOIN_WINDOW) == [
            (1_500, None, 1, "k", 7, None),
            (1_600, None, 2, "k", -9, None),
            (1_700, None, 3, "late", 7, None),
        ]

    def test_sessions(self, spark: SparkSessionResource) -> None:
        assert _store(spark, "sessions", StoreKind.SESSION) == [
            (1_500, 1_500, "k", 7, None),
            (1_500, 1_500, "k", None, None),
            (1_500, 1_600, "k", -2, None),
            (1_700, 1_700, "late", 7, None),
        ]

    def test_versions(self, spark: SparkSessionResource) -> None:
        assert _store(spark, "sums", StoreKind.VERSIONED)[0] == (1_500, "k", 7, None)

    def test_suppress_with_windowed_keys(self, spark: SparkSessionResource) -> None:
        rows = _store(
            spark,
            "closed-store",
            StoreKind.SUPPRESS,
            windowed_keys=StoreKind.WINDOW,
            window_size_ms=1_000,
        )
        assert [row[2] for row in rows] == [None] * 3
        key, value, _ = rows[0]
        assert key.asDict() == {"key": "k", "window_start_ms": 1_000, "window_end_ms": 2_000}
        headers = [Row(key="trace", value=b"\x01\x02"), Row(key="empty", value=None)]
        assert value == Row(
            timestamp_ms=1_500,
            topic="left",
            partition=0,
            offset=0,
            headers=headers,
            prior=None,
            old=None,
            new=7,
            buffer_time_ms=2_000,
        )
        assert (rows[1][1].old, rows[1][1].new) == (7, -2)

    def test_grace_buffer_of_a_join(self, spark: SparkSessionResource) -> None:
        first, second = _store(spark, "priced-Buffer", StoreKind.JOIN_BUFFER)
        assert first[0] == Row(timestamp_ms=1_800, key="r", sequence_number=1)
        assert (second[1].new, second[1].topic, second[2]) == (6, "right", None)

    def test_foreign_key_subscription(self, spark: SparkSessionResource) -> None:
        rows = _store(spark, "with-rate-subscription-store", StoreKind.SUBSCRIPTION, value=INT)
        assert rows[2][0] == Row(foreign_key=-2, primary_key="k")
        assert rows[2][1].asDict() | {"hash": None} == {
            "version": 1,
            "instruction": "PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE",
            "hash": None,
            "primary_key": "k",
            "primary_partition": 0,
        }
        assert len(rows[2][1].hash) == 16
        assert rows[1][1:] == (None, None)

    def test_outer_join_lists(self, spark: SparkSessionResource) -> None:
        rows = _store(spark, "sides-outer-shared-join-store", StoreKind.OUTER_JOIN)
        assert rows[4] == (
            Row(timestamp_ms=1_800, side="right", key="r"),
            Row(values=[Row(side="right", value=5), Row(side="right", value=6)]),
            None,
        )


class TestWhatIsWrong:
    """A row that does not decode stays, and says why, without its payload."""

    def test_each_format_says_what_it_found(self, spark: SparkSessionResource) -> None:
        rows = _decoded(spark, [*ODD, b'{"a": "secret"}', b"[]", None])
        texts = {name: [row[name]["p"] for row in rows] for name in FORMATS}
        assert texts["bytes"] == [None] * len(rows)
        assert texts["long"][:3] == [
            "0 bytes where a long has 8",
            "7 bytes where a long has 8",
            "9 bytes where a long has 8",
        ]
        assert texts["int"][3] == "1 byte where an int has 4"
        assert texts["string"][:4] == [
            None,
            None,
            None,
            "1 byte, not UTF-8, where a string is declared",
        ]
        assert texts["string"][4:6] == [
            f"{size} bytes, not UTF-8, where a string is declared" for size in (2, 3)
        ]
        assert all("no UUID in 36 characters" in text for text in texts["uuid"][:-1])
        assert texts["json"][3] == "1 byte, not UTF-8, where JSON is declared"
        assert texts["json"][-3:] == [
            "a JSON object with a field of another type than declared",
            "2 bytes, not one JSON object",
            None,
        ]
        assert all(row[name]["value"] is None for row in rows for name in ("json", "uuid", "long"))
        assert all(text is None for text in (found[-1] for found in texts.values()))

    def test_json_is_one_object_of_the_declared_types(self, spark: SparkSessionResource) -> None:
        good: dict[str, object] = {
            "{}": {},
            ' {"a": 1, "unknown": [{}]}\n': {"a": 1},
            '{"a": -9223372036854775808, "b": "\\u00e4", "c": {"d": null}}': {
                "a": -(2**63),
                "b": "\u00e4",
                "c": Row(d=None),
            },
            '{"e": [1, null], "f": 2, "g": true}': {"e": [1, None], "f": 2.0, "g": True},
        }
        bad = [
            "",
            "null",
            "5",
            '"a"',
            '[{"a":1}]',
            '{"a":1} x',
            '{"a":1}{"a":2}',
            '{"a":1},{"a":2}',
        ]
        bad += [
            '{"a":1}]',
            "{'a':1}",
            '{"a":1',
            '{"a":1,}',
            "\ufeff{}",
            '{"a":9223372036854775808}',
        ]
        bad += ['{"a":1.5}', '{"a":"1"}', '{"c":{"d":"x"}}', '{"c":5}', '{"e":[1,"x"]}', '{"g":1}']
        bad += ['{"c":' * 5_000 + "1" + "}" * 5_000]
        rows = _decoded(spark, [text.encode() for text in (*good, *bad)])
        for row, (text, fields) in zip(rows, good.items(), strict=False):
            nothing = dict.fromkeys("abcefg")
            assert row["json"]["p"] is None, text
            assert row["json"]["value"] == Row(**(nothing | fields))  # pyright: ignore
        for row, text in zip(rows[len(good) :], bad, strict=True):
            assert (row["json"]["value"], bool(row["json"]["p"])) == (None, True), text

    def test_rows_with_problems(self, spark: SparkSessionResource) -> None:
        window = struct.pack(">qi", -5, -7)
        last = struct.pack(">qi", 2**63 - 1, 0)
        keys = [b"k" + window, b"\xff" + window, b"x" * 11, None, window, b"k" + last]
        records = [WrittenRecord(key or b"", b"12345678", 0, None) for key in keys]
        rows = _rows(spark, records).withColumn("key", F.when(F.col("offset") != 3, F.col("key")))
        store = StoreFormat(kind=StoreKind.WINDOW, key=STRING, value=INT, window_size_ms=10)
        found = with_decoded_columns(rows, store, {}).orderBy("offset").collect()
        value = "value: 8 bytes where an int has 4"
        assert [tuple(row)[6:] for row in found] == [
            (-5, 5, -7, "k", None, value),
            (
                *(-5, 5, -7, None, None),
                "key: 1 byte, not UTF-8, where a string is declared (before the window); " + value,
            ),
            (
                *(None,) * 5,
                "key: 11 bytes where the key of a window has at least 12; " + value,
            ),
            (*(None,) * 5, "null key; " + value),
            (-5, 5, -7, "", None, value),
            (2**63 - 1, 2**63 - 1, 0, "k", None, value),
        ]
        parts = with_key_parts(rows, store).orderBy("offset").collect()
        assert [tuple(row)[6:] for row in parts] == [tuple(row)[6:9] for row in found]

    def test_sessions_that_cannot_be(self, spark: SparkSessionResource) -> None:
        keys = [b"k" + struct.pack(">qq", 5, 6), b"x" * 15]
        records = [WrittenRecord(key, None, 0, None) for key in keys]
        store = StoreFormat(kind=StoreKind.SESSION, key=STRING, value=LONG)
        found = with_decoded_columns(_rows(spark, records), store, {}).orderBy("offset").collect()
        assert [tuple(row)[6:] for row in found] == [
            (6, 5, None, None, "key: a session that ends before it starts"),
            (*(None,) * 4, "key: 15 bytes where the key of a session has at least 16"),
        ]

    def test_payloads_inside_a_structure(self, spark: SparkSessionResource) -> None:
        records = [
            WrittenRecord(each.key, each.value, 0, None)
            for each in written().stores["sides-outer-shared-join-store"][3:]
        ]
        records.append(WrittenRecord(b"short", b"\x02", 0, None))
        store = StoreFormat(kind=StoreKind.OUTER_JOIN, key=LONG, value=INT)
        found = with_decoded_columns(_rows(spark, records), store, {}).orderBy("offset").collect()
        assert [tuple(row)[6:] for row in found] == [
            *[
                (
                    *(None, None),
                    "key: key: 1 byte where a long has 8;"
                    " value: values: 8 bytes where an int has 4",
                )
            ]
            * 2,
            (
                *(None, None),
                "key: 5 bytes left where the timestamp has 8;"
                " value: serialization strategy 2 where 1 is written",
            ),
        ]


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abce"), inner),
    max_leaves=4,
)
ANY_BYTES = (
    st.binary(max_size=20)
    | st.binary(min_size=36, max_size=36)
    | st.text(max_size=12).map(str.encode)
    | ANY_JSON.map(lambda value: json.dumps(value).encode())
    | st.tuples(ANY_JSON, st.sampled_from([",", "}", " 1", "]", "{}"])).map(
        lambda pair: (json.dumps(pair[0]) + pair[1]).encode()
    )
)


@settings(max_examples=4, deadline=None, suppress_health_check=SLOW)
@given(st.lists(ANY_BYTES, min_size=150, max_size=150))
def test_any_bytes_by_every_format(spark: SparkSessionResource, values: list[bytes]) -> None:
    for value, row in zip(values, _decoded(spark, values), strict=True):
        for name in FORMATS:
            assert (row[name]["value"] is None) == (row[name]["p"] is not None), (name, value)
        assert row["string"]["value"] == _text(value)
        for name, code in {"long": "q", "int": "i", "short": "h"}.items():
            fits = len(value) == struct.calcsize(code)
            assert row[name]["value"] == (struct.unpack(f">{code}", value)[0] if fits else None)
        for name, code in {"double": "d", "float": "f"}.items():
            if len(value) == struct.calcsize(code):
                expected = struct.unpack(f">{code}", value)[0]
                assert math.isnan(expected) or _same(row[name]["value"], expected)
        _assert_json(value, row["json"]["value"])


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _assert_json(value: bytes, found: Row | None) -> None:
    try:
        expected = json.loads(value.decode())
    except (ValueError, RecursionError):
        assert found is None, value
        return
    if not isinstance(expected, dict):
        assert found is None, value
    elif all(type(expected.get(name)) in (int, type(None)) for name in "a") and not (
        expected.keys() & set("ce")
    ):
        fits = expected.get("a") is None or -(2**63) <= expected["a"] < 2**63
        assert (found is not None) == fits, value
        assert found is None or found.a == expected.get("a")
