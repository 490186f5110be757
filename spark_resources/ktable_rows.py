"""The rows of a snapshot before they are decoded: files, offsets, newest of each key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from kstreams_assets.app.store_columns import HEADERS_TYPE
from kstreams_assets.app.store_format import StoreKind
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.store import StorePath
from spark_resources.failures import free
from spark_resources.ktable_columns import with_key_parts
from spark_resources.stored_files import read_files, read_table
from spark_resources.work import SnapshotWork

_MOST_RANGES: Final = 16
"""With more ranges of one partition, a join is cheaper than a series of comparisons."""
_MOST_PARTITIONS: Final = 2_000

Ranges = Mapping[int, Sequence[OffsetRange]]
"""Disjoint offset ranges by partition."""


def rows_inside(rows: DataFrame, ranges: Ranges) -> DataFrame:
    """Return the rows whose offsets are in the ranges of their partition."""
    most = max(map(len, ranges.values()), default=0)
    if most == 0:
        return rows.where(F.lit(False))
    if most > _MOST_RANGES or max(ranges) >= _MOST_PARTITIONS:
        return _joined(rows, ranges)
    nothing = OffsetRange(0, 0)
    padded = [
        [*ranges.get(number, ()), *[nothing] * most][:most] for number in range(max(ranges) + 1)
    ]
    within = (
        f"offset >= {_by_partition([of_it[at].start for of_it in padded], 'partition')}"
        f" AND offset < {_by_partition([of_it[at].end for of_it in padded], 'partition')}"
        for at in range(most)
    )
    return rows.where(F.expr(" OR ".join(f"({one})" for one in within)))


def from_offset(offsets: Mapping[int, int], *, partition: str, offset: str) -> str:
    """Return SQL: whether an offset is at or above that of its partition; false without one."""
    if not offsets:
        return "false"
    listed = [offsets.get(number) for number in range(max(offsets) + 1)]
    return f"coalesce({offset} >= {_by_partition(listed, partition)}, false)"


def _by_partition(values: Sequence[int | None], partition: str) -> str:
    """Return a look-up in a constant: generated code that does not change with the numbers is
    compiled once; with literals it would be compiled each time."""
    listed = ", ".join("null" if value is None else f"{value}L" for value in values)
    return f"get(array({listed}), {partition})"


def _joined(rows: DataFrame, ranges: Ranges) -> DataFrame:
    flat = [(number, r.start, r.end) for number, of_it in ranges.items() for r in of_it]
    table = pa.table(
        {
            "partition": pa.array([number for number, _, _ in flat], pa.int32()),
            "start": pa.array([start for _, start, _ in flat], pa.int64()),
            "end": pa.array([end for _, _, end in flat], pa.int64()),
        }
    )
    wanted = F.broadcast(_small(rows.sparkSession, table)).alias("wanted")
    within = F.expr(
        "rows.partition = wanted.partition"
        " AND rows.offset >= wanted.start AND rows.offset < wanted.end"
    )
    return rows.alias("rows").join(wanted, within, "left_semi")


RECORD: Final = (
    "partition INT, offset BIGINT, timestamp_ms BIGINT, "
    f"headers {HEADERS_TYPE}, key BINARY, value BINARY"
)
"""The columns of a record, as DDL."""
RECORD_COLUMNS: Final = ("partition", "offset", "timestamp_ms", "headers", "key", "value")


def read_source(spark: SparkSession, work: SnapshotWork) -> DataFrame:
    """Return all relevant rows, each with its own number.

    Returns:
        Columns `partition, offset, timestamp_ms, headers, key, value`, `in_base` (of versioned
        stores: it is a row of an earlier snapshot) and `row`: higher for a higher offset of the
        same partition. A record that occurs twice, in a backup and in saved records, has two
        numbers.
    """
    base_files, whole_files = work.base_files, work.whole_files
    cut_files = work.cut_files
    by_table: DataFrame | None = None
    if work.scan is not None:
        by_table = numbered(
            rows_inside(read_table(spark, work.scan, RECORD_COLUMNS), work.ranges), work
        )
        whole_files, cut_files = (), ()
    if work.base_ranges is None and work.format.kind is not StoreKind.VERSIONED:
        # Read together, files are spread evenly over the tasks; a union would keep them apart.
        base_files, whole_files = (), (*base_files, *whole_files)
    frames = [
        _base(spark, work) if base_files else None,
        by_table,
        numbered(_read(spark, whole_files, work), work) if whole_files else None,
        numbered(rows_inside(_read(spark, cut_files, work), work.ranges), work)
        if cut_files
        else None,
        numbered(_read(spark, (work.saved_file,), work), work, saved=True)
        if work.saved_file
        else None,
    ]
    there = [frame for frame in frames if frame is not None]
    if not there:
        there = [numbered(spark.createDataFrame([], RECORD), work)]
    return reduce(DataFrame.unionByName, there)


def _small(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a frame of a few rows, or of none, for which Spark could not infer the types."""
    return spark.createDataFrame(table, from_arrow_schema(table.schema))


