"""Protobuf payloads as values of Arrow columns: message indexes and field types. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from kstreams_assets.ktables.protobuf_schemas import message_at
from kstreams_assets.ktables.shapes import TEXT, TIMESTAMP, Shape, struct_of

_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_AS_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_TYPES: Final[Mapping[int, pa.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
}


def read_indexes(payload: bytes) -> tuple[tuple[int, ...], int]:
    """The path of the message type that stands before a message, and how many bytes it takes.

    Zigzag varints: their number, then each index; a single 0 stands for the first message.
    """
    count, at = _varint(payload, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= len(payload):
        raise ValueError(f"the message indexes are {count}")
    indexes = []
    for _ in range(count):
        index, at = _varint(payload, at)
        indexes.append(index)
    return tuple(indexes), at


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(payload) or shift > 28:
            raise ValueError("the message indexes are cut off")
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


@dataclass(frozen=True, slots=True)
class CompiledSchemas:
    """What workers need to read messages: descriptor sets by schema id, and the message to show."""

    files: Mapping[int, bytes]
    message: str
    newest: int


class ProtobufReader:
    """Reads payloads of several schemas into the shape of one message type of the newest."""

    def __init__(self, compiled: CompiledSchemas) -> None:
        self._files = compiled.files
        self._message = compiled.message
        self._names: dict[tuple[int, tuple[int, ...]], str] = {}
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(
            compiled.files[compiled.newest]
        ).file:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(compiled.message)
        self._class = message_factory.GetMessageClass(descriptor)
        self._shape = _Shapes().of_message(descriptor)

    @property
    def type(self) -> pa.DataType:
        """The type of every value."""
        return self._shape.type

    def read(self, schema_id: int, payload: bytes) -> object:
        """One value; ValueError says why the payload is not one."""
        indexes, begin = read_indexes(payload)
        name = self._names.get((schema_id, indexes))
        if name is None:
            name = message_at(self._files[schema_id], indexes)
            self._names[schema_id, indexes] = name
        if name != self._message:
            raise ValueError(f"a message {name} among messages {self._message}")
        try:
            message = self._class.FromString(payload[begin:])
        except DecodeError as error:
            raise ValueError(f"no message {name} ({error})") from error
        return self._shape.convert(message)


class _Shapes:
    """Builds the column type of a message type, and what brings messages into it."""

    def __init__(self) -> None:
        self._open: list[str] = []

    def of_message(self, descriptor: Descriptor) -> Shape:
        name = descriptor.full_name
        if name == "google.protobuf.Timestamp":
            return Shape(TIMESTAMP, lambda value: value.seconds * 1_000_000 + value.nanos // 1000)
        if name in _WRAPPERS:
            wrapped = self._of_single(descriptor.fields_by_name["value"])
            return Shape(wrapped.type, lambda value: wrapped.convert(value.value))
        if name in _AS_JSON or name in self._open or not descriptor.fields:
            return Shape(pa.string(), _json)  # no column can hold itself, or nothing
        self._open.append(name)
        fields = {field.name: field for field in descriptor.fields}
        parts = [(field.name, self._of_field(field)) for field in descriptor.fields]
        self._open.pop()

        def get(value: Message, field: str) -> Any:  # noqa: ANN401 (any field)
            if fields[field].has_presence and not value.HasField(field):
                return None
            return getattr(value, field)

        return struct_of(parts, get)

    def _of_field(self, field: FieldDescriptor) -> Shape:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key = self._of_single(entry.fields_by_name["key"])
            item = self._of_single(entry.fields_by_name["value"])
            return Shape(
                pa.map_(key.type, item.type),
                lambda value: [(key.convert(k), item.convert(value[k])) for k in value],
            )
        single = self._of_single(field)
        if field.is_repeated:
            return Shape(
                pa.list_(single.type), lambda value: [single.convert(part) for part in value]
            )
        return single

    def _of_single(self, field: FieldDescriptor) -> Shape:
        if field.message_type is not None:
            return self.of_message(field.message_type)
        if field.enum_type is not None:
            names = {
                number: value.name for number, value in field.enum_type.values_by_number.items()
            }
            return Shape(pa.string(), lambda value: names.get(value, str(value)))
        if field.type == FieldDescriptor.TYPE_STRING:
            return TEXT
        if field.type == FieldDescriptor.TYPE_BYTES:
            return Shape(pa.binary(), bytes)
        type_ = _TYPES[field.cpp_type]
        return Shape(type_, lambda value: value)


def _json(message: Message) -> str:
    return json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)
