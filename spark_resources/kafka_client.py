"""The Kafka producer of Spark tasks, and what its errors mean."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kstreams_assets.closing import Closing
from kstreams_assets.errors import (
    AuthorizationFailedError,
    ConfigurationError,
    KStreamsAssetsError,
    ProduceRefusedError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.clients import LIBRDKAFKA_LOGGER, LibrdkafkaConfig, tame_client_logs
from kstreams_assets.offsets import TopicPartitionId

Client = TypeVar("Client")

ABSENT: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 (librdkafka's local errors are all named like this)
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
}
"""What librdkafka says of a topic or partition that is not there."""


def connected(kind: Callable[..., Client], settings: dict[str, Any]) -> Client:
    """A Producer or Consumer that logs quietly; ConfigurationError for settings it refuses."""
    tame_client_logs()
    try:
        return kind(settings, logger=logging.getLogger(LIBRDKAFKA_LOGGER))
    except KafkaException as error:
        raise ConfigurationError(
            f"librdkafka refuses the connection's settings: {error.args[0].str()}.",
            remedy="Check ssl, sasl and extra_librdkafka of the connection.",
        ) from None


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


_BATCH_BYTES: Final = 1_000_000
_QUEUE_KBYTES: Final = 65_536

_DEFAULTS: Final[LibrdkafkaConfig] = {
    "linger.ms": 20,
    "reconnect.backoff.max.ms": 1_000,
}
"""What a connection's own librdkafka settings may override."""
_FIXED: Final[LibrdkafkaConfig] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "acks": "all",
    "message.timeout.ms": 0,
    # The topic's own limit decides, on compressed batches; this one is on single plain records.
    "message.max.bytes": 1_000_000_000,
    "delivery.report.only.error": False,
}


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """`delivery_timeout_s` without any acknowledgement end the restore of a partition.

    `max_message_bytes` is the target topic's; no batch is larger, except of a single record.
    """

    delivery_timeout_s: float
    max_message_bytes: int
    compression: str = "none"


class DeliveryListener(Protocol):
    """Who is told what becomes of the records."""

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """A record was acknowledged or refused."""
        ...

    def hear(self, error: KafkaError) -> None:
        """Something is wrong with a connection."""
        ...


class SharedProducer(Closing):
    """One client for partitions that are written one after the other.

    An idempotent producer asks for its id half a second after its start, whatever it writes: with
    one for each of many small partitions nearly all the time goes into that [measured].
    `config` is that of the connection (see `librdkafka_config`).
    """

    def __init__(self, config: LibrdkafkaConfig, limits: WriterLimits) -> None:
        self.config, self.limits = config, limits
        self._listener: DeliveryListener | None = None
        self._settings: dict[str, Any] = {
            **_DEFAULTS,
            "compression.type": limits.compression,
            **config,
            **_FIXED,
            "batch.size": min(_BATCH_BYTES, limits.max_message_bytes),
            "on_delivery": self._delivered,
            "error_cb": self._hear,
        }
        self._client: Producer | None = None

    def tells(self, listener: DeliveryListener) -> None:
        """From now on this one hears what is delivered; nothing of another is on its way."""
        self._listener = listener

    @property
    def client(self) -> Producer:
        """The client; made on first use."""
        if self._client is None:
            self._client = self._connected(_QUEUE_KBYTES)
        return self._client

    def enlarge(self, kbytes: int) -> None:
        """Go on with another client that queues so much more; nothing is on its way."""
        self.close()
        self._client = self._connected(_QUEUE_KBYTES + kbytes)

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self, queue_kbytes: int) -> Producer:
        settings = {**self._settings, "queue.buffering.max.kbytes": queue_kbytes}
        return connected(Producer, settings)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if self._listener is not None:
            self._listener.delivered(error, message)

    def _hear(self, error: KafkaError) -> None:
        if self._listener is not None:
            self._listener.hear(error)
