"""Protobuf schemas of a registry become descriptors, with all they import."""

import base64

import pytest
from google.protobuf import descriptor_pb2

from kstreams_assets.app.store_format import Encoding
from kstreams_assets.errors import SchemaUnusableError
from kstreams_assets.model.schemas import ReferencedSchema, RegisteredSchema
from spark_resources.protobuf_values import compile_schema, message_at

MAIN = """syntax = "proto3";
package shop;
import "parts/line.proto";
import "confluent/meta.proto";
import "google/protobuf/timestamp.proto";
message Order {
  option (confluent.message_meta) = { doc: "an order" };
  parts.Line line = 1;
  google.protobuf.Timestamp at = 2;
  message In { message Deep {} }
}
"""
LINE = """syntax = "proto3";
package parts;
message Line { int64 cents = 1; }
"""


def schema(text: str, **references: str) -> RegisteredSchema:
    found = [
        ReferencedSchema(name.replace("__", "/") + ".proto", of) for name, of in references.items()
    ]
    return RegisteredSchema(4, Encoding.PROTOBUF, text, tuple(found))


def files(compiled: bytes) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    found = descriptor_pb2.FileDescriptorSet.FromString(compiled).file
    return {file.name: file for file in found}


def in_base64(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def test_texts_descriptors_and_mixtures_give_the_same() -> None:
    compiled = compile_schema(schema(MAIN, parts__line=LINE))
    found = files(compiled)
    assert {"parts/line.proto", "confluent/meta.proto"} <= found.keys()
    main, line = list(found.values())[-1], found["parts/line.proto"]
    assert main.message_type[0].name == "Order"
    for mixed in (
        schema(MAIN, parts__line=in_base64(line)),
        schema(in_base64(main), parts__line=LINE),
        schema(in_base64(main), parts__line=in_base64(line)),
    ):
        again = files(compile_schema(mixed))
        assert list(again.values())[-1] == main
        assert again == found


def test_message_types_by_their_indexes() -> None:
    compiled = compile_schema(schema(MAIN, parts__line=LINE))
    assert message_at(compiled, (0,)) == "shop.Order"
    assert message_at(compiled, (0, 0, 0)) == "shop.Order.In.Deep"
    for indexes in ((1,), (0, 1), (-1,)):
        with pytest.raises(ValueError, match="no message type at"):
            message_at(compiled, indexes)


def test_what_cannot_be_compiled_says_why() -> None:
    with pytest.raises(SchemaUnusableError, match=r"parts/line\.proto: File not found") as caught:
        compile_schema(schema(MAIN))
    assert (caught.value.schema_id, caught.value.kind) == (4, "Protobuf")
    assert "/tmp" not in str(caught.value)
    with pytest.raises(SchemaUnusableError, match=r"registered\.proto:1:"):
        compile_schema(schema("mesage X {}"))
    main = list(files(compile_schema(schema(MAIN, parts__line=LINE))).values())[-1]
    with pytest.raises(SchemaUnusableError, match=r"imports parts/line\.proto, which it does not"):
        compile_schema(schema(in_base64(main)))


@pytest.mark.parametrize(
    "name",
    ["../../evil", "/evil", "-I/etc/evil.proto", "--plugin=protoc-gen-x=/bin/id", "@/etc/passwd"],
)
def test_a_reference_cannot_leave_its_folder_or_become_an_option(name: str) -> None:
    with pytest.raises(SchemaUnusableError, match="not a relative file path"):
        compile_schema(schema(MAIN, **{name: LINE}))
