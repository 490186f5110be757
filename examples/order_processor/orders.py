"""The orders of the load generator: their content follows from a seed and an index alone."""

import bisect
import itertools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

Rejection = Literal["no customer", "no positive amount", "not JSON"]

_FIRST_ORDER_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
_ITEMS: Final = ("anvil", "bell", "candle", "drum", "easel", "flute", "globe", "hammock")


@dataclass(frozen=True, slots=True)
class Order:
    """One record for the topic `orders`; `rejection` is None for a valid one."""

    index: int
    key: bytes
    value: bytes
    customer_id: str
    amount_cents: int
    rejection: Rejection | None


@dataclass(frozen=True, slots=True)
class CustomerTotal:
    """What the application keeps per customer."""

    count: int
    total_cents: int


class OrderGenerator:
    """Makes orders: the same seed and index always give the same bytes.

    Customer number n of `customers` places orders in proportion to 1 / n ** `skew` (0: all alike);
    about `invalid_share` (0 to 1) of all orders are invalid.
    """

    def __init__(
        self,
        *,
        seed: int = 1,
        customers: int = 1000,
        skew: float = 1.0,
        invalid_share: float = 0.01,
    ) -> None:
        self.seed: Final = seed
        self._invalid_share = invalid_share
        weights = (1 / number**skew for number in range(1, customers + 1))
        self._cumulative = list(itertools.accumulate(weights))

    def order(self, index: int) -> Order:
        """Return the order with this index (from 0)."""
        chance = random.Random(f"{self.seed}/{index}")
        order_id = f"order-{self.seed}-{index:09d}"
        number = bisect.bisect(self._cumulative, chance.random() * self._cumulative[-1])
        customer = f"customer-{number:06d}"
        amount = chance.randint(1, 50_000)
        placed_at = _FIRST_ORDER_AT + timedelta(milliseconds=index)
        fields: dict[str, object] = {
            "order_id": order_id,
            "customer_id": customer,
            "amount_cents": amount,
            "placed_at": placed_at.isoformat(timespec="milliseconds"),
            "items": chance.choices(_ITEMS, k=chance.randint(1, 4)),
        }
        rejection: Rejection | None = None
        if chance.random() < self._invalid_share:
            rejection = chance.choice(("no customer", "no positive amount", "not JSON"))
            _spoil(fields, rejection, chance)
        value = json.dumps(fields, separators=(",", ":")).encode()
        if rejection == "not JSON":
            value = value[: len(value) // 2]
        return Order(index, order_id.encode(), value, customer, amount, rejection)

    def orders(self, indices: Iterable[int]) -> Iterable[Order]:
        """Return the orders of these indices, made one by one."""
        return map(self.order, indices)


def _spoil(fields: dict[str, object], rejection: Rejection, chance: random.Random) -> None:
    if rejection == "no customer":
        del fields["customer_id"]
    elif rejection == "no positive amount":
        fields["amount_cents"] = chance.randint(-100, 0)


def customer_totals(orders: Iterable[Order]) -> dict[str, CustomerTotal]:
    """Add up the valid orders per customer: what the application must arrive at."""
    totals: dict[str, CustomerTotal] = {}
    for order in orders:
        if order.rejection is None:
            before = totals.get(order.customer_id, CustomerTotal(0, 0))
            totals[order.customer_id] = CustomerTotal(
                before.count + 1, before.total_cents + order.amount_cents
            )
    return totals
