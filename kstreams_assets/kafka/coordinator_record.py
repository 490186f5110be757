"""Reads the fields of coordinator records (keys and values of Kafka's internal topics).

They are Kafka's generated messages: two bytes of version, then the fields in order; flexible
versions have compact strings and arrays, and tagged fields at the end of each structure.
"""

import struct
from typing import Final

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class FieldReader:
    """Reads one key or value from its start to its end; struct.error where bytes are missing."""

    __slots__ = ("_data", "_position", "flexible")

    def __init__(self, data: bytes, *, position: int = 0, flexible: bool = False) -> None:
        self._data = data
        self._position = position
        self.flexible = flexible

    def int8(self) -> int:
        """A signed byte."""
        return self._number(_INT8)

    def int16(self) -> int:
        """A signed number of two bytes."""
        return self._number(_INT16)

    def int32(self) -> int:
        """A signed number of four bytes."""
        return self._number(_INT32)

    def int64(self) -> int:
        """A signed number of eight bytes."""
        return self._number(_INT64)

    def string(self) -> str:
        """A string that is not null."""
        length = self._unsigned_varint() - 1 if self.flexible else self.int16()
        return self._bytes(length).decode()

    def array_length(self) -> int:
        """The number of elements of an array, -1 for null."""
        return self._unsigned_varint() - 1 if self.flexible else self.int32()

    def tagged_fields(self) -> dict[int, bytes]:
        """The tagged fields at the end of a structure by tag; none in versions without them."""
        if not self.flexible:
            return {}
        found: dict[int, bytes] = {}
        for _ in range(self._unsigned_varint()):
            tag = self._unsigned_varint()
            found[tag] = self._bytes(self._unsigned_varint())
        return found

    def _number(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self._data, self._position)
        self._position += kind.size
        return value

    def _bytes(self, length: int) -> bytes:
        start, end = self._position, self._position + length
        if length < 0 or end > len(self._data):
            message = f"a field of {length} bytes at {start} of {len(self._data)}"
            raise struct.error(message)
        self._position = end
        return self._data[start:end]

    def _unsigned_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._bytes(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
