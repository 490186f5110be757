"""Writes one partition of a restore in a Spark task.

After any failure, and after a kill at any moment, the target holds the first so many records in
order and nothing else (see `record_writer`), so that counting them says where to go on.

Spark starts the task of a lost executor anew, and the lost one may still write, or go on writing
after a pause of any length. All attempts of a run have one producer id, so the broker takes each
record once and in order, whoever sends it. Where they meet, the later attempt waits until the
earlier one is still; an earlier one gives up.
"""

import time
from math import inf
from typing import Final

import numpy as np
from pyspark import TaskContext

from kstreams_assets.errors import OvertakenError
from kstreams_assets.kafka.record_writer import RecordWriter, foreign_records
from kstreams_assets.model.restores import PartitionProduced
from kstreams_assets.offsets import OffsetRuns, merge_runs, runs_of
from spark_resources.partition_records import PartitionWork, work_offsets, work_records
from spark_resources.partition_tasks import check_stop

_SETTLE_S: Final = 1.0
_SETTLE_LIMIT_S: Final = 30.0


def records_there(work: PartitionWork, writer: RecordWriter, *, settled_end: int | None) -> int:
    """How many of the records earlier attempts have written, once none are on their way.

    They are the first ones, since only this restore writes the partition. Looks again after a
    second until the end moves no more, except where the caller has seen that already
    (`settled_end`). Behind an earlier attempt of this run it looks for as long as that one writes.

    Raises:
        KStreamsAssetsError: The end cannot be this restore's, or moves on and on.
        ClusterUnavailableError, TopicNotFoundError, AuthorizationFailedError (DESCRIBE).
    """
    end = writer.end(work.target)
    most = work.base_offset + work.records
    if end != settled_end or is_second_attempt():
        limit_s = inf if is_second_attempt() else _SETTLE_LIMIT_S
        end = _settled(work, writer, end, most=most, limit_s=limit_s)
    if end < work.base_offset:
        problem = f"it ends at {end}, below {work.base_offset} where the restore began"
    elif end > most:
        problem = f"it ends at {end}, behind {most} where the restore's last record goes"
    else:
        return end - work.base_offset
    raise foreign_records(work.target, problem)


def _settled(
    work: PartitionWork, writer: RecordWriter, end: int, *, most: int, limit_s: float
) -> int:
    deadline = time.monotonic() + limit_s
    while end < most or limit_s < inf:
        check_stop()
        before = end
        time.sleep(_SETTLE_S)
        end = writer.end(work.target)
        if end == before:
            return end
        if time.monotonic() > deadline:
            problem = f"it grew for {limit_s:g} s before this attempt wrote anything"
            raise foreign_records(work.target, problem)
    return end


def is_second_attempt() -> bool:
    """Whether Spark started the task anew: the first one may still write."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def produce_partition(
    work: PartitionWork, writer: RecordWriter, *, settled_end: int | None = None
) -> PartitionProduced:
    """Write the records of one partition that are not there yet, and wait until all are.

    `settled_end` is the target's end where the caller has seen that it moves no more.

    Raises:
        KStreamsAssetsError: The partition ends elsewhere than this restore alone would have left
            it.
        OvertakenError: A later attempt of the same run writes it.
        KStreamsAssetsError: The backup does not give the planned records.
            What `RecordWriter.write` raises.
    """
    reached = -1
    while True:
        resumed = records_there(work, writer, settled_end=settled_end)
        try:
            return _produced(work, writer, resumed)
        except OvertakenError:
            # Whoever was quicker has written a record since: else it is none of this restore's.
            if not is_second_attempt() or resumed <= reached:
                raise
            reached = resumed


def _produced(work: PartitionWork, writer: RecordWriter, resumed: int) -> PartitionProduced:
    runs: list[OffsetRuns] = []
    end = work.base_offset
    for offsets in work_offsets(work, first=resumed) if resumed else ():
        runs.append(runs_of(offsets, np.arange(end, end + len(offsets))))
        end += len(offsets)
    if resumed < work.records:
        records = work_records(work, skip=resumed)
        for sources, first in writer.write(work.target, records, first=work.base_offset + resumed):
            check_stop()
            runs.append(runs_of(sources, np.arange(first, first + len(sources))))
    return PartitionProduced(
        source=work.source,
        target=work.target,
        runs=merge_runs(runs),
        records=work.records,
        resumed=resumed,
        end=work.base_offset + work.records,
    )
