"""The Delta table of an application's records: schema, creation, writing a group of windows."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from kstreams_assets.backup.content import open_records
from kstreams_assets.warehouse.layout import LAYOUT_PROPERTY, LAYOUT_VERSION
from kstreams_assets.warehouse.predicate import WindowTopic, windows_and_topics

RECORD_COLUMNS = (
    "window STRING NOT NULL, topic STRING NOT NULL, partition INT NOT NULL, "
    "offset BIGINT NOT NULL, timestamp_ms BIGINT, timestamp_type INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, key BINARY, value BINARY"
)
"""A record of a backup; `timestamp_ms` is epoch milliseconds exactly as Kafka stored it."""


def ensure_records(spark: SparkSession, path: Path) -> None:
    """Create the table unless it exists.

    Raises:
        NewerLayoutError: A newer release wrote it.
    """
    if open_records(path) is not None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS delta.`{path}` ({RECORD_COLUMNS}) USING delta "
        "PARTITIONED BY (window, topic) TBLPROPERTIES ("
        f"'{LAYOUT_PROPERTY}' = '{LAYOUT_VERSION}')"
    )


def write_windows(
    records: DataFrame,
    path: Path,
    *,
    replaces: Sequence[WindowTopic],
    provenance: Mapping[str, object],
    open_files: int,
    compression: str = "zstd",
    compression_level: int = 1,
) -> int:
    """Put records in place of what the table holds for these windows and topics.

    One Delta transaction: a kill at any moment leaves all of it or nothing. `open_files` is the
    greatest number of windows that one task meets; below it Spark would sort, and lose the offset
    order inside a file.

    Returns:
        The version of the table that holds the records.
    """
    spark = records.sparkSession
    for key, value in _file_settings(compression, compression_level, open_files).items():
        spark.conf.set(key, value)
    (
        records.write.format("delta")
        .mode("overwrite")
        .option("replaceWhere", windows_and_topics(replaces))
        .option("userMetadata", json.dumps(provenance, sort_keys=True))
        .save(str(path))
    )
    return DeltaTable(path).version()


def restore_version(spark: SparkSession, path: Path, version: int) -> None:
    """Undo what was written after a version; the caller holds the table's lock."""
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")


def _file_settings(compression: str, level: int, open_files: int) -> dict[str, str]:
    """Delta forwards few options of a write; the rest must be settings of the session."""
    return {
        "spark.sql.maxConcurrentOutputFileWriters": str(open_files + 1),
        "spark.sql.parquet.compression.codec": compression,
        "parquet.compression.codec.zstd.level": str(level),
        # A dictionary of payloads never pays, and the attempt costs a third of the write.
        "parquet.enable.dictionary#key": "false",
        "parquet.enable.dictionary#value": "false",
    }
