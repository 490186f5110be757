"""The records and earlier rows that a snapshot is made from, as one frame."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kstreams_assets.ktables.store_format import StoreKind
from kstreams_assets.ktables.work import SnapshotWork
from spark_resources.offset_filter import rows_inside

_RECORD: Final = (
    "partition INT, offset BIGINT, timestamp_ms BIGINT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, key BINARY, value BINARY"
)


def read_source(spark: SparkSession, work: SnapshotWork) -> DataFrame:
    """Everything that counts, each row with a number of its own.

    Returns:
        Columns `partition, offset, timestamp_ms, headers, key, value`, `in_base` (of versioned
        stores: it is a row of an earlier snapshot) and `row`: higher for a higher offset of the
        same partition. A record that comes twice, from a backup and from saved records, has two
        numbers.
    """
    base_files, whole_files = work.base_files, work.whole_files
    if work.base_ranges is None and work.format.kind is not StoreKind.VERSIONED:
        # Read as one, files are spread evenly over the tasks; a union would keep them apart.
        base_files, whole_files = (), (*base_files, *whole_files)
    frames = [
        _base(spark, work) if base_files else None,
        numbered(_read(spark, whole_files), work) if whole_files else None,
        numbered(rows_inside(_read(spark, work.cut_files), work.ranges), work)
        if work.cut_files
        else None,
        numbered(_read(spark, (work.saved_file,)), work, saved=True) if work.saved_file else None,
    ]
    there = [frame for frame in frames if frame is not None]
    if not there:
        there = [numbered(spark.createDataFrame([], _RECORD), work)]
    return reduce(DataFrame.unionByName, there)


def by_partition(spark: SparkSession, values: Mapping[int, int], name: str) -> DataFrame:
    """A small frame `partition, <name>` to join with."""
    table = pa.table(
        {
            "partition": pa.array(values.keys(), pa.int32()),
            name: pa.array(values.values(), pa.int64()),
        }
    )
    return F.broadcast(spark.createDataFrame(table))


def _base(spark: SparkSession, work: SnapshotWork) -> DataFrame:
    rows = _read(spark, work.base_files)
    if work.base_ranges is not None:
        rows = rows_inside(rows, work.base_ranges)
    return numbered(rows, work, in_base=True)


def _read(spark: SparkSession, files: Iterable[str]) -> DataFrame:
    return spark.read.schema(_RECORD).parquet(*files)


def numbered(
    rows: DataFrame, work: SnapshotWork, *, saved: bool = False, in_base: bool = False
) -> DataFrame:
    """The rows with `in_base` and `row`, see `read_source`.

    One number for partition and offset: a join on one long is the cheapest there is.
    """
    stride = max(work.partitions, default=0) + 1
    number = (F.col("offset") * 2 + F.lit(0 if saved else 1)) * F.lit(stride) + F.col("partition")
    return rows.select("*", F.lit(in_base).alias("in_base"), number.cast("bigint").alias("row"))
