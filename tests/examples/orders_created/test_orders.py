"""Created orders follow from a seed and an index alone; each kind of record comes up."""

import json
from collections import Counter

import pytest

from examples.orders_created.orders import TOPIC, CreatedOrder, CreatedOrders, events


def test_the_same_seed_and_index_give_the_same_bytes() -> None:
    one, other = CreatedOrders(seed=1), CreatedOrders(seed=1)
    assert [one.order(index) for index in (3, 1, 2)] == [other.order(i) for i in (3, 1, 2)]
    assert CreatedOrders(seed=2).order(1) != one.order(1)


def test_an_order_says_what_it_is() -> None:
    order = next(o for o in map(CreatedOrders(seed=1).order, range(100)) if o.kind == "order")
    said = json.loads(order.value or b"")
    assert said == {
        "order_id": order.key.decode(),
        "customer_id": order.customer_id,
        "amount_cents": order.amount_cents,
        "created_at": said["created_at"],
    }
    assert order.amount_cents > 0


def _problem(order: CreatedOrder) -> str:
    """What a reader finds wrong with a record."""
    if order.value is None:
        return "no value"
    try:
        said = json.loads(order.value)
    except ValueError:
        return "not JSON"
    if "customer_id" not in said:
        return "no customer"
    if not isinstance(said["amount_cents"], int):
        return "no amount"
    return "order" if said["amount_cents"] > 0 else "no positive amount"


def test_every_kind_comes_up_and_is_what_it_is_called() -> None:
    orders = list(map(CreatedOrders(seed=5, poison=0.2, not_positive=0.1).order, range(3000)))
    assert [order.kind for order in orders] == [_problem(order) for order in orders]
    shares = {kind: count / 3000 for kind, count in Counter(o.kind for o in orders).items()}
    expected = dict.fromkeys(("no value", "not JSON", "no customer", "no amount"), 0.05)
    expected |= {"no positive amount": 0.1, "order": 0.7}
    assert shares == pytest.approx(expected, abs=0.03)
    assert all(o.is_order == (o.kind in {"order", "no positive amount"}) for o in orders)


def test_skew_makes_some_customers_order_more_often() -> None:
    generator = CreatedOrders(seed=1, customers=100, skew=1.0)
    often = Counter(generator.order(index).customer_id for index in range(2000))
    assert often["customer-000001"] > 10 * often["customer-000099"]


def test_events_are_the_orders_of_the_topic() -> None:
    order = CreatedOrders(seed=9).order(4)
    [event] = events(9)(4)
    assert (event.topic, event.key, event.value) == (TOPIC, order.key, order.value)
    assert event.timestamp_ms is None
