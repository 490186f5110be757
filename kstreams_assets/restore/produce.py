"""Writes the records of a restore: one Spark task per large partition or per few small ones."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.errors import KStreamsAssetsError, SparkJobError, SparkLostError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import CarriedConnection, KafkaConnection
from kstreams_assets.kafka.record_writer import (
    ProducerId,
    RecordWriter,
    WriterLimits,
    foreign_records,
)
from kstreams_assets.kafka.throttle import Throttle
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restores import PartitionProduced
from kstreams_assets.model.saved_records import by_partition
from kstreams_assets.offsets import OffsetRuns, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import StoredSnapshots, snapshot_damage
from kstreams_assets.restore.plan import RestorePlan, TopicPlan
from kstreams_assets.settings import RestoreSettings
from kstreams_assets.store import StorePath, store_at, write_parquet
from spark_resources.partition_records import PartitionWork, not_restorable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_COLUMNS = ["offset", "timestamp_ms", "headers", "key", "value"]
_ROW_GROUP = 10_000


@contextmanager
def staged_saved_records(
    repo: Repository,
    restore_id: str,
    point: RecoveryPoint,
    partitions: Iterable[TopicPartitionId],
) -> Iterator[Mapping[TopicPartitionId, StorePath]]:
    """Yield files with the saved records of these source partitions, in order of offsets.

    Columns `offset, timestamp_ms, headers, key, value`. Partitions without saved records have no
    file. Files of a killed run are removed first.
    """
    folder = _folder(repo.warehouse, restore_id)
    store_at(folder).remove_tree()
    folder.mkdir(parents=True)
    try:
        saved = repo.saved_records.of_point(point)
        yield _write(folder, saved, set(partitions))
    finally:
        store_at(folder).remove_tree()


def stage_snapshots(
    spark: "SparkSession", warehouse: Warehouse, plan: RestorePlan
) -> dict[TopicPartitionId, StorePath]:
    """Return files with the rows of KTable snapshots, by source partition, in order of offsets.

    They are in the folder of `staged_saved_records` and are deleted with it. The same snapshot
    results in the same files. Partitions without rows have no file.

    Raises:
        KStreamsAssetsError: A snapshot has other rows than were planned; nothing was produced.
        StoredDataError: Its files are not those that were written, or cannot be read; nothing was
            produced.
    """
    folder = _folder(warehouse, plan.restore_id) / "snapshots"
    files: dict[TopicPartitionId, StorePath] = {}
    stored = StoredSnapshots(Repository.of(warehouse, plan.application_id))
    for number, (topic, snapshot) in enumerate(plan.from_snapshots):
        from spark_resources.snapshot_staging import stage_snapshot

        table = warehouse.ktable(plan.application_id, snapshot.store)
        for one in stored.of(snapshot.store):
            if one.window.key == snapshot.window:
                stored.require_unchanged(one)
        files_of_it = [f.path for f in stored.files_in(snapshot.store, snapshot.window)]
        if topic.records and not files_of_it:
            problem = "its files are gone"
            raise snapshot_damage(table, snapshot.window, topic.source, problem).as_error()
        try:
            by_number = stage_snapshot(
                spark,
                files_of_it,
                folder / str(number),
                partitions=len(topic.partitions),
                keeps_deletions=snapshot.keeps_deletions,
            )
        except SparkLostError:
            raise
        except SparkJobError as error:
            problem = f"it cannot be read ({error.problem})"
            damage = snapshot_damage(table, snapshot.window, topic.source, problem)
            raise damage.as_error() from error
        _require_planned(topic, by_number)
        files |= {TopicPartitionId(topic.source, p): path for p, path in by_number.items()}
    return files


def _require_planned(topic: TopicPlan, files: Mapping[int, StorePath]) -> None:
    """Raise before the first record is produced: records on the target cannot be removed."""
    planned = {p.source.partition: p.records for p in topic.partitions}
    for partition in sorted({*planned, *files}):
        rows = (
            pq.read_metadata(store_at(files[partition]).readable()).num_rows
            if partition in files
            else 0
        )
        if rows != planned.get(partition, 0):
            raise not_restorable(
                TopicPartitionId(topic.source, partition),
                f"its KTable snapshot has {rows:,} records, the plan has"
                f" {planned.get(partition, 0):,}",
            )


def _folder(warehouse: Warehouse, restore_id: str) -> StorePath:
    return warehouse.staging(restore_id)


def _write(
    folder: StorePath, rows: pa.Table, wanted: set[TopicPartitionId]
) -> dict[TopicPartitionId, StorePath]:
    files: dict[TopicPartitionId, StorePath] = {}
    for number, (id_, of_partition) in enumerate(by_partition(rows).items()):
        if id_ in wanted:
            files[id_] = folder / f"{number}.parquet"
            write_parquet(
                of_partition.select(_COLUMNS),
                files[id_],
                row_group_size=_ROW_GROUP,
                use_dictionary=False,
            )
    return files


_PROGRESS_S = 5.0
_SETTLE_S = 1.0
_JOIN_S = 60.0
_MAX_MESSAGE_BYTES = "max.message.bytes"
_SMALL_RECORDS = 5_000
_TASK_PARTITIONS = 25


def produce(
    spark: "SparkSession",
    works: Sequence[PartitionWork],
    connection: KafkaConnection,
    *,
    settings: RestoreSettings,
    log: Callable[[str], None],
    tasks_lock: Path | None = None,
    throttle: Throttle | None = None,
) -> list[PartitionProduced]:
    """Write the records missing on the target, and wait for all; results in order of works.

    The topics must exist. Another thread logs the progress every 5 s. Producing tasks hold
    `tasks_lock`, and may outlive a killed run by some seconds.

    Raises:
        KStreamsAssetsError, SparkJobError: See `produce_partition`. The target has the first
            records of each partition, and a second call continues there.
        KafkaError: Its subclasses describe the failure of the target.
    """
    began = time.monotonic()
    with KafkaCluster(connection) as cluster:
        ends = _settled_ends(cluster, works)
        jobs = _jobs(cluster, works, ends, connection, settings, throttle)
        # The largest first, so that none of them starts last.
        order = sorted(range(len(works)), key=lambda index: -works[index].records)
        busy = [index for index in order if works[index].records]
        found: dict[int, PartitionProduced] = {}
        with _progress(connection, [works[index] for index in busy], ends, log):
            if busy:
                from spark_resources.partition_tasks import run_partition_tasks

                bundles = _bundles([jobs[index] for index in busy])
                results = chain.from_iterable(
                    run_partition_tasks(
                        spark, bundles, _run, lock=tasks_lock, at_a_time=settings.tasks
                    )
                )
                found = dict(zip(busy, results, strict=True))
        produced = [found.get(index) or _nothing(work) for index, work in enumerate(works)]
        _refuse_foreign(cluster, produced)
    _log_end(log, produced, time.monotonic() - began)
    return produced


@dataclass(frozen=True, slots=True)
class _Job:
    """One partition; `producer` is that of the run, for all attempts of all its tasks."""

    work: PartitionWork
    connection: CarriedConnection
    producer: ProducerId | None
    delivery_timeout_s: float
    compression: str
    max_message_bytes: int
    settled_end: int
    throttle: Throttle | None


def _bundles(jobs: Sequence[_Job]) -> list[list[_Job]]:
    """Return the jobs of each task: a large partition, or some small ones, in the given order.

    Jobs are in order of their records, largest first.
    """
    bundles: list[list[_Job]] = []
    for job in jobs:
        last = bundles[-1] if bundles else []
        fits = (
            last
            and last[0].work.records <= _SMALL_RECORDS
            and len(last) < _TASK_PARTITIONS
            and last[0].max_message_bytes == job.max_message_bytes
        )
        if fits:
            last.append(job)
        else:
            bundles.append([job])
    return bundles


def _run(jobs: Sequence[_Job]) -> list[PartitionProduced]:
    """One Spark task."""
    from spark_resources.kafka_writer import produce_partition

    first = jobs[0]
    limits = WriterLimits(
        first.delivery_timeout_s, first.max_message_bytes, first.compression, first.throttle
    )
    with RecordWriter(first.connection.opened(), limits, first.producer) as writer:
        return [produce_partition(job.work, writer, settled_end=job.settled_end) for job in jobs]


def _jobs(
    cluster: KafkaCluster,
    works: Sequence[PartitionWork],
    ends: Mapping[TopicPartitionId, int],
    connection: KafkaConnection,
    settings: RestoreSettings,
    throttle: Throttle | None,
) -> list[_Job]:
    carried = CarriedConnection.of(connection)
    topics = cluster.describe_topics({work.target.topic for work in works})
    producer = None
    if any(work.records for work in works):
        limits = WriterLimits(settings.delivery_timeout_seconds, max_message_bytes=0)
        with RecordWriter(connection, limits) as writer:
            producer = writer.producer()
    return [
        _Job(
            work=work,
            connection=carried,
            producer=producer,
            delivery_timeout_s=settings.delivery_timeout_seconds,
            compression=settings.compression,
            max_message_bytes=int(topics[work.target.topic].effective_configs[_MAX_MESSAGE_BYTES]),
            settled_end=ends[work.target],
            throttle=throttle,
        )
        for work in works
    ]


def _settled_ends(
    cluster: KafkaCluster, works: Sequence[PartitionWork]
) -> Mapping[TopicPartitionId, int]:
    """Return high watermarks; if an earlier attempt has written, read twice a second apart.

    A partition that moved in between is inspected again by its task.
    """
    targets = [work.target for work in works]
    ends = cluster.high_watermarks(targets)
    if all(ends[work.target] == work.base_offset for work in works):
        return ends
    time.sleep(_SETTLE_S)
    later = cluster.high_watermarks(targets)
    return {target: end if later[target] == end else -1 for target, end in ends.items()}


def _nothing(work: PartitionWork) -> PartitionProduced:
    """Return the result of a partition without any record to restore."""
    return PartitionProduced(
        source=work.source,
        target=work.target,
        runs=OffsetRuns.of(()),
        records=0,
        resumed=0,
        end=work.base_offset,
    )


def _refuse_foreign(cluster: KafkaCluster, produced: Sequence[PartitionProduced]) -> None:
    ends = cluster.high_watermarks(partition.target for partition in produced)
    for partition in produced:
        end = ends[partition.target]
        if end != partition.end:
            problem = f"it ends at {end}, the restore's last record at {partition.end}"
            raise foreign_records(partition.target, problem)


@contextmanager
def _progress(
    connection: KafkaConnection,
    works: Sequence[PartitionWork],
    ends: Mapping[TopicPartitionId, int],
    log: Callable[[str], None],
) -> Iterator[None]:
    """Report the progress of the restore every 5 s until the end of the block."""
    total = sum(work.records for work in works)
    first = {work.target: max(ends[work.target], work.base_offset) for work in works}
    ended = threading.Event()

    def report_progress() -> None:
        # A separate connection: a KafkaCluster serves one thread.
        with KafkaCluster(connection) as cluster:
            began = time.monotonic()
            while not ended.wait(_PROGRESS_S):
                try:
                    now = cluster.high_watermarks(first)
                except KStreamsAssetsError as error:
                    log(f"The progress of the restore is unknown: {error.problem}")
                    continue
                there = sum(now[work.target] - work.base_offset for work in works)
                written = sum(now[target] - end for target, end in first.items())
                rate = written / (time.monotonic() - began)
                share = 100 * there / total
                share_and_rate = f"({share:.0f} %), {rate:,.0f} records/s"
                log(f"Restored {there:,} of {total:,} records {share_and_rate}.")

    thread = threading.Thread(target=report_progress, name="restore-progress", daemon=True)
    if works:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if works:
            thread.join(_JOIN_S)


def _log_end(
    log: Callable[[str], None], produced: Sequence[PartitionProduced], took_s: float
) -> None:
    records = sum(partition.records for partition in produced)
    resumed = sum(partition.resumed for partition in produced)
    before = f", {resumed:,} of them since an earlier attempt" if resumed else ""
    rate = (records - resumed) / took_s
    log(
        f"{records:,} records of {len(produced)} partitions are on the target{before};"
        f" {took_s:.1f} s, {rate:,.0f} records/s."
    )
