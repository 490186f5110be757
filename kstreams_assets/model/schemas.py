"""A schema of a registry, with the schemas that it references."""

from dataclasses import dataclass
from typing import Annotated

from kstreams_assets.app.store_format import Encoding
from kstreams_assets.model.column import ApplicationId, Column


@dataclass(frozen=True, slots=True)
class ReferencedSchema:
    """A schema that others import, under the name that they use."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with everything that is needed to decode records.

    `kind` is AVRO or PROTOBUF. `references` are all schemas that it imports, also indirectly, each
    after those that it needs itself. The text of a Protobuf schema is a .proto file, or a
    FileDescriptorProto in base64, as some clients register it.
    """

    id: Annotated[int, Column("Id in the registry, as in the records.")]
    kind: Annotated[Encoding, Column("`avro` or `protobuf`.")]
    text: Annotated[str, Column("The schema.")]
    references: Annotated[
        tuple[ReferencedSchema, ...],
        Column("Referenced schemas, by name.", nullable=False),
    ] = ()


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A row of the table."""

    application_id: ApplicationId
    schema: RegisteredSchema
    saved_at_ms: Annotated[int, Column("When it was copied, epoch milliseconds.")]
