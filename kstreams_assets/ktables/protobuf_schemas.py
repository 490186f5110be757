"""Protobuf schemas of a registry as descriptors. Pure but for the compiler, a process."""

import base64
import binascii
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import Final

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from kstreams_assets.errors import SchemaUnusableError
from kstreams_assets.ktables.schemas import RegisteredSchema

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
"""Files that every registry has, so that nobody registers them."""


def compile_schema(schema: RegisteredSchema) -> bytes:
    """A FileDescriptorSet, serialized, with the schema's own file last.

    Texts go through the protoc of the package grpcio-tools, in a process of its own. Raises
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
            raise _unusable(schema, f"it imports {name!r}, which is no relative path of a file")
        else:
            texts[name] = text
    inputs = [*texts, *_not_registered(schema, compiled, texts)]
    if inputs:
        compiled = _merged(_protoc(schema, texts, inputs, compiled), compiled)
    return compiled.SerializeToString()


def _not_registered(
    schema: RegisteredSchema, compiled: descriptor_pb2.FileDescriptorSet, texts: dict[str, str]
) -> list[str]:
    """The files that descriptors import and nobody registers: everybody has them."""
    there = {file.name for file in compiled.file} | texts.keys()
    wanted = {name for file in compiled.file for name in file.dependency} - there
    for name in wanted:
        if not _is_file_name(name):
            raise _unusable(schema, f"it imports {name!r}, which is no relative path of a file")
        if name not in _BUILT_IN and not name.startswith("google/protobuf/"):
            raise _unusable(schema, f"it imports {name}, which it does not refer to")
    return sorted(wanted)


def _is_file_name(name: str) -> bool:
    """Whether a name from the registry stays a file below the folder on protoc's command line.

    protoc takes `-...` for an option and `@...` for a file of options.
    """
    path = PurePosixPath(name)
    return bool(path.name) and name[0] not in "-@/" and ".." not in path.parts and "\0" not in name


def _merged(
    first: descriptor_pb2.FileDescriptorSet, second: descriptor_pb2.FileDescriptorSet
) -> descriptor_pb2.FileDescriptorSet:
    """The files of both, each once, the schema's own file last."""
    files = {file.name: file for file in (*second.file, *first.file)}
    names = [file.name for file in (*first.file, *second.file) if file.name != _MAIN]
    return descriptor_pb2.FileDescriptorSet(
        file=[files[name] for name in (*dict.fromkeys(names), _MAIN)]
    )


def _registered_as_descriptor(name: str, text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """A file that was registered as a FileDescriptorProto in base64, as Python clients do."""
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
    """The full name of the message type at a path of indexes in a schema; ValueError if none."""
    file = descriptor_pb2.FileDescriptorSet.FromString(compiled).file[-1]
    names = [file.package] if file.package else []
    types = file.message_type
    for index in indexes:
        if not 0 <= index < len(types):
            raise ValueError(f"the schema has no message type at {list(indexes)}")
        names.append(types[index].name)
        types = types[index].nested_type
    return ".".join(names)
