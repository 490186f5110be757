"""Keeps the rows whose offsets lie in given ranges of their partitions."""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kstreams_assets.offsets import OffsetRange

_MOST_RANGES: Final = 16
"""With more ranges of one partition a join is cheaper than comparisons, one after the other."""
_MOST_PARTITIONS: Final = 2_000

Ranges = Mapping[int, Sequence[OffsetRange]]
"""Disjoint offset ranges by partition."""


def rows_inside(
    rows: DataFrame, ranges: Ranges, *, partition: str = "partition", offset: str = "offset"
) -> DataFrame:
    """The rows whose offsets lie in the ranges of their partition.

    `partition` and `offset` name the columns.
    """
    most = max(map(len, ranges.values()), default=0)
    if most == 0:
        return rows.where(F.lit(False))
    if most > _MOST_RANGES or max(ranges) >= _MOST_PARTITIONS:
        return _joined(rows, ranges, partition, offset)
    listed = [ranges.get(number, ()) for number in range(max(ranges) + 1)]
    within = (
        f"{offset} >= {_by_partition([_start(of_it, at) for of_it in listed], partition)} AND"
        f" {offset} < {_by_partition([_end(of_it, at) for of_it in listed], partition)}"
        for at in range(most)
    )
    return rows.where(F.expr(" OR ".join(f"({one})" for one in within)))


def from_offset(offsets: Mapping[int, int], *, partition: str, offset: str) -> str:
    """SQL: whether an offset lies at or above that of its partition; not so where there is none."""
    if not offsets:
        return "false"
    listed = [str(offsets[n]) if n in offsets else "null" for n in range(max(offsets) + 1)]
    return f"coalesce({offset} >= {_by_partition(listed, partition)}, false)"


def _by_partition(values: Sequence[str], partition: str) -> str:
    """A look-up in a constant: generated code that does not change with the numbers, as literals
    would have it, is compiled once."""
    listed = ", ".join(value if value == "null" else f"{value}L" for value in values)
    return f"get(array({listed}), {partition})"


def _start(of_it: Sequence[OffsetRange], at: int) -> str:
    return str(of_it[at].start) if at < len(of_it) else "0"


def _end(of_it: Sequence[OffsetRange], at: int) -> str:
    return str(of_it[at].end) if at < len(of_it) else "0"


def _joined(rows: DataFrame, ranges: Ranges, partition: str, offset: str) -> DataFrame:
    flat = [(number, r.start, r.end) for number, of_it in ranges.items() for r in of_it]
    table = pa.table(
        {
            "partition": pa.array([number for number, _, _ in flat], pa.int32()),
            "start": pa.array([start for _, start, _ in flat], pa.int64()),
            "end": pa.array([end for _, _, end in flat], pa.int64()),
        }
    )
    wanted = F.broadcast(rows.sparkSession.createDataFrame(table)).alias("wanted")
    within = F.expr(
        f"rows.{partition} = wanted.partition"
        f" AND rows.{offset} >= wanted.start AND rows.{offset} < wanted.end"
    )
    return rows.alias("rows").join(wanted, within, "left_semi")
