"""Records that topics of a cluster hold now, read once for all views of them."""

from collections.abc import Mapping, Sequence

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kstreams_assets.backup.plan import ReadRange
from spark_resources.backup_job import SparkJobError, innermost_cause, set_properties
from spark_resources.span_reader import no_records, read_stretches


def cluster_records(
    spark: SparkSession,
    stretches: Sequence[ReadRange],
    *,
    kafka_options: Mapping[str, str],
    system_properties: Mapping[str, str],
    group_id_prefix: str,
) -> DataFrame:
    """The committed records of these stretches, one of each partition; read when first needed.

    Returns:
        Columns of the table of records; `window` is NULL. They are kept until `unpersist`.

    Raises:
        SparkJobError: Spark refused the read.
    """
    try:
        set_properties(spark, system_properties)
        if stretches:
            rows = read_stretches(spark, kafka_options, stretches, group_id_prefix)
            rows = rows.withColumn("window", F.lit(None).cast("string"))
        else:
            rows = no_records(spark)
        return rows.persist(StorageLevel.MEMORY_AND_DISK)
    except (PySparkException, Py4JError) as error:
        raise SparkJobError(innermost_cause(str(error))) from error
