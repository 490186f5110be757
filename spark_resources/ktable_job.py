"""One Spark job of a KTable: reduces records to the newest of each key, decodes and writes them.

Two narrow passes replace a shuffle of payloads: first the newest record of each key is found from
keys and offsets alone, then the records are read again and the chosen ones are kept.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession

from kstreams_assets.app.store_columns import KEY_PARTS
from kstreams_assets.errors import TableVersionGoneError
from kstreams_assets.model.files import NewFile
from kstreams_assets.store import StorePath
from spark_resources.data_files import WRITTEN_DDL, NewFolder, SnapshotFile, remove_unreported
from spark_resources.failures import again_with_new_keys, spark_failures
from spark_resources.ktable_columns import with_decoded_columns
from spark_resources.ktable_rows import Newest, chosen_rows, newest_rows, read_source
from spark_resources.outages import reporting_outages
from spark_resources.session import cores_of
from spark_resources.work import SnapshotWork

if TYPE_CHECKING:
    from kstreams_assets.model.schemas import RegisteredSchema
    from spark_resources.outages import ArrowTask

_FILE_BYTES: Final = 128 * 1024 * 1024
_TASK_BYTES: Final = 32 * 1024 * 1024
"""With fewer bytes per core, fewer files are written than there are cores."""
_BATCH_RECORDS: Final = 2_000
_BATCH_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """The rows of one snapshot, decoded, not yet written."""

    rows: DataFrame
    newest: Newest
    work: SnapshotWork

    @property
    def schema_json(self) -> str:
        """The columns without `window`, as JSON in the form of Delta.

        Raises SparkJobError if Spark cannot determine them.
        """
        with spark_failures():
            return self.rows.schema.json()

    @property
    def stream_times(self) -> Mapping[int, int]:
        """By partition, the time from which retention is counted."""
        return self.newest.stream_times

    def write(
        self, folder: StorePath, *, compression: str, compression_level: int, most_problems: int
    ) -> list[NewFile]:
        """Write them as files into a folder.

        Raises:
            SparkJobError: Reading, decoding or writing failed.
        """
        task = SnapshotFile(
            NewFolder(folder, compression, compression_level), self.work.window, most_problems
        )
        with spark_failures():
            return write_files(self._laid_out(), task.write, folder)

    def _laid_out(self) -> DataFrame:
        """Return one task per file to write; not fewer than cores if there is enough to do."""
        size = self.newest.count * max(self.work.record_bytes, 1.0)
        cores = cores_of(self.rows.sparkSession)
        files = max(1, ceil(size / _FILE_BYTES), min(cores, ceil(size / _TASK_BYTES)))
        # Reading needs at least as many tasks as cores: only the chosen records are moved after it.
        return self.rows.coalesce(files) if files >= cores else self.rows.repartition(files)


def write_files(rows: DataFrame, write: "ArrowTask", folder: StorePath) -> list[NewFile]:
    """Let tasks write rows as files into a folder; remove duplicates of repeated tasks.

    The driver and the tasks must see the same folder.
    """
    with _batches_of(rows.sparkSession, _BATCH_RECORDS):
        written = rows.mapInArrow(reporting_outages(write), WRITTEN_DDL).collect()
    remove_unreported(folder, {row["name"] for row in written})
    return [NewFile.from_task_row(folder, row.asDict()) for row in written]


@contextmanager
def _batches_of(spark: SparkSession, records: int) -> Iterator[None]:
    """Pass rows to Python in batches of this size: larger ones are slower [measured]."""
    before = spark.conf.get(_BATCH_SETTING)
    spark.conf.set(_BATCH_SETTING, str(records))
    try:
        yield
    finally:
        spark.conf.set(_BATCH_SETTING, str(before))


def again_by_files(job: Callable[[SnapshotWork], T], work: SnapshotWork) -> T:
    """Run a job of Spark; once more by lists of files if a version of a table is gone by then.

    Also once more as `again_with_new_keys`.

    Raises:
        SparkJobError: It failed.
    """
    try:
        return again_with_new_keys(lambda: job(work))
    except TableVersionGoneError as error:
        _log.warning("%s It is made again from the list of its files.", error.problem)
        return job(replace(work, scan=None))


@contextmanager
def snapshot_rows(
    spark: SparkSession, work: SnapshotWork, schemas: "Mapping[int, RegisteredSchema]"
) -> Iterator[SnapshotRows]:
    """Choose and decode the rows of one snapshot; free cached rows at the end.

    Raises:
        SparkJobError: Reading failed.
    """
    with spark_failures():
        source = read_source(spark, work)
        newest = newest_rows(source, work)
    try:
        with spark_failures():
            rows = with_decoded_columns(chosen_rows(source, newest), work.format, schemas)
            rows = rows.select(
                "partition",
                "offset",
                "timestamp_ms",
                *(name for name, _, _ in KEY_PARTS.get(work.format.kind, ())),
                "decoded_key",
                "decoded_value",
                "decode_error",
                "headers",
                "key",
                "value",
            )
            made = SnapshotRows(rows, newest, work)
        yield made
    finally:
        newest.unpersist()
