"""Reads records of a cluster, as columns, with confluent-kafka."""

import contextlib
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kstreams_assets.closing import Closing
from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
    KStreamsAssetsError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.clients import LibrdkafkaConfig
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.comparison import RecordColumns
from spark_resources.kafka_client import ABSENT, connected

_OPERATION: Final = "fetch"
_POLL_S: Final = 0.5
_CHUNK_RECORDS: Final = 10_000
_OPEN_S: Final = 10.0
_ASK_AFTER_S: Final = 3.0
_LARGEST_FETCH_BYTES: Final = 8_000_000

_SETTINGS: Final[LibrdkafkaConfig] = {
    # librdkafka wants a name; nothing is committed, so that no right on a group is needed
    "group.id": "kstreams-assets",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "check.crcs": True,
    # by default it sleeps for a second whenever its queue was full
    "fetch.queue.backoff.ms": 5,
    "fetch.error.backoff.ms": 100,
    # a fetch that waits at the end of one partition holds up the next partition
    "fetch.wait.max.ms": 10,
    "receive.message.max.bytes": 1_000_000_000,
    "reconnect.backoff.max.ms": 1_000,
}

_WITHOUT_GROUP: Final = {
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
}
_DENIED: Final = {KafkaError.TOPIC_AUTHORIZATION_FAILED}


