"""The Delta table of a store: creation, columns, writing one window."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import deltalake
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, StructType

from kstreams_assets.errors import KTableColumnsError
from kstreams_assets.ktables.content import open_table
from kstreams_assets.warehouse.layout import LAYOUT_PROPERTY, LAYOUT_VERSION
from kstreams_assets.warehouse.predicate import sql_string

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
