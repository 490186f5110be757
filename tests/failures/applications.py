"""The example applications that drills run, and how they are fed."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from examples.order_processor.application import PROGRAM, TOPICS
from examples.orders_count.application import EXAMPLE as ORDERS_COUNT
from examples.orders_created.orders import TOPIC as CREATED
from examples.orders_risk_scoring.application import EXAMPLE as RISK_SCORING
from examples.streams.application import Example
from tests.examples.orders_created.records import count_by_customer, created, orders_of
from tests.restore.example_definition import Definition
from tests.restore.example_trial import ExampleTrial, InputFeed
from tests.streams.feed import Record
from tests.streams.orders import orders

RATE: Final = 500
"""Orders per second."""

_MARK: Final = "a-prefix-to-be-replaced."
_texts: dict[str, str] = {}
_ORDER_PROCESSOR: Final = Example(
    source=PROGRAM.source,
    application_id="order-processor",
    topics={topic: {} for topic in TOPICS},
)


@dataclass(frozen=True, slots=True)
class DescribedOnce(Example):
    """An example whose topology is asked for once for all drills: that starts a JVM."""

    def describe_topology(self, *, topic_prefix: str = "") -> str:
        """What `Topology.describe()` says, with this prefix."""
        if self.application_id not in _texts:
            text = Example.describe_topology(self, topic_prefix=_MARK)
            _texts[self.application_id] = text
        return _texts[self.application_id].replace(_MARK, topic_prefix)


def described_once(example: Example) -> DescribedOnce:
    """The same example."""
    return DescribedOnce(
        example.source, example.application_id, example.topics, example.config, example.also
    )


def _trial(example: Example, folder: str, feed: InputFeed) -> ExampleTrial:
    # Compaction leaves the changelogs alone for longer than a drill takes, as in the demo.
    config = {
        "topic.min.compaction.lag.ms": "86400000",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1500",
    }
    return ExampleTrial(Definition(described_once(example), folder), [feed], config=config)


ORDERS: Final = _trial(
    _ORDER_PROCESSOR, "order_processor", InputFeed("orders", orders(seed=4), RATE)
)
COUNTS: Final = _trial(ORDERS_COUNT, "orders_count_v1", InputFeed(CREATED, created(), RATE))
RISKS: Final = _trial(RISK_SCORING, "orders_risk_scoring", InputFeed(CREATED, created(), RATE))


def running_with(trial: ExampleTrial, config: Mapping[str, str]) -> ExampleTrial:
    """The trial with further Streams properties."""
    return replace(trial, config={**trial.config, **config})


def counted(records: Iterable[Record]) -> dict[str, list[int]]:
    """Every count of each customer in an output of orders_count, in order."""
    found: dict[str, list[int]] = {}
    for record in records:
        customer = (record.key or b"").decode()
        found.setdefault(customer, []).append(int.from_bytes(record.value or b""))
    return found


def each_once(created_orders: Iterable[Record]) -> dict[str, list[int]]:
    """The same as it must be when each order counts once."""
    totals: Counter[str] = count_by_customer(orders_of(created_orders))
    return {customer: list(range(1, total + 1)) for customer, total in totals.items()}
