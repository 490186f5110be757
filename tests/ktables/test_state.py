"""One key at an instant and its history, from tables written by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from kstreams_assets.app.store_columns import as_text
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.errors import KStreamsAssetsError, StoredDataError, WarehouseError
from kstreams_assets.ktables.keys import Key
from kstreams_assets.ktables.state import history_of, state_at
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import snapshot_written
from kstreams_assets.settings import ApplicationSettings
from tests.backup.samples import point
from tests.ktables.samples import KEYS, settings, snapshot, write_window
from tests.repository.disk import on_disk
from tests.timing import processor_time

COUNTS = {"totals": StoreFormat(key=Format(Encoding.STRING), value=Format(Encoding.LONG))}


def _record(configured: ApplicationSettings, *windows: str, store: str = "totals") -> None:
    Repository(configured.warehouse, "shop").snapshots.record(
        [snapshot(key, store) for key in windows]
    )


def _row(key: object, value: object, offset: int = 1, **more: object) -> dict[str, Any]:
    raw = key if isinstance(key, bytes) else str(key).encode()
    return {
        "offset": offset,
        "decoded_key": key,
        "decoded_value": value,
        "key": raw,
        "value": str(value).encode(),
        **more,
    }


@pytest.fixture
def shop(tmp_path: Path) -> ApplicationSettings:
    """Windows 00:00 to 03:00; a: 1, 2, 2, gone; b: 1, then gone, then back as it was."""
    configured = settings(tmp_path, formats=COUNTS)
    of_window = [
        [_row("a", 1), _row("b", 1, 2)],
        [_row("a", 2, 3)],
        [_row("a", 2, 3), _row("b", 1, 7)],
        [_row("b", 1, 7)],
    ]
    for key, rows in zip(KEYS, of_window, strict=True):
        write_window(configured, "totals", key, rows)
    _record(configured, *KEYS)
    return configured


def _taken_at(window: str) -> int:
    return snapshot(window).taken_at_ms


def _with_other_values(file: Path) -> None:
    rows = pq.ParquetFile(file).read()
    index = rows.schema.get_field_index("decoded_value")
    values = pa.array([41] * rows.num_rows, rows.schema.field(index).type)
    pq.write_table(rows.set_column(index, rows.schema.field(index), values), file)


@pytest.mark.parametrize("damage", [_with_other_values, Path.unlink])
def test_a_changed_snapshot_gives_no_answer(
    shop: ApplicationSettings, damage: Callable[[Path], None]
) -> None:
    table = on_disk(shop.warehouse.ktable(shop.application_id, "totals"))
    written = [replace(snapshot(key), written=snapshot_written(table, key)) for key in KEYS]
    Repository(shop.warehouse, "shop").snapshots.record(written)
    assert [row.decoded_value for row in state_at(shop, "totals", Key("b")).rows] == [1]
    (file,) = table.glob("window=*03*/*.parquet")
    damage(file)
    for ask in (state_at, history_of):
        with pytest.raises(StoredDataError, match=rf"totals, window {KEYS[3]}.* ktables make"):
            ask(shop, "totals", Key("b"))
    older = state_at(shop, "totals", Key("b"), _taken_at(KEYS[2]))
    assert [row.decoded_value for row in older.rows] == [1]


def test_a_flipped_bit_in_a_snapshot_of_an_earlier_release(shop: ApplicationSettings) -> None:
    """It has no digest; the checksums of its pages are compared, where the writer made some."""
    table = shop.warehouse.ktable(shop.application_id, "totals")
    (file,) = table.glob("window=*03*/*.parquet")
    rows = pq.ParquetFile(file).read()
    plain = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    pq.write_table(rows, file, write_page_checksum=True, **plain)
    content = file.read_bytes()
    at = content.index((7).to_bytes(8, "little"))
    file.write_bytes(content[:at] + (8).to_bytes(8, "little") + content[at + 8 :])
    with pytest.raises(WarehouseError, match=rf"{file.name} cannot be used.*from a copy"):
        state_at(shop, "totals", Key("b"))


class TestStateAt:
    """The newest snapshot that was complete at a time."""

    def test_the_newest(self, shop: ApplicationSettings) -> None:
        found = state_at(shop, "totals", Key("b"))
        assert found.window == KEYS[3]
        (row,) = found.rows
        assert (row.decoded_value, row.offset, row.value) == (1, 7, b"1")

    def test_the_end_of_the_taking_counts(self, shop: ApplicationSettings) -> None:
        taken_at_ms, point_id = _taken_at(KEYS[1]), snapshot(KEYS[1]).point_id
        taken = replace(
            point(taken_at_ms, point_id=point_id, application_id=shop.application_id), took_ms=500
        )
        Repository(shop.warehouse, taken.application_id).points.append(taken)
        for late_ms, window in ((499, KEYS[0]), (500, KEYS[1])):
            found = state_at(shop, "totals", Key("a"), taken_at_ms + late_ms)
            assert found.window == window

    @pytest.mark.parametrize(("late_ms", "window"), [(-1, KEYS[0]), (0, KEYS[1]), (1, KEYS[1])])
    def test_the_time_of_the_recovery_point_counts(
        self, shop: ApplicationSettings, late_ms: int, window: str
    ) -> None:
        found = state_at(shop, "totals", Key("a"), _taken_at(KEYS[1]) + late_ms)
        assert found.window == window

    def test_before_the_first(self, shop: ApplicationSettings) -> None:
        with pytest.raises(KStreamsAssetsError, match="has no snapshot as of") as caught:
            state_at(shop, "totals", Key("a"), _taken_at(KEYS[0]) - 1)
        text = str(caught.value)
        assert (
            f"The oldest of 4 is that of window {KEYS[0]} (2026-10-20T00:55:00.000+00:00)" in text
        )
        assert "kstreams-assets ktables make" in text

    def test_none_at_all(self, shop: ApplicationSettings) -> None:
        with pytest.raises(
            KStreamsAssetsError, match=r"has no snapshot\. Backups do not cover any recovery point"
        ):
            state_at(shop, "sessions", Key("a"))

    def test_a_key_that_is_not_there(self, shop: ApplicationSettings) -> None:
        with pytest.raises(KStreamsAssetsError, match=r"no key a in window .*03:00.*example, b\."):
            state_at(shop, "totals", Key("a"))

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            (
                "total",
                r"has no store 'total' \(near: totals\)\. Its stores are: cache, sessions",
            ),
            ("cache", "it has no changelog"),
        ],
    )
    def test_unknown_stores(self, shop: ApplicationSettings, name: str, text: str) -> None:
        with pytest.raises(KStreamsAssetsError, match=text):
            state_at(shop, name, Key("a"))

    def test_a_store_without_a_table_by_declaration(self, tmp_path: Path) -> None:
        configured = settings(tmp_path, without_ktable=frozenset({"totals"}))
        with pytest.raises(KStreamsAssetsError, match="ktable: false"):
            state_at(configured, "totals", Key("a"))


class TestHistory:
    """A state for each window in which the key changed."""

    @pytest.mark.parametrize(
        ("key", "expected"),
        [
            ("a", [(KEYS[0], [1]), (KEYS[1], [2]), (KEYS[3], [])]),
            ("b", [(KEYS[0], [1]), (KEYS[1], []), (KEYS[2], [1])]),
        ],
    )
    def test_changes_only(self, shop: ApplicationSettings, key: str, expected: object) -> None:
        found = history_of(shop, "totals", Key(key))
        assert [
            (state.window, [row.decoded_value for row in state.rows]) for state in found
        ] == expected

    def test_up_to_a_time(self, shop: ApplicationSettings) -> None:
        found = history_of(shop, "totals", Key("a"), _taken_at(KEYS[2]))
        assert [state.window for state in found] == [KEYS[0], KEYS[1]]

    def test_a_key_that_never_was(self, shop: ApplicationSettings) -> None:
        with pytest.raises(KStreamsAssetsError, match="no key c in"):
            history_of(shop, "totals", Key("c"))


def _one(
    root: Path,
    rows: Sequence[dict[str, Any]],
    *,
    key: pa.DataType,
    kind: StoreKind = StoreKind.KEY_VALUE,
    parts: Sequence[str] = (),
) -> ApplicationSettings:
    configured = settings(root, formats={"totals": StoreFormat(kind)})
    write_window(configured, "totals", KEYS[0], rows, key=key, parts=parts)
    _record(configured, KEYS[0])
    return configured


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (pa.string(), "c-1", "c-1"),
        (pa.int64(), -7, "-7"),
        (pa.int16(), 7, "7"),
        (pa.float64(), 0.5, "0.5"),
        (pa.binary(), b"c-1", "c-1"),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": "x"}, '{"a": 1}'),
        (
            pa.struct([("a", pa.struct([("c", pa.string())]))]),
            {"a": {"c": "x"}},
            '{"a": {"c": "x"}}',
        ),
    ],
)
def test_keys_of_every_type_as_text(
    tmp_path: Path, kind: pa.DataType, key: object, text: str
) -> None:
    rows = [_row(key, 1), {**_row(None, 2), "key": b"other"}]
    found = state_at(_one(tmp_path, rows, key=kind), "totals", Key(text))
    assert [row.decoded_value for row in found.rows] == [1]
    assert as_text(found.rows[0].decoded_key) == as_text(key)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (pa.int64(), "seven", "'seven' is not a key of this store. Give a number"),
        (pa.struct([("a", pa.int64())]), "7", "Give a JSON object such as"),
        (pa.struct([("a", pa.int64())]), '{"b": 7}', "one of the fields a"),
    ],
)
def test_texts_that_are_no_key(tmp_path: Path, kind: pa.DataType, text: str, message: str) -> None:
    configured = _one(tmp_path, [_row(None, 1)], key=kind)
    with pytest.raises(KStreamsAssetsError, match=message):
        state_at(configured, "totals", Key(text))


def test_raw_bytes_find_a_row_that_does_not_decode(tmp_path: Path) -> None:
    rows = [{"offset": 5, "key": b"\xff\x00", "value": b"v", "decode_error": "key: no text"}]
    configured = _one(tmp_path, rows, key=pa.string())
    (row,) = state_at(configured, "totals", Key(raw=b"\xff\x00")).rows
    assert (row.offset, row.decode_error) == (5, "key: no text")


@pytest.mark.parametrize(
    ("kind", "parts", "behind"),
    [
        (StoreKind.WINDOW, ("window_start_ms", "window_end_ms"), 12),
        (StoreKind.SESSION, ("session_start_ms", "session_end_ms"), 16),
    ],
)
def test_windows_of_a_key_in_order(
    tmp_path: Path, kind: StoreKind, parts: tuple[str, str], behind: int
) -> None:
    rows = [
        {**_row("a", begin, offset), "key": b"a" + bytes(behind), parts[0]: begin, parts[1]: end}
        for offset, (begin, end) in enumerate([(20, 30), (0, 10), (10, 20)])
    ]
    rows.append({**_row("ab", 9, 9), "key": b"ab" + bytes(behind), parts[0]: 0, parts[1]: 1})
    configured = _one(tmp_path, rows, key=pa.string(), kind=kind, parts=parts)
    by_text = state_at(configured, "totals", Key("a")).rows
    assert [row.parts for row in by_text] == [
        {parts[0]: begin, parts[1]: begin + 10} for begin in (0, 10, 20)
    ]
    assert state_at(configured, "totals", Key(raw=b"a")).rows == by_text


def test_bytes_and_structures_as_text() -> None:
    assert as_text(b"plain") == "plain"
    assert as_text(b"\x00\x01") == "0x0001"
    assert as_text({"a": b"\x01", "b": [1]}) == '{"a": "0x01", "b": [1]}'
    assert as_text(None) == "null"


def test_three_hundred_thousand_keys_in_no_time(tmp_path: Path) -> None:
    configured = settings(tmp_path, formats=COUNTS)
    count = 300_000
    numbers = np.arange(count)
    texts = pa.array([f"customer-{number}" for number in numbers])
    for window in KEYS:
        table = pa.table(
            {
                "window": pa.array([window] * count),
                "partition": pa.array(numbers % 4, pa.int32()),
                "offset": pa.array(numbers, pa.int64()),
                "timestamp_ms": pa.array(numbers, pa.int64()),
                "decoded_key": texts,
                "decoded_value": pa.array(numbers, pa.int64()),
                "decode_error": pa.nulls(count, pa.string()),
                "key": texts.cast(pa.binary()),
                "value": pa.array([b"12345678"] * count, pa.binary()),
            }
        )
        path = on_disk(configured.warehouse.ktable("shop", "totals"))
        write_deltalake(path, table, mode="append", partition_by=["window"])
    _record(configured, *KEYS)
    with processor_time() as took:
        found = state_at(configured, "totals", Key("customer-299999"))
    assert found.rows[0].decoded_value == 299_999
    assert took.seconds < 1
