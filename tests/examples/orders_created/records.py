"""Created orders as the tests of two examples feed them, and what follows from them."""

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from examples.orders_created.orders import CreatedOrder, CreatedOrders
from tests.streams.feed import Record

PARTITIONS: Final = 4
GENERATOR: Final = CreatedOrders(seed=3, customers=800, skew=0.5, not_positive=0.1, poison=0.06)
"""Some customers order often, most so rarely that a stale count stays stale."""


def created(*, first_index: int = 0) -> Callable[[int], Record]:
    """Orders by index; those of one customer lie in one partition.

    So each customer's orders come from one task, in one order, however often they are processed.
    """

    def order(index: int) -> Record:
        made = GENERATOR.order(first_index + index)
        partition = zlib.crc32(made.customer_id.encode()) % PARTITIONS
        return Record(partition, -1, time.time_ns() // 1_000_000, made.key, made.value)

    return order


def orders_of(records: Iterable[Record]) -> list[CreatedOrder]:
    """The generated orders that these records are."""
    return [GENERATOR.order(int((r.key or b"").rsplit(b"-", 1)[1])) for r in records]


def count_by_customer(orders: Iterable[CreatedOrder]) -> Counter[str]:
    """How many orders each customer placed; what is no order does not count."""
    return Counter(order.customer_id for order in orders if order.is_order)