def by_partition(spark: SparkSession, values: Mapping[int, int], name: str) -> DataFrame:
    """Return a small frame `partition, <name>` to join with."""
    table = pa.table(
        {
            "partition": pa.array(values.keys(), pa.int32()),
            name: pa.array(values.values(), pa.int64()),
        }
    )
    return F.broadcast(_small(spark, table))


def _base(spark: SparkSession, work: SnapshotWork) -> DataFrame:
    rows = _read(spark, work.base_files, work)
    if work.base_ranges is not None:
        rows = rows_inside(rows, work.base_ranges)
    return numbered(rows, work, in_base=True)


def _read(spark: SparkSession, files: Sequence[StorePath], work: SnapshotWork) -> DataFrame:
    return read_files(spark, files, RECORD, renumbering=work.renumbering)


def numbered(
    rows: DataFrame, work: SnapshotWork, *, saved: bool = False, in_base: bool = False
) -> DataFrame:
    """Add `in_base` and `row` to the rows, see `read_source`.

    One number for partition and offset: a join on one long is the cheapest.
    """
    stride = max(work.partitions, default=0) + 1
    number = (F.col("offset") * 2 + F.lit(0 if saved else 1)) * F.lit(stride) + F.col("partition")
    return rows.select("*", F.lit(in_base).alias("in_base"), number.cast("bigint").alias("row"))


_EXPIRES_BY = {
    StoreKind.WINDOW: "window_start_ms",
    StoreKind.JOIN_WINDOW: "window_start_ms",
    StoreKind.SESSION: "session_end_ms",
}

_BROADCAST_ROWS = 4_000_000
"""At most this many chosen rows, of 70 bytes, are sent to every task; else Spark may sort."""
_FEW_RECORDS = 50_000
"""So few rows are not counted first: a Spark job takes longer."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The numbers (`row`) of the kept records, at most `count` of them.

    With `keeps_deletions` (versioned stores) `rows` also have the end of a version's validity
    (`valid_to_ms`) and whether a deletion `is_past`: no earlier version can arrive any more.
    `stream_times` are by partition, for stores that need them.
    """

    rows: DataFrame
    count: int
    stream_times: Mapping[int, int] = field(default_factory=dict)
    keeps_deletions: bool = False

    def unpersist(self) -> None:
        """Free the memory."""
        free(self.rows)


def newest_rows(source: DataFrame, work: SnapshotWork) -> Newest:
    """Choose the records of a snapshot; runs Spark jobs over keys and offsets."""
    if work.format.kind is StoreKind.VERSIONED:
        return _versions(source, work)
    newest = source.groupBy("partition", "key").agg(F.max("row").alias("row"))
    time = _EXPIRES_BY.get(work.format.kind)
    if time is None or work.format.retention_ms is None:
        if work.records <= _FEW_RECORDS:
            return Newest(newest.select("row"), work.records)
        return _kept(newest.select("row"))
    return _not_expired(newest, work, time, work.format.retention_ms)


