"""The records of a cluster as rows of Spark, committed ones only."""

import json
from collections.abc import Mapping, Sequence

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_resources.data_files import RECORD_COLUMNS
from spark_resources.failures import spark_failures
from spark_resources.work import ReadRange

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
"""What makes the read one of a backup; nothing overrides it."""


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


def set_properties(spark: SparkSession, properties: Mapping[str, str]) -> None:
    """JVM properties of the driver, which on an engine is also where the tasks run."""
    for name, value in properties.items():
        sql = "SELECT java_method('java.lang.System', 'setProperty', :name, :value)"
        spark.sql(sql, {"name": name, "value": value}).collect()


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
