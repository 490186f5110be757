"""examples/order_processor/orders.py and load.py, without a broker."""

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from examples.order_processor.load import LoadError, main, produce_orders
from examples.order_processor.orders import CustomerTotal, OrderGenerator, customer_totals


def test_seed_and_index_give_the_same_bytes_in_any_order() -> None:
    forward = [OrderGenerator(seed=3).order(index) for index in range(50)]
    backward = [OrderGenerator(seed=3).order(index) for index in reversed(range(50))]
    assert forward == backward[::-1]
    assert forward[0].value != OrderGenerator(seed=4).order(0).value


def test_the_first_order_is_fixed() -> None:
    """Recorded results and backups compare across versions only if this never changes."""
    order = OrderGenerator(seed=1).order(0)
    assert order.key == b"order-1-000000000"
    assert json.loads(order.value)["placed_at"] == "2026-01-01T00:00:00.000+00:00"
    assert (order.customer_id, order.amount_cents) == ("customer-000496", 24988)


def test_invalid_orders_are_invalid_and_as_many_as_asked() -> None:
    orders = list(OrderGenerator(invalid_share=0.2).orders(range(2000)))
    kinds = Counter(order.rejection for order in orders)
    assert 300 < 2000 - kinds[None] < 500
    for order in orders:
        if order.rejection == "not JSON":
            with pytest.raises(json.JSONDecodeError):
                json.loads(order.value)
            continue
        fields = json.loads(order.value)
        assert ("customer_id" not in fields) == (order.rejection == "no customer")
        assert (fields["amount_cents"] <= 0) == (order.rejection == "no positive amount")
    assert {order.rejection for order in OrderGenerator(invalid_share=0).orders(range(500))} == {
        None
    }


def test_skew_makes_the_first_customers_frequent() -> None:
    skewed = Counter(o.customer_id for o in OrderGenerator(skew=1.0).orders(range(3000)))
    even = Counter(o.customer_id for o in OrderGenerator(skew=0.0).orders(range(3000)))
    assert skewed.most_common(1)[0][0] == "customer-000000"
    assert skewed["customer-000000"] > 250 > 20 > max(even.values())


def test_customer_totals_add_valid_orders_only() -> None:
    orders = list(OrderGenerator(customers=1, invalid_share=0.5).orders(range(100)))
    valid = [order.amount_cents for order in orders if order.rejection is None]
    assert customer_totals(orders) == {"customer-000000": CustomerTotal(len(valid), sum(valid))}


def test_undelivered_orders_are_an_error() -> None:
    with pytest.raises(LoadError, match="3 of 3 orders were not delivered"):
        produce_orders(
            "127.0.0.1:1",
            OrderGenerator(),
            count=3,
            client={"message.timeout.ms": "300", "log_level": "0"},
        )


def test_the_command_wants_an_end() -> None:
    result = CliRunner().invoke(main, ["--bootstrap", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "--count or --duration" in result.output
