"""The contents of a store and their format, as users declare them. Pure."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_assets.errors import ConfigurationError


class StoreKind(StrEnum):
    """The kind of a store: it decides how changelog keys are encoded and when rows expire.

    `key_value`: key. `window`: key, i64 start, i32 sequence number. `join_window`: the same with
    duplicates retained (stream-stream joins). `session`: key, i64 end, i64 start. `versioned`: key,
    validity starts at the record timestamp (KIP-889). `suppress`, `join_buffer`, `subscription` and
    `outer_join` are buffers of the DSL that no query can read; their structure is decoded.
    """

    KEY_VALUE = "key_value"
    WINDOW = "window"
    JOIN_WINDOW = "join_window"
    SESSION = "session"
    VERSIONED = "versioned"
    SUPPRESS = "suppress"
    JOIN_BUFFER = "join_buffer"
    SUBSCRIPTION = "subscription"
    OUTER_JOIN = "outer_join"


class Encoding(StrEnum):
    """The encoding of a key or a value; numbers as in Kafka's own serializers (big-endian).

    `avro` and `protobuf` have Confluent's framing: schema ids refer to a schema registry.
    """

    BYTES = "bytes"
    STRING = "string"
    LONG = "long"
    INT = "int"
    SHORT = "short"
    DOUBLE = "double"
    FLOAT = "float"
    UUID = "uuid"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


FRAMED = frozenset({Encoding.AVRO, Encoding.PROTOBUF})
"""Encodings whose schemas are in a registry."""

WINDOWED = frozenset({StoreKind.WINDOW, StoreKind.JOIN_WINDOW})
BUFFERS = frozenset(
    {StoreKind.SUPPRESS, StoreKind.JOIN_BUFFER, StoreKind.SUBSCRIPTION, StoreKind.OUTER_JOIN}
)
"""Kinds whose keys and values have a structure of their own; their keys have no parts."""

_HAVE_RETENTION = frozenset(
    {StoreKind.WINDOW, StoreKind.JOIN_WINDOW, StoreKind.SESSION, StoreKind.VERSIONED}
)


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a key or a value; `schema` has the fields of JSON in DDL (`a BIGINT, b
    STRING`).

    For Avro and Protobuf the column has the structure of the newest known schema.
    """

    encoding: Encoding = Encoding.BYTES
    schema: str | None = None

    def __post_init__(self) -> None:
        if (self.schema is not None) != (self.encoding is Encoding.JSON):
            raise ConfigurationError(
                f"Format {self.encoding} has {'a' if self.schema else 'no'} schema.",
                remedy="Set a schema for json, such as 'count BIGINT, total DOUBLE', and none for"
                " other formats.",
            )


BYTES = Format()


@dataclass(frozen=True, slots=True)
class StoreFormat:
    """The format of a store; times in milliseconds.

    `window_size_ms` determines the end of windows. `retention_ms` is the store's retention
    (windows, sessions) or history retention (versioned): rows past it are omitted; without it
    nothing expires. `windowed_keys` describes the keys of a suppress or join buffer. `lineage` maps
    a decoded field (`total_cents`, or `` for the whole value) to the `topic.field`s from which it
    is computed. `undeclared`: the user declared nothing, everything is bytes.
    """

    kind: StoreKind = StoreKind.KEY_VALUE
    key: Format = BYTES
    value: Format = BYTES
    window_size_ms: int | None = None
    retention_ms: int | None = None
    windowed_keys: StoreKind = StoreKind.KEY_VALUE
    lineage: tuple[tuple[str, tuple[str, ...]], ...] = ()
    undeclared: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.window_size_ms is not None and self.kind not in WINDOWED | {StoreKind.SUPPRESS}:
            raise ConfigurationError(
                f"A store of kind {self.kind} has a window size.",
                remedy="Remove window_size_ms, or set the kind window.",
            )
        if self.retention_ms is not None and self.kind not in _HAVE_RETENTION:
            raise ConfigurationError(
                f"A store of kind {self.kind} has a retention.",
                remedy="Remove retention_ms: only windows, sessions and versions expire.",
            )
        for name, value in (
            ("window_size_ms", self.window_size_ms),
            ("retention_ms", self.retention_ms),
        ):
            if value is not None and value <= 0:
                raise ConfigurationError(
                    f"{name} is {value}.", remedy="Give a positive number of milliseconds."
                )

    @property
    def needs_registry(self) -> bool:
        """Whether reading it needs schemas of a registry."""
        return bool({self.key.encoding, self.value.encoding} & FRAMED)

    @property
    def fingerprint(self) -> str:
        """Equal for formats that produce the same rows; snapshots only continue their own
        format."""
        said = (self.kind, self.key, self.value, self.window_size_ms, self.retention_ms)
        text = repr((*said, self.windowed_keys))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


UNDECLARED = StoreFormat(undeclared=True)


_NAMES: Final = (
    (
        re.compile(
            r"KSTREAM-(?:JOINTHIS|JOINOTHER|OUTERTHIS|OUTEROTHER)-[0-9]{10}-store"
            r"|.+-(?:outer-)?(?:this|other)-join-store"  # StreamJoined.as
        ),
        StoreKind.JOIN_WINDOW,
    ),
    (
        re.compile(r"KSTREAM-OUTERSHARED-[0-9]{10}-store|.+-(?:left|outer)-shared-join-store"),
        StoreKind.OUTER_JOIN,
    ),
    (re.compile(r"KTABLE-SUPPRESS-STATE-STORE-[0-9]{10}"), StoreKind.SUPPRESS),
    (
        re.compile(
            r"KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-[0-9]{10}"
            r"|.+-subscription-store"  # TableJoined.as
        ),
        StoreKind.SUBSCRIPTION,
    ),
    (re.compile(r".+-Buffer"), StoreKind.JOIN_BUFFER),  # Joined.as with a grace period
)


def kind_by_name(store: str) -> StoreKind | None:
    """The kind according to the DSL's own name of a store, None for other names.

    A suppress buffer with a custom name (`Suppressed.withName`) is called `<name>-store`, like many
    stores: its kind must be declared.
    """
    return next((kind for pattern, kind in _NAMES if pattern.fullmatch(store)), None)


def format_of(store: str, declared: Mapping[str, StoreFormat]) -> StoreFormat:
    """The format of a store: the declared one, else bytes of the kind that its name implies."""
    if store in declared:
        return declared[store]
    kind = kind_by_name(store)
    return UNDECLARED if kind is None else StoreFormat(kind=kind, undeclared=True)
