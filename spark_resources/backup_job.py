"""One Spark job of a backup: read spans, write their windows."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kstreams_assets.backup.plan import ReadRange, SpanPlan
from kstreams_assets.warehouse.predicate import WindowTopic
from spark_resources.records_table import ensure_records, write_windows
from spark_resources.span_reader import no_records, read_spans

_CAUSE = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_EXCEPTION = re.compile(r"^\s*((?:[\w$]+\.)+\w*(?:Exception|Error): .+)$", re.MULTILINE)
_TELLING = ("org.apache.kafka.", "org.apache.spark.sql.kafka010.", "org.apache.spark.sql.delta.")


class SparkJobError(RuntimeError):
    """A Spark job failed; the text is its innermost cause, without the Java stack."""


def write_spans(
    spark: SparkSession,
    path: Path,
    *,
    kafka_options: Mapping[str, str],
    system_properties: Mapping[str, str] | None = None,
    reads: Sequence[Sequence[ReadRange]],
    spans: Sequence[SpanPlan],
    replaces: Sequence[WindowTopic],
    provenance: Mapping[str, object],
    group_id_prefix: str,
    compression: str = "zstd",
    compression_level: int = 1,
) -> int:
    """Put the records of the spans in place of what the table holds for `replaces`.

    Returns:
        The table's version that holds them.

    Raises:
        SparkJobError: Reading or writing failed; the table is as it was.
        NewerLayoutError: A newer release wrote the table.
    """
    try:
        set_properties(spark, system_properties or {})
        ensure_records(spark, path)
        if reads:
            records = read_spans(
                spark,
                kafka_options=kafka_options,
                reads=reads,
                spans=spans,
                group_id_prefix=group_id_prefix,
            )
        else:
            records = no_records(spark)
        windows = {pair.window for pair in replaces}
        return write_windows(
            records,
            path,
            replaces=replaces,
            provenance=provenance,
            open_files=len(windows) + 1,
            compression=compression,
            compression_level=compression_level,
        )
    except (PySparkException, Py4JError) as error:
        raise SparkJobError(innermost_cause(str(error))) from error


def set_properties(spark: SparkSession, properties: Mapping[str, str]) -> None:
    """JVM properties of the driver; a Connect server or a cluster has them in its own options."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        for name, value in properties.items():
            jvm.java.lang.System.setProperty(name, value)


def innermost_cause(text: str) -> str:
    """The innermost cause that Kafka, Spark's Kafka source or Delta names, else the innermost.

    Below those lie Java's own (`ArithmeticException: long overflow`), which say less.
    """
    causes = _CAUSE.findall(text) or _EXCEPTION.findall(text)
    if not causes:
        return text.strip().splitlines()[0]
    telling = [cause for cause in causes if cause.startswith(_TELLING)]
    package_and_class, _, message = (telling or causes)[-1].strip().partition(":")
    return f"{package_and_class.rpartition('.')[2]}:{message}" if message else package_and_class
