"""Framed columns in Spark: every row is kept, what was not read says why."""

import base64
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kstreams_assets.app.store_format import Encoding
from kstreams_assets.model.schemas import RegisteredSchema
from spark_resources.confluent_framing import SchemasOfRows, framed, schema_ids
from spark_resources.protobuf_values import compile_schema
from spark_resources.resource import SparkSessionResource

pytestmark = pytest.mark.spark

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "cents", "type": "int"}],
}
NEWER_ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
PROTO = """syntax = "proto3";
package shop;
message Head { string id = 1; message Line { int32 cents = 1; } }
message Order { string id = 1; optional int64 cents = 2; repeated Head.Line lines = 3; }
"""
NEWER_PROTO = PROTO.replace("repeated", "string note = 4; repeated")


def avro(schema_id: int, schema: object) -> RegisteredSchema:
    return RegisteredSchema(schema_id, Encoding.AVRO, json.dumps(schema))


def protobuf(schema_id: int, text: str) -> RegisteredSchema:
    return RegisteredSchema(schema_id, Encoding.PROTOBUF, text)


def by_id(*schemas: RegisteredSchema) -> dict[int, RegisteredSchema]:
    return {schema.id: schema for schema in schemas}


def prefix(schema_id: int) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big")


def avro_record(schema_id: int, schema: Any, value: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return prefix(schema_id) + stream.getvalue()


def message(schema_id: int, text: str, name: str, path: bytes, **fields: object) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    compiled = compile_schema(protobuf(schema_id, text))
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))(**fields)
    return prefix(schema_id) + path + made.SerializeToString()


def rows_of(spark: SparkSessionResource, values: Iterable[bytes | None]) -> DataFrame:
    rows = [(number, value and bytearray(value)) for number, value in enumerate(values)]
    return spark.spark_session.createDataFrame(rows, "offset INT, value BINARY")


def decoded(
    rows: DataFrame, encoding: Encoding, schemas: Mapping[int, RegisteredSchema]
) -> list[tuple[Any, str | None]]:
    value, error = framed(F.col("value"), encoding, schemas)
    found = rows.select("offset", value.alias("value"), error.alias("error")).orderBy("offset")
    return [
        (row["value"].asDict(recursive=True) if hasattr(row["value"], "asDict") else row["value"],
         row["error"])
        for row in found.collect()
    ]  # fmt: skip


def test_two_versions_of_an_avro_schema_have_the_shape_of_the_newer(
    spark: SparkSessionResource,
) -> None:
    older = avro_record(7, ORDER, {"id": "a", "cents": 5})
    newer = avro_record(300, NEWER_ORDER, {"id": "b", "cents": 2**40, "note": "x"})
    schemas = by_id(avro(7, ORDER), avro(300, NEWER_ORDER))
    assert decoded(rows_of(spark, [older, newer, None]), Encoding.AVRO, schemas) == [
        ({"id": "a", "cents": 5, "note": None}, None),
        ({"id": "b", "cents": 2**40, "note": "x"}, None),
        (None, None),
    ]


def test_rows_that_do_not_decode_are_kept_and_say_why(spark: SparkSessionResource) -> None:
    good = avro_record(7, ORDER, {"id": "a", "cents": 5})
    schemas = by_id(
        avro(7, ORDER), protobuf(8, PROTO), RegisteredSchema(9, Encoding.AVRO, '{"type": "x"}')
    )
    guid = b"\x01" + bytes(range(16)) + b"payload"
    values = [good, b"", b"{}   {}", prefix(6) + b"x", prefix(8), prefix(9), guid, good[:-1]]
    values += [good + b"12", prefix(7) + b"\x02a" + b"\xfe\xff\xff\xff\x7f"]
    found = decoded(rows_of(spark, values), Encoding.AVRO, schemas)
    assert [value for value, _ in found] == [{"id": "a", "cents": 5}] + [None] * 9
    errors = [error for _, error in found]
    assert errors[:5] == [
        None,
        "0 bytes where a schema id alone has 5",
        "begins with byte 0x7b, not with 0 and a schema id",
        "schema 6 is not stored, and no registry has it",
        "schema 8 is protobuf, not avro",
    ]
    assert errors[5] is not None
    assert errors[5].startswith("schema 9 cannot be used: Unknown")
    assert errors[6] == (
        "its schema is named by GUID 00010203-0405-0607-0809-0a0b0c0d0e0f; only ids are read"
    )
    assert errors[7] == "not readable by schema 7: EOFError in 2 bytes"
    assert errors[8] == "not readable by schema 7: 2 of 5 bytes are left"
    assert errors[9] is not None  # a number beyond an int fails its own row, not the batch
    assert errors[9].startswith("a value outside of the range of struct<id: string, cents: int32>")


