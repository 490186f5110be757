"""Outages that tasks of Spark meet reach the driver as outages; other errors do not."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.connect import PythonException

from kstreams_assets.errors import (
    ClusterUnavailableError,
    KafkaRequestError,
    SparkJobError,
    StoredDataError,
    TaskOutageError,
)
from spark_resources.failures import spark_failures
from spark_resources.outages import OutageInTaskError, is_outage, reporting_outages
from spark_resources.partition_tasks import run_partition_tasks
from spark_resources.resource import SparkSessionResource

NO_ANSWER = OSError(5, "its endpoint does not answer", "s3://backups/records/part-0.parquet")


def down() -> ClusterUnavailableError:
    return ClusterUnavailableError(
        bootstrap_servers="b:1", operation="fetch", timeout_s=1, reason="refused"
    )


DAMAGED = StoredDataError(subject="A file", problem="it is cut off", remedy="Repair it.")

SEEN = """
  An exception was thrown from the Python worker. Please see the stack trace below.
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/work/spark_resources/outages.py", line 89, in run
    raise OutageInTaskError(reason) from error
spark_resources.outages.OutageInTaskError: OSError: [Errno 5] its endpoint does not answer: 's3://backups/records/part-0.parquet'
 SQLSTATE: 38000"""  # noqa: E501
"""`str(error)` of PySpark 4.2 on an engine, as recorded on 2026-11-28.

It is of `read_files(spark, [path], "offset BIGINT").collect()`, where `path` is
`s3://backups/records/part-0.parquet` and no process listens on the store's endpoint. PySpark passes
on the error of the worker without its causes.
"""


def _raised_from(text: str) -> SparkJobError:
    with pytest.raises(SparkJobError) as found, spark_failures():
        raise PythonException(message=text)
    return found.value


def test_the_text_of_a_real_outage() -> None:
    found = _raised_from(SEEN)
    assert isinstance(found, TaskOutageError)
    assert is_outage(found)
    assert f"got no answer: OSError: {NO_ANSWER}. Check" in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    "line",
    [
        f"OSError: {NO_ANSWER}",
        "ValueError: spark_resources.outages.OutageInTaskError",
        "kstreams_assets.errors.StoredDataError: A file cannot be used.",
    ],
)
def test_texts_of_other_errors(line: str) -> None:
    """Only the class that a task raises for an outage counts, not what a message contains."""
    start = SEEN.index("spark_resources.outages.OutageInTaskError")
    found = _raised_from(f"{SEEN[:start]}{line}\n SQLSTATE: 38000")
    assert not is_outage(found)


def test_a_task_decides_where_it_runs() -> None:
    def raised(error: Exception) -> Exception:
        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches
            raise error

        with pytest.raises((OSError, SparkJobError, StoredDataError, OutageInTaskError)) as found:
            list(reporting_outages(task)(iter([])))
        return found.value

    assert str(raised(NO_ANSWER)) == f"OSError: {NO_ANSWER}"
    unreached = StoredDataError(subject="A file", problem="unread", remedy="Try again.")
    unreached.__cause__ = NO_ANSWER
    for outage in (NO_ANSWER, down(), unreached, ConnectionResetError("peer")):
        assert isinstance(raised(outage), OutageInTaskError)
    full = OSError(28, "No space left on device")
    for other in (DAMAGED, full):
        assert raised(other) is other


@pytest.mark.spark
def test_an_outage_of_a_real_task(spark: SparkSessionResource) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise NO_ANSWER

    rows = spark.spark_session.range(1)
    with pytest.raises(TaskOutageError, match="its endpoint does not answer"), spark_failures():
        rows.mapInArrow(reporting_outages(fail), "id BIGINT").collect()


@pytest.mark.spark
@pytest.mark.parametrize("outage", [True, False])
def test_a_partition_task(spark: SparkSessionResource, outage: bool) -> None:
    def fail(cause: OSError) -> None:
        raise KafkaRequestError(operation="produce", resource="t-0", reason="no") from cause

    cause = NO_ANSWER if outage else OSError(28, "No space left on device")
    with pytest.raises(KafkaRequestError) as ours:
        run_partition_tasks(spark.spark_session, [cause], fail)
    assert is_outage(ours.value) == outage

    def fail_alone(cause: OSError) -> None:
        raise cause

    with pytest.raises(SparkJobError) as foreign:
        run_partition_tasks(spark.spark_session, [cause], fail_alone)
    assert is_outage(foreign.value) == isinstance(foreign.value, TaskOutageError) == outage


@pytest.mark.spark
def test_brokers_that_do_not_answer_a_partition_task(spark: SparkSessionResource) -> None:
    def fail(_: int) -> None:
        raise down()

    with pytest.raises(ClusterUnavailableError) as found:
        run_partition_tasks(spark.spark_session, [0], fail)
    assert is_outage(found.value)
