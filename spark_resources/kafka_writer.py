"""Writes one partition of a restore in a Spark task, with confluent-kafka.

After any failure, and after a kill at any moment, the target holds the first so many records in
order and nothing else, so that counting them says where to go on:

- an idempotent producer with acks=all, which writes one partition at a time;
- `enable.gapless.guarantee`: without it a refused batch is left out and those behind it are
  written [measured: 19,000 of 20,000 records, INVALID_TIMESTAMP for 1,000];
- no `message.timeout.ms`, whose expiry would leave records out as well: this module watches the
  time itself and gives up all records at once.

A timestamp of exactly 0 means now to librdkafka: such a record gets the time of the restore. Plans
refuse them unless the user accepted that. Negative timestamps arrive as they are.
"""

import pickle
import time
from collections import deque
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyspark import TaskContext

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    ForeignRecordsError,
    KStreamsAssetsError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.clients import LibrdkafkaConfig
from kstreams_assets.offsets import OffsetRuns, TopicPartitionId, merge_runs, runs_of
from kstreams_assets.warehouse.restores import PartitionProduced
from spark_resources.kafka_client import ABSENT, SharedProducer, connected, culprit, delivery_error
from spark_resources.partition_records import (
    PartitionWork,
    header_lists,
    work_offsets,
    work_records,
)
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


_POLL_S: Final = 0.1
_LEAVE_S: Final = 5.0
_UNTOLD: Final = -1

_PURGED: Final = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001

Offsets = npt.NDArray[np.int64]


def produce_partition(
    work: PartitionWork, producer: SharedProducer, *, settled_end: int | None = None
) -> PartitionProduced:
    """Write the records of one partition that are not there yet, and wait until all are.

    `settled_end` is the target's end where the caller has seen that it moves no more. After an
    error the producer is of no more use.

    Raises:
        ProduceRefusedError: The broker refused a record; names it.
        ForeignRecordsError: The partition ends elsewhere than this restore alone would have left
            it.
        RestoreRecordsError: The backup does not give the planned records.
        ClusterUnavailableError: Nothing was acknowledged for too long.
        TopicNotFoundError, AuthorizationFailedError (DESCRIBE, WRITE), ConfigurationError.
    """
    timeout_s = producer.limits.delivery_timeout_s
    resumed = records_there(work, producer.config, timeout_s=timeout_s, settled_end=settled_end)
    runs: list[OffsetRuns] = []
    end = work.base_offset
    for offsets in work_offsets(work, first=resumed) if resumed else ():
        runs.append(runs_of(offsets, np.arange(end, end + len(offsets))))
        end += len(offsets)
    if resumed < work.records:
        with _Writer(work, producer, first=resumed) as writer:
            for batch in work_records(work, skip=resumed):
                check_stop()
                writer.write(batch)
            writer.finish()
            runs += writer.runs
    return PartitionProduced(
        source=work.source,
        target=work.target,
        runs=merge_runs(runs),
        records=work.records,
        resumed=resumed,
        end=work.base_offset + work.records,
    )


