"""Rows of a warehouse as a DataFrame, for any location of the warehouse.

On a disk the JVM reads them, without unneeded columns and row groups: through Delta Lake
(`read_table`), or as Parquet files. From an object store Python tasks read the files: executors
then need neither Hadoop's client for the store nor its keys in the configuration of the JVM.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.model.data_files import TableScan, renumbered
from kstreams_assets.model.spans import window_of
from kstreams_assets.offsets import OffsetRuns
from kstreams_assets.store import StorePath, store_at
from spark_resources.outages import reporting_outages
from spark_resources.work import NOT_RENUMBERED, Renumbering

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_BATCH: Final = 4_096
_TASKS: Final = 64


def read_files(
    spark: "SparkSession",
    files: Sequence[StorePath],
    schema: "StructType | str | None" = None,
    *,
    windows: Sequence[str] = (),
    renumbering: Renumbering = NOT_RENUMBERED,
) -> "DataFrame":
    """Return the rows of files; columns that a file does not have are null.

    `schema` are the columns, None for those of the first file. `windows` are the keys of the
    files' windows, one for each; then column `window` has them. Records of files in `renumbering`
    have the offsets that a restore assigned to them.
    """
    older = [number for number, file in enumerate(files) if file in renumbering.runs]
    if older and len(older) < len(files):
        others = [number for number in range(len(files)) if number not in {*older}]
        frames = [
            read_files(
                spark,
                [files[number] for number in chosen],
                schema,
                windows=[windows[number] for number in chosen] if windows else (),
                renumbering=renumbering,
            )
            for chosen in (older, others)
        ]
        return frames[0].unionByName(frames[1])
    if not older and all(store_at(file).on_disk for file in files):
        reader = spark.read if schema is None else spark.read.schema(schema)
        rows = reader.parquet(*map(str, files))
        return _with_windows(rows, files, windows) if windows else rows
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    if isinstance(schema, str):
        # Parsed by the server: pyspark's own parser needs a JVM in this process.
        wanted = spark.createDataFrame([], schema).schema
    else:
        wanted = schema or from_arrow_schema(pq.read_schema(store_at(files[0]).readable()))
    if windows:
        wanted = StructType([*wanted.fields, StructField("window", StringType())])
    columns = to_arrow_schema(wanted)
    runs = {number: renumbering.runs[files[number]] for number in older}
    task = _Reader(tuple(files), columns, tuple(windows), runs)
    items = spark.range(0, len(files), 1, numPartitions=min(len(files), _TASKS))
    return items.mapInArrow(reporting_outages(task.read), wanted)


def read_table(
    spark: "SparkSession",
    scan: TableScan,
    columns: Sequence[str],
    *,
    with_windows: bool = False,
) -> "DataFrame":
    """The rows of partitions of the table of records at a version.

    `columns` are their names. `with_windows` adds column `window`, the key of
    the window that a record belongs to.
    """
    from pyspark.sql import functions as F

    table = spark.read.format("delta").option("versionAsOf", scan.version).load(str(scan.table))
    rows = table.where(_one_of("window", scan.windows)).where(_one_of("topic", [scan.topic]))
    if not with_windows:
        return rows.select(*columns)
    others = {value: key for value in scan.windows if (key := window_of(value)) != value}
    key = F.col("window")
    if others:
        told = "\n".join(f"{value}\t{key}" for value, key in others.items())
        by_value = F.str_to_map(F.lit(told), F.lit("\n"), F.lit("\t"))
        key = F.coalesce(F.element_at(by_value, key), key)
    return rows.select(*columns, key.alias("window"))


def _one_of(column: str, values: Sequence[str]) -> str:
    """SQL: each literal as a message of its own would take longer than the query."""
    listed = ", ".join(f"'{value}'" for value in values)
    return f"{column} IN ({listed})"


def _with_windows(
    rows: "DataFrame", files: Sequence[StorePath], windows: Sequence[str]
) -> "DataFrame":
    """Add one literal: an unused column costs nothing."""
    from pyspark.sql import functions as F

    listed = "\n".join(f"{f.name}\t{window}" for f, window in zip(files, windows, strict=True))
    by_name = F.str_to_map(F.lit(listed), F.lit("\n"), F.lit("\t"))
    return rows.withColumn("window", F.element_at(by_name, F.col("_metadata.file_name")))


@dataclass(frozen=True, slots=True)
class _Reader:
    """A task: reads the files with the numbers that it receives."""

    files: tuple[StorePath, ...]
    columns: pa.Schema
    windows: tuple[str, ...]
    runs: Mapping[int, OffsetRuns]

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                window = self.windows[number] if self.windows else None
                yield from self._rows(self.files[number], window, self.runs.get(number))

    def _rows(
        self, path: StorePath, window: str | None, runs: OffsetRuns | None
    ) -> Iterator[pa.RecordBatch]:
        with (
            store_at(path).fetched() as local,
            pq.ParquetFile(local, page_checksum_verification=True) as file,
        ):
            there = [name for name in self.columns.names if name in file.schema_arrow.names]
            for read in file.iter_batches(_BATCH, columns=there):
                rows = renumbered(read, runs)
                yield pa.RecordBatch.from_arrays(
                    [self._column(field, rows, window) for field in self.columns],
                    schema=self.columns,
                )

    @staticmethod
    def _column(field: pa.Field, rows: pa.RecordBatch, window: str | None) -> pa.Array:
        if field.name in rows.schema.names:
            return rows.column(field.name).cast(field.type)
        value = pa.scalar(window if field.name == "window" else None, field.type)
        return pa.repeat(value, rows.num_rows)
