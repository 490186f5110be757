"""Keys and values as Kafka's own serializers write them; one short JVM run for all tests."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from spark_resources.java import JavaProgram

_TIMEOUT_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class WrittenRecord:
    """A record of a changelog; `version` is the header `v`, `headers` are the names of all."""

    key: bytes
    value: bytes | None
    timestamp_ms: int | None
    version: bytes | None
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OldBuffer:
    """A suppress buffer's value of an older version, and what Kafka Streams reads in it."""

    version: bytes | None
    value: bytes
    time: int
    prior: bytes | None
    old: bytes | None
    new: bytes | None


@dataclass(frozen=True, slots=True)
class Written:
    """What the program wrote: bytes by serde, records by store, old buffer values.

    `headers_aware` are the same records of stores with `dsl.store.format=HEADERS`.
    """

    serdes: dict[str, list[bytes]]
    stores: dict[str, list[WrittenRecord]]
    headers_aware: dict[str, list[WrittenRecord]]
    old_buffers: list[OldBuffer]


def sized(data: bytes | None) -> bytes:
    """Bytes behind their length, -1 for None."""
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def context(headers: bytes = struct.pack(">i", -1)) -> bytes:
    """A record context: timestamp 5, offset 6, topic `in`, partition 7."""
    return struct.pack(">qq", 5, 6) + sized(b"in") + struct.pack(">i", 7) + headers


def old_buffer_values() -> Iterator[tuple[bytes | None, bytes]]:
    """Header `v` and value of suppress buffers of older versions."""
    change, time = sized(b"old") + sized(b"new"), struct.pack(">q", 99)
    yield None, time + change
    yield None, time + sized(None) + sized(b"")
    yield b"\x01", time + context() + sized(change)
    yield b"\x02", context() + sized(change) + sized(b"prior") + time
    yield b"\x02", context() + sized(change) + sized(None) + time
    # 2.4.0, 2.4.1 and 2.5.0 wrote version 3 under this flag.
    yield b"\x02", context() + sized(b"prior") + sized(b"old") + sized(b"new") + time


@cache
def written() -> Written:
    """Run the program, once for all tests."""
    olds = list(old_buffer_values())
    arguments = [f"{version[0] if version else 0}:{value.hex()}" for version, value in olds]
    program = JavaProgram(Path(__file__).with_name("WriteFormats.java"))
    lines = program.run(arguments, timeout_s=_TIMEOUT_S, heap_mb=256).splitlines()
    found = Written({}, {}, {}, [])
    for kind, *fields in (line.split("\t") for line in lines):
        if kind == "serde":
            found.serdes.setdefault(fields[0], []).append(bytes.fromhex(fields[1]))
        elif kind == "DEFAULT":
            _add_record(found.stores, *fields)
        elif kind == "HEADERS":
            _add_record(found.headers_aware, *fields)
        else:
            version = olds[len(found.old_buffers)][0]
            value, time, *rest = fields
            parts = [_bytes(part) for part in rest]
            found.old_buffers.append(OldBuffer(version, bytes.fromhex(value), int(time), *parts))
    return found


def _add_record(
    found: dict[str, list[WrittenRecord]],
    topic: str,
    timestamp: str,
    version: str,
    key: str,
    value: str,
    names: str,
) -> None:
    store = topic.removeprefix("app-").removesuffix("-changelog")
    at = None if timestamp == "null" else int(timestamp)
    headers = tuple(names.split(",")) if names else ()
    record = WrittenRecord(bytes.fromhex(key), _bytes(value), at, _bytes(version), headers)
    found.setdefault(store, []).append(record)


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)