class _Writer:
    """What is written of one partition, and what has been told of it so far."""

    def __init__(self, work: PartitionWork, producer: SharedProducer, *, first: int) -> None:
        self.runs: list[OffsetRuns] = []
        self._target = work.target
        self._servers = str(producer.config["bootstrap.servers"])
        self._timeout_s = producer.limits.delivery_timeout_s
        self._expected = work.base_offset + first
        self._waiting: deque[Offsets] = deque()  # source offsets of batches not yet acknowledged
        self._times: deque[Offsets] = deque()  # their timestamps
        self._told: list[int] = []
        self._refused: list[tuple[KafkaError, Message]] = []
        self._fatal: KafkaError | None = None
        self._reason = "no acknowledgement"
        self._shared = producer
        producer.tells(self)
        self._producer = producer.client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            # All at once: what is sent is a beginning of the rest, what is not is never sent.
            self._producer.purge()
            self._flush(_LEAVE_S)

    def write(self, batch: pa.RecordBatch) -> None:
        """Queue a batch of records and look at what was acknowledged meanwhile."""
        columns = [batch.column(name) for name in ("value", "key", "timestamp_ms")]
        values, keys, times = (c.to_numpy(zero_copy_only=False).tolist() for c in columns)
        headers = header_lists(batch.column("headers"))
        self._waiting.append(batch.column("offset").to_numpy())
        self._times.append(batch.column("timestamp_ms").to_numpy())
        produce = self._producer.produce
        topic, partition = self._target.topic, self._target.partition
        for value, key, time_ms, pairs in zip(values, keys, times, headers, strict=True):
            while True:
                try:
                    # By position (topic, value, key, partition, callback, on_delivery, timestamp,
                    # headers): names cost a third more.
                    produce(topic, value, key, partition, None, None, time_ms, pairs)  # pyright: ignore
                    break
                except BufferError:
                    self._make_room(value, key, pairs)
                    produce = self._producer.produce
                except KafkaException as error:
                    self._fatal = self._fatal or error.args[0]
                    self._judge()
        self._poll(0)
        self._judge()

    def finish(self) -> None:
        """Wait until every record is acknowledged."""
        self._await(0)
        self._judge()

    def _make_room(self, value: object, *rest: object) -> None:
        """Wait until the queue has shrunk; a record larger than the queue gets a larger one."""
        if len(self._producer):
            self._await(len(self._producer) - 1)
            return
        # Nothing is on its way, so another producer keeps the order.
        size = len(pickle.dumps((value, rest)))
        self._shared.enlarge(size // 1024)
        self._producer = self._shared.client

    def _await(self, most: int) -> None:
        """Wait until at most so many records are on their way."""
        deadline = time.monotonic() + self._timeout_s
        while (left := len(self._producer)) > most:
            check_stop()
            # a flush does not linger
            self._poll(_POLL_S) if most else self._flush(_POLL_S)
            self._judge()
            if len(self._producer) < left:
                deadline = time.monotonic() + self._timeout_s
            elif time.monotonic() > deadline:
                raise ClusterUnavailableError(
                    bootstrap_servers=self._servers,
                    operation=f"produce {self._target} from source offset {self._source(0)}",
                    timeout_s=self._timeout_s,
                    reason=self._reason,
                )

    def _judge(self) -> None:
        """Look at the offsets that were told; raises what went wrong."""
        while self._waiting and len(self._told) >= len(self._waiting[0]):
            sources, _ = self._waiting.popleft(), self._times.popleft()
            told = np.array(self._told[: len(sources)], np.int64)
            del self._told[: len(sources)]
            self.runs.append(runs_of(sources, self._checked(told, sources)))
            self._expected += len(sources)
        if self._refused or self._fatal is not None:
            raise self._refusal()

    def _checked(self, told: Offsets, sources: Offsets) -> Offsets:
        expected = np.arange(self._expected, self._expected + len(told))
        # A batch sent twice may be confirmed without its offset.
        wrong = (told != expected) & (told != _UNTOLD)
        if wrong.any():
            index = int(wrong.argmax())
            raise ForeignRecordsError(
                partition=str(self._target),
                problem=f"the record with source offset {sources[index]} got offset {told[index]}"
                f" instead of {expected[index]}",
            )
        return expected

    def _refusal(self) -> KStreamsAssetsError:
        """The error for the record that the broker did not take."""
        # What is fatal is told before the refusal that made it so, and all of a refused batch is
        # wanted: of the rest nothing will be sent any more.
        self._producer.purge()
        deadline = time.monotonic() + _LEAVE_S
        while len(self._producer) and time.monotonic() < deadline:
            self._poll(_POLL_S)
        error = self._refused[0][0] if self._refused else self._fatal
        assert error is not None  # noqa: S101 (one of the two is why this is called)
        index = len(self._told)
        if self._refused:
            times = np.concatenate(self._times)[index:][: len(self._refused)]
            index += culprit(error.code(), [message for _, message in self._refused], times)
        source_offset = self._source(index)
        return delivery_error(error, self._target, source_offset, servers=self._servers)

    def _source(self, index: int) -> int:
        """Source offset of the record so many behind the last batch that is wholly acknowledged."""
        return int(np.concatenate([*self._waiting, [_UNTOLD]])[index])

    def _poll(self, timeout_s: float) -> None:
        try:
            self._producer.poll(timeout_s)
        except KafkaException as error:
            self._fatal = error.args[0]

    def _flush(self, timeout_s: float) -> None:
        try:
            self._producer.flush(timeout_s)
        except KafkaException as error:
            self._fatal = error.args[0]

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """A record was acknowledged or refused."""
        if error is None:
            offset = message.offset()
            self._told.append(_UNTOLD if offset is None else offset)
        elif error.code() not in _PURGED and (
            not self._refused or error.code() == self._refused[0][0].code()
        ):
            self._refused.append((error, message))

    def hear(self, error: KafkaError) -> None:
        """Something is wrong with a connection; it is the reason if nothing comes any more."""
        self._reason = error.str().rstrip(".")
