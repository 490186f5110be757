"""The state of a drilled application against the state it was restored from."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kstreams_assets.app.model import Store, TopicRole
from kstreams_assets.drill.report import StoreComparison
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.java_client import spark_options
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.own_target import partitions_of, roles_of
from kstreams_assets.restore.restores_table import StoredRestore, StoredTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAMPLE: Final = 5


def compare_state(
    spark: "SparkSession",
    cluster: KafkaCluster,
    restore: StoredRestore,
    *,
    restored_ends: Mapping[TopicPartitionId, int],
    stores: Sequence[Store],
) -> tuple[StoreComparison, ...]:
    """Newest record of each key of every changelog: as it was restored, and as it is now.

    What was restored lies below `restored_ends` (exclusive, by target partition) and is as in the
    backup, record by record, since the restore was verified; the drill's topics delete and compact
    nothing, so that all of it must still be there. `stores` are those of the application.
    The application must be stopped. Raises what Spark raises when the cluster cannot be read.
    """
    topics = [topic for topic in restore.topics if TopicRole.CHANGELOG in roles_of(topic)]
    return tuple(
        _compared(
            spark,
            cluster,
            topic,
            restored_ends,
            tuple(store.name for store in stores if store.changelog == topic.source),
        )
        for topic in topics
    )


def _compared(
    spark: "SparkSession",
    cluster: KafkaCluster,
    topic: StoredTopic,
    restored_ends: Mapping[TopicPartitionId, int],
    stores: tuple[str, ...],
) -> StoreComparison:
    partitions = partitions_of(topic)
    starts = cluster.log_start_offsets(partitions)
    ends = cluster.last_stable_offsets(partitions)
    found: Mapping[str, Any] = {}
    sample: tuple[str, ...] = ()
    if any(ends[id_] > starts[id_] for id_ in partitions):
        keys = _keys(
            _records(spark, cluster, topic.target, starts, ends), restored_ends, topic.target
        ).cache()
        found = _counts(keys)
        sample = _sample(keys)
        keys.unpersist()

    def count(name: str) -> int:
        return int(found.get(name) or 0)

    return StoreComparison(
        topic=topic.target,
        stores=stores,
        records_restored=topic.records,
        records_at_point=count("records_at_point"),
        records_since=count("records") - count("records_at_point"),
        keys_at_point=count("keys_at_point"),
        keys_now=count("keys_now"),
        changed=count("changed"),
        rewritten=count("rewritten"),
        added=count("added"),
        deleted=count("deleted"),
        sample=sample,
    )


def _records(
    spark: "SparkSession",
    cluster: KafkaCluster,
    topic: str,
    starts: Mapping[TopicPartitionId, int],
    ends: Mapping[TopicPartitionId, int],
) -> "DataFrame":
    def offsets(of: Mapping[TopicPartitionId, int]) -> str:
        return json.dumps({topic: {str(id_.partition): offset for id_, offset in of.items()}})

    return (
        spark.read.format("kafka")
        .options(**spark_options(cluster.connection))
        .option("kafka.isolation.level", "read_committed")
        .option("assign", json.dumps({topic: sorted(id_.partition for id_ in starts)}))
        .option("startingOffsets", offsets(starts))
        .option("endingOffsets", offsets(ends))
        .option("failOnDataLoss", "true")
        .load()
    )


def _keys(
    records: "DataFrame", restored_ends: Mapping[TopicPartitionId, int], topic: str
) -> "DataFrame":
    """One row for each key: its newest record at the point (`before`) and now (`now`)."""
    from pyspark.sql import functions as f

    ends = {id_.partition: end for id_, end in restored_ends.items() if id_.topic == topic}
    end = f.lit(0)
    for partition, offset in ends.items():
        end = f.when(f.col("partition") == partition, offset).otherwise(end)
    at_point = f.col("offset") < end
    # The greatest struct is that of the greatest offset: no two records of a key share one.
    record = f.struct("offset", "value")
    return records.groupBy("partition", "key").agg(
        f.max(f.when(at_point, record)).alias("before"),
        f.max(record).alias("now"),
        f.count("*").alias("records"),
        f.count(f.when(at_point, 1)).alias("records_at_point"),
    )


def _counts(keys: "DataFrame") -> Mapping[str, Any]:
    from pyspark.sql import functions as f

    was, is_ = f.col("before.value").isNotNull(), f.col("now.value").isNotNull()
    both, newer = was & is_, f.col("now.offset") > f.col("before.offset")
    same = f.col("now.value") == f.col("before.value")
    row = keys.agg(
        f.sum("records").alias("records"),
        f.sum("records_at_point").alias("records_at_point"),
        f.count_if(was).alias("keys_at_point"),
        f.count_if(is_).alias("keys_now"),
        f.count_if(both & newer & ~same).alias("changed"),
        f.count_if(both & newer & same).alias("rewritten"),
        f.count_if(~was & is_).alias("added"),
        f.count_if(was & ~is_).alias("deleted"),
    ).first()
    return {} if row is None else row.asDict()


def _sample(keys: "DataFrame") -> tuple[str, ...]:
    from pyspark.sql import functions as f

    before, now = f.col("before.value"), f.col("now.value")
    rows = keys.where(~before.eqNullSafe(now)).select("key").limit(_SAMPLE).collect()
    return tuple(sorted(bytes(row["key"]).hex() for row in rows if row["key"] is not None))
