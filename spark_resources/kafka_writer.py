"""Writes one partition of a restore in a Spark task.

After any failure, and after a kill at any time, the target has the first records in order and
nothing else (see `record_writer`), so their number shows where to continue.

Spark starts the task of a lost executor again, and the lost one may still write, or continue after
a pause of any length. All attempts of a run have one producer id, so the broker accepts each record
once and in order, from any attempt. If two attempts meet, the later one waits until the earlier one
is quiet; the earlier one gives up.
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
    """Return how many of the records earlier attempts have written, once none are in flight.

    They are the first ones, since only this restore writes the partition. Reads the end again each
    second until it stays the same, unless the caller has seen that already (`settled_end`).
    After an earlier attempt of this run it waits while that one writes.

    Raises:
        KStreamsAssetsError: The end cannot be this restore's, or keeps moving.
        ClusterUnavailableError, TopicNotFoundError, AuthorizationFailedError (DESCRIBE).
    """
    end = writer.end(work.target)
    most = work.base_offset + work.records
    if end != settled_end or is_second_attempt():
        limit_s = inf if is_second_attempt() else _SETTLE_LIMIT_S
        end = _settled(work, writer, end, most=most, limit_s=limit_s)
    if end < work.base_offset:
        problem = f"it ends at {end}, below {work.base_offset}, the start of the restore"
    elif end > most:
        problem = f"it ends at {end}, beyond {most}, the end of the restore's last record"
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
    """Whether Spark started the task again: the first attempt may still write."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def produce_partition(
    work: PartitionWork, writer: RecordWriter, *, settled_end: int | None = None
) -> PartitionProduced:
    """Write the missing records of one partition, and wait until all are written.

    `settled_end` is the target's end if the caller has seen that it stays the same.

    Raises:
        KStreamsAssetsError: The partition does not end where this restore alone would have left
            it.
        OvertakenError: A later attempt of the same run writes it.
        KStreamsAssetsError: The backup does not have the planned records.
            What `RecordWriter.write` raises.
    """
    reached = -1
    while True:
        resumed = records_there(work, writer, settled_end=settled_end)
        try:
            return _produced(work, writer, resumed)
        except OvertakenError:
            # A faster attempt has written a record since; any other record is foreign.
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
