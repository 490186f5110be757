"""Sends the records of an example's load generator: at a rate, for a time, or a number of them."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import click
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kstreams_assets.errors import KStreamsAssetsError

_DELIVERY_TIMEOUT_S: Final = 60.0
_TICK_S: Final = 0.01


class LoadError(KStreamsAssetsError):
    """Records could not be delivered."""


class Event(NamedTuple):
    """A record of a load generator; without a timestamp (epoch milliseconds) it happens now."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None


Events = Callable[[int], Iterable[Event]]
"""The records of an index (0, 1, 2 ...): the same index gives the same records."""


@dataclass(frozen=True, slots=True)
class Sent:
    """How many indices and records were sent and acknowledged, and how long it took."""

    indices: int
    records: int
    seconds: float


def send(
    bootstrap_servers: str,
    events: Events,
    *,
    count: int | None = None,
    seconds: float | None = None,
    rate: float | None = None,
    first_index: int = 0,
    topic_prefix: str = "",
    stop: threading.Event | None = None,
) -> Sent:
    """Send the records of one index after the other until every one is acknowledged.

    Ends after `count` indices, after `seconds` or when `stop` is set, whatever is first; `rate` is
    in indices per second (without: as fast as it can). Topics get `topic_prefix`. Raises LoadError
    when a record is not delivered (within 60 s).
    """
    sender = _Sender(bootstrap_servers, topic_prefix)
    stop = stop or threading.Event()
    began = time.monotonic()
    sent = 0
    while not stop.is_set() and (count is None or sent < count):
        elapsed = time.monotonic() - began
        if seconds is not None and elapsed >= seconds:
            break
        if rate is not None and sent >= elapsed * rate:
            stop.wait(_TICK_S)
            continue
        for event in events(first_index + sent):
            sender.send(event)
        sent += 1
    sender.finish()
    return Sent(sent, sender.records, time.monotonic() - began)


class _Sender:
    """A producer that notices what was not delivered."""

    def __init__(self, bootstrap_servers: str, topic_prefix: str) -> None:
        self.records = 0
        self._prefix = topic_prefix
        self._errors: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 10,
                # As Java's producer, and so repartition topics: joins need the same partitions.
                "partitioner": "murmur2_random",
                "message.timeout.ms": int(_DELIVERY_TIMEOUT_S * 1000),
                "delivery.report.only.error": True,
                "on_delivery": self._not_delivered,
                "log_level": 0,
            }
        )

    def send(self, event: Event) -> None:
        """Hand one record to the producer, waiting while its queue is full."""
        at_ms = event.timestamp_ms
        while True:
            try:
                self._producer.produce(
                    self._prefix + event.topic,
                    event.value,
                    event.key,
                    timestamp=time.time_ns() // 1_000_000 if at_ms is None else at_ms,
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                raise LoadError(
                    f"Cannot send to {event.topic}: {error}.", remedy="Check the topic."
                ) from error
            else:
                self.records += 1
                self._producer.poll(0)
                return

    def finish(self) -> None:
        """Wait until everything is acknowledged."""
        undelivered = self._producer.flush(_DELIVERY_TIMEOUT_S)
        if self._errors or undelivered:
            why = self._errors[0].str() if self._errors else f"none in {_DELIVERY_TIMEOUT_S:g} s"
            raise LoadError(
                f"{len(self._errors) + undelivered} of {self.records} records were not"
                f" acknowledged: {why}.",
                remedy="Check that the brokers run and that the topics exist.",
            )

    def _not_delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._errors.append(error)


def load_command(events_of: Callable[[int], Events], *, what: str) -> click.Command:
    """The command line of a load generator; `events_of` makes its records from a seed."""

    @click.command(help=f"Send {what}; the same seed and index always give the same records.")
    @click.option("--bootstrap", required=True, help="Brokers, host:port,...")
    @click.option(
        "--rate", type=float, help="Indices per second; as fast as possible if not given."
    )
    @click.option("--seconds", type=float, help="Seconds to send for.")
    @click.option("--count", type=int, help="Indices to send.")
    @click.option("--seed", default=1, show_default=True)
    @click.option("--first-index", default=0, show_default=True, help="Index to begin with.")
    @click.option("--topic-prefix", default="", help="Goes before the names of all topics.")
    def main(
        bootstrap: str,
        rate: float | None,
        seconds: float | None,
        count: int | None,
        seed: int,
        first_index: int,
        topic_prefix: str,
    ) -> None:
        if seconds is None and count is None:
            raise click.UsageError("Give --seconds or --count.")
        try:
            sent = send(
                bootstrap,
                events_of(seed),
                count=count,
                seconds=seconds,
                rate=rate,
                first_index=first_index,
                topic_prefix=topic_prefix,
            )
        except KStreamsAssetsError as error:
            raise click.ClickException(str(error)) from error
        click.echo(
            f"{sent.records} records in {sent.seconds:.1f} s,"
            f" next index {first_index + sent.indices}"
        )

    return main
