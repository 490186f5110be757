"""The bytes of buffers that the DSL keeps for suppress and joins, taken apart."""

import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

NULL: Final = -1
"""The length that stands for null."""


class StructureError(ValueError):
    """Bytes that do not have the layout they should have; the text says what was found.

    It ends up in a row's `decode_error`, never in front of an operator: so it is no error of the
    project's tree. Payloads are not in it.
    """


@dataclass(slots=True)
class StructureBytes:
    """Reads bytes from the front, big-endian as Kafka writes them, and never passes their end.

    Every method raises StructureError, in which `what` is named.
    """

    data: bytes
    at: int = field(default=0)

    def take(self, count: int, what: str) -> bytes:
        """So many bytes."""
        left = self.left()
        if count < 0:
            raise StructureError(f"{what} has a length of {count}")
        if count > left:
            raise StructureError(f"{left} bytes left where {what} has {count}")
        self.at += count
        return self.data[self.at - count : self.at]

    def unsigned_byte(self, what: str) -> int:
        """One byte, 0 to 255."""
        return self.take(1, what)[0]

    def int32(self, what: str) -> int:
        """Four bytes, signed."""
        return struct.unpack(">i", self.take(4, what))[0]

    def int64(self, what: str) -> int:
        """Eight bytes, signed."""
        return struct.unpack(">q", self.take(8, what))[0]

    def sized(self, what: str) -> bytes | None:
        """Bytes behind their length; the length -1 stands for null."""
        size = self.int32(f"the length of {what}")
        return None if size == NULL else self.take(size, what)

    def required(self, what: str) -> bytes:
        """Bytes behind their length, not null."""
        found = self.sized(what)
        if found is None:
            raise StructureError(f"{what} is null")
        return found

    def text(self, what: str) -> str:
        """UTF-8 behind its length."""
        try:
            return self.required(what).decode("utf-8")
        except UnicodeDecodeError:
            raise StructureError(f"{what} is not UTF-8") from None

    def left(self) -> int:
        """How many bytes are left."""
        return len(self.data) - self.at

    def end(self) -> None:
        """Nothing may be left."""
        if self.left():
            raise StructureError(f"{self.left()} bytes left over at the end")


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


_TEXT, _BINARY, _INT, _LONG = StringType(), BinaryType(), IntegerType(), LongType()


def _struct(**fields: StringType | BinaryType | IntegerType | LongType | ArrayType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


_HEADERS: Final = ArrayType(_struct(key=_TEXT, value=_BINARY))


@dataclass(frozen=True, slots=True)
class Structure:
    """A layout: its columns, and how they are read from bytes and the header `v`, as a dict."""

    type: StructType
    read: Callable[[bytes, bytes | None], dict[str, object]]


def _buffer(value: BufferValue) -> dict[str, object]:
    context = value.context
    return {
        "timestamp_ms": context and context.timestamp_ms,
        "topic": context and context.topic,
        "partition": context and context.partition,
        "offset": context and context.offset,
        "headers": context and [{"key": key, "value": text} for key, text in context.headers],
        "prior": value.prior,
        "old": value.old,
        "new": value.new,
        "buffer_time_ms": value.buffer_time_ms,
    }


_BUFFER_TYPE: Final = _struct(
    timestamp_ms=_LONG,
    topic=_TEXT,
    partition=_INT,
    offset=_LONG,
    headers=_HEADERS,
    prior=_BINARY,
    old=_BINARY,
    new=_BINARY,
    buffer_time_ms=_LONG,
)

SUPPRESS_VALUE: Final = Structure(
    _BUFFER_TYPE, lambda data, version: _buffer(buffer_value(data, version))
)
JOIN_BUFFER_VALUE: Final = Structure(_BUFFER_TYPE, lambda data, _: _buffer(join_buffer_value(data)))
JOIN_BUFFER_KEY: Final = Structure(
    _struct(timestamp_ms=_LONG, key=_BINARY, sequence_number=_INT),
    lambda data, _: asdict(join_buffer_key(data)),
)
SUBSCRIPTION_KEY: Final = Structure(
    _struct(foreign_key=_BINARY, primary_key=_BINARY),
    lambda data, _: asdict(subscription_key(data)),
)
SUBSCRIPTION_VALUE: Final = Structure(
    _struct(
        version=_INT, instruction=_TEXT, hash=_BINARY, primary_key=_BINARY, primary_partition=_INT
    ),
    lambda data, _: asdict(subscription(data)),
)
OUTER_JOIN_KEY: Final = Structure(
    _struct(timestamp_ms=_LONG, side=_TEXT, key=_BINARY),
    lambda data, _: asdict(outer_join_key(data)),
)
OUTER_JOIN_VALUE: Final = Structure(
    _struct(values=ArrayType(StructType([*_struct(side=_TEXT, value=_BINARY)]))),
    lambda data, _: {"values": [each and asdict(each) for each in outer_join_values(data)]},
)


def taken_apart(column: Column, structure: Structure, version: Column | None = None) -> Column:
    """STRUCT<found: STRUCT<the structure's columns>, problem: STRING>, NULL for NULL.

    Where the bytes have another layout, `found` is NULL and `problem` says what was found.
    """
    result = StructType([StructField("found", structure.type), StructField("problem", _TEXT)])
    each = _each(structure.read, to_arrow_type(result))
    # The stubs of pyspark have no form for a struct; it is in the documentation.
    function = F.arrow_udf(each, result)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return function(column, F.lit(None).cast("binary") if version is None else version)


def _each(
    read: Callable[[bytes, bytes | None], dict[str, object]], kind: pa.DataType
) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def one(data: bytes | None, version: bytes | None) -> dict[str, object] | None:
        if data is None:
            return None
        try:
            return {"found": read(data, version), "problem": None}
        except StructureError as error:
            return {"found": None, "problem": str(error)}

    def each(data: pa.Array, version: pa.Array) -> pa.Array:
        pairs = zip(data.to_pylist(), version.to_pylist(), strict=True)
        return pa.array([one(*pair) for pair in pairs], type=kind)

    return each
