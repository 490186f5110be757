"""What `info` says of growth: bytes of the time in which they were written, and no other."""

from typing import Any, Final

import pyarrow as pa
import pytest

from kstreams_assets.metrics.info import growth_of
from kstreams_assets.model.spans import SpanKey

_HOUR: Final = 3_600_000
_NOW: Final = 1_000 * 24 * _HOUR


def _rows(*rows: tuple[str, int, int, int, bool, int | None]) -> pa.Table:
    """Window, start and end (hours before now), bytes, continues, oldest timestamp (hours)."""
    names = ["window", "kind", "window_start_ms", "window_end_ms", "stored_bytes", "continues"]
    columns: dict[str, list[Any]] = {name: [] for name in [*names, "min_timestamp_ms"]}
    for key, start, end, size, continues, oldest in rows:
        values = (
            key,
            SpanKey.of(key).kind,
            _NOW - start * _HOUR,
            _NOW - end * _HOUR,
            size,
            continues,
        )
        for name, value in zip(names, values, strict=True):
            columns[name].append(value)
        columns["min_timestamp_ms"].append(None if oldest is None else _NOW - oldest * _HOUR)
    return pa.table(columns, schema=pa.schema([
        ("window", pa.string()), ("kind", pa.string()),
        ("window_start_ms", pa.int64()), ("window_end_ms", pa.int64()),
        ("stored_bytes", pa.int64()), ("continues", pa.bool_()), ("min_timestamp_ms", pa.int64()),
    ]))  # fmt: skip


def _per_day(rows: pa.Table, ktables: dict[str, int] | None = None) -> float:
    growth = growth_of(rows, ktables or {}, _NOW)
    assert growth is not None
    return growth.bytes * 24 * _HOUR / growth.over_ms


def test_the_history_in_the_first_window_is_no_growth() -> None:
    first = ("w0", 5, 4, 1_000_000, False, 900)
    hours = [(f"w{n}", 5 - n, 4 - n, 100, True, 5 - n) for n in range(1, 5)]
    assert _per_day(_rows(first, *hours)) == pytest.approx(2_400)


def test_a_follower_that_began_in_the_middle_of_a_day() -> None:
    rows = _rows(
        ("d+000000", 24, 2, 1_000_000, False, 900),
        ("d+000001", 2, 1, 100, True, 2),
        ("d+000002", 1, 0, 100, True, 1),
    )
    assert _per_day(rows) == pytest.approx(2_400)


def test_all_there_is_lies_in_the_first_window() -> None:
    assert _per_day(_rows(("w0", 24, 0, 240, False, 2))) == pytest.approx(2_880)
    assert growth_of(_rows(("w0", 24, 0, 0, False, None)), {}, _NOW) is None
    assert growth_of(_rows(), {}, _NOW) is None


def test_windows_that_are_not_backed_up_are_no_time_without_growth() -> None:
    rows = _rows(("a", 100, 99, 100, True, 100), ("b", 2, 1, 100, True, 2))
    assert _per_day(rows) == pytest.approx(2_400)


def test_topics_and_partitions_share_the_time() -> None:
    rows = _rows(*[("a", 2, 1, 50, True, 2)] * 4, *[("b", 1, 0, 50, True, 1)] * 4)
    assert _per_day(rows) == pytest.approx(4_800)


def test_long_windows_and_merged_ones() -> None:
    month = ("m", 24 * 30, 0, 3_000, True, 24 * 30)
    assert _per_day(_rows(month)) == pytest.approx(100)
    assert growth_of(_rows(("a~b", 40, 30, 10, True, 40)), {}, _NOW) is None
    assert growth_of(_rows(("a", 24 * 30, 24 * 29, 10, True, 40)), {}, _NOW) is None


def test_ktables_grow_too() -> None:
    rows = _rows(("a", 2, 1, 100, True, 2), ("b", 1, 0, 100, True, 1))
    assert _per_day(rows, {"a": 50, "b": 50, "long ago": 10**9}) == pytest.approx(3_600)
