"""Rows of a KTable snapshot as records to restore: one Parquet file for each partition."""

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kstreams_assets.app.store_columns import HEADERS_TYPE
from kstreams_assets.store import NewObject, StorePath
from spark_resources.failures import spark_failures
from spark_resources.outages import reporting_outages
from spark_resources.partition_records import SCHEMA
from spark_resources.stored_files import read_files

_ROWS: Final = (
    "partition INT, offset BIGINT, timestamp_ms BIGINT,"
    f" headers {HEADERS_TYPE}, key BINARY, value BINARY"
)
_WRITTEN: Final = pa.schema([("partition", pa.int32()), ("name", pa.string())])
_GROUP_BYTES: Final = 32 * 1024**2


def stage_snapshot(
    spark: SparkSession,
    files: Sequence[StorePath],
    folder: StorePath,
    *,
    partitions: int,
    keeps_deletions: bool,
) -> dict[int, StorePath]:
    """Write a snapshot's rows below a new folder, and return the file of each partition with rows.

    Columns `offset, timestamp_ms, headers, key, value`, in order of offsets. The same snapshot
    results in the same records, so an interrupted restore can continue. Rows without a key are
    left out, those without a value too unless `keeps_deletions`. `partitions` is their number.

    Raises:
        SparkJobError: The files could not be read.
    """
    if not files:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    wanted = F.col("key").isNotNull()
    if not keeps_deletions:
        wanted &= F.col("value").isNotNull()
    with spark_failures():
        rows = read_files(spark, files, _ROWS).where(wanted)
        written = (
            rows.repartition(partitions, "partition")
            .sortWithinPartitions("partition", "offset")
            .mapInArrow(reporting_outages(_Writer(folder).write), "partition INT, name STRING")
            .collect()
        )
    return {row["partition"]: folder / row["name"] for row in sorted(written)}


@dataclass(frozen=True, slots=True)
class _Writer:
    """A task: writes its rows, which arrive by partition and offset."""

    folder: StorePath

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        file: _File | None = None
        for rows in _by_partition(batches):
            number = rows["partition"][0].as_py()
            if file is None or file.partition != number:
                if file is not None:
                    yield file.finish()
                file = _File(self.folder, number)
            file.add(rows)
        if file is not None:
            yield file.finish()


def _by_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows == 0:
            continue
        numbers = batch["partition"].to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in itertools.pairwise(edges):
            yield batch.slice(start, end - start)


class _File:
    def __init__(self, folder: StorePath, partition: int) -> None:
        self.partition = partition
        self._name = f"{partition}-{uuid.uuid4().hex[:8]}.parquet"
        self._sink = NewObject(folder / self._name)
        # A dictionary of payloads does not pay, and hides the size of a row group from readers.
        self._writer = pq.ParquetWriter(
            self._sink, SCHEMA, use_dictionary=False, write_page_checksum=True
        )
        self._waiting: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        columns = [rows[name].cast(SCHEMA.field(name).type) for name in SCHEMA.names]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        if sum(batch.nbytes for batch in self._waiting) >= _GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._waiting, SCHEMA)
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._waiting = []

    def finish(self) -> pa.RecordBatch:
        if self._waiting:
            self._write()
        self._writer.close()
        self._sink.finish()
        return pa.RecordBatch.from_pylist(
            [{"partition": self.partition, "name": self._name}], schema=_WRITTEN
        )
