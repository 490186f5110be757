"""The application that sorts orders by risk, and its topics."""

from pathlib import Path
from typing import Final

from examples.orders_created.orders import SOURCE, TOPIC
from examples.streams.application import Example

CANDIDATES: Final = "orders.risk-candidates.v1"
FILTERED_OUT: Final = "orders.filtered-out.v1"
ERROR: Final = "orders.error.v1"

STORE: Final = "risk-score-by-customer"

EXAMPLE: Final = Example(
    source=Path(__file__).with_name("OrdersRiskScoring.java"),
    application_id="orders-risk-scoring-v1",
    topics={TOPIC: {}, CANDIDATES: {}, FILTERED_OUT: {}, ERROR: {}},
    also=(SOURCE,),
)
