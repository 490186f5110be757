"""Fetch requests, and what their answers mean; shared by the readers of the raw log."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple

import kafka.errors as client_errors
from kafka.protocol.consumer import FetchRequest

from kstreams_assets.errors import (
    AuthorizationFailedError,
    KafkaRequestError,
    OffsetOutOfRangeError,
)
from kstreams_assets.kafka.leaders import MOVED, TOPIC_NOT_ALLOWED, PartitionLeaders
from kstreams_assets.kafka.offsets import EARLIEST, LATEST, Isolation, list_offsets
from kstreams_assets.kafka.raw_batch import RawBatch, parse_with_bytes
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import TopicPartitionId

FIRST_FETCH_BYTES: Final = 2**19
LARGEST_FETCH_BYTES: Final = 2**24

# From version 13 on topics go by id; version 12 is what every broker from 2.7 to 4.x answers.
_FETCH_VERSION: Final = 12
_OUT_OF_RANGE: Final = client_errors.OffsetOutOfRangeError.errno


class Wanted(NamedTuple):
    """What is asked of one partition."""

    partition: TopicPartitionId
    position: int
    max_bytes: int


def fetch_request(
    wanted: Iterable[Wanted], *, max_bytes: int, isolation: Isolation
) -> FetchRequest:
    """A request that is answered at once, and whose answer is filled in the order of `wanted`.

    The first partition that has data gives at least one batch, however large it is.
    """
    topic = FetchRequest.FetchTopic
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=isolation.value,
        topics=[
            topic(
                topic=name,
                partitions=[
                    topic.FetchPartition(
                        partition=entry.partition.partition,
                        fetch_offset=entry.position,
                        partition_max_bytes=entry.max_bytes,
                    )
                    for entry in entries
                ],
            )
            for name, entries in groupby(wanted, key=lambda entry: entry.partition.topic)
        ],
        max_version=_FETCH_VERSION,
    )


def error_name(code: int) -> str:
    """What kafka-python calls an error code."""
    return client_errors.for_code(code).__name__


def raise_lasting(
    code: int,
    wanted: Wanted,
    wire: WireClient,
    leaders: PartitionLeaders,
    *,
    timeout_s: float,
) -> None:
    """Raise the error of a partition if asking again will not cure it.

    OffsetOutOfRangeError, AuthorizationFailedError (READ), KafkaRequestError; what list_offsets
    raises, as the bounds of a log are asked for.
    """
    partition = wanted.partition
    if code == _OUT_OF_RANGE:
        low, high = (
            list_offsets(wire, leaders, {partition: which}, timeout_s=timeout_s)[partition]
            for which in (EARLIEST, LATEST)
        )
        # a follower that has just become leader may lag for a moment
        if not low <= wanted.position <= high:
            raise OffsetOutOfRangeError(
                partition=str(partition), offset=wanted.position, log_start=low, log_end=high
            )
    elif code == TOPIC_NOT_ALLOWED:
        raise AuthorizationFailedError(
            operation="fetch", resource=f"topic {partition.topic}", needed="READ"
        )
    elif code not in MOVED and code:
        raise KafkaRequestError(operation="fetch", resource=str(partition), reason=error_name(code))


def judged(
    answer: Any,  # noqa: ANN401 (kafka-python builds its response classes at run time)
    partition: TopicPartitionId,
    isolation: Isolation,
) -> Iterator[tuple[RawBatch, memoryview]]:
    """Batches of one partition's answer with their bytes, told apart as Kafka's consumers do.

    A read_committed answer lists the aborted transactions its data overlaps: producer and first
    offset. From there on the producer's batches are aborted, until its abort marker. Raises
    CorruptBatchError.
    """
    if not answer.records:
        return
    upcoming = sorted(
        ((entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions or ()),
        reverse=True,
    )
    aborting: set[int] = set()
    for batch, data in parse_with_bytes(memoryview(answer.records), partition=str(partition)):
        if not batch.is_transactional:
            yield batch, data
            continue
        while upcoming and upcoming[-1][0] <= batch.last_offset:
            aborting.add(upcoming.pop()[1])
        if batch.is_control:
            if batch.control_type == "abort":
                aborting.discard(batch.producer_id)
            yield batch, data
        elif isolation is Isolation.READ_UNCOMMITTED:
            yield batch._replace(aborted=None), data
        elif batch.producer_id in aborting:
            yield batch._replace(aborted=True), data
        else:
            yield batch, data
