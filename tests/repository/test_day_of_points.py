"""A day of points, one every two seconds: a step of a follower costs what was added since."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import PointInstant, effective_points, in_order
from kstreams_assets.model.point_bounds import PointBounds, as_counted
from kstreams_assets.model.spans import SpanContent, SpanKey, SpanResult, Window
from kstreams_assets.repository import ledger as ledger_module
from kstreams_assets.repository import points as points_module
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.points import RecoveryPointTable
from kstreams_assets.repository.repository import Repository
from tests.backup.samples import backup, cut, point, span

BEGIN_MS = 1_790_000_000_000
STEP_MS = 2_000


def _points(table: RecoveryPointTable, numbers: Sequence[int]) -> None:
    table.append_many(
        replace(point(BEGIN_MS + STEP_MS * n, cut(0, n), point_id=f"p{n:06d}"), sequence=n)
        for n in numbers
    )


def test_only_new_points_are_read_and_put_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Repository(Warehouse(tmp_path), "shop").points
    _points(table, range(3_000))
    read: list[int] = []
    ordered: list[int] = []
    instants_of: Callable[[pa.Table], tuple[PointInstant, ...]] = points_module._instants_of

    def noting(rows: pa.Table) -> tuple[PointInstant, ...]:
        read.append(rows.num_rows)
        return instants_of(rows)

    def ordering(instants: Sequence[PointInstant]) -> list[PointInstant]:
        ordered.append(len(instants))
        return effective_points(instants)

    monkeypatch.setattr(points_module, "_instants_of", noting)
    monkeypatch.setattr("kstreams_assets.model.point_bounds.effective_points", ordering)
    for number in range(3_000, 3_004):
        bounds = table.bounds()
        newest = bounds.last_inside(BEGIN_MS, BEGIN_MS + 10**9)
        assert newest is not None
        assert newest.sequence == number - 1
        assert len(table.instants()) == number
        assert table.newest_sealed() is None
        _points(table, [number])
    assert read == [3_000, 1, 1, 1]
    assert ordered == []


INSTANTS = st.lists(
    st.builds(
        lambda taken, late, sequence: PointInstant("", taken, taken - late, sequence=sequence),
        st.integers(0, 50),
        st.sampled_from([0, 0, 0, 7]),
        st.one_of(st.none(), st.integers(0, 60)),
    ),
    max_size=4,
)


@given(st.lists(INSTANTS, max_size=12), st.lists(st.integers(0, 20), max_size=3))
def test_added_or_all_at_once_is_the_same(lots: list[list[PointInstant]], gone: list[int]) -> None:
    """Points of wrong clocks, points taken late for a window, and files that go."""
    parts: list[tuple[PointInstant, ...]] = []
    bounds = PointBounds()
    steps = [*(("add", n) for n in range(len(lots))), *(("drop", n) for n in gone)]
    for what, number in steps:
        if what == "add":
            lot = [replace(one, id=f"p{number}-{n}") for n, one in enumerate(lots[number])]
            parts.append(tuple(lot))
        elif parts:
            parts.pop(number % len(parts))
        bounds = bounds.with_parts(parts)
        every = [one for part in parts for one in part]
        forced = effective_points(sorted(every, key=as_counted))
        assert [*bounds.effective] == forced
        assert sorted(every, key=in_order) == [*bounds.taken]
        for edge in range(-8, 52, 4):
            before = [one for one in forced if one.effective_at_ms < edge]
            assert bounds.before(edge) == (before[-1] if before else None)


def test_increments_of_an_open_window_cost_no_object_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(Warehouse(tmp_path), "shop")
    ledger.ensure()
    window = Window(BEGIN_MS, BEGIN_MS + 86_400_000, "day")
    backups = []
    for number in range(300):
        start_ms = BEGIN_MS + STEP_MS * number
        part = window.increment(number, start_ms, start_ms + STEP_MS)
        plan = replace(span(10 * number, 10 * number + 10), window=part)
        made = backup(SpanResult(plan, SpanContent(records=10), ()))
        backups.append(replace(made, window=part, recovery_point_id=None))
    ledger.record_increment(backups, run_id="run")
    made_of_rows: list[int] = []
    span_of = ledger_module._span

    def noting(*of_row: object) -> object:
        made_of_rows.append(1)
        return span_of(*of_row)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(ledger_module, "_span", noting)
    monkeypatch.setattr(
        ledger_module, "spans_of", lambda *_: pytest.fail("an object for each increment")
    )
    (found,) = ledger.merged_spans({"t"}, holes_matter=())
    assert (found.start, found.end) == (0, 3_000)
    assert len(made_of_rows) <= 1
    ends, number = ledger.increments_so_far(window)
    entries = ledger.increments_of(window)
    assert ends == {"t": max(entry.result.plan.window.end_ms for entry in entries)}
    assert number == 1 + max(SpanKey.of(entry.result.plan.window.key).number for entry in entries)
    other = Window(0, 1, "before")
    assert ledger.increments_so_far(other) == ({}, 0)
