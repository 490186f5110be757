"""The committed records of a cluster's topics, as files of one evaluation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from kstreams_assets.errors import KafkaError
from kstreams_assets.kafka.connection import CarriedConnection, KafkaConnection
from kstreams_assets.kafka.throttle import Throttle
from kstreams_assets.model.files import NewFile
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath
from spark_resources.data_files import NewFolder, SpanEdges
from spark_resources.span_tasks import run_here, run_on_spark, span_tasks
from spark_resources.work import ReadRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMPRESSION: Final = ("lz4_raw", 0)
"""The files exist for seconds."""


@dataclass(frozen=True, slots=True)
class TopicFiles:
    """The files of one topic, their number of records, and their size."""

    files: tuple[StorePath, ...] = ()
    records: int = 0
    bytes: int = 0


def read_topics(
    stretches: Sequence[ReadRange],
    folder: StorePath,
    *,
    connection: KafkaConnection,
    settings: ApplicationSettings,
    spark: "Callable[[], SparkSession]",
    throttle: Throttle | None = None,
) -> Mapping[str, TopicFiles]:
    """Read one offset range of each partition into files of `folder`, by the tasks of a backup.

    Returns:
        By topic; topics without a record there are left out.

    Raises:
        KafkaError: Its subclasses say why a partition cannot be read.
        SparkJobError: A task failed for another reason.
    """
    tasks = span_tasks(
        stretches,
        {
            (one.partition.topic, one.partition.partition): SpanEdges(
                ("",), (one.start,), (one.end,)
            )
            for one in stretches
        },
        folder=NewFolder(folder, *_COMPRESSION),
        connection=CarriedConnection.of(connection),
        idle_timeout_s=settings.backup.read_stall_s,
        throttle=throttle,
    )
    if settings.spark.needs_spark(sum(one.end - one.start for one in stretches)):
        from spark_resources.partition_tasks import run_partition_tasks

        done = run_partition_tasks(spark(), tasks, run_on_spark)
    else:
        done = run_here(tasks)
    for reason in (reason for one in done for reason in one.unread.values()):
        raise KafkaError(
            reason,
            remedy="Check the log of the partition's leader and its remote storage, then run the"
            " command again.",
        )
    found: dict[str, TopicFiles] = {}
    for row in chain.from_iterable(one.rows for one in done):
        file = NewFile.from_task_row(folder, row)
        topic = file.values["topic"]
        known = found.get(topic, TopicFiles())
        found[topic] = TopicFiles(
            files=(*known.files, folder / row["name"]),
            records=known.records + file.records,
            bytes=known.bytes + row["size"],
        )
    return found
