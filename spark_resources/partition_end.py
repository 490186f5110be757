"""Where a target partition ends, and so how much of a restore it holds."""

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark import TaskContext

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    ForeignRecordsError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.librdkafka import LibrdkafkaConfig
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.work import PartitionWork
from spark_resources.librdkafka_client import ABSENT, connected
from spark_resources.partition_tasks import check_stop

_SETTLE_S: Final = 1.0
_SETTLE_LIMIT_S: Final = 30.0
_RETRY_S: Final = 0.1
_ASK_S: Final = 5.0


def records_there(
    work: PartitionWork, config: LibrdkafkaConfig, *, timeout_s: float, settled_end: int | None
) -> int:
    """How many of the records earlier attempts have written, once none are on their way.

    They are the first ones, since only this restore writes the partition. Looks again after a
    second until the end moves no more, except where the caller has seen that already
    (`settled_end`).

    Raises:
        ForeignRecordsError: The end cannot be this restore's, or moves on and on.
        ClusterUnavailableError, TopicNotFoundError, AuthorizationFailedError (DESCRIBE),
        ConfigurationError.
    """
    settings: dict[str, Any] = {
        **config,
        # librdkafka wants a name; nothing is read or committed
        "group.id": "kstreams-assets-restore",
        "isolation.level": "read_uncommitted",
        "reconnect.backoff.max.ms": 1_000,
    }
    consumer = connected(Consumer, settings)
    try:
        end = _end(consumer, work.target, settings, timeout_s)
        if end != settled_end or _is_second_attempt():
            end = _settled(consumer, work, settings, timeout_s, end)
        _refuse_foreign(work, end)
        return end - work.base_offset
    finally:
        consumer.close()


def _settled(
    consumer: Consumer, work: PartitionWork, settings: dict[str, Any], timeout_s: float, end: int
) -> int:
    deadline = time.monotonic() + _SETTLE_LIMIT_S
    while True:
        before = end
        time.sleep(_SETTLE_S)
        end = _end(consumer, work.target, settings, timeout_s)
        if end == before:
            return end
        if time.monotonic() > deadline:
            raise ForeignRecordsError(
                partition=str(work.target),
                problem=f"it grew for {_SETTLE_LIMIT_S:g} s before this attempt wrote anything",
            )


def _is_second_attempt() -> bool:
    """Whether Spark started the task anew: what the first one sent may still be on its way."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def _refuse_foreign(work: PartitionWork, end: int) -> None:
    most = work.base_offset + work.records
    if end < work.base_offset:
        problem = f"it ends at {end}, below {work.base_offset} where the restore began"
    elif end > most:
        problem = f"it ends at {end}, behind {most} where the restore's last record goes"
    else:
        return
    raise ForeignRecordsError(partition=str(work.target), problem=problem)


def _end(
    consumer: Consumer, target: TopicPartitionId, settings: dict[str, Any], timeout_s: float
) -> int:
    """The partition's high watermark."""
    deadline = time.monotonic() + timeout_s
    while True:
        check_stop()
        try:
            watermarks = consumer.get_watermark_offsets(
                TopicPartition(target.topic, target.partition), timeout=min(_ASK_S, timeout_s)
            )
            if watermarks is not None:
                return watermarks[1]
            reason = "no answer"
        except KafkaException as error:
            code, reason = error.args[0].code(), error.args[0].str().rstrip(".")
            if code in ABSENT:
                servers = settings["bootstrap.servers"]
                raise TopicNotFoundError(topics=[target.topic], cluster=servers) from None
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise AuthorizationFailedError(
                    operation="list_offsets", resource=f"topic {target.topic}", needed="DESCRIBE"
                ) from None
        if time.monotonic() > deadline:
            raise ClusterUnavailableError(
                bootstrap_servers=settings["bootstrap.servers"],
                operation=f"list_offsets of {target}",
                timeout_s=timeout_s,
                reason=reason,
            )
        time.sleep(_RETRY_S)
