"""A steady feed of given records into given partitions, if wanted with aborted transactions."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Self

from confluent_kafka import KafkaError, Message, Producer

_TICK_S: Final = 0.05
_TIMEOUT_S: Final = 60.0


class Record(NamedTuple):
    """A record and where it lies; `offset` is -1 before it was produced."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def produce(bootstrap_servers: str, topic: str, records: Iterable[Record]) -> int:
    """Produce records to their partitions, in order, with their timestamps; how many."""
    sender = _Sender(bootstrap_servers, topic, {})
    count = sum(sender.send(record) for record in records)
    sender.finish()
    return count


class Feed:
    """Sends the records of a function of the index (0, 1, 2 ...) at a rate, as a context manager.

    With `abort_every` all is sent in transactions, and before each that many of them another one
    writes `junk` of the same index and is aborted.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        record: Callable[[int], Record],
        *,
        rate: float,
        abort_every: int = 0,
        junk: Callable[[int], Record] | None = None,
    ) -> None:
        self._record, self._junk = record, junk or record
        self._rate = rate
        self._abort_every = abort_every
        own = {"transactional.id": f"feed-{topic}"} if abort_every else {}
        self._sender = _Sender(bootstrap_servers, topic, own)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self.count = 0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join(_TIMEOUT_S)
        if self._failure is not None and kind is None:
            raise self._failure

    def stop(self) -> None:
        """End the feed; everything sent is acknowledged afterwards, or the test fails."""
        self.__exit__(None)

    def _run(self) -> None:
        try:
            began = time.monotonic()
            self._send_on(began)
            self._sender.finish()
            self.seconds = time.monotonic() - began
        except BaseException as failure:  # noqa: BLE001 (raised to whoever stops the feed)
            self._failure = failure

    def _send_on(self, began: float) -> None:
        tick = 0
        while not self._stop.wait(_TICK_S):
            due = int((time.monotonic() - began) * self._rate)
            if self._abort_every and tick % self._abort_every == 0:
                self._sender.transact(map(self._junk, range(self.count, due)), commit=False)
            records = map(self._record, range(self.count, due))
            if self._abort_every:
                self._sender.transact(records, commit=True)
            else:
                for record in records:
                    self._sender.send(record)
            self.count = due
            tick += 1


class _Sender:
    """A producer that notices what was not delivered."""

    def __init__(self, bootstrap_servers: str, topic: str, own: dict[str, str]) -> None:
        self._topic = topic
        self._error: KafkaError | None = None
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": int(_TIMEOUT_S * 1000),
            "on_delivery": self._not_delivered,
            "delivery.report.only.error": True,
            "log_level": 0,
        }
        self._producer = Producer(settings | own)
        if own:
            self._producer.init_transactions(_TIMEOUT_S)

    def send(self, record: Record) -> int:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    record.partition,
                    timestamp=record.timestamp_ms,
                    headers=list(record.headers),
                )
            except BufferError:
                self._producer.poll(_TICK_S)
            else:
                self._producer.poll(0)
                return 1

    def transact(self, records: Iterable[Record], *, commit: bool) -> None:
        self._producer.begin_transaction()
        for record in records:
            self.send(record)
        if commit:
            self._producer.commit_transaction(_TIMEOUT_S)
        else:
            self._producer.flush(_TIMEOUT_S)  # what is aborted before it was sent is never written
            self._producer.abort_transaction(_TIMEOUT_S)

    def finish(self) -> None:
        left = self._producer.flush(_TIMEOUT_S)
        assert left == 0, f"{left} records not acknowledged"
        assert self._error is None, f"not delivered: {self._error}"

    def _not_delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._error = error or self._error