def test_without_any_schema_every_row_names_its_id(spark: SparkSessionResource) -> None:
    for encoding in (Encoding.AVRO, Encoding.PROTOBUF):
        found = decoded(rows_of(spark, [prefix(12) + b"x", None]), encoding, {})
        assert found == [(None, "schema 12 is not stored, and no registry has it"), (None, None)]


def test_a_primitive_avro_schema_gives_a_scalar(spark: SparkSessionResource) -> None:
    values = [avro_record(3, "string", "Köln"), prefix(4) + b"\x04ab"]
    assert decoded(rows_of(spark, values[:1]), Encoding.AVRO, by_id(avro(3, "string"))) == [
        ("Köln", None)
    ]
    # Confluent's serializers write plain bytes as they are, without Avro's length.
    assert decoded(rows_of(spark, values[1:]), Encoding.AVRO, by_id(avro(4, "bytes"))) == [
        (b"\x04ab", None)
    ]


def test_protobuf_messages_by_their_indexes(spark: SparkSessionResource) -> None:
    schemas = by_id(protobuf(5, PROTO), protobuf(6, NEWER_PROTO))
    older = message(5, PROTO, "shop.Order", b"\x02\x02", id="a", lines=[{"cents": 3}])
    newer = message(6, NEWER_PROTO, "shop.Order", b"\x02\x02", id="b", cents=-1, note="x")
    head = message(6, NEWER_PROTO, "shop.Head", b"\x00", id="h")
    bad = [prefix(6) + b"\x02\x02\xff", prefix(6) + b"\x04\x00", prefix(6) + b"\x02\x06"]
    rows = rows_of(spark, [older, newer, newer, head, *bad])
    found = decoded(rows, Encoding.PROTOBUF, SchemasOfRows(rows, schemas))
    assert [value for value, _ in found] == [
        {"id": "a", "cents": None, "lines": [{"cents": 3}], "note": ""},
        {"id": "b", "cents": -1, "lines": [], "note": "x"},
        {"id": "b", "cents": -1, "lines": [], "note": "x"},
        *[None] * 4,
    ]
    errors = [error for _, error in found]
    said = "not readable by schema 6: "
    assert errors[:4] == [None, None, None, f"{said}a message shop.Head among messages shop.Order"]
    assert errors[4] is not None
    assert errors[4].startswith(f"{said}no message shop.Order (")
    assert errors[5] == f"{said}the message indexes are cut off"
    assert errors[6] == f"{said}the schema has no message type at [3]"


def test_a_nested_message_and_a_schema_registered_as_a_descriptor(
    spark: SparkSessionResource,
) -> None:
    file = descriptor_pb2.FileDescriptorSet.FromString(compile_schema(protobuf(5, PROTO))).file[-1]
    text = base64.b64encode(file.SerializeToString()).decode()
    rows = rows_of(spark, [message(5, PROTO, "shop.Head.Line", b"\x04\x00\x00", cents=4)])
    schemas = SchemasOfRows(rows, by_id(protobuf(5, text)))
    assert decoded(rows, Encoding.PROTOBUF, schemas) == [({"cents": 4}, None)]


def test_each_column_is_read_by_the_newest_schema_that_it_uses(spark: SparkSessionResource) -> None:
    rows = rows_of(spark, [avro_record(7, ORDER, {"id": "a", "cents": 5}), b"junk", None])
    schemas = by_id(avro(7, ORDER), avro(300, NEWER_ORDER))
    (first, *_) = decoded(rows, Encoding.AVRO, SchemasOfRows(rows, schemas))
    assert first == ({"id": "a", "cents": 5}, None)


def test_ids_in_use(spark: SparkSessionResource) -> None:
    values = [
        prefix(7) + b"x",
        prefix(2**31 - 1),
        b"\x00\x00\x00\x01",
        b"\x01\x00\x00\x00\x05",
        None,
    ]
    rows = rows_of(spark, values).withColumn("key", F.lit(prefix(7)))
    assert schema_ids(rows, ["value", F.col("key")]) == {7, 2**31 - 1}
    assert schema_ids(rows.limit(0), ["value"]) == set()


def test_a_guid_in_a_header_is_told(spark: SparkSessionResource) -> None:
    row = (bytearray(b"\x02a\x0a"), [("__value_schema_id", bytearray(17))])
    other = (bytearray(avro_record(7, ORDER, {"id": "a", "cents": 5})), None)
    rows = spark.spark_session.createDataFrame(
        [row, other], "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    value, error = framed(
        F.col("value"), Encoding.AVRO, by_id(avro(7, ORDER)), headers=F.col("headers")
    )
    found = rows.select(value.alias("value"), error.alias("error")).collect()
    assert found[0]["value"] is None
    assert found[0]["error"] == (
        "its schema is named by a GUID in header __value_schema_id; only ids are read"
    )
    assert (found[1]["value"]["cents"], found[1]["error"]) == (5, None)
