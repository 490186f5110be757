"""Reads the building blocks of Kafka Streams' own byte layouts. Pure."""

import struct
from dataclasses import dataclass, field
from typing import Final

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