def chosen_rows(source: DataFrame, newest: Newest) -> DataFrame:
    """Return the chosen records as a whole; deletions are removed now, after they had effect."""
    chosen = F.broadcast(newest.rows) if newest.count <= _BROADCAST_ROWS else newest.rows
    rows = source.join(chosen, "row", "inner" if newest.keeps_deletions else "left_semi")
    if newest.keeps_deletions:
        # A deletion is needed while a late version may still arrive before it.
        return rows.where(F.col("value").isNotNull() | ~F.col("is_past"))
    return rows.where(F.col("value").isNotNull() | F.col("key").isNull())


def _not_expired(newest: DataFrame, work: SnapshotWork, time: str, retention_ms: int) -> Newest:
    """Return windows that start, or sessions that end, after stream time - retention."""
    timed = with_key_parts(newest, work.format).select("partition", "row", F.col(time).alias("at"))
    timed = timed.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        times = _stream_times(timed, work.stream_times)
        alive = _with_stream_time(timed, times).where(
            F.col("at").isNull()
            | F.col("stream_time").isNull()
            | (F.col("at") > F.col("stream_time") - retention_ms)
        )
        return _kept(alive.select("row"), times)
    finally:
        free(timed)


def _versions(source: DataFrame, work: SnapshotWork) -> Newest:
    """Return one record for each start of a version of a key."""
    accepted, times = _accepted(source, work)
    key = [F.col("partition"), F.col("key")]
    # Without a key there are no versions, only the last record.
    begins = F.when(F.col("key").isNotNull(), F.col("timestamp_ms"))
    newest = (
        accepted.groupBy(*key, begins.alias("begins"))
        .agg(F.max("row").alias("row"))
        .withColumn(
            "valid_to_ms", F.lead("begins").over(Window.partitionBy(*key).orderBy("begins"))
        )
    )
    if work.format.retention_ms is None:
        past: Column = F.lit(False)
    else:
        newest = _with_stream_time(newest, times)
        horizon = F.col("stream_time") - work.format.retention_ms
        newest = newest.where(F.col("valid_to_ms").isNull() | (F.col("valid_to_ms") > horizon))
        past = F.coalesce(
            F.col("valid_to_ms").isNull() & (F.col("begins") <= horizon), F.lit(False)
        )
    return _kept(
        newest.select("row", "valid_to_ms", past.alias("is_past")), times, keeps_deletions=True
    )


def _accepted(source: DataFrame, work: SnapshotWork) -> tuple[DataFrame, Mapping[int, int]]:
    """Remove the records that arrived later than the history retention allows.

    Whether a version is late depends on the stream time before it, so on the order of offsets.
    """
    narrow = source.select("partition", "key", "timestamp_ms", "row", "in_base")
    retention_ms = work.format.retention_ms
    if retention_ms is None:
        return narrow, {}
    times = _stream_times(
        narrow.where(~F.col("in_base")).withColumnRenamed("timestamp_ms", "at"), work.stream_times
    )
    before = Window.partitionBy("partition").orderBy("row")
    before = before.rowsBetween(Window.unboundedPreceding, -1)
    fresh = narrow.where(~F.col("in_base"))
    fresh = fresh.join(
        by_partition(source.sparkSession, work.stream_times, "base_time"), "partition", "left"
    )
    reached = F.greatest(F.max("timestamp_ms").over(before), F.col("base_time"))
    fresh = fresh.withColumn("reached", reached).where(
        F.col("reached").isNull() | (F.col("timestamp_ms") >= F.col("reached") - retention_ms)
    )
    kept = narrow.where("in_base").unionByName(fresh.select(*narrow.columns))
    return kept, times


def _stream_times(timed: DataFrame, before: Mapping[int, int]) -> Mapping[int, int]:
    """Return the greatest time of each partition, including deletions."""
    times = dict(before)
    for partition, at in timed.groupBy("partition").agg(F.max("at")).collect():
        known = times.get(partition)
        if at is not None and (known is None or at > known):
            times[partition] = at
    return times


def _with_stream_time(rows: DataFrame, times: Mapping[int, int]) -> DataFrame:
    return rows.join(by_partition(rows.sparkSession, times, "stream_time"), "partition", "left")


def _kept(
    rows: DataFrame, times: Mapping[int, int] | None = None, *, keeps_deletions: bool = False
) -> Newest:
    kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
    return Newest(kept, kept.count(), times or {}, keeps_deletions)
