"""The blocks `topics` and `stores` of the YAML: declarations and formats."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from kstreams_assets.app.declarations import Declarations, StoreDeclaration, require_known
from kstreams_assets.app.model import StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.rules import DeclaredRecomputation
from kstreams_assets.app.store_columns import SchemaTextError, parse_schema
from kstreams_assets.app.store_format import (
    BYTES,
    FRAMED,
    Encoding,
    Format,
    StoreFormat,
    StoreKind,
    kind_by_name,
)
from kstreams_assets.block import Block, refused
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.settings import DEFAULT_TARGET, LOCAL, RestoreSettings, TargetSettings

_OWNER: Final = re.compile(r"\b[\w.%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}|team:.+", re.ASCII)
"""What Dagster accepts as an owner, without the oddities of its own pattern."""


def _require_owner(text: str) -> str:
    if not _OWNER.fullmatch(text):
        raise refused(f" is {text!r}.", "Give an e-mail address or team:NAME, such as team:orders.")
    return text


Owner = Annotated[str, AfterValidator(_require_owner)]
"""The owner of an asset."""
_ENCODINGS: Final = ", ".join(Encoding)


def _read_format(given: object) -> Format | None:
    if given is None or isinstance(given, Format):
        return given
    block = {"format": given} if isinstance(given, str) else given
    if not isinstance(block, Mapping):
        raise refused(" is neither a text nor a mapping.", f"Give one of {_ENCODINGS}.")
    unknown = sorted(str(key) for key in block if key not in ("format", "schema"))
    if unknown or "format" not in block:
        found = f"unknown key {unknown[0]!r}" if unknown else "no key 'format'"
        raise refused(f" has {found}.", f"Give one of {_ENCODINGS}, or {{format, schema}}.")
    if block["format"] not in tuple(Encoding):
        raise refused(f" has format {block['format']!r}.", f"Give one of {_ENCODINGS}.")
    schema = None if block.get("schema") is None else str(block["schema"])
    try:
        if schema is not None:
            parse_schema(schema)
        return Format(Encoding(block["format"]), schema)
    except SchemaTextError as error:
        raise refused(
            f" has an invalid schema: {error}.",
            "Write it as Spark's DDL: 'a BIGINT, b STRUCT<c: STRING>'.",
        ) from error
    except ConfigurationError as error:
        raise refused(f": {error.problem}", error.remedy) from error


WrittenFormat = Annotated[
    Format | None,
    PlainValidator(_read_format),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "object", "additionalProperties": True},
                {"type": "null"},
            ]
        }
    ),
]
"""A format by its name, or as `{format, schema}`."""
_HAVE_WINDOWED_KEYS: Final = (StoreKind.SUPPRESS, StoreKind.JOIN_BUFFER)
_OF_READING: Final = (
    "kind",
    "key",
    "value",
    "window_size_ms",
    "retention_ms",
    "windowed_keys",
    "lineage",
)


class StoreBlock(Block):
    """Declarations about one state store.

    Set at most one of `changelog`, `source_topic` and `logging_disabled`; without them the store's
    changelog is found by its name. `key` and `value` are `string`, `long`, `int`, `short`,
    `double`, `float`, `uuid`, `bytes`, `avro`, `protobuf`, or `{format: json, schema: "a BIGINT, b
    STRING"}`.
    """

    changelog: str | None = Field(default=None, description="Changelog topic of the store.")
    source_topic: str | None = Field(
        default=None, description="Source topic that is also the changelog (topology.optimization)."
    )
    logging_disabled: bool = Field(default=False, description="The store has no changelog.")
    unconfirmed: list[str] = Field(
        default=[],
        description="Why `discover` guessed the store's changelog; remove the key to confirm it."
        " Until then no table, rule or restore of mode state reads the store.",
    )
    kind: StoreKind | None = Field(
        default=None,
        description="Kind of the store (default: key_value, or the kind in a generated name).",
    )
    key: WrittenFormat = Field(
        default=None,
        description="Format of the key (without windows); for a foreign-key subscription, of the"
        " primary key.",
        examples=["string", {"format": "json", "schema": "id BIGINT"}],
    )
    value: WrittenFormat = Field(
        default=None,
        description="Format of the value; for a foreign-key subscription, of the foreign key.",
        examples=["long", {"format": "json", "schema": "count BIGINT, total DOUBLE"}],
    )
    window_size_ms: int | None = Field(
        default=None, description="Length of the windows; the changelog does not contain it."
    )
    retention_ms: int | None = Field(
        default=None,
        description="Retention of windows and sessions, history retention of versions; without it"
        " nothing expires in the table.",
    )
    windowed_keys: Literal["key_value", "window", "session"] | None = Field(
        default=None,
        description="For a suppress or join buffer: window or session if its keys are windowed.",
    )
    lineage: dict[str, list[str]] = Field(
        default={},
        description="The topic.field sources of each field of the value; an empty name means the"
        " whole value.",
        examples=[{"total": ["orders.amount"]}],
    )
    ktable: bool = Field(default=True, description="Whether the store gets tables.")
    recompute: DeclaredRecomputation | None = Field(
        default=None, description="How a store of counts or sums is computed from an input."
    )

    @field_validator("lineage")
    @classmethod
    def _check_lineage(cls, lineage: dict[str, list[str]]) -> dict[str, list[str]]:
        for name, sources in lineage.items():
            if not sources or not all(source.strip(".") for source in sources):
                raise refused(f" of {name!r} is {sources}.", "Give a list of topic.field.")
        return lineage

    @model_validator(mode="after")
    def _check_rebuilt(self) -> Self:
        given = (self.changelog is not None) + (self.source_topic is not None)
        if given + self.logging_disabled > 1:
            raise refused(
                f" has {given + self.logging_disabled} of changelog, source_topic and"
                " logging_disabled.",
                "Set at most one of the three.",
            )
        return self

    def declaration(self, store: str) -> StoreDeclaration | None:
        """The declared changelog of the store, None if its name decides; raises
        ConfigurationError."""
        if self == StoreBlock():
            raise ConfigurationError(
                f"The block of store {store!r} is empty.",
                remedy="Set its key and value, or its changelog, or remove it from stores.",
            )
        if self.changelog is None and self.source_topic is None and not self.logging_disabled:
            return None
        return StoreDeclaration(
            changelog=self.changelog,
            source_topic=self.source_topic,
            logging_disabled=self.logging_disabled,
        )

    @property
    def says_how_to_read(self) -> bool:
        """Whether the block describes the format of the store."""
        return any(getattr(self, name) not in (None, {}) for name in _OF_READING)

    def format(self, store: str) -> StoreFormat:
        """The format of the store; raises ConfigurationError, which names the store."""
        kind = self.kind or kind_by_name(store) or StoreKind.KEY_VALUE
        value = self.value or BYTES
        if self.windowed_keys is not None and kind not in _HAVE_WINDOWED_KEYS:
            raise ConfigurationError(
                f"Store {store!r} has windowed_keys, but is of kind {kind}.",
                remedy="Only suppress and join_buffer have windowed_keys; for other stores set the"
                " kind.",
            )
        if value.encoding not in FRAMED:
            # The format decides which fields exist; topics are checked with the application.
            fields = {""}
            if value.schema is not None:
                fields |= {path for each in parse_schema(value.schema) for path in each.paths()}
            where = f"the value of store {store!r}"
            keys = [f"stores.{store}.lineage"]
            require_known("lineage field", self.lineage.keys(), fields, where, keys=keys)
        try:
            return StoreFormat(
                kind=kind,
                key=self.key or BYTES,
                value=value,
                window_size_ms=self.window_size_ms,
                retention_ms=self.retention_ms,
                windowed_keys=StoreKind(self.windowed_keys or StoreKind.KEY_VALUE),
                lineage=tuple((name, tuple(said)) for name, said in sorted(self.lineage.items())),
            )
        except ConfigurationError as error:
            raise ConfigurationError(
                f"Store {store!r}: {error.problem}", remedy=error.remedy
            ) from error


def store_formats(stores: Mapping[str, StoreBlock]) -> dict[str, StoreFormat]:
    """The declared formats of stores; raises ConfigurationError."""
    return {name: model.format(name) for name, model in stores.items() if model.says_how_to_read}


def require_stores(stores: Mapping[str, StoreBlock], application: StreamsApplication) -> None:
    """Raise ConfigurationError for the first store that the application does not have."""
    known = {store.name for store in application.stores}
    where = f"application {application.application_id}"
    require_known("store", stores.keys(), known, where, keys=["stores"])


_TARGET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def require_targets(restore: RestoreSettings, targets: Mapping[str, TargetSettings]) -> None:
    """Raise ConfigurationError for invalid or undeclared names of targets."""
    for name, target in targets.items():
        if _TARGET_NAME.fullmatch(name) is None or name.isdecimal():
            raise ConfigurationError(
                f"targets: {name!r} is not the name of a target.",
                remedy="Names consist of letters, digits, '.', '_' and '-', for example dr.",
            )
        if name == LOCAL and target.connection is not None:
            raise ConfigurationError(
                f"targets.{LOCAL} has a connection, but {LOCAL} is a throwaway cluster on this"
                " machine.",
                remedy="Choose another name for the target.",
            )
    if isinstance(restore.target, KafkaConnection):
        if DEFAULT_TARGET in targets:
            raise ConfigurationError(
                f"targets.{DEFAULT_TARGET} is declared, but restore.target describes the target of"
                " this name.",
                remedy=f"Set restore.target to {DEFAULT_TARGET}.",
            )
        return
    if restore.target is not None and restore.target not in targets:
        raise ConfigurationError(
            f"restore.target is {restore.target!r}, which is not declared under targets.",
            remedy=f"Declared targets: {', '.join(targets)}." if targets else "Declare it.",
        )
    for key in ("before_command", "after_command"):
        if targets and getattr(restore, key) is not None:
            raise ConfigurationError(
                f"restore.{key} is set, but restores use targets.",
                remedy="Move it to its target.",
            )


class SensorStatus(StrEnum):
    """Whether the sensors run before a user has switched them in the UI."""

    STOPPED = "stopped"
    RUNNING = "running"


class TopicBlock(Block):
    """Declarations about one topic: its roles, which override names and topology, and its format.

    `key` and `value` are like those of a store.
    """

    roles: list[TopicRole] = Field(
        default=[], description="input, global, repartition, changelog, output."
    )
    unconfirmed: list[str] = Field(
        default=[],
        description="Why `discover` guessed the roles; remove the key to confirm them. Until then"
        " no table, rule or restore of mode state reads the topic.",
    )
    key: WrittenFormat = Field(
        default=None, description="Format of the keys, for completeness rules.", examples=["string"]
    )
    value: WrittenFormat = Field(
        default=None,
        description="Format of the values, for completeness rules.",
        examples=[{"format": "json", "schema": "customer_id STRING, amount_cents BIGINT"}],
    )

    @property
    def says_how_to_read(self) -> bool:
        """Whether the block describes the format of the topic's records."""
        return self.key is not None or self.value is not None


def declarations(
    *,
    topics: dict[str, TopicBlock],
    stores: dict[str, StoreBlock],
    inputs: list[str],
    outputs: list[str],
    not_mine: list[str],
) -> Declarations:
    """The declarations of the YAML about topics and stores; raises ConfigurationError."""
    return Declarations(
        topic_roles={
            name: TopicRoles(model.roles)
            for name, model in topics.items()
            if model.roles or not model.says_how_to_read
        },
        stores={
            name: declared
            for name, model in stores.items()
            if (declared := model.declaration(name)) is not None
        },
        inputs=frozenset(inputs),
        outputs=frozenset(outputs),
        not_mine=frozenset(not_mine),
        unconfirmed_topics={
            name: tuple(model.unconfirmed) for name, model in topics.items() if model.unconfirmed
        },
        unconfirmed_stores={
            name: tuple(model.unconfirmed) for name, model in stores.items() if model.unconfirmed
        },
    )
