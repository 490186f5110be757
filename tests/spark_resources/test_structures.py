"""The DSL's buffers, against bytes that Kafka Streams wrote, and against nonsense."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_resources import store_structures as structures
from spark_resources.store_structures import (
    Row,
    StructureError,
    buffer_value,
    join_buffer_key,
    join_buffer_value,
    outer_join_key,
    outer_join_values,
    subscription,
    subscription_key,
)
from tests.ktables.kafka_formats import context, sized, written

SEVEN, MINUS_2, MINUS_9 = (struct.pack(">q", number) for number in (7, -2, -9))
HEADERS = (("trace", b"\x01\x02"), ("empty", None))
MURMUR_OF_7 = bytes.fromhex("1b927642116fab4a1e2a0d4b05ff6bf4")

READERS: list[Callable[[bytes], object]] = [
    *(lambda data, v=v: buffer_value(data, v) for v in (None, b"\x01", b"\x02", b"\x03", b"\x09")),
    join_buffer_value,
    join_buffer_key,
    subscription_key,
    subscription,
    outer_join_key,
    outer_join_values,
]


@pytest.mark.e2e
class TestAsKafkaStreamsWritesThem:
    """Records of the changelogs of a real topology."""

    def test_suppress_buffer(self) -> None:
        first, second, third = written().stores["later-store"]
        assert (first.key, first.version) == (b"k", b"\x03")
        assert [_read(each.value, each.version) for each in (first, second, third)] == [
            _buffer(_context(1_500, 0, "left", 0, HEADERS), None, None, SEVEN, 1_500),
            _buffer(_context(1_600, 1, "left", 0), None, SEVEN, MINUS_2, 1_500),
            _buffer(_context(1_700, 2, "left", 0), None, None, SEVEN, 1_700),
        ]

    def test_stores_with_headers_write_the_same_keys_and_values(self) -> None:
        """`dsl.store.format=HEADERS` (KIP-1285) adds headers to records, and changes nothing else.

        Windows, sessions, versions and all buffers are among these stores.
        """
        plain, aware = written().stores, written().headers_aware
        assert {s: [replace(r, headers=()) for r in records] for s, records in aware.items()} == {
            s: [replace(r, headers=()) for r in records] for s, records in plain.items()
        }
        assert {"windows", "sessions", "sums", "prices"} <= plain.keys() | {"prices"}
        assert {"sums", "windows", "sessions", "prices"} < aware.keys()
        assert [record.headers for record in aware["later-store"]] == [
            ("v",),
            ("v", "vh.old"),
            ("v",),
        ]

    def test_grace_buffer_of_a_join(self) -> None:
        records = written().stores["priced-Buffer"]
        assert [join_buffer_key(each.key) for each in records] == [
            _join_key(1_800, b"r", 1),
            _join_key(1_800, b"r", 2),
        ]
        assert all(each.version is None for each in records)
        assert join_buffer_value(records[1].value or b"") == _buffer(
            _context(1_800, 1, "right", 0, HEADERS), None, None, struct.pack(">q", 6), 0
        )

    def test_foreign_key_subscription(self) -> None:
        records = written().stores["with-rate-subscription-store"]
        assert subscription_key(records[2].key) == _subscription_key(struct.pack(">i", -2), b"k")
        assert [subscription(r.value) for r in records if r.value is not None] == [
            _subscription(1, structures.INSTRUCTIONS[number], hashed, key, 0)
            for number, hashed, key in (
                (3, MURMUR_OF_7, b"k"),
                (2, bytes.fromhex("d7ecc29d3baf4f5bd9be898ca5970554"), b"k"),
                (3, MURMUR_OF_7, b"late"),
            )
        ]

    def test_outer_join_lists(self) -> None:
        records = written().stores["sides-outer-shared-join-store"]
        assert outer_join_key(records[0].key) == _outer_key(1_500, "left", b"k")
        assert outer_join_key(records[4].key) == _outer_key(1_800, "right", b"r")
        assert outer_join_values(records[1].value or b"") == {"values": [_sided("left", MINUS_9)]}
        five, six = struct.pack(">q", 5), struct.pack(">q", 6)
        assert outer_join_values(records[4].value or b"") == {
            "values": [_sided("right", five), _sided("right", six)]
        }

    def test_older_suppress_buffers_are_read_as_kafka_streams_reads_them(self) -> None:
        olds = written().old_buffers
        assert len(olds) == 6
        for old in olds:
            read = buffer_value(old.value, old.version)
            values = (read["buffer_time_ms"], read["prior"], read["old"], read["new"])
            assert values == (old.time, old.prior, old.old, old.new)
            assert (read["topic"] is None) == (old.version is None)


class TestWhatIsRarelyWritten:
    """Forms that the topology above does not make."""

    def test_old_value_same_as_prior(self) -> None:
        data = context() + sized(b"prior") + struct.pack(">i", -2) + sized(None) + SEVEN
        assert buffer_value(data, b"\x03") == _buffer(
            _context(5, 6, "in", 7), b"prior", b"prior", None, 7
        )

    def test_subscription_without_hash_or_partition(self) -> None:
        assert subscription(b"\x80\x00pk") == _subscription(
            0, "DELETE_KEY_NO_PROPAGATE", None, b"pk", None
        )
        assert subscription(b"\x81\x01pk" + struct.pack(">i", 4)) == _subscription(
            1, "DELETE_KEY_AND_PROPAGATE", None, b"pk", 4
        )

    def test_null_in_a_list(self) -> None:
        data = b"\x01" + struct.pack(">i", 2) + sized(None) + sized(b"\x00")
        assert outer_join_values(data) == {"values": [None, _sided("right", b"")]}


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda: buffer_value(b"", b"\x04"), "buffer version 0x04 is unknown"),
        (lambda: buffer_value(b"\x00" * 7, None), "7 bytes left where the buffer time has 8"),
        (
            lambda: join_buffer_value(context(struct.pack(">i", 10**9))),
            "the number of headers is 1000000000 in 0 bytes",
        ),
        (
            lambda: join_buffer_value(context() + sized(None) * 3 + SEVEN + b"x"),
            "1 bytes left over at the end",
        ),
        (lambda: join_buffer_key(b"\x01"), "the prefix is 1 where 0 is written"),
        (lambda: join_buffer_key(b"\x00" * 12), "the key before the sequence number has a length"),
        (lambda: subscription_key(struct.pack(">i", 5) + b"abcd"), "4 bytes left where the foreig"),
        (lambda: subscription_key(sized(None)), "the foreign key is null"),
        (lambda: subscription(b"\x02\x00"), "subscription version 2 is unknown"),
        (lambda: subscription(b"\x81\x04"), "instruction 4 is unknown"),
        (lambda: outer_join_key(SEVEN + b"\x02"), "side 2 where 0 or 1 is written"),
        (lambda: outer_join_values(b"\x00"), "serialization strategy 0 where 1 is written"),
        (
            lambda: outer_join_values(b"\x01" + struct.pack(">i", 10**9)),
            "the number of values is 1000000000 in 0 bytes",
        ),
    ],
)
def test_what_is_wrong_is_said(read: Callable[[], object], text: str) -> None:
    with pytest.raises(StructureError) as caught:
        read()
    assert text in str(caught.value)


@given(st.binary(max_size=80), st.sampled_from(READERS))
@example(struct.pack(">qqi", 0, 0, 2) + b"\xff\xfe", join_buffer_value)
def test_any_bytes_are_read_or_refused(data: bytes, read: Callable[[bytes], object]) -> None:
    try:
        assert read(data) is not None
    except StructureError as error:
        assert str(error)  # noqa: PT017


@given(st.integers(0, 200))
def test_every_byte_counts(cut: int) -> None:
    """A value that is cut short, or longer, is never read as another one."""
    data = context(struct.pack(">i", 1) + sized(b"k") + sized(b"v"))
    data += sized(b"p") + sized(b"o") + sized(b"n") + SEVEN
    whole = _buffer(_context(5, 6, "in", 7, (("k", b"v"),)), b"p", b"o", b"n", 7)
    assert join_buffer_value(data) == whole
    short = data[: cut % len(data)]
    for wrong in (short, data + b"\x00"):
        with pytest.raises(StructureError):
            join_buffer_value(wrong)


def _read(value: bytes | None, version: bytes | None) -> Row:
    assert value is not None
    return buffer_value(value, version)


def _context(
    timestamp_ms: int,
    offset: int,
    topic: str,
    partition: int,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> Row:
    return {
        "timestamp_ms": timestamp_ms,
        "offset": offset,
        "topic": topic,
        "partition": partition,
        "headers": [{"key": key, "value": value} for key, value in headers],
    }


def _buffer(
    context: Row, prior: bytes | None, old: bytes | None, new: bytes | None, time_ms: int
) -> Row:
    return {**context, "prior": prior, "old": old, "new": new, "buffer_time_ms": time_ms}


def _join_key(timestamp_ms: int, key: bytes, number: int) -> Row:
    return {"timestamp_ms": timestamp_ms, "key": key, "sequence_number": number}


def _outer_key(timestamp_ms: int, side: str, key: bytes) -> Row:
    return {"timestamp_ms": timestamp_ms, "side": side, "key": key}


def _sided(side: str, value: bytes) -> Row:
    return {"side": side, "value": value}


def _subscription_key(foreign_key: bytes, primary_key: bytes) -> Row:
    return {"foreign_key": foreign_key, "primary_key": primary_key}


def _subscription(
    version: int, instruction: str, hashed: bytes | None, key: bytes, partition: int | None
) -> Row:
    return {
        "version": version,
        "instruction": instruction,
        "hash": hashed,
        "primary_key": key,
        "primary_partition": partition,
    }
