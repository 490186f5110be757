"""Sends orders to Kafka: `python -m examples.order_processor.load --bootstrap host:port`."""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import click
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from examples.order_processor.orders import OrderGenerator
from kstreams_assets.errors import KStreamsAssetsError

_DELIVERY_TIMEOUT_S: Final = 60.0
_TICK_S: Final = 0.01


class LoadError(KStreamsAssetsError):
    """Orders could not be delivered."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The indices of the orders delivered, and how long it took."""

    first_index: int
    count: int
    seconds: float

    @property
    def indices(self) -> range:
        """The indices of the orders delivered."""
        return range(self.first_index, self.first_index + self.count)


def now_ms(_index: int) -> int:
    """Return the wall clock's time in milliseconds since 1970, whatever the index."""
    return time.time_ns() // 1_000_000


def produce_orders(
    bootstrap_servers: str,
    generator: OrderGenerator,
    *,
    topic: str = "orders",
    count: int | None = None,
    duration_s: float | None = None,
    rate: float | None = None,
    first_index: int = 0,
    indices: Iterable[int] | None = None,
    timestamp_ms: Callable[[int], int] = now_ms,
    stop: threading.Event | None = None,
    client: Mapping[str, str] | None = None,
    journal: Callable[[int, int, int], None] | None = None,
) -> LoadResult:
    """Send orders from `first_index` on, or those of `indices`, until every one is acknowledged.

    Ends after `count` orders, `duration_s` seconds or when `stop` is set, whatever is first; sends
    `rate` orders per second, or as fast as it can. `client` has further librdkafka properties;
    `journal` gets index, partition and offset of each order that was acknowledged. Raises LoadError
    when an order is not delivered (within 60 s).
    """
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    def journaled(index: int, error: KafkaError | None, message: Message) -> None:
        delivered(error, message)
        if journal is not None and error is None:
            journal(index, message.partition() or 0, message.offset() or 0)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": int(_DELIVERY_TIMEOUT_S * 1000),
            "log_level": 3,
            **(client or {}),
        }
    )
    started = time.monotonic()
    sent = 0
    for index in itertools.count(first_index) if indices is None else indices:
        elapsed = time.monotonic() - started
        while rate is not None and sent >= rate * elapsed:
            producer.poll(_TICK_S)
            elapsed = time.monotonic() - started
        if count is not None and sent >= count:
            break
        if (duration_s is not None and elapsed >= duration_s) or (stop and stop.is_set()):
            break
        if errors:
            break
        order = generator.order(index)
        acknowledged = delivered if journal is None else partial(journaled, index)
        _send(producer, topic, order.key, order.value, timestamp_ms(index), acknowledged)
        sent += 1
    undelivered = producer.flush(_DELIVERY_TIMEOUT_S)
    if errors or undelivered:
        reason = errors[0].str() if errors else f"no answer within {_DELIVERY_TIMEOUT_S:g} s"
        raise LoadError(
            f"{len(errors) + undelivered} of {sent} orders were not delivered to {topic} at"
            f" {bootstrap_servers}: {reason}.",
            remedy="Check that the brokers run and that the topic exists.",
        )
    return LoadResult(first_index, sent, time.monotonic() - started)


def _send(
    producer: Producer,
    topic: str,
    key: bytes,
    value: bytes,
    timestamp_ms: int,
    delivered: Callable[[KafkaError | None, Message], None],
) -> None:
    """Hand one record to the producer, waiting while its queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, timestamp=timestamp_ms, on_delivery=delivered)
        except BufferError:
            producer.poll(0.1)
        except KafkaException as error:
            raise LoadError(
                f"Cannot send to {topic}: {error}.", remedy="Check the producer's properties."
            ) from error
        else:
            producer.poll(0)
            return


@click.command()
@click.option("--bootstrap", required=True, help="Brokers, host:port,...")
@click.option("--topic", default="orders", show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--first-index", default=0, show_default=True, help="Index of the first order.")
@click.option("--count", type=int, help="Orders to send.")
@click.option("--duration", type=float, help="Seconds to send for.")
@click.option("--rate", type=float, help="Orders per second; as fast as possible if not given.")
@click.option("--customers", default=1000, show_default=True)
@click.option("--skew", default=1.0, show_default=True, help="0: all customers alike.")
@click.option("--invalid-share", default=0.01, show_default=True)
def main(
    bootstrap: str,
    topic: str,
    seed: int,
    first_index: int,
    count: int | None,
    duration: float | None,
    rate: float | None,
    customers: int,
    skew: float,
    invalid_share: float,
) -> None:
    """Send generated orders; the same seed and index always give the same order."""
    if count is None and duration is None:
        raise click.UsageError("Give --count or --duration.")
    generator = OrderGenerator(
        seed=seed, customers=customers, skew=skew, invalid_share=invalid_share
    )
    try:
        result = produce_orders(
            bootstrap,
            generator,
            topic=topic,
            count=count,
            duration_s=duration,
            rate=rate,
            first_index=first_index,
        )
    except KStreamsAssetsError as error:
        raise click.ClickException(str(error)) from error
    rate_reached = result.count / result.seconds if result.seconds else 0.0
    click.echo(
        f"{result.count} orders to {topic} in {result.seconds:.1f} s ({rate_reached:.0f}/s),"
        f" next index {result.indices.stop}"
    )


if __name__ == "__main__":
    main()
