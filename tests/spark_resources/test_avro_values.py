"""Avro payloads as column values: logical types, unions, evolution, what is refused."""

import io
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from kstreams_assets.app.store_format import Encoding
from kstreams_assets.errors import SchemaUnusableError
from kstreams_assets.model.schemas import ReferencedSchema, RegisteredSchema
from spark_resources.avro_values import AvroReader
from spark_resources.value_shapes import TIMESTAMP


def registered(
    schema: object, schema_id: int = 1, references: Mapping[str, object] = {}
) -> RegisteredSchema:
    found = [ReferencedSchema(name, json.dumps(text)) for name, text in references.items()]
    return RegisteredSchema(schema_id, Encoding.AVRO, json.dumps(schema), tuple(found))


def encoded(schema: Any, value: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def record(name: str = "R", **fields: object) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": type_} for field, type_ in fields.items()],
    }


def logical(type_: str, name: str, **more: object) -> dict[str, object]:
    return {"type": type_, "logicalType": name, **more}


def through_arrow(reader: AvroReader, payload: bytes, schema_id: int = 1) -> Any:
    return pa.array([reader.read(schema_id, payload)], reader.type).to_pylist()[0]


@pytest.mark.parametrize(
    ("schema", "value", "type_", "read"),
    [
        ("string", "a", pa.string(), "a"),
        ("boolean", True, pa.bool_(), True),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(), b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
        (logical("int", "date"), date(2026, 11, 21), pa.date32(), date(2026, 11, 21)),
        (logical("string", "uuid"), UUID(int=5), pa.string(), str(UUID(int=5))),
        (
            logical("long", "timestamp-millis"),
            datetime(2026, 11, 21, 9, tzinfo=UTC),
            TIMESTAMP,
            datetime(2026, 11, 21, 9, tzinfo=UTC),
        ),
        (
            logical("long", "local-timestamp-micros"),
            datetime(2026, 11, 21, 9, 0, 0, 7),
            pa.timestamp("us"),
            datetime(2026, 11, 21, 9, 0, 0, 7),
        ),
        (
            logical("bytes", "decimal", precision=6, scale=2),
            Decimal("-12.34"),
            pa.decimal128(6, 2),
            Decimal("-12.34"),
        ),
        (logical("long", "time-micros"), 5, pa.int64(), 5),
        (["null", "int", "long"], 2**40, pa.int64(), 2**40),
        ({"type": "map", "values": ["null", "double"]}, {"a": 1.5, "b": None},
         pa.map_(pa.string(), pa.float64()), [("a", 1.5), ("b", None)]),
    ],
)  # fmt: skip
def test_types(schema: Any, value: object, type_: pa.DataType, read: object) -> None:
    inside = record(x=schema, many={"type": "array", "items": "int"})
    if schema == "string":  # also alone
        assert through_arrow(AvroReader({1: registered(schema)}), encoded(schema, value)) == read
    reader = AvroReader({1: registered(inside)})
    assert reader.type == pa.struct([("x", type_), ("many", pa.list_(pa.int32()))])
    payload = encoded(inside, {"x": value, "many": [1, -1]})
    assert through_arrow(reader, payload) == {"x": read, "many": [1, -1]}


def test_a_union_of_several_types_is_a_struct_of_its_members() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A"]}
    schema = ["null", "string", enum, record("In", x="int"), record("Other", x="int"), "double"]
    reader = AvroReader({1: registered(record(u=schema))})
    for value, member, read in (
        ("A", "member0", "A"),
        (("E", "A"), "member1", "A"),
        (("In", {"x": 1}), "member2", {"x": 1}),
        (("Other", {"x": 2}), "member3", {"x": 2}),
        (2.5, "member4", 2.5),
    ):
        found = through_arrow(reader, encoded(record(u=schema), {"u": value}))
        assert {name: part for name, part in found["u"].items() if part is not None} == {
            member: read
        }
    assert through_arrow(reader, encoded(record(u=schema), {"u": None})) == {"u": None}


def test_a_field_that_became_optional_and_one_that_went() -> None:
    old, new = record(a="int", gone="string"), record(a=["null", "long"])
    reader = AvroReader({1: registered(old), 2: registered(new, 2)})
    assert through_arrow(reader, encoded(old, {"a": 5, "gone": "x"})) == {"a": 5}
    assert through_arrow(reader, encoded(new, {"a": None}), 2) == {"a": None}


def test_what_no_column_can_hold_is_json() -> None:
    node = record("Node", x="int")
    node["fields"].append({"name": "next", "type": ["null", "Node"]})
    reader = AvroReader({1: registered(node)})
    assert reader.type == pa.struct([("x", pa.int32()), ("next", pa.string())])
    value = {"x": 1, "next": {"x": 2, "next": None}}
    read = through_arrow(reader, encoded(node, value))
    assert (read["x"], json.loads(read["next"])) == (1, {"x": 2, "next": None})
    empty = AvroReader({1: registered(record())})
    assert through_arrow(empty, b"") == "{}"


def test_schemas_that_refer_to_others() -> None:
    inner = record("shop.In", at=logical("long", "timestamp-millis"))
    outer = record("shop.Out", first="In", second="shop.In")
    reader = AvroReader({1: registered(outer, references={"shop.In": inner})})
    read = through_arrow(reader, bytes([2, 4]))
    assert [value["at"].microsecond for value in read.values()] == [1000, 2000]
    with pytest.raises(SchemaUnusableError, match="Schema 1 \\(Avro\\) cannot be used: Unknown"):
        AvroReader({1: registered(outer)})


def test_one_bad_schema_does_not_hinder_the_others() -> None:
    reader = AvroReader({1: registered("int"), 2: RegisteredSchema(2, Encoding.AVRO, '{"x": 1}')})
    assert set(reader.unusable) == {2}
    assert reader.read(1, b"\x02") == 1


@pytest.mark.parametrize(
    ("schema", "payload", "problem"),
    [
        ("string", b"\x06ab", "EOFError Expected 3 bytes, read 2 in 3 bytes"),
        ("string", b"\x04\xff\xfe", "UnicodeDecodeError"),
        ("string", b"", "EOFError in 0 bytes"),
        ("int", b"\x02\x02", "1 of 2 bytes are left"),
        (["null", "int"], b"\x08", "IndexError"),
        (logical("bytes", "decimal", precision=2), b"\x04\x7f\xff", "more than 2 digits"),
        (
            logical("long", "timestamp-millis"),
            b"\xff" * 9 + b"\x01",
            "outside the range of a column",
        ),
    ],
)
def test_payloads_that_are_not_of_the_schema(schema: Any, payload: bytes, problem: str) -> None:
    reader = AvroReader({1: registered(record(x=schema))})
    with pytest.raises(ValueError, match=problem):
        reader.read(1, payload)


def test_versions_that_do_not_go_together() -> None:
    reader = AvroReader({1: registered(record(x="string")), 2: registered(record(x="int"), 2)})
    with pytest.raises(ValueError, match="SchemaResolutionError"):
        reader.read(1, b"\x02a")
