"""Saved records of a recovery point as one Parquet file for each partition, for Spark tasks."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.kafka.positions import TopicPartitionId
from kstreams_assets.recovery.point import RecoveryPoint
from kstreams_assets.recovery.saved_records import SavedRecordsTable, by_partition
from kstreams_assets.warehouse.layout import Warehouse

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
    folder = warehouse.root / ".staging" / restore_id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield _write(folder, SavedRecordsTable(warehouse).of_point(point), set(partitions))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
