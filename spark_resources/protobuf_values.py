"""Protobuf payloads as values of Arrow columns: schemas, defaults, well-known types. Pure."""

import base64
import binascii
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from kstreams_assets.errors import SchemaUnusableError
from kstreams_assets.model.schemas import RegisteredSchema
from spark_resources.value_shapes import TEXT, TIMESTAMP, Shape, struct_of

_COMPILE_TIMEOUT_S: Final = 60.0
_MAIN: Final = "registered.proto"
_BUILT_IN: Final[dict[str, str]] = {
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
}
"""Files that every registry has, so they are never registered."""


def compile_schema(schema: RegisteredSchema) -> bytes:
    """Return a FileDescriptorSet, serialized, with the schema's own file last.

    Texts are compiled by the protoc of the package grpcio-tools, in a separate process. Raises
    SchemaUnusableError.
    """
    files = [(found.name, found.text) for found in schema.references] + [(_MAIN, schema.text)]
    compiled = descriptor_pb2.FileDescriptorSet()
    texts: dict[str, str] = {}
    for name, text in files:
        file = _registered_as_descriptor(name, text)
        if file is not None:
            compiled.file.append(file)
        elif not _is_file_name(name):
            raise _unusable(schema, f"it imports {name!r}, which is not a relative file path")
        else:
            texts[name] = text
    inputs = [*texts, *_not_registered(schema, compiled, texts)]
    if inputs:
        compiled = _merged(_protoc(schema, texts, inputs, compiled), compiled)
    return compiled.SerializeToString()


def _not_registered(
    schema: RegisteredSchema, compiled: descriptor_pb2.FileDescriptorSet, texts: dict[str, str]
) -> list[str]:
    """Return imported files that are never registered, as every registry has them."""
    there = {file.name for file in compiled.file} | texts.keys()
    wanted = {name for file in compiled.file for name in file.dependency} - there
    for name in wanted:
        if not _is_file_name(name):
            raise _unusable(schema, f"it imports {name!r}, which is not a relative file path")
        if name not in _BUILT_IN and not name.startswith("google/protobuf/"):
            raise _unusable(schema, f"it imports {name}, which it does not refer to")
    return sorted(wanted)


def _is_file_name(name: str) -> bool:
    """Whether a name from the registry stays a file below the folder on protoc's command line.

    protoc treats `-...` as an option and `@...` as a file of options.
    """
    path = PurePosixPath(name)
    return bool(path.name) and name[0] not in "-@/" and ".." not in path.parts and "\0" not in name


def _merged(
    first: descriptor_pb2.FileDescriptorSet, second: descriptor_pb2.FileDescriptorSet
) -> descriptor_pb2.FileDescriptorSet:
    """Return the files of both, each once, the schema's own file last."""
    files = {file.name: file for file in (*second.file, *first.file)}
    names = [file.name for file in (*first.file, *second.file) if file.name != _MAIN]
    return descriptor_pb2.FileDescriptorSet(
        file=[files[name] for name in (*dict.fromkeys(names), _MAIN)]
    )


def _registered_as_descriptor(name: str, text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return a file that was registered as a FileDescriptorProto in base64, like Python clients."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    file.name = name
    return file


def _protoc(
    schema: RegisteredSchema,
    texts: dict[str, str],
    inputs: list[str],
    also: descriptor_pb2.FileDescriptorSet,
) -> descriptor_pb2.FileDescriptorSet:
    with tempfile.TemporaryDirectory(prefix="kstreams-assets-proto-") as name:
        folder = Path(name)
        for file, text in (_BUILT_IN | texts).items():
            (folder / "in" / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / "in" / file).write_text(text, "utf-8")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder / 'in'}"]
        if also.file:
            (folder / "also").write_bytes(also.SerializeToString())
            command.append(f"--descriptor_set_in={folder / 'also'}")
        command += ["--include_imports", f"--descriptor_set_out={folder / 'out'}"]
        command += inputs
        try:
            result = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMPILE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _unusable(schema, "protoc did not end in time") from error
        if result.returncode != 0:
            said = result.stderr.replace(f"{folder / 'in'}/", "").strip().splitlines()
            raise _unusable(
                schema, " / ".join(said[:3]) or f"protoc ended with {result.returncode}"
            )
        return descriptor_pb2.FileDescriptorSet.FromString((folder / "out").read_bytes())


def _unusable(schema: RegisteredSchema, reason: str) -> SchemaUnusableError:
    return SchemaUnusableError(schema_id=schema.id, kind="Protobuf", reason=reason)


def message_at(compiled: bytes, indexes: tuple[int, ...]) -> str:
    """Return the full name of the message type at a path of indexes; ValueError without one."""
    file = descriptor_pb2.FileDescriptorSet.FromString(compiled).file[-1]
    names = [file.package] if file.package else []
    types = file.message_type
    for index in indexes:
        if not 0 <= index < len(types):
            raise ValueError(f"the schema has no message type at {list(indexes)}")
        names.append(types[index].name)
        types = types[index].nested_type
    return ".".join(names)


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
    """Return the path of the message type before a message, and its number of bytes.

    Zigzag varints: their number, then each index; a single 0 means the first message.
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
    """Input of workers for reading messages: descriptor sets by schema id, the message to show."""

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
        """Return one value; ValueError says why the payload is invalid."""
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
    """Builds the column type of a message type, and the conversion of messages."""

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
            return Shape(pa.string(), _json)  # a column type cannot be recursive or empty
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
