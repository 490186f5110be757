"""Rows of a KTable snapshot as records to restore: one Parquet file for each partition."""

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_resources.failures import SPARK_FAILURES, SparkJobError
from spark_resources.partition_records import SCHEMA

_OPTIONS: Final = {
    # A dictionary of payloads does not pay, and hides from readers how large a row group is.
    "parquet.enable.dictionary#key": "false",
    "parquet.enable.dictionary#value": "false",
}


def stage_snapshot(
    spark: SparkSession,
    table: Path,
    window: str,
    folder: Path,
    *,
    partitions: int,
    keeps_deletions: bool,
) -> dict[int, Path]:
    """Write a window's rows below a new folder, and return the file of each partition that has any.

    Columns `offset, timestamp_ms, headers, key, value`, in order of offsets: the same files for the
    same snapshot, so that an interrupted restore finds its place again. Rows without a key are left
    out, those without a value too unless `keeps_deletions`. `partitions` is their number.

    Raises:
        SparkJobError: The table could not be read.
    """
    wanted = (F.col("window") == window) & F.col("key").isNotNull()
    if not keeps_deletions:
        wanted &= F.col("value").isNotNull()
    try:
        rows = spark.read.format("delta").load(str(table)).where(wanted)
        (
            rows.select("partition", *SCHEMA.names)
            .repartition(partitions, "partition")
            .sortWithinPartitions("partition", "offset")
            .write.partitionBy("partition")
            .options(**_OPTIONS)
            .parquet(str(folder))
        )
    except SPARK_FAILURES as error:
        raise SparkJobError(str(error).strip().splitlines()[0]) from None
    return {
        int(path.parent.name.removeprefix("partition=")): path
        for path in sorted(folder.glob("partition=*/*.parquet"))
    }
