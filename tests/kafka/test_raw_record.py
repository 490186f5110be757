"""Records decoded from the bytes of their batches."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecordsBuilder

from kstreams_assets.errors import CorruptBatchError
from kstreams_assets.kafka.raw_batch import (
    RawRecord,
    decode_records,
    header_name_bytes,
    header_text,
    uncompressed,
)
from tests.kafka.batch_bytes import CODECS, batch_bytes

DATA = st.none() | st.binary(max_size=5) | st.binary(min_size=60, max_size=70)


def _decode(data: bytes) -> list[RawRecord]:
    return decode_records(memoryview(data), partition="t-0")


def _record(offset: int, timestamp_ms: int = 1_000, **fields: object) -> RawRecord:
    given = {"key": b"k", "value": b"v", "headers": (), **fields}
    return RawRecord(offset, timestamp_ms, 0, **given)  # pyright: ignore[reportArgumentType]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 10**6),
            st.integers(-1, 2**45),
            DATA,
            DATA | st.binary(min_size=9_000, max_size=9_000),
            st.lists(st.tuples(st.text(max_size=4), DATA), max_size=70).map(tuple),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 2**50),
    st.sampled_from(sorted(CODECS)),
)
def test_any_records_of_any_compression(
    rows: list[tuple[int, int, bytes | None, bytes | None, tuple]], base: int, codec: str
) -> None:
    records, offset = [], base
    for step, timestamp, key, value, headers in rows:
        offset += step
        records.append(RawRecord(offset, timestamp, 0, key, value, headers))
    data = batch_bytes(records, base_offset=base, last_offset=offset + 7, codec=codec)
    assert _decode(data) == records


def test_what_another_writer_wrote() -> None:
    builder = MemoryRecordsBuilder(
        magic=2, compression_type=0, batch_size=10**6, offset=0, producer_id=7,
        producer_epoch=3, base_sequence=0, transactional=True,
    )  # fmt: skip
    builder.append(5_000, b"key", None, [("h", b"1"), ("h", None), ("é", b"")])
    builder.append(4_000, None, b"value" * 50, [])
    builder.close()
    assert _decode(bytes(builder.buffer())) == [
        RawRecord(0, 5_000, 0, b"key", None, (("h", b"1"), ("h", None), ("é", b""))),
        RawRecord(1, 4_000, 0, None, b"value" * 50, ()),
    ]


def test_log_append_time_is_that_of_the_batch() -> None:
    records = [_record(10, 5_000), _record(11, 6_000)]
    found = _decode(batch_bytes(records, base_offset=10, append_time=9_000))
    assert [(r.offset, r.timestamp_ms, r.timestamp_type) for r in found] == [
        (10, 9_000, 1),
        (11, 9_000, 1),
    ]


def test_times_relative_to_a_delete_horizon() -> None:
    # the cleaner puts the delete horizon where the first timestamp was; the records follow it
    records = [_record(3, 5_000, value=None)]
    data = batch_bytes(records, base_timestamp=10**12, attributes=0x40)
    assert _decode(data) == records


def test_emptied_batch() -> None:
    assert _decode(batch_bytes([], base_offset=5, last_offset=9)) == []
    assert uncompressed(memoryview(batch_bytes([], codec="none")), partition="t-0") == b""


def test_uncompressed_records() -> None:
    records = [_record(0), _record(1)]
    plain = batch_bytes(records)[61:]
    for codec in CODECS:
        data = memoryview(batch_bytes(records, codec=codec))
        assert uncompressed(data, partition="t-0") == plain


class TestCorruption:
    """Whatever is wrong is one error that names partition and offset."""

    def _assert_corrupt(self, data: bytes) -> None:
        with pytest.raises(CorruptBatchError, match="t-0 cannot be read at offset 40") as caught:
            _decode(data)
        assert caught.value.offset == 40

    def _data(self, **fields: object) -> bytes:
        records = [_record(offset, **fields) for offset in (40, 41)]  # pyright: ignore[reportArgumentType]
        return batch_bytes(records, base_offset=40)

    @pytest.mark.parametrize("codec", CODECS)
    def test_rubbish(self, codec: str) -> None:
        data = batch_bytes([_record(40)], base_offset=40, codec=codec)
        self._assert_corrupt(data[:61] + b"\xff" * (len(data) - 61))

    def test_every_cut(self) -> None:
        data = self._data(headers=(("h", b"x"),))
        for cut in range(61, len(data)):
            self._assert_corrupt(data[:cut])

    def test_count_that_does_not_fit(self) -> None:
        for count in (1, 3):
            data = bytearray(self._data())
            struct.pack_into(">i", data, 57, count)
            self._assert_corrupt(bytes(data))

    def test_record_length_that_does_not_fit(self) -> None:
        for change in (-2, 2):
            data = bytearray(self._data())
            data[61] += change
            self._assert_corrupt(bytes(data))

    def test_header_name_that_is_no_text(self) -> None:
        data = self._data(headers=(("hh", b""),)).replace(b"hh", b"h\xff")
        names = {name for record in _decode(data) for name, _ in record.headers}
        assert names == {"h\udcff"}
        assert [*map(header_name_bytes, names)] == [b"h\xff"]
        assert [*map(header_text, names)] == ["h\ufffd"]

    def test_header_without_a_name(self) -> None:
        data = batch_bytes([_record(40, headers=(("", None),))], base_offset=40)
        assert data.endswith(b"\x02\x00\x01")
        # one byte read twice, as a name of length -1 and as a null value, would fit
        length = bytes([data[61] - 2])
        self._assert_corrupt(data[:61] + length + data[62:-3] + b"\x02\x01")
