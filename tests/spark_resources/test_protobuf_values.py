"""Protobuf payloads as column values: field types, presence, message types."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from kstreams_assets.app.store_format import Encoding
from kstreams_assets.model.schemas import RegisteredSchema
from spark_resources.protobuf_values import (
    CompiledSchemas,
    ProtobufReader,
    compile_schema,
    read_indexes,
)
from spark_resources.value_shapes import TIMESTAMP

PROTO = """syntax = "proto3";
package t;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message All {
  enum Color { RED = 0; BLUE = 1; }
  message Empty {}
  int32 plain = 1;
  optional int32 maybe = 2;
  uint64 big = 3;
  fixed32 wide = 4;
  Color color = 5;
  bytes raw = 6;
  google.protobuf.Timestamp at = 7;
  google.protobuf.Int64Value wrapped = 8;
  google.protobuf.Struct any = 9;
  map<string, All> children = 10;
  repeated string tags = 11;
  oneof choice { string text = 12; double number = 13; }
  Empty empty = 14;
  float Plain = 15;
}
"""


@pytest.fixture(scope="module")
def compiled() -> bytes:
    return compile_schema(RegisteredSchema(1, Encoding.PROTOBUF, PROTO))


def reader_of(compiled: bytes) -> ProtobufReader:
    return ProtobufReader(CompiledSchemas({1: compiled}, "t.All", newest=1))


def payload(compiled: bytes, json: dict[str, Any]) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.All"))()
    json_format.ParseDict(json, message)
    return b"\x00" + message.SerializeToString()


def test_types_and_what_is_not_set(compiled: bytes) -> None:
    reader = reader_of(compiled)
    assert reader.type == pa.struct(
        [
            ("plain", pa.int32()),
            ("maybe", pa.int32()),
            ("big", pa.decimal128(20, 0)),
            ("wide", pa.int64()),
            ("color", pa.string()),
            ("raw", pa.binary()),
            ("at", TIMESTAMP),
            ("wrapped", pa.int64()),
            ("any", pa.string()),
            ("children", pa.map_(pa.string(), pa.string())),
            ("tags", pa.list_(pa.string())),
            ("text", pa.string()),
            ("number", pa.float64()),
            ("empty", pa.string()),
            ("Plain_14", pa.float32()),
        ]
    )
    (empty,) = pa.array([reader.read(1, b"\x00")], reader.type).to_pylist()
    plain = {"plain": 0, "big": 0, "wide": 0, "color": "RED", "raw": b"", "Plain_14": 0.0}
    assert empty == dict.fromkeys(empty) | plain | {"children": [], "tags": []}


def test_values(compiled: bytes) -> None:
    reader = reader_of(compiled)
    said = {
        "plain": -1,
        "maybe": 0,
        "big": str(2**64 - 1),
        "wide": 2**32 - 1,
        "color": "BLUE",
        "raw": "/w==",
        "at": "2026-11-21T09:00:00.000007Z",
        "wrapped": "5",
        "any": {"a": [1, None]},
        "children": {"x": {"plain": 3}},
        "tags": ["a", "b"],
        "number": 1.5,
        "empty": {},
    }
    (read,) = pa.array([reader.read(1, payload(compiled, said))], reader.type).to_pylist()
    assert read == {
        "plain": -1,
        "maybe": 0,
        "big": Decimal(2**64 - 1),
        "wide": 2**32 - 1,
        "color": "BLUE",
        "raw": b"\xff",
        "at": datetime(2026, 11, 21, 9, 0, 0, 7, UTC),
        "wrapped": 5,
        "any": '{"a": [1.0, null]}',
        "children": [("x", '{"plain": 3}')],
        "tags": ["a", "b"],
        "text": None,
        "number": 1.5,
        "empty": "{}",
        "Plain_14": 0.0,
    }


def test_an_unknown_enum_number_stays_a_number(compiled: bytes) -> None:
    read = reader_of(compiled).read(1, b"\x00\x28\x07")
    assert isinstance(read, dict)
    assert read["color"] == "7"


@pytest.mark.parametrize(
    ("begin", "indexes", "taken"),
    [
        (b"\x00rest", (0,), 1),
        (b"\x02\x02rest", (1,), 2),
        (b"\x04\x00\x06", (0, 3), 3),
        (b"\x02\x80\x01", (64,), 3),
    ],
)
def test_message_indexes(begin: bytes, indexes: tuple[int, ...], taken: int) -> None:
    assert read_indexes(begin) == (indexes, taken)


@pytest.mark.parametrize(
    "begin", [b"", b"\x04\x00", b"\x80", b"\x01\x00", b"\xff" * 9, b"\x7e\x00"]
)
def test_message_indexes_that_are_none(begin: bytes) -> None:
    with pytest.raises(ValueError, match="the message indexes are"):
        read_indexes(begin)
