"""The orders of the load generators: their content follows from a seed and an index alone."""

import bisect
import itertools
import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import click

from examples.streams.load import Event, Events, load_command

TOPIC: Final = "orders.created.v1"
SOURCE: Final = Path(__file__).with_name("CreatedOrder.java")
"""How the applications read an order."""

Kind = Literal["order", "no positive amount", "no value", "not JSON", "no customer", "no amount"]
"""What a record is: the first two are orders, the others say why they are none."""

_POISON: Final[tuple[Kind, ...]] = ("no value", "not JSON", "no customer", "no amount")
_FIRST_ORDER_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_CENTS: Final = 150_000


@dataclass(frozen=True, slots=True)
class CreatedOrder:
    """One record for `orders.created.v1`; customer and amount are what it should have said."""

    index: int
    key: bytes
    value: bytes | None
    customer_id: str
    amount_cents: int
    kind: Kind

    @property
    def is_order(self) -> bool:
        """Whether the applications take it for an order."""
        return self.kind in {"order", "no positive amount"}


class CreatedOrders:
    """Makes orders: the same seed and index always give the same bytes.

    Customer number n of `customers` places orders in proportion to 1 / n ** `skew`. About
    `not_positive` (0 to 1) of all orders have no positive amount, about `poison` are none.
    """

    def __init__(
        self,
        *,
        seed: int = 1,
        customers: int = 1000,
        skew: float = 1.0,
        not_positive: float = 0.05,
        poison: float = 0.02,
    ) -> None:
        self.seed: Final = seed
        self._not_positive, self._poison = not_positive, poison
        weights = (1 / number**skew for number in range(1, customers + 1))
        self._cumulative = list(itertools.accumulate(weights))

    def order(self, index: int) -> CreatedOrder:
        """Return the order with this index (from 0)."""
        chance = random.Random(f"{self.seed}/{index}")
        number = bisect.bisect(self._cumulative, chance.random() * self._cumulative[-1])
        kind = self._kind(chance)
        amount = chance.randint(1, _MOST_CENTS)
        if kind == "no positive amount":
            amount = -chance.randint(0, 100)
        order_id, customer = f"order-{self.seed}-{index:09d}", f"customer-{number:06d}"
        created_at = _FIRST_ORDER_AT + timedelta(milliseconds=index)
        fields: dict[str, object] = {
            "order_id": order_id,
            "customer_id": customer,
            "amount_cents": amount,
            "created_at": created_at.isoformat(timespec="milliseconds"),
        }
        value = _written(fields, kind)
        return CreatedOrder(index, order_id.encode(), value, customer, amount, kind)

    def _kind(self, chance: random.Random) -> Kind:
        lot = chance.random()
        if lot < self._poison:
            return chance.choice(_POISON)
        return "no positive amount" if lot < self._poison + self._not_positive else "order"


def _written(fields: dict[str, object], kind: Kind) -> bytes | None:
    if kind == "no value":
        return None
    if kind == "no customer":
        del fields["customer_id"]
    elif kind == "no amount":
        fields["amount_cents"] = "much"
    value = json.dumps(fields, separators=(",", ":")).encode()
    return value[: len(value) // 2] if kind == "not JSON" else value


def events(seed: int) -> Events:
    """The orders of a seed as records of their topic."""
    generator = CreatedOrders(seed=seed)

    def of(index: int) -> list[Event]:
        order = generator.order(index)
        return [Event(TOPIC, order.key, order.value)]

    return of


def load() -> click.Command:
    """The command line of the load generators."""
    return load_command(events, what="created orders")