class KafkaReader(Closing):
    """Reads one partition after the other; usable from one thread.

    `config` is that of the connection (see `librdkafka_config`). About `read_ahead_kb` KiB are
    fetched before they are asked for. Gives up when nothing came for `idle_timeout_s`. Raises
    ConfigurationError where librdkafka refuses the settings.
    """

    def __init__(
        self, config: LibrdkafkaConfig, *, idle_timeout_s: float, read_ahead_kb: int = 32_768
    ) -> None:
        self._servers = str(config["bootstrap.servers"])
        self._idle_timeout_s = idle_timeout_s
        self._heard: KafkaError | None = None
        self._known: set[str] = set()
        settings: dict[str, Any] = {
            **config,
            **_SETTINGS,
            "queued.max.messages.kbytes": read_ahead_kb,
            "fetch.message.max.bytes": min(_LARGEST_FETCH_BYTES, 1024 * read_ahead_kb),
            "error_cb": self._hear,
        }
        self._consumer = connected(Consumer, settings)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def read(
        self, partition: TopicPartitionId, start: int, stop: int, *, to_the_end: bool = False
    ) -> Iterator[RecordColumns]:
        """Committed records with offsets from `start` up to, not including, `stop`.

        Ends early where the last stable offset lies below `stop`, unless all is wanted
        (`to_the_end`). Offsets without a record (compacted, aborted, markers) are passed over.

        Raises:
            OffsetOutOfRangeError: The log does not hold `start`, or does not reach to `stop`.
            ClusterUnavailableError: Nothing came for too long.
            TopicNotFoundError, AuthorizationFailedError (READ), KafkaRequestError.
        """
        self._learn(partition.topic)
        self._consumer.assign([TopicPartition(partition.topic, partition.partition, start)])
        position, idle_s, end, self._heard = start, 0.0, None, None
        while position < stop and end is None:
            began = time.monotonic()
            messages = self._next(min(_CHUNK_RECORDS, stop - position))
            records, end = self._judged(messages, partition, start)
            if records:
                position, idle_s = _next_offset(records[-1]), 0.0
                yield _columns(records, stop)
            elif end is None:
                self._require_hope(partition, position, idle_s)
                idle_s += time.monotonic() - began
        if to_the_end and end is not None and end < stop and position < stop:
            raise OffsetOutOfRangeError(
                partition=str(partition), offset=stop - 1, log_start=start, log_end=end
            )

    def _learn(self, topic: str) -> None:
        """Ask for the leaders first: else librdkafka does so half a second later [measured]."""
        if topic not in self._known:
            self._known.add(topic)
            with contextlib.suppress(KafkaException):  # what it is shows when nothing comes
                self._consumer.list_topics(topic, timeout=_POLL_S)

    def _next(self, most: int) -> list[Message]:
        """What is there, once something is: waiting for `most` large records would fill memory."""
        messages = self._consumer.consume(1, timeout=_POLL_S)
        if messages and most > 1:
            messages += self._consumer.consume(most - 1, timeout=0)
        return messages

    def _judged(
        self, messages: list[Message], partition: TopicPartitionId, start: int
    ) -> tuple[list[Message], int | None]:
        """The records among what came, and the end of the partition if that is behind them."""
        records = [message for message in messages if message.error() is None]
        end = None
        if len(records) < len(messages):
            for message in messages:
                error = message.error()
                if error is None:
                    continue
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    end = message.offset()
                elif error.retriable() or error.code() in _WITHOUT_GROUP:
                    self._hear(error)
                else:
                    raise self._failure(error, partition, start)
        return records, end

    def _failure(
        self, error: KafkaError, partition: TopicPartitionId, start: int
    ) -> KStreamsAssetsError:
        code = error.code()
        if code in _DENIED:
            return AuthorizationFailedError(
                operation=_OPERATION, resource=f"topic {partition.topic}", needed="READ"
            )
        if code in ABSENT:
            return TopicNotFoundError(topics=[partition.topic], cluster=self._servers)
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):  # noqa: SLF001
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(partition.topic, partition.partition), timeout=_OPEN_S
            )
            return OffsetOutOfRangeError(
                partition=str(partition), offset=start, log_start=low, log_end=high
            )
        reason = error.str().rstrip(".")
        return KafkaRequestError(operation=_OPERATION, resource=str(partition), reason=reason)

    def _require_hope(self, partition: TopicPartitionId, position: int, idle_s: float) -> None:
        if idle_s > _ASK_AFTER_S:
            self._require_topic(partition, position)
        heard = self._heard
        if idle_s > self._idle_timeout_s:
            raise ClusterUnavailableError(
                bootstrap_servers=self._servers,
                operation=f"{_OPERATION} {partition} from offset {position}",
                timeout_s=self._idle_timeout_s,
                reason="no answer" if heard is None else heard.str().rstrip("."),
            )

    def _require_topic(self, partition: TopicPartitionId, position: int) -> None:
        """Raise what the brokers say of the topic: librdkafka waits for it without a word."""
        try:
            metadata = self._consumer.list_topics(partition.topic, timeout=_POLL_S)
        except KafkaException as error:
            self._hear(error.args[0])
            return
        refusal = metadata.topics[partition.topic].error
        if refusal is not None and refusal.code() in (*ABSENT, *_DENIED):
            raise self._failure(refusal, partition, position)

    def _hear(self, error: KafkaError) -> None:
        # that all brokers are down comes last and says least
        is_summary = error.code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
        if error.code() not in _WITHOUT_GROUP and not (is_summary and self._heard):
            self._heard = error


@contextmanager
def no_cyclic_collection() -> Iterator[None]:
    """Python looks for cycles whenever many objects are made; here are millions, and no cycles.

    Measured: it takes more than half of the task's time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _columns(messages: list[Message], stop: int) -> RecordColumns:
    if _next_offset(messages[-1]) > stop:  # where offsets are missing, more came than was wanted
        messages = [message for message in messages if _next_offset(message) <= stop]
    return RecordColumns(
        [message.offset() for message in messages],  # pyright: ignore[reportArgumentType]
        [message.timestamp() for message in messages],
        [message.key() for message in messages],  # pyright: ignore[reportArgumentType]
        [message.value() for message in messages],  # pyright: ignore[reportArgumentType]
        [message.headers() for message in messages],  # pyright: ignore[reportArgumentType]
    )


def _next_offset(message: Message) -> int:
    return message.offset() + 1  # pyright: ignore[reportOptionalOperand]
