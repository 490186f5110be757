"""Reads spans of Kafka partitions with Spark, by explicit offsets, committed records only."""

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kstreams_assets.backup.plan import ReadRange

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
