"""One Spark job of a KTable: reduces records to the newest of each key, decodes and writes them.

Two narrow passes in place of a shuffle of payloads: first the newest record of each key is found
from keys and offsets alone, then the records are read again and those chosen are kept.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kstreams_assets.ktables.columns import KEY_PARTS
from kstreams_assets.ktables.content import (
    open_table,
    problems_in,
    rows_by_partition,
    window_files,
)
from kstreams_assets.ktables.store_format import StoreFormat
from kstreams_assets.ktables.work import SnapshotContent, SnapshotWork
from spark_resources.backup_job import SparkJobError, innermost_cause
from spark_resources.ktable_columns import with_decoded_columns
from spark_resources.ktable_newest import Newest, chosen_rows, newest_rows
from spark_resources.ktable_source import read_source
from spark_resources.ktable_table import write_window

if TYPE_CHECKING:
    from kstreams_assets.ktables.schemas import RegisteredSchema

_FILE_BYTES: Final = 128 * 1024 * 1024
_TASK_BYTES: Final = 32 * 1024 * 1024
"""Below so many bytes for each core, fewer files are written than there are cores."""


def write_snapshot(
    spark: SparkSession,
    path: Path,
    work: SnapshotWork,
    *,
    schemas: "Mapping[int, RegisteredSchema]",
    provenance: Mapping[str, object],
    compression: str = "zstd",
    compression_level: int = 1,
) -> SnapshotContent:
    """Put one snapshot in place of what the table holds for its window.

    Raises:
        SparkJobError: Reading, decoding or writing failed; the table is as it was.
        KTableColumnsError: The table has other types of columns.
        NewerLayoutError: A newer release wrote the table.
    """
    try:
        source = read_source(spark, work)
        with _persisted(newest_rows(source, work)) as newest:
            rows = chosen_rows(source, newest)
            rows = _with_columns(rows, work, schemas)
            version = write_window(
                _laid_out(rows, newest.count, work),
                path,
                window=work.window,
                provenance=provenance,
                compression=compression,
                compression_level=compression_level,
            )
    except (PySparkException, Py4JError) as error:
        raise SparkJobError(innermost_cause(str(error))) from error
    files = [file for file, _ in window_files(open_table(path), path).get(work.window, [])]
    problem_rows, problems = problems_in(files)
    return SnapshotContent(
        delta_version=version,
        partitions=rows_by_partition(files),
        stream_times=newest.stream_times,
        problem_rows=problem_rows,
        problems=problems,
    )


@contextmanager
def _persisted(newest: Newest) -> Iterator[Newest]:
    try:
        yield newest
    finally:
        newest.unpersist()


def _with_columns(
    rows: DataFrame, work: SnapshotWork, schemas: "Mapping[int, RegisteredSchema]"
) -> DataFrame:
    decoded = with_decoded_columns(rows, work.format, schemas)
    return decoded.select(
        F.lit(work.window).alias("window"),
        "partition",
        "offset",
        "timestamp_ms",
        *_key_parts(work.format),
        "decoded_key",
        "decoded_value",
        "decode_error",
        "headers",
        "key",
        "value",
    )


def _key_parts(store: StoreFormat) -> list[str]:
    return [name for name, _, _ in KEY_PARTS.get(store.kind, ())]


def _laid_out(rows: DataFrame, count: int, work: SnapshotWork) -> DataFrame:
    """As many tasks as files are to be written, and no fewer than cores where that is worth it."""
    size = count * max(work.record_bytes, 1.0)
    cores = rows.sparkSession.sparkContext.defaultParallelism
    files = max(1, ceil(size / _FILE_BYTES), min(cores, ceil(size / _TASK_BYTES)))
    # Fewer tasks than cores must not read the records: only what was chosen moves then.
    return rows.coalesce(files) if files >= cores else rows.repartition(files)
