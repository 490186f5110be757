"""The Spark session in which completeness rules run."""

from typing import Final

from pyspark.sql import SparkSession

_OWN: Final = {
    "spark.sql.session.timeZone": "UTC",
    # One job for the first rows of a result, in place of one for a partition, then for four more.
    "spark.sql.limit.initialNumPartitions": "100000",
    # Else many files are listed by a job of their own.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # The text of a rule is what runs: `${env:HOME}` in it is not replaced, a path is no table.
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
}
_INHERITED: Final = ("spark.sql.shuffle.partitions",)
_FEW_RECORDS: Final = 300_000
_BY_SIZE: Final = {
    # Of few records, compiling the code of a query takes longer than running it uncompiled, and so
    # does planning it anew after each of its stages [measured: 3.3 s CPU in place of 10 for the six
    # rules of the order processor over 20,000 records].
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
    "spark.sql.adaptive.enabled": ("false", "true"),
}


def new_session(spark: SparkSession) -> SparkSession:
    """A session beside another one: the same JVM, temp views and settings of its own."""
    session = spark.newSession()
    for name in _INHERITED:
        value = spark.conf.get(name, None)
        if value is not None:
            session.conf.set(name, value)
    for name, value in _OWN.items():
        session.conf.set(name, value)
    return session


def tune(session: SparkSession, records: int) -> None:
    """Set the session up for a query over about so many records."""
    few = records <= _FEW_RECORDS
    for name, (for_few, for_many) in _BY_SIZE.items():
        session.conf.set(name, for_few if few else for_many)
