"""Reads spans of Kafka partitions with Spark, by explicit offsets, committed records only."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kstreams_assets.backup.plan import ReadRange, SpanPlan

_BINS_PER_READ = 20_000
"""How finely offsets are cut to look up their window: small enough to broadcast, fine enough that
a bin rarely meets more than a few windows."""

DEFAULT_OPTIONS: Mapping[str, str] = {
    # Spark asks for the log's ends after every poll; 500 records a poll (the default) would
    # spend the time on that.
    "kafka.max.poll.records": "50000",
    "kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024),
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
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


@dataclass(frozen=True, slots=True)
class _Bin:
    topic: str
    partition: int
    bin: int
    start: int
    end: int
    window: str


def read_spans(
    spark: SparkSession,
    *,
    kafka_options: Mapping[str, str],
    reads: Sequence[Sequence[ReadRange]],
    spans: Sequence[SpanPlan],
    group_id_prefix: str,
) -> DataFrame:
    """The records of the spans, each with the key of its window.

    `reads` are the stretches as `read_ranges` made them; `spans` say which offset belongs to
    which window. Rows of one partition come in offset order.

    Returns:
        Columns of `records_table.RECORD_COLUMNS`.
    """
    frames = [
        _assign_windows(
            spark, read_stretches(spark, kafka_options, read, group_id_prefix), read, spans
        )
        for read in reads
    ]
    records = frames[0]
    for frame in frames[1:]:
        records = records.unionByName(frame)
    return records


def no_records(spark: SparkSession) -> DataFrame:
    """No record at all, with the columns of `read_spans`."""
    from spark_resources.records_table import RECORD_COLUMNS

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


def _assign_windows(
    spark: SparkSession, records: DataFrame, read: Sequence[ReadRange], spans: Sequence[SpanPlan]
) -> DataFrame:
    windows = {span.window.key for span in spans}
    if len(windows) == 1:
        return records.select(F.lit(windows.pop()).alias("window"), *records.columns)
    total = sum(stretch.end - stretch.start for stretch in read)
    width = max(1, total // _BINS_PER_READ)
    bins = _bins(read, spans, width)
    lookup = spark.createDataFrame(_arrow(bins)).alias("lookup")
    kafka = records.withColumn("bin", F.expr(f"offset div {width}")).alias("kafka")
    same = F.expr(
        "kafka.topic = lookup.topic AND kafka.partition = lookup.partition"
        " AND kafka.bin = lookup.bin"
        " AND kafka.offset >= lookup.start AND kafka.offset < lookup.end"
    )
    joined = kafka.join(F.broadcast(lookup), same, "inner")
    return joined.select("lookup.window", *(f"kafka.{column}" for column in records.columns))


def _bins(read: Sequence[ReadRange], spans: Sequence[SpanPlan], width: int) -> list[_Bin]:
    """Every (bin of offsets, span) pair that share an offset."""
    stretches = {stretch.partition: stretch for stretch in read}
    bins: list[_Bin] = []
    for span in spans:
        stretch = stretches.get(span.partition)
        if stretch is None or span.to_read == 0:
            continue
        start, end = max(span.read_start, stretch.start), min(span.end, stretch.end)
        if start >= end:
            continue
        topic, partition = span.partition.topic, span.partition.partition
        bins += [
            _Bin(topic, partition, number, start, end, span.window.key)
            for number in range(start // width, (end - 1) // width + 1)
        ]
    return bins


def _arrow(bins: Sequence[_Bin]) -> pa.Table:
    return pa.table(
        {
            "topic": pa.array([b.topic for b in bins], pa.string()),
            "partition": pa.array([b.partition for b in bins], pa.int32()),
            "bin": pa.array([b.bin for b in bins], pa.int64()),
            "start": pa.array([b.start for b in bins], pa.int64()),
            "end": pa.array([b.end for b in bins], pa.int64()),
            "window": pa.array([b.window for b in bins], pa.string()),
        }
    )
