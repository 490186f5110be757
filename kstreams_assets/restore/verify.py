"""Reads a restore back from the target and compares it with the backup.

Spark tasks compare records. This module selects what is compared, and queries the cluster: starts
and ends of the logs, topic ids, partition counts, configs.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import CarriedConnection, KafkaConnection
from kstreams_assets.kafka.throttle import Throttle
from kstreams_assets.model.restores import PartitionProduced, StoredTopic
from kstreams_assets.offsets import OffsetRange, OffsetRuns, TopicPartitionId
from kstreams_assets.restore.plan import TopicPlan
from kstreams_assets.settings import VerifyExtent
from spark_resources.partition_records import Difference, PartitionVerified, PartitionWork

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_resources.read_back import PartitionReading

SAMPLE_ENDS: Final = 1_000
SAMPLE_RANGES: Final = 10
SAMPLE_RANGE_LENGTH: Final = 100

_TASK_RECORDS: Final = 250_000
_TASK_PARTITIONS: Final = 50
_WHOLE_TOPIC: Final = -1


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result of reading a restore back.

    `partitions` is in the order of the works; partitions of missing topics are absent. `problems`
    are all differences from the backup: the first ones of each partition, and problems of logs and
    topics.
    """

    extent: VerifyExtent
    partitions: tuple[PartitionVerified, ...]
    problems: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Whether the target matches the backup, as far as it was compared."""
        return not self.problems

    @property
    def compared(self) -> int:
        """Number of records that were compared one by one."""
        return sum(partition.compared for partition in self.partitions)

    def explanation(self) -> str:
        """Return the verdict of the check `restored_matches_backup`, in words."""
        if self.problems:
            return _explained(self.problems, sum(p.differing for p in self.partitions))
        records = sum(partition.records for partition in self.partitions)
        counted = f"{len(self.partitions)} partitions have {records:,} records, like the backup"
        replaced = sum(partition.replaced_timestamps for partition in self.partitions)
        times = f"; {replaced} of them had no timestamp and got the restore's" if replaced else ""
        if self.extent is VerifyExtent.COUNTS:
            return f"{counted}; none was compared (verify: counts)."
        if self.extent is VerifyExtent.SAMPLE:
            return f"{counted}; {self.compared:,} were compared (verify: sample){times}."
        return f"{counted}; all {self.compared:,} were compared{times}."


def verify(
    spark: "SparkSession",
    works: Sequence[PartitionWork],
    produced: Sequence[PartitionProduced],
    *,
    topics: Sequence[TopicPlan],
    stored: Sequence[StoredTopic],
    connection: KafkaConnection,
    extent: VerifyExtent,
    log: Callable[[str], None],
    accept_replaced_timestamps: bool = False,
    throttle: Throttle | None = None,
    tasks: int | None = None,
) -> VerifyResult:
    """Read the target back to the given extent, and compare it with the backup.

    `topics` and `stored` are the plan's topics and the created ones. With
    `accept_replaced_timestamps` timestamps that are 0 or below in the backup are not compared, but
    counted. `tasks` are read back at a time.

    Raises:
        KafkaError: Its subclasses say why the target could not be read.
        OffsetMapError: The backup has other records than were produced.
        SparkJobError: A task failed for another reason.
    """
    from spark_resources.partition_tasks import run_partition_tasks
    from spark_resources.read_back import ReadBackTask

    with KafkaCluster(connection) as cluster:
        gone = _gone(cluster, stored)
        ends = {p.target: p for p in produced if p.target.topic not in gone}
        present = [work for work in works if work.target in ends]
        readings = _readings(
            cluster, present, ends, extent, accept_replaced_timestamps=accept_replaced_timestamps
        )
        records = sum(len(stretch) for reading in readings for stretch in reading.stretches)
        log(f"Reading back {records:,} records of {len(present)} partitions (verify: {extent}).")
        carried = CarriedConnection.of(connection)
        task = ReadBackTask(carried, connection.request_timeout_seconds, throttle)
        found = run_partition_tasks(spark, _bundles(readings), task, at_a_time=tasks)
        by_target = {verified.target: verified for bundle in found for verified in bundle}
        partitions = tuple(by_target.get(w.target) or _uncompared(w) for w in present)
        problems = [
            *gone.values(),
            *_counts(works, produced),
            *_log_problems(cluster, present, ends),
            *_topic_problems(cluster, [topic for topic in topics if topic.target not in gone]),
            *(difference for partition in partitions for difference in partition.differences),
        ]
    result = VerifyResult(extent, partitions, tuple(problems))
    log(result.explanation())
    return result


def sampled_ranges(
    target: TopicPartitionId, records: OffsetRange, extent: VerifyExtent
) -> tuple[OffsetRange, ...]:
    """Return the target offsets to compare, in order, disjoint.

    A sample has the first and last `SAMPLE_ENDS`, and random ranges in between, which are the same
    each time the partition is verified.
    """
    if extent is VerifyExtent.COUNTS or not len(records):
        return ()
    first, last = records.start + SAMPLE_ENDS, records.end - SAMPLE_ENDS
    inner = max(0, last - first) // SAMPLE_RANGES
    if extent is VerifyExtent.FULL or inner <= SAMPLE_RANGE_LENGTH:
        return (records,)
    chance = random.Random(f"{target} {records.end}")  # noqa: S311 - not used for secrets
    starts = (
        first + number * inner + chance.randrange(inner - SAMPLE_RANGE_LENGTH)
        for number in range(SAMPLE_RANGES)
    )
    return (
        OffsetRange(records.start, first),
        *(OffsetRange(start, start + SAMPLE_RANGE_LENGTH) for start in starts),
        OffsetRange(last, records.end),
    )


def _readings(
    cluster: KafkaCluster,
    works: Sequence[PartitionWork],
    produced: Mapping[TopicPartitionId, PartitionProduced],
    extent: VerifyExtent,
    *,
    accept_replaced_timestamps: bool,
) -> list["PartitionReading"]:
    from spark_resources.read_back import PartitionReading

    targets = [work.target for work in works]
    log_starts = cluster.log_start_offsets(targets)
    stable_ends = cluster.last_stable_offsets(targets)
    readings = []
    for work in works:
        target, end = work.target, produced[work.target].end
        # what is below the log start is reported once, not record by record
        start = min(max(work.base_offset, log_starts[target]), end)
        stretches = sampled_ranges(target, OffsetRange(start, end), extent)
        if stretches:
            runs = OffsetRuns.of(produced[target].runs)
            readings.append(
                PartitionReading(
                    work, runs, end, stretches, stable_ends[target], accept_replaced_timestamps
                )
            )
    return readings


def _bundles(readings: Iterable["PartitionReading"]) -> list[list["PartitionReading"]]:
    """Return readings by task: large partitions alone and first, small ones share a consumer."""
    sizes = [(sum(map(len, reading.stretches)), reading) for reading in readings]
    bundles: list[list[PartitionReading]] = []
    room = 0
    for size, reading in sorted(sizes, key=lambda pair: -pair[0]):
        if not bundles or size > room or len(bundles[-1]) == _TASK_PARTITIONS:
            bundles.append([])
            room = _TASK_RECORDS
        bundles[-1].append(reading)
        room -= size
    return bundles


def _uncompared(work: PartitionWork) -> PartitionVerified:
    return PartitionVerified(work.target, work.records, compared=0, differing=0, differences=())


def _gone(cluster: KafkaCluster, stored: Sequence[StoredTopic]) -> dict[str, Difference]:
    """Return topics that are not the restored ones."""
    present = cluster.metadata().topics
    gone = {}
    for topic in stored:
        found = present.get(topic.target)
        if found is None:
            gone[topic.target] = _of_topic(topic.target, "the topic does not exist any more")
        elif found.topic_id != topic.target_topic_id:
            what = f"the topic was recreated: its id is {found.topic_id}, it was"
            gone[topic.target] = _of_topic(topic.target, f"{what} {topic.target_topic_id}")
    return gone


def _counts(
    works: Sequence[PartitionWork], produced: Sequence[PartitionProduced]
) -> Iterable[Difference]:
    by_target = {partition.target: partition for partition in produced}
    for work in works:
        partition = by_target.get(work.target)
        records = 0 if partition is None else int(OffsetRuns.of(partition.runs).lengths.sum())
        if records != work.records:
            what = f"{records} records were produced, the backup has {work.records}"
            yield Difference(work.target, None, what)


def _log_problems(
    cluster: KafkaCluster,
    works: Sequence[PartitionWork],
    produced: Mapping[TopicPartitionId, PartitionProduced],
) -> Iterable[Difference]:
    """Yield logs with unexpected starts or ends, after the records were read."""
    targets = [work.target for work in works]
    log_starts = cluster.log_start_offsets(targets)
    stable_ends = cluster.last_stable_offsets(targets)
    high_watermarks = cluster.high_watermarks(targets)
    for work in works:
        target, end = work.target, produced[work.target].end
        log_start, high_watermark = log_starts[target], high_watermarks[target]
        if log_start < work.base_offset:
            before = work.base_offset - log_start
            what = f"{before} offsets precede offset {work.base_offset}, at which this restore"
            yield Difference(target, log_start, f"{what} started: another process wrote them")
        if log_start > work.base_offset and work.records:
            what = f"the log starts here, records from offset {work.base_offset} on were deleted"
            yield Difference(target, log_start, what)
        if high_watermark < end:
            what = f"the log ends here, it must end at {end}: {end - high_watermark} are missing"
            yield Difference(target, high_watermark, what)
        if high_watermark > end:
            more = high_watermark - end
            what = (
                f"the restored records end here, {more} more offsets follow: another process writes"
            )
            yield Difference(target, end, f"{what} to this topic")
        if stable_ends[target] < high_watermark:
            what = "an open transaction begins here: another process writes to this topic"
            yield Difference(target, stable_ends[target], what)


def _topic_problems(cluster: KafkaCluster, topics: Sequence[TopicPlan]) -> Iterable[Difference]:
    described = cluster.describe_topics(topic.target for topic in topics)
    for topic in topics:
        found = described[topic.target]
        if found.partitions != len(topic.partitions):
            what = f"has {found.partitions} partitions instead of {len(topic.partitions)}"
            yield _of_topic(topic.target, what)
        for name, value in sorted(topic.configs.items()):
            effective = found.effective_configs.get(name)
            if effective != value:
                what = f"config {name} is {effective} instead of {value}, which the restore had set"
                yield _of_topic(topic.target, what)


def _of_topic(topic: str, what: str) -> Difference:
    return Difference(TopicPartitionId(topic, _WHOLE_TOPIC), None, what)


def _explained(problems: Sequence[Difference], differing: int) -> str:
    shown = "; ".join(str(problem) for problem in problems[:10])
    more = f"; {len(problems) - 10} more are in the log" if len(problems) > 10 else ""
    counted = f" ({differing} records differ)" if differing else ""
    return (
        f"The target differs from the backup{counted}: {shown}{more}. No group offsets are"
        " committed. Find out what else writes to or deletes from the topic, delete the restored"
        " topics and run the restore again."
    )
