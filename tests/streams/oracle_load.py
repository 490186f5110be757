"""Orders for OracleApp at a steady rate, from a thread that costs little CPU."""

import random
import threading
import time
from dataclasses import dataclass
from typing import Final, Literal, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

_TICK_S: Final = 0.01
_POOL: Final = 20_000
_DELIVERY_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What a load has sent: `seconds` is its run time, pauses included.

    `longest_delay_s` is the longest time by which sending lagged behind the rate.
    """

    count: int
    seconds: float
    longest_delay_s: float


class OracleLoad:
    """Sends orders from a thread until it is stopped, as a context manager.

    `rate` is in orders per second. With `burst_s` and `pause_s` it sends for so long, then rests
    for so long, and so on. `invalid_share` of all orders has no customer: the application drops
    them. The content is random, from `seed`; nothing that was sent is kept.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        rate: float,
        customers: int = 500,
        invalid_share: float = 0.01,
        compression: Compression = "none",
        burst_s: float | None = None,
        pause_s: float = 0.0,
        seed: int = 1,
    ) -> None:
        self._topic = topic
        self._rate = rate
        self._burst_s = burst_s
        self._pause_s = pause_s
        self._values = _values(random.Random(seed), customers, invalid_share)
        self._stop = threading.Event()
        self._error: KafkaError | None = None
        self._count = 0
        self._longest_delay_s = 0.0
        self._started = 0.0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "compression.type": compression,
                "linger.ms": 10,
                "message.timeout.ms": int(_DELIVERY_TIMEOUT_S * 1000),
                "delivery.report.only.error": True,
                "on_delivery": self._not_delivered,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="oracle-load", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_DELIVERY_TIMEOUT_S)

    @property
    def count(self) -> int:
        """Orders handed to the producer so far."""
        return self._count

    def start(self) -> None:
        """Begin to send."""
        self._started = time.monotonic()
        self._thread.start()

    def stop(self) -> Sent:
        """End the load and return what was sent, all of it acknowledged; else fail the test."""
        self._stop.set()
        self._thread.join(_DELIVERY_TIMEOUT_S)
        seconds = time.monotonic() - self._started
        left = self._producer.flush(_DELIVERY_TIMEOUT_S)
        assert left == 0, f"{left} orders not acknowledged"
        assert self._error is None, f"orders not delivered: {self._error}"
        return Sent(self._count, seconds, self._longest_delay_s)

    def _not_delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._error = error or self._error

    def _run(self) -> None:
        while not self._stop.is_set():
            self._burst()
            if self._pause_s:
                self._stop.wait(self._pause_s)

    def _burst(self) -> None:
        """Send at the rate until the burst or the load ends."""
        before, began = self._count, time.monotonic()
        while not self._stop.is_set():
            elapsed = time.monotonic() - began
            if self._burst_s is not None and elapsed >= self._burst_s:
                return
            due = before + int(elapsed * self._rate)
            delay_s = (due - self._count) / self._rate
            self._longest_delay_s = max(self._longest_delay_s, delay_s)
            while self._count < due and not self._stop.is_set():
                self._send()
            self._producer.poll(0)
            self._stop.wait(_TICK_S)

    def _send(self) -> None:
        value = self._values[self._count % _POOL]
        try:
            self._producer.produce(self._topic, value, b"order-%d" % self._count)
        except BufferError:
            self._producer.poll(_TICK_S)
        except KafkaException as error:
            self._error = error.args[0]
            self._stop.set()
        else:
            self._count += 1


def _values(chance: random.Random, customers: int, invalid_share: float) -> list[bytes]:
    return [
        b"nobody's"
        if chance.random() < invalid_share
        else b"customer-%d,%d" % (chance.randrange(customers), chance.randint(1, 50_000))
        for _ in range(_POOL)
    ]
