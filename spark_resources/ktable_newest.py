"""Which records a snapshot keeps: the newest of each key, or of each version of a key.

Only keys, offsets and timestamps are looked at. Sources of the rules on what has expired:
`AbstractRocksDBSegmentedBytesStore` (windows, sessions) and `RocksDBVersionedStore` of Kafka
Streams 4.x, whose stream time is the greatest time put into the store of one partition.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kstreams_assets.ktables.store_format import StoreKind
from kstreams_assets.ktables.work import SnapshotWork
from spark_resources.ktable_columns import with_key_parts
from spark_resources.ktable_source import by_partition

_EXPIRES_BY = {
    StoreKind.WINDOW: "window_start_ms",
    StoreKind.JOIN_WINDOW: "window_start_ms",
    StoreKind.SESSION: "session_end_ms",
}

_BROADCAST_ROWS = 4_000_000
"""So many chosen rows, 70 bytes each, are sent to every task; beyond, Spark may sort instead."""
_FEW_RECORDS = 50_000
"""Of so few, those that are kept are not counted first: a Spark job takes longer."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The numbers (`row`) of the records that are kept, `count` of them at most.

    With `keeps_deletions` (versioned stores) `rows` also say until when a version is valid
    (`valid_to_ms`) and whether, if it is a deletion, it `is_past`: nothing can come before it any
    more. `stream_times` are by partition, where they count.
    """

    rows: DataFrame
    count: int
    stream_times: Mapping[int, int] = field(default_factory=dict)
    keeps_deletions: bool = False

    def unpersist(self) -> None:
        """Free the memory."""
        self.rows.unpersist()


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
    """The records that were chosen, whole; deletions go now, after they have done their work."""
    chosen = F.broadcast(newest.rows) if newest.count <= _BROADCAST_ROWS else newest.rows
    rows = source.join(chosen, "row", "inner" if newest.keeps_deletions else "left_semi")
    if newest.keeps_deletions:
        # A deletion is needed as long as a late version may come before it.
        return rows.where(F.col("value").isNotNull() | ~F.col("is_past"))
    return rows.where(F.col("value").isNotNull() | F.col("key").isNull())


def _not_expired(newest: DataFrame, work: SnapshotWork, time: str, retention_ms: int) -> Newest:
    """Windows that begin, or sessions that end, after stream time - retention."""
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
        timed.unpersist()


def _versions(source: DataFrame, work: SnapshotWork) -> Newest:
    """One record for each time at which a version of a key begins."""
    accepted, times = _accepted(source, work)
    key = [F.col("partition"), F.col("key")]
    # Without a key there are no versions, just the last record.
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
    """The records without those that came later than the history retention allows.

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
    """The greatest time of each partition, deletions included."""
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
