"""What a command needs that makes one run: a Spark session, and an id."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kstreams_assets.backup.unreported import COMMAND_RUN
from spark_resources.work import Spark


class SparkRun(NamedTuple):
    """A session that is started when it is first used, the id of the run, what ends its jobs."""

    spark: Spark
    id: str
    interrupt: Callable[[], None]


@contextmanager
def spark_run() -> Iterator[SparkRun]:
    """A run on Spark; its session ends with it."""
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
    """An id that no Dagster run has."""
    return f"{COMMAND_RUN}{uuid.uuid4()}"
