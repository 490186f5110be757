"""One Spark job of a KTable: reduces records to the newest of each key, decodes and writes them.

Two narrow passes in place of a shuffle of payloads: first the newest record of each key is found
from keys and offsets alone, then the records are read again and those chosen are kept.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import deltalake
from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from kstreams_assets.errors import KTableColumnsError
from kstreams_assets.ktables.columns import KEY_PARTS
from kstreams_assets.ktables.plan import SnapshotContent, SnapshotWork
from kstreams_assets.ktables.snapshots_table import (
    open_table,
    problems_in,
    rows_by_partition,
    window_files,
)
from kstreams_assets.ktables.store_format import StoreFormat
from kstreams_assets.warehouse.layout import LAYOUT_PROPERTY, LAYOUT_VERSION
from kstreams_assets.warehouse.table import sql_string
from spark_resources.ktable_columns import with_decoded_columns
from spark_resources.ktable_rows import Newest, chosen_rows, newest_rows, read_source
from spark_resources.spans import SparkJobError, innermost_cause

if TYPE_CHECKING:
    from kstreams_assets.ktables.schemas import RegisteredSchema


_PROPERTIES: Final = {
    LAYOUT_PROPERTY: str(LAYOUT_VERSION),
    # Keys and values lie in no order: their lowest and highest would skip no file.
    "delta.dataSkippingStatsColumns": "partition,offset,timestamp_ms",
}


def write_window(
    rows: DataFrame,
    path: Path,
    *,
    window: str,
    provenance: Mapping[str, object],
    compression: str,
    compression_level: int,
) -> int:
    """Put rows in place of what the table holds for a window, in one Delta transaction.

    The table is made if need be. Columns and fields that are new are added to it; rows of other
    windows have none of them.

    Returns:
        The version of the table that holds the rows.

    Raises:
        KTableColumnsError: A column has another type in the table.
    """
    spark = rows.sparkSession
    schema = rows.schema
    _ensure(spark, path, schema)
    _refuse_other_types(path, schema)
    settings = {
        # Below two, Spark would sort the rows by their window, which is the same for all.
        "spark.sql.maxConcurrentOutputFileWriters": "2",
        "spark.sql.parquet.compression.codec": compression,
        "parquet.compression.codec.zstd.level": str(compression_level),
    }
    # A dictionary of payloads never pays, and the attempt costs a third of the write.
    for column in ("key", "value", "decoded_key", "decoded_value"):
        settings[f"parquet.enable.dictionary#{column}"] = "false"
    for name, value in settings.items():
        spark.conf.set(name, value)
    (
        rows.write.format("delta")
        .mode("overwrite")
        .option("replaceWhere", f"window = {sql_string(window)}")
        .option("mergeSchema", "true")
        .option("userMetadata", json.dumps(provenance, sort_keys=True))
        .save(str(path))
    )
    return deltalake.DeltaTable(path).version()


def _ensure(spark: SparkSession, path: Path, schema: StructType) -> None:
    if open_table(path) is not None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    builder = DeltaTable.createIfNotExists(spark).location(str(path)).addColumns(schema)
    for name, value in _PROPERTIES.items():
        builder = builder.property(name, value)
    builder.partitionedBy("window").execute()


def _refuse_other_types(path: Path, schema: StructType) -> None:
    there = StructType.fromJson(json.loads(deltalake.DeltaTable(path).schema().to_json()))
    differing = dict(_differences("", there, schema))
    if differing:
        raise KTableColumnsError(store=path.name, table=path, columns=differing)


def _differences(
    name: str, there: DataType, wanted: DataType
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Columns of both, fields dotted, whose types cannot be brought together."""
    if isinstance(there, StructType) and isinstance(wanted, StructType):
        known = {field.name.lower(): field for field in there}
        for field in wanted:
            other = known.get(field.name.lower())
            if other is not None:
                path = f"{name}.{field.name}" if name else field.name
                yield from _differences(path, other.dataType, field.dataType)
    elif isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        yield from _differences(name, there.elementType, wanted.elementType)
    elif there.simpleString() != wanted.simpleString():
        yield name, (there.simpleString(), wanted.simpleString())


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
