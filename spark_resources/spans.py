"""Spark jobs that read spans of Kafka partitions, committed records only, and write their files."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.warehouse.committer import NewFile
from kstreams_assets.warehouse.spans import SpanPlan
from spark_resources.data_files import WRITTEN_DDL, NewFolder, SpanEdges, SpanFiles
from spark_resources.failures import spark_failures
from spark_resources.work import ReadRange

ArrowTask = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

RECORD_COLUMNS = (
    "window STRING NOT NULL, topic STRING NOT NULL, partition INT NOT NULL, "
    "offset BIGINT NOT NULL, timestamp_ms BIGINT, timestamp_type INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, key BINARY, value BINARY"
)
"""A record of a backup; `timestamp_ms` is epoch milliseconds exactly as Kafka stored it."""

DEFAULT_OPTIONS: Mapping[str, str] = {
    # Spark asks for the log's ends after every poll; 500 records a poll (the default) would
    # spend the time on that.
    "kafka.max.poll.records": "50000",
    "kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024),
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    # Spark asks for the log's ends on the connection on which a fetch waits for further records:
    # with Kafka's 500 ms each partition of a window costs half a second.
    "kafka.fetch.max.wait.ms": "10",
    "kafkaConsumer.pollTimeoutMs": "60000",
    # With the defaults, a cluster that dies under the read holds the run for over five minutes.
    # Kafka's client itself tries again until its time is up.
    "kafka.request.timeout.ms": "20000",
    "kafka.default.api.timeout.ms": "30000",
    "fetchOffset.numRetries": "1",
    "fetchOffset.retryIntervalMs": "500",
}
"""What a connection's own Java settings may override."""

FIXED_OPTIONS: Mapping[str, str] = {
    "includeHeaders": "true",
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
}
"""What makes the read a backup; nothing overrides it."""


def no_records(spark: SparkSession) -> DataFrame:
    """No record at all, with the columns of the table of records."""
    return spark.createDataFrame([], RECORD_COLUMNS.replace(" NOT NULL", ""))


def read_stretches(
    spark: SparkSession,
    kafka_options: Mapping[str, str],
    read: Sequence[ReadRange],
    group_id_prefix: str,
) -> DataFrame:
    """The committed records of one stretch of each partition, not yet in windows."""
    assign: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for stretch in read:
        topic, partition = stretch.partition.topic, stretch.partition.partition
        assign.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = stretch.start
        ends.setdefault(topic, {})[str(partition)] = stretch.end
    options = {
        **DEFAULT_OPTIONS,
        **kafka_options,
        **FIXED_OPTIONS,
        "groupIdPrefix": group_id_prefix,
        "assign": json.dumps(assign),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    source = spark.read.format("kafka").options(**options).load()
    return source.select(
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        F.col("timestampType").alias("timestamp_type"),
        "headers",
        "key",
        "value",
    )


_BATCH_RECORDS: Final = 2_000
_BATCH_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"


def write_span_files(
    spark: SparkSession,
    folder: Path,
    *,
    kafka_options: Mapping[str, str],
    system_properties: Mapping[str, str],
    reads: Sequence[Sequence[ReadRange]],
    spans: Sequence[SpanPlan],
    group_id_prefix: str,
    compression: str,
    compression_level: int,
) -> list[NewFile]:
    """Read the stretches, and write the records of each span as files into a folder.

    `folder` is one below the table, which refers to none of its files yet.

    Raises:
        SparkJobError: Reading or writing failed.
    """
    task = SpanFiles(NewFolder(str(folder), compression, compression_level), _edges(spans))
    with spark_failures():
        set_properties(spark, system_properties)
        frames = [read_stretches(spark, kafka_options, read, group_id_prefix) for read in reads]
        return write_files(reduce(DataFrame.unionAll, frames), task.write, folder)


def write_files(rows: DataFrame, write: ArrowTask, folder: Path) -> list[NewFile]:
    """Let tasks write rows as files into a folder; what Spark did twice is removed.

    The driver and the tasks must see the same folder.
    """
    with _batches_of(rows.sparkSession, _BATCH_RECORDS):
        told = rows.mapInArrow(write, WRITTEN_DDL).collect()
    files = [NewFile.told(folder, row.asDict()) for row in told]
    wanted = {file.path for file in files}
    for file in folder.glob("*.parquet"):
        if f"{folder.name}/{file.name}" not in wanted:
            file.unlink()
    return files


def _edges(spans: Sequence[SpanPlan]) -> dict[tuple[str, int], SpanEdges]:
    by_partition: dict[TopicPartitionId, list[SpanPlan]] = {}
    for span in sorted(spans, key=lambda span: span.read_start):
        if span.to_read:
            by_partition.setdefault(span.partition, []).append(span)
    return {
        (partition.topic, partition.partition): SpanEdges(
            tuple(span.window.key for span in of_it),
            tuple(span.read_start for span in of_it),
            tuple(span.end for span in of_it),
        )
        for partition, of_it in by_partition.items()
    }


@contextmanager
def _batches_of(spark: SparkSession, records: int) -> Iterator[None]:
    """Hand rows to Python in batches of so many: larger ones are slower [measured]."""
    before = spark.conf.get(_BATCH_SETTING)
    spark.conf.set(_BATCH_SETTING, str(records))
    try:
        yield
    finally:
        spark.conf.set(_BATCH_SETTING, str(before))


def set_properties(spark: SparkSession, properties: Mapping[str, str]) -> None:
    """JVM properties of the driver; a Connect server or a cluster has them in its own options."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        for name, value in properties.items():
            jvm.java.lang.System.setProperty(name, value)


def cluster_records(
    spark: SparkSession,
    stretches: Sequence[ReadRange],
    *,
    kafka_options: Mapping[str, str],
    system_properties: Mapping[str, str],
    group_id_prefix: str,
) -> DataFrame:
    """The committed records of these stretches, one of each partition; read when first needed.

    Returns:
        Columns of the table of records; `window` is NULL. They are kept until `unpersist`.

    Raises:
        SparkJobError: Spark refused the read.
    """
    with spark_failures():
        set_properties(spark, system_properties)
        if stretches:
            rows = read_stretches(spark, kafka_options, stretches, group_id_prefix)
            rows = rows.withColumn("window", F.lit(None).cast("string"))
        else:
            rows = no_records(spark)
        return rows.persist(StorageLevel.MEMORY_AND_DISK)
