"""The bytes of buffers that the DSL keeps for suppress and joins, taken apart. Pure.

Layouts are those of Kafka Streams 4.3 (big-endian); every byte must be accounted for. Inner keys
and values stay bytes: they are the application's own.
"""

from dataclasses import dataclass
from typing import Final

from kstreams_assets.ktables.structure_bytes import NULL, StructureBytes, StructureError

_AS_PRIOR: Final = -2
_LEAST_HEADER_BYTES: Final = 8
INSTRUCTIONS: Final = (
    "DELETE_KEY_NO_PROPAGATE",
    "DELETE_KEY_AND_PROPAGATE",
    "PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE",
    "PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE",
)
"""What a subscription asks for, by its number (`SubscriptionWrapper.Instruction`)."""
_SIDES: Final = {0: "right", 1: "left"}
_HASH_BYTES: Final = 16
_NO_HASH: Final = 0x80
_VARIABLE_SIZE: Final = 1


@dataclass(frozen=True, slots=True)
class RecordContext:
    """The record that an entry of a buffer comes from: coordinates of the source cluster."""

    timestamp_ms: int
    offset: int
    topic: str
    partition: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class BufferValue:
    """The value of a suppress buffer or of a join's grace buffer.

    `prior` is what was emitted last, `old` and `new` are the update that waits. `context` is None
    in the oldest form, in which the changelog record itself is the context.
    """

    context: RecordContext | None
    prior: bytes | None
    old: bytes | None
    new: bytes | None
    buffer_time_ms: int


@dataclass(frozen=True, slots=True)
class JoinBufferKey:
    """A key of a join's grace buffer; `key` is that of the stream's record."""

    timestamp_ms: int
    key: bytes
    sequence_number: int


@dataclass(frozen=True, slots=True)
class SubscriptionKey:
    """A key of a foreign-key join's subscription store."""

    foreign_key: bytes
    primary_key: bytes


@dataclass(frozen=True, slots=True)
class Subscription:
    """A value of a subscription store; `hash` is the Murmur3 hash of the left value's bytes."""

    version: int
    instruction: str
    hash: bytes | None
    primary_key: bytes
    primary_partition: int | None


@dataclass(frozen=True, slots=True)
class OuterJoinKey:
    """A key of an outer join's list store; `side` is where the unmatched record came from."""

    timestamp_ms: int
    side: str
    key: bytes


@dataclass(frozen=True, slots=True)
class SidedValue:
    """A value of one side of an outer join."""

    side: str
    value: bytes


def buffer_value(data: bytes, version: bytes | None) -> BufferValue:
    """The value of a suppress buffer; `version` is the record's header `v`, None without one.

    Version 3 is written since 2.5.1; 2.4.0, 2.4.1 and 2.5.0 wrote it under flag 2, so that both are
    tried there, as Kafka Streams does.

    Raises:
        StructureError: The bytes have another layout, or the version is unknown.
    """
    if version is None:
        return _buffer_value_0(data)
    if version == b"\x01":
        return _buffer_value_1(data)
    if version == b"\x02":
        try:
            return _buffer_value_2(data)
        except StructureError:
            return join_buffer_value(data)
    if version == b"\x03":
        return join_buffer_value(data)
    raise StructureError(f"buffer version 0x{version[:4].hex()} is unknown")


def join_buffer_value(data: bytes) -> BufferValue:
    """The value of a join's grace buffer (version 3 of `buffer_value`); raises StructureError."""
    reader = StructureBytes(data)
    context = _context(reader)
    prior = reader.sized("the prior value")
    size = reader.int32("the length of the old value")
    if size == _AS_PRIOR:
        old = prior
    else:
        old = None if size == NULL else reader.take(size, "the old value")
    new = reader.sized("the new value")
    time = reader.int64("the buffer time")
    reader.end()
    return BufferValue(context, prior, old, new, time)


def _buffer_value_0(data: bytes) -> BufferValue:
    reader = StructureBytes(data)
    time = reader.int64("the buffer time")
    old, new = _change(reader)
    reader.end()
    return BufferValue(None, old, old, new, time)


def _buffer_value_1(data: bytes) -> BufferValue:
    reader = StructureBytes(data)
    time = reader.int64("the buffer time")
    context = _context(reader)
    change = StructureBytes(reader.required("the change"))
    old, new = _change(change)
    change.end()
    reader.end()
    return BufferValue(context, old, old, new, time)


