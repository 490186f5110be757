"""Number spans and other column values: they are long, and there are millions of them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_SPAN = ["window", "topic", "partition"]


Offsets = npt.NDArray[np.int64]


def numbered_spans(
    rows: pa.Table, actions: pa.Table, columns: Sequence[str] = _SPAN
) -> tuple[Offsets, Offsets]:
    """A number for the span of each row, and for the span of each file; -1 without a row.

    A span is identified by these columns, by default window, topic and partition.
    """
    mine, theirs = np.zeros(rows.num_rows, np.int64), np.zeros(actions.num_rows, np.int64)
    known = np.ones(actions.num_rows, np.bool_)
    for name in columns:
        distinct = rows[name].unique()
        code, code_of_file = (index_in(table[name], distinct) for table in (rows, actions))
        mine, theirs = mine * len(distinct) + code, theirs * len(distinct) + code_of_file
        known &= code_of_file >= 0
    return mine, np.where(known, theirs, -1)


def distinct(
    rows: pa.Table, columns: Sequence[str], given: Sequence[str] | None = None
) -> tuple[pa.Table, Offsets]:
    """The distinct values of these columns, and for each row the number of its value.

    `given` are the columns of the input, if others derive from these.
    """
    numbers, _ = numbered_spans(rows, rows.slice(0, 0), columns)
    _, firsts, of_row = np.unique(numbers, return_index=True, return_inverse=True)
    return rows.select([*(given or columns)]).take(pa.array(firsts)), of_row.astype(np.int64)


def positions(wanted: Offsets, values: Offsets) -> Offsets:
    """The first position of each wanted number among the values, -1 if it is missing."""
    return index_in(pa.array(wanted), pa.array(values))


def index_in(wanted: pa.Array | pa.ChunkedArray, values: pa.Array | pa.ChunkedArray) -> Offsets:
    found = pc.call_function("index_in", [wanted], pc.SetLookupOptions(values))
    return pc.fill_null(found, -1).to_numpy().astype(np.int64)
