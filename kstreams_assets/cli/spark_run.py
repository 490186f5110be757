"""Spark session and run id of a command."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kstreams_assets.backup.unreported import COMMAND_RUN
from spark_resources.work import Spark


class SparkRun(NamedTuple):
    """A session that starts at its first use, the run id, and a function that ends its jobs."""

    spark: Spark
    id: str
    interrupt: Callable[[], None]


@contextmanager
def spark_run() -> Iterator[SparkRun]:
    """Start a run on Spark; its session ends with the context."""
    from spark_resources.session import LazySession

    spark = LazySession()
    try:
        yield SparkRun(spark, new_run_id(), spark.interrupt)
    except KeyboardInterrupt:
        spark.interrupt()
        raise
    finally:
        spark.stop()


def new_run_id() -> str:
    """Return a new id that differs from all Dagster run ids."""
    return f"{COMMAND_RUN}{uuid.uuid4()}"