def _buffer_value_2(data: bytes) -> BufferValue:
    reader = StructureBytes(data)
    context = _context(reader)
    change = StructureBytes(reader.required("the change"))
    old, new = _change(change)
    change.end()
    prior = reader.sized("the prior value")
    time = reader.int64("the buffer time")
    reader.end()
    return BufferValue(context, prior, old, new, time)


def _change(reader: StructureBytes) -> tuple[bytes | None, bytes | None]:
    """Old and new value, as `FullChangeSerde` wrote them before version 3."""
    return reader.sized("the old value"), reader.sized("the new value")


def _context(reader: StructureBytes) -> RecordContext:
    timestamp = reader.int64("the timestamp")
    offset = reader.int64("the offset")
    topic = reader.text("the topic")
    partition = reader.int32("the partition")
    count = reader.int32("the number of headers")
    # Kafka Streams reads -1 as none.
    if not NULL <= count <= reader.left() // _LEAST_HEADER_BYTES:
        raise StructureError(f"the number of headers is {count} in {reader.left()} bytes")
    headers = tuple(
        (reader.text("a header's key"), reader.sized("a header's value"))
        for _ in range(max(count, 0))
    )
    return RecordContext(timestamp, offset, topic, partition, headers)


def join_buffer_key(data: bytes) -> JoinBufferKey:
    """A key of a join's grace buffer (`TimeFirstWindowKeySchema`); raises StructureError."""
    reader = StructureBytes(data)
    prefix = reader.unsigned_byte("the prefix")
    if prefix != 0:
        raise StructureError(f"the prefix is {prefix} where 0 is written")
    timestamp = reader.int64("the timestamp")
    key = reader.take(reader.left() - 4, "the key before the sequence number")
    return JoinBufferKey(timestamp, key, reader.int32("the sequence number"))


def subscription_key(data: bytes) -> SubscriptionKey:
    """A key of a subscription store (`CombinedKeySchema`); raises StructureError."""
    reader = StructureBytes(data)
    foreign = reader.required("the foreign key")
    return SubscriptionKey(foreign, reader.take(reader.left(), "the primary key"))


def subscription(data: bytes) -> Subscription:
    """A value of a subscription store (`SubscriptionWrapperSerde`); raises StructureError."""
    reader = StructureBytes(data)
    flags = reader.unsigned_byte("the version")
    version = flags & ~_NO_HASH
    if version > 1:
        raise StructureError(f"subscription version {version} is unknown")
    number = reader.unsigned_byte("the instruction")
    if number >= len(INSTRUCTIONS):
        raise StructureError(f"instruction {number} is unknown")
    hashed = None if flags & _NO_HASH else reader.take(_HASH_BYTES, "the hash")
    if version == 0:
        key, partition = reader.take(reader.left(), "the primary key"), None
    else:
        key = reader.take(reader.left() - 4, "the primary key before its partition")
        partition = reader.int32("the primary partition")
    return Subscription(version, INSTRUCTIONS[number], hashed, key, partition)


def outer_join_key(data: bytes) -> OuterJoinKey:
    """A key of an outer join's list store (`TimestampedKeyAndJoinSide`); raises StructureError."""
    reader = StructureBytes(data)
    timestamp, side = reader.int64("the timestamp"), _side(reader)
    return OuterJoinKey(timestamp, side, reader.take(reader.left(), "the key"))


def outer_join_values(data: bytes) -> tuple[SidedValue | None, ...]:
    """A value of an outer join's list store (`ListSerializer` of `LeftOrRightValue`).

    An element can be null in a list. Raises StructureError.
    """
    reader = StructureBytes(data)
    strategy = reader.unsigned_byte("the serialization strategy")
    if strategy != _VARIABLE_SIZE:
        raise StructureError(f"serialization strategy {strategy} where {_VARIABLE_SIZE} is written")
    count = reader.int32("the number of values")
    if not 0 <= count <= reader.left() // 4:
        raise StructureError(f"the number of values is {count} in {reader.left()} bytes")
    found: list[SidedValue | None] = []
    for _ in range(count):
        element = reader.sized("a value")
        found.append(None if element is None else _sided(element))
    reader.end()
    return tuple(found)


def _sided(data: bytes) -> SidedValue:
    reader = StructureBytes(data)
    return SidedValue(_side(reader), reader.take(reader.left(), "a value"))


def _side(reader: StructureBytes) -> str:
    number = reader.unsigned_byte("the side")
    if number not in _SIDES:
        raise StructureError(f"side {number} where 0 or 1 is written")
    return _SIDES[number]
