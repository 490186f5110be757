"""Parses the bytes of buffers that the DSL keeps for suppress and joins. Pure."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

NULL: Final = -1
"""The length that means null."""


Row = dict[str, object]
"""The columns of a structure by name, as its `Structure.type` has them."""


class StructureError(ValueError):
    """Bytes without the expected layout; the text says what was found.

    It becomes a row's `decode_error` and is never shown as an error, so it does not belong to the
    project's tree of errors. It contains no payloads.
    """


@dataclass(slots=True)
class StructureBytes:
    """Reads bytes from the front, big-endian as Kafka writes them, and never beyond their end.

    Every method raises StructureError, which names `what`.
    """

    data: bytes
    at: int = field(default=0)

    def take(self, count: int, what: str) -> bytes:
        """Return this many bytes."""
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
        """Return bytes after their length; the length -1 means null."""
        size = self.int32(f"the length of {what}")
        return None if size == NULL else self.take(size, what)

    def required(self, what: str) -> bytes:
        """Return bytes after their length; null is an error."""
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


def buffer_value(data: bytes, version: bytes | None) -> Row:
    """The value of a suppress buffer; `version` is the record's header `v`, None without one.

    `prior` is what was emitted last, `old` and `new` are the update that waits; the other columns
    but `buffer_time_ms` are the record that the entry comes from, in coordinates of the source
    cluster. They are null in the oldest form, in which the changelog record itself is that record.
    Version 3 is written since 2.5.1; 2.4.0, 2.4.1 and 2.5.0 wrote it under flag 2, so that both are
    tried there, as Kafka Streams does.

    Raises:
        StructureError: The bytes have another layout, or the version is unknown.
    """
    if version is None or version == b"\x01":
        return _buffer_value_before_2(data, has_context=version is not None)
    if version == b"\x02":
        try:
            return _buffer_value_2(data)
        except StructureError:
            return join_buffer_value(data)
    if version == b"\x03":
        return join_buffer_value(data)
    raise StructureError(f"buffer version 0x{version[:4].hex()} is unknown")


def join_buffer_value(data: bytes) -> Row:
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
    return {**context, "prior": prior, "old": old, "new": new, "buffer_time_ms": time}


def _buffer_value_before_2(data: bytes, *, has_context: bool) -> Row:
    """Version 1, and the form before it, whose change comes without a length."""
    reader = StructureBytes(data)
    time = reader.int64("the buffer time")
    context = _context(reader) if has_context else _NO_CONTEXT
    old, new = _change(reader, is_sized=has_context)
    reader.end()
    return {**context, "prior": old, "old": old, "new": new, "buffer_time_ms": time}


def _buffer_value_2(data: bytes) -> Row:
    reader = StructureBytes(data)
    context = _context(reader)
    old, new = _change(reader, is_sized=True)
    prior = reader.sized("the prior value")
    time = reader.int64("the buffer time")
    reader.end()
    return {**context, "prior": prior, "old": old, "new": new, "buffer_time_ms": time}


def _change(reader: StructureBytes, *, is_sized: bool) -> tuple[bytes | None, bytes | None]:
    """Old and new value, as `FullChangeSerde` wrote them before version 3."""
    change = StructureBytes(reader.required("the change")) if is_sized else reader
    values = change.sized("the old value"), change.sized("the new value")
    if is_sized:
        change.end()
    return values


_NO_CONTEXT: Final[Row] = {
    name: None for name in ("timestamp_ms", "topic", "partition", "offset", "headers")
}


def _context(reader: StructureBytes) -> Row:
    timestamp = reader.int64("the timestamp")
    offset = reader.int64("the offset")
    topic = reader.text("the topic")
    partition = reader.int32("the partition")
    count = reader.int32("the number of headers")
    # Kafka Streams reads -1 as none.
    if not NULL <= count <= reader.left() // _LEAST_HEADER_BYTES:
        raise StructureError(f"the number of headers is {count} in {reader.left()} bytes")
    headers = [
        {"key": reader.text("a header's key"), "value": reader.sized("a header's value")}
        for _ in range(max(count, 0))
    ]
    return {
        "timestamp_ms": timestamp,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "headers": headers,
    }


def join_buffer_key(data: bytes) -> Row:
    """A key of a join's grace buffer (`TimeFirstWindowKeySchema`); raises StructureError.

    `key` is that of the stream's record.
    """
    reader = StructureBytes(data)
    prefix = reader.unsigned_byte("the prefix")
    if prefix != 0:
        raise StructureError(f"the prefix is {prefix} where 0 is written")
    timestamp = reader.int64("the timestamp")
    key = reader.take(reader.left() - 4, "the key before the sequence number")
    number = reader.int32("the sequence number")
    return {"timestamp_ms": timestamp, "key": key, "sequence_number": number}


def subscription_key(data: bytes) -> Row:
    """A key of a foreign-key join's subscription store (`CombinedKeySchema`).

    Raises StructureError.
    """
    reader = StructureBytes(data)
    foreign = reader.required("the foreign key")
    return {"foreign_key": foreign, "primary_key": reader.take(reader.left(), "the primary key")}


def subscription(data: bytes) -> Row:
    """A value of a subscription store (`SubscriptionWrapperSerde`); raises StructureError.

    `hash` is the Murmur3 hash of the left value's bytes.
    """
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
    return {
        "version": version,
        "instruction": INSTRUCTIONS[number],
        "hash": hashed,
        "primary_key": key,
        "primary_partition": partition,
    }


def outer_join_key(data: bytes) -> Row:
    """A key of an outer join's list store (`TimestampedKeyAndJoinSide`); raises StructureError.

    `side` is where the unmatched record came from.
    """
    reader = StructureBytes(data)
    timestamp, side = reader.int64("the timestamp"), _side(reader)
    return {"timestamp_ms": timestamp, "side": side, "key": reader.take(reader.left(), "the key")}


def outer_join_values(data: bytes) -> Row:
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
    elements = [reader.sized("a value") for _ in range(count)]
    reader.end()
    return {"values": [None if one is None else _sided(one) for one in elements]}


def _sided(data: bytes) -> Row:
    reader = StructureBytes(data)
    return {"side": _side(reader), "value": reader.take(reader.left(), "a value")}


def _side(reader: StructureBytes) -> str:
    number = reader.unsigned_byte("the side")
    if number not in _SIDES:
        raise StructureError(f"side {number} where 0 or 1 is written")
    return _SIDES[number]


_TEXT, _BINARY, _INT, _LONG = pa.string(), pa.binary(), pa.int32(), pa.int64()


def _struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


_HEADERS: Final = pa.list_(_struct(key=_TEXT, value=_BINARY))


@dataclass(frozen=True, slots=True)
class Structure:
    """A layout: its columns, and how they are read from bytes and the header `v`, as a dict."""

    type: pa.StructType
    read: Callable[[bytes, bytes | None], Row]

    def apart(
        self, data: bytes | None, version: bytes | None = None
    ) -> tuple[Row | None, str | None]:
        """The columns, or what was found where the bytes have another layout; null has neither."""
        if data is None:
            return None, None
        try:
            return self.read(data, version), None
        except StructureError as error:
            return None, str(error)


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

SUPPRESS_VALUE: Final = Structure(_BUFFER_TYPE, buffer_value)
JOIN_BUFFER_VALUE: Final = Structure(_BUFFER_TYPE, lambda data, _: join_buffer_value(data))
JOIN_BUFFER_KEY: Final = Structure(
    _struct(timestamp_ms=_LONG, key=_BINARY, sequence_number=_INT),
    lambda data, _: join_buffer_key(data),
)
SUBSCRIPTION_KEY: Final = Structure(
    _struct(foreign_key=_BINARY, primary_key=_BINARY), lambda data, _: subscription_key(data)
)
SUBSCRIPTION_VALUE: Final = Structure(
    _struct(
        version=_INT, instruction=_TEXT, hash=_BINARY, primary_key=_BINARY, primary_partition=_INT
    ),
    lambda data, _: subscription(data),
)
OUTER_JOIN_KEY: Final = Structure(
    _struct(timestamp_ms=_LONG, side=_TEXT, key=_BINARY), lambda data, _: outer_join_key(data)
)
OUTER_JOIN_VALUE: Final = Structure(
    _struct(values=pa.list_(_struct(side=_TEXT, value=_BINARY))),
    lambda data, _: outer_join_values(data),
)
