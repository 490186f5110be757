"""Records to restore that are in no span file, as one Parquet file for each partition.

Those saved with recovery points, and the rows of KTable snapshots.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.errors import RestoreRecordsError
from kstreams_assets.ktables.content import require_snapshot, snapshot_error
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.point import RecoveryPoint
from kstreams_assets.recovery.saved_records import SavedRecordsTable, by_partition
from kstreams_assets.restore.plan import RestorePlan, TopicPlan
from kstreams_assets.warehouse.layout import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = ["offset", "timestamp_ms", "headers", "key", "value"]
_ROW_GROUP = 10_000


@contextmanager
def staged_saved_records(
    warehouse: Warehouse,
    restore_id: str,
    point: RecoveryPoint,
    partitions: Iterable[TopicPartitionId],
) -> Iterator[Mapping[TopicPartitionId, Path]]:
    """Files with the saved records of these source partitions, in order of offsets, while it lasts.

    Columns `offset, timestamp_ms, headers, key, value`. Partitions without any have no file. What
    a killed run left behind is removed first.
    """
    folder = _folder(warehouse, restore_id)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield _write(folder, SavedRecordsTable(warehouse).of_point(point), set(partitions))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stage_snapshots(
    spark: "SparkSession", warehouse: Warehouse, plan: RestorePlan
) -> dict[TopicPartitionId, Path]:
    """Files with the rows of KTable snapshots, by source partition, in order of offsets.

    They lie in the folder of `staged_saved_records` and go with it. The same snapshot gives the
    same files. Partitions without any row have no file.

    Raises:
        RestoreRecordsError: A snapshot has other rows than were planned; nothing was produced.
        StoredDataError: Its files are not those that were written, or cannot be read; nothing was
            produced.
    """
    folder = _folder(warehouse, plan.restore_id) / "snapshots"
    files: dict[TopicPartitionId, Path] = {}
    noted = SnapshotsTable(warehouse).of(plan.application_id)
    for number, (topic, snapshot) in enumerate(plan.from_snapshots):
        for one in noted:
            if (one.store, one.window.key) == (snapshot.store, snapshot.window):
                require_snapshot(warehouse.ktable(plan.application_id, one.store), one)
        from spark_resources.backup_job import SparkJobError
        from spark_resources.snapshot_staging import stage_snapshot

        try:
            by_number = stage_snapshot(
                spark,
                warehouse.ktable(plan.application_id, snapshot.store),
                snapshot.window,
                folder / str(number),
                partitions=len(topic.partitions),
                keeps_deletions=snapshot.keeps_deletions,
            )
        except SparkJobError as error:
            raise snapshot_error(
                snapshot.store, snapshot.window, f"it cannot be read ({error})"
            ) from error
        _require_planned(topic, by_number)
        files |= {TopicPartitionId(topic.source, p): path for p, path in by_number.items()}
    return files


def _require_planned(topic: TopicPlan, files: Mapping[int, Path]) -> None:
    """Before the first record is produced: what is on the target cannot be taken back."""
    planned = {p.source.partition: p.records for p in topic.partitions}
    for partition in sorted({*planned, *files}):
        rows = pq.read_metadata(files[partition]).num_rows if partition in files else 0
        if rows != planned.get(partition, 0):
            raise RestoreRecordsError(
                partition=f"{topic.source}-{partition}",
                reason=f"its KTable snapshot gives {rows:,} records, planned were"
                f" {planned.get(partition, 0):,}",
            )


def _folder(warehouse: Warehouse, restore_id: str) -> Path:
    return warehouse.root / ".staging" / restore_id


def _write(
    folder: Path, rows: pa.Table, wanted: set[TopicPartitionId]
) -> dict[TopicPartitionId, Path]:
    files: dict[TopicPartitionId, Path] = {}
    for number, (id_, of_partition) in enumerate(by_partition(rows).items()):
        if id_ in wanted:
            files[id_] = folder / f"{number}.parquet"
            pq.write_table(
                of_partition.select(_COLUMNS),
                files[id_],
                row_group_size=_ROW_GROUP,
                use_dictionary=False,
            )
    return files
