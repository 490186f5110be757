"""The shop that sends orders: it remembers which were acknowledged, and where they went."""

import threading
from collections.abc import Mapping
from typing import Final

from examples.order_processor.load import LoadError, produce_orders
from examples.order_processor.orders import OrderGenerator

_GIVE_UP_MS: Final = 5_000
_STOP_TIMEOUT_S: Final = 90.0


class Shop:
    """Sends orders from a thread until it is stopped or its cluster is gone.

    `places` has partition and offset of each order that was acknowledged, by the order's index.
    """

    def __init__(self, bootstrap_servers: str, generator: OrderGenerator, *, rate: float) -> None:
        self.places: Final[dict[int, tuple[int, int]]] = {}
        self._bootstrap_servers = bootstrap_servers
        self._generator = generator
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, name="shop", daemon=True)
        self.failure = ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait until the last orders are acknowledged or given up."""
        self._stop.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def not_in(self, ends: Mapping[int, int], total: int) -> list[int]:
        """The orders below `total` that are not in logs with these ends (by partition)."""
        return [
            index
            for index in range(total)
            if (place := self.places.get(index)) is None or place[1] >= ends.get(place[0], 0)
        ]

    def _send(self) -> None:
        try:
            produce_orders(
                self._bootstrap_servers,
                self._generator,
                rate=self._rate,
                stop=self._stop,
                client={"message.timeout.ms": str(_GIVE_UP_MS), "log_level": "0"},
                journal=self._remember,
            )
        except LoadError as error:
            self.failure = str(error)

    def _remember(self, index: int, partition: int, offset: int) -> None:
        self.places[index] = (partition, offset)
