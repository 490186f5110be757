"""Rows of the control tables: into columns and back."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import count
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
import pytest

from kstreams_assets.model.column import Column
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import RecordedSpan, SpanPlan, SpanResult
from kstreams_assets.repository.rows import Rows, rows_of
from tests.repository.test_table import TABLES

ROWS = [known.row for known in TABLES]
NOT_STORED = {
    (RecoveryPoint, "damaged"),
    (SpanPlan, "gaps"),
    (SpanResult, "kept"),
    (SpanResult, "not_examined_because"),
}


def made_up(hint: Any, numbers: Iterator[int], *, empty: bool) -> Any:
    """Some value of a type; `empty`: what may be null is, lists have no element."""
    origin, args = get_origin(hint), get_args(hint)
    some = () if empty else (1, 2)
    if origin is Annotated:
        return made_up(args[0], numbers, empty=empty)
    if origin in (Union, types.UnionType):
        return None if empty else made_up(args[0], numbers, empty=False)
    if isinstance(hint, type) and issubclass(hint, frozenset):
        (one,) = get_args(vars(hint)["__orig_bases__"][0])
        return hint(made_up(one, numbers, empty=False) for _ in some)
    if args[1:] == (...,):
        return origin(made_up(args[0], numbers, empty=False) for _ in some)
    if origin is tuple:
        return tuple(made_up(one, numbers, empty=empty) for one in args)
    if origin is Mapping:
        return {f"{n}": made_up(args[1], numbers, empty=n > 1) for n in some}
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint, include_extras=True)
        stored = [f.name for f in fields(hint) if f.init and (hint, f.name) not in NOT_STORED]
        make: Any = hint
        return make(**{name: made_up(hints[name], numbers, empty=empty) for name in stored})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [*hint][next(numbers) % len(hint)]
    number = next(numbers)
    make = {bytes: lambda n: str(n).encode(), bool: lambda n: n % 2 == 0}.get(hint, hint)
    return make(number)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
@pytest.mark.parametrize("empty", [False, True])
def test_rows_come_back_as_they_were(row: type, empty: bool) -> None:
    numbers = count(1)
    rows = [made_up(row, numbers, empty=empty) for _ in range(3)]
    made = rows_of(row)
    table = made.write(rows)
    assert table.schema == made.schema
    assert made.read(table) == rows
    assert table.to_pylist() == [made.plain(row) for row in rows]
    assert made.read(pa.concat_tables([table, table]).slice(2, 2)) == [rows[2], rows[0]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_every_column_says_what_it_means(row: type) -> None:
    assert all(column.column.text for column in rows_of(row).columns)


def test_columns_that_earlier_releases_did_not_write_have_the_defaults() -> None:
    made = rows_of(LedgerEntry)
    rows = [made_up(LedgerEntry, count(1), empty=False)]
    names = [field.name for field in made.schema if not field.nullable]
    older = made.write(rows).select(names)
    for field in made.schema:
        if field.nullable:
            older = older.append_column(field, pa.nulls(1, field.type))
    (found,) = made.read(older)
    assert (found.result.gaps, found.result.content.written) == ((), ())
    assert (found.result.first_hole, found.result.contiguity_known) == (None, False)
    assert found.ledger_version is None


def test_a_part_of_a_row_needs_its_columns_only() -> None:
    made = rows_of(LedgerEntry)
    entry = made_up(LedgerEntry, count(1), empty=False)
    plan = entry.result.plan
    names = made.names(RecordedSpan)
    assert names == [
        *("window", "window_start_ms", "window_end_ms", "kind", "first_window", "last_window"),
        *("topic", "partition", "topic_id", "start", "end", "continues"),
    ]
    (found,) = made.read_part(RecordedSpan, made.write([entry]).select(names))
    assert found == RecordedSpan(
        plan.window, plan.partition, plan.topic_id, plan.start, plan.end, plan.continues
    )


def test_what_cannot_be_stored_is_refused() -> None:
    @dataclass
    class Lacking:
        name: Annotated[str, Column("Any.")]
        number: int

    @dataclass
    class Strange:
        name: Annotated[complex, Column("Any.")]

    with pytest.raises(TypeError, match=r"Lacking\.number has neither a column nor a default"):
        Rows(Lacking)
    with pytest.raises(TypeError, match="complex"):
        Rows(Strange)
