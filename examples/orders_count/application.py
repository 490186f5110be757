"""The two versions of the application that counts orders, and their topics."""

from pathlib import Path
from typing import Final

from examples.orders_created.orders import SOURCE, TOPIC
from examples.streams.application import Example

HIGH_VALUE: Final = "orders.high-value.v1"
COUNTS: Final = "customer-order-counts.v1"
STORE: Final = "order-count-by-customer"

HIGH_VALUE_V2: Final = "orders.high-value.v2"
COUNTS_V2: Final = "customer-order-counts.v2"
STORE_V2: Final = "order-count-by-customer-v2"

HIGH_VALUE_CENTS: Final = 100_000
"""From this amount on an order is of a high value."""

EXAMPLE: Final = Example(
    source=Path(__file__).with_name("OrdersCount.java"),
    application_id="orders-count-v1",
    topics={TOPIC: {}, HIGH_VALUE: {}, COUNTS: {}},
    also=(SOURCE,),
)
EXAMPLE_V2: Final = Example(
    source=EXAMPLE.source,
    application_id="orders-count-v2",
    topics={TOPIC: {}, HIGH_VALUE_V2: {}, COUNTS_V2: {}},
    config={"orders.count.version": "v2"},
    also=EXAMPLE.also,
)
"""Side by side with the first: it shares the input with it, and nothing else."""
