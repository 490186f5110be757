"""What a delivery report says went wrong, as an error that names the record."""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaError, Message

from kstreams_assets.errors import (
    AuthorizationFailedError,
    KStreamsAssetsError,
    ProduceRefusedError,
    TopicNotFoundError,
)
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.librdkafka_client import ABSENT


def delivery_error(
    error: KafkaError, partition: TopicPartitionId, source_offset: int, *, servers: str
) -> KStreamsAssetsError:
    """The error for a record that the broker did not take."""
    topic = partition.topic
    if error.code() in ABSENT:
        return TopicNotFoundError(topics=[topic], cluster=servers)
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        resource = f"topic {topic}"
        return AuthorizationFailedError(operation="produce", resource=resource, needed="WRITE")
    return ProduceRefusedError(
        partition=str(partition),
        source_offset=source_offset,
        reason=error.name(),
        detail=error.str(),
    )


def culprit(code: int, refused: Sequence[Message], times_ms: npt.NDArray[np.int64]) -> int:
    """Which of the records of a refused batch the broker meant: it refuses all of them for one."""
    if code == KafkaError.INVALID_TIMESTAMP:
        now_ms = time.time_ns() // 1_000_000
        return int(np.abs(times_ms - now_ms).argmax())
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        sizes = [len(message.value() or b"") + len(message.key() or b"") for message in refused]
        return sizes.index(max(sizes))
    return 0
