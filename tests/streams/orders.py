"""The order processor as the tests of restores run it: its outputs follow from its inputs alone."""

import json
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from examples.order_processor.application import PROGRAM, Guarantee, OrderProcessor
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from tests.streams.feed import Record

PARTITIONS: Final = 4

_CUSTOMERS: Final = 20_000
_SKEW: Final = 0.5
"""Some customers order hundreds of times, most so rarely that a stale total stays stale."""
_CONFIG: Final = {
    # The tasks of a killed instance move within seconds.
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1500",
    # An instance that comes back gets its share of tasks at once, however far its state is behind:
    # else, on a busy machine, it gets none with state for ten minutes.
    "acceptable.recovery.lag": str(2**63 - 1),
    # Every update is one changelog record and one output record, whenever it is committed.
    "statestore.cache.max.bytes": "0",
}


@dataclass(frozen=True, slots=True)
class OrderTopics:
    """The names of every topic of one order processor."""

    application_id: str
    prefix: str

    @property
    def orders(self) -> str:
        """Input."""
        return f"{self.prefix}orders"

    @property
    def repartition(self) -> str:
        """Orders by customer."""
        return f"{self.application_id}-orders-by-customer-repartition"

    @property
    def changelog(self) -> str:
        """Of the store of totals."""
        return f"{self.application_id}-order-totals-changelog"

    @property
    def totals(self) -> str:
        """Output: every change of a customer's total."""
        return f"{self.prefix}customer-totals"

    @property
    def rejected(self) -> str:
        """Output: orders that are none, with a header."""
        return f"{self.prefix}orders-rejected"

    @property
    def written(self) -> tuple[str, ...]:
        """What the application writes and nobody deletes."""
        return (self.changelog, self.totals, self.rejected)

    @property
    def application(self) -> StreamsApplication:
        """The application as this project sees it."""
        roles = {
            self.orders: TopicRole.INPUT,
            self.repartition: TopicRole.REPARTITION,
            self.changelog: TopicRole.CHANGELOG,
            self.totals: TopicRole.OUTPUT,
            self.rejected: TopicRole.OUTPUT,
        }
        found = tuple(AppTopic(name, TopicRoles({roles[name]})) for name in sorted(roles))
        return StreamsApplication(self.application_id, found)


def order_processor(
    bootstrap_servers: str,
    topics: OrderTopics,
    state_dir: Path,
    *,
    guarantee: Guarantee = "exactly_once_v2",
    commit_interval_ms: int = 100,
    config: Mapping[str, str] | None = None,
    jars: tuple[Path, ...] = (),
) -> OrderProcessor:
    """An instance whose outputs follow from its inputs: one record for every update."""
    return OrderProcessor(
        bootstrap_servers,
        state_dir=state_dir,
        application_id=topics.application_id,
        topic_prefix=topics.prefix,
        guarantee=guarantee,
        commit_interval_ms=commit_interval_ms,
        config={**_CONFIG, **(config or {})},
        program=replace(PROGRAM, jars=jars),
    )


def orders(*, seed: int) -> Callable[[int], Record]:
    """Orders by index; those of one customer lie in one partition.

    So each customer's orders come from one task, in one order, however often they are processed.
    """
    generator = OrderGenerator(seed=seed, customers=_CUSTOMERS, skew=_SKEW)

    def order(index: int) -> Record:
        made = generator.order(index)
        partition = zlib.crc32(made.customer_id.encode()) % PARTITIONS
        return Record(partition, -1, time.time_ns() // 1_000_000, made.key, made.value)

    return order


def totals(records: Iterable[Record]) -> dict[bytes | None, tuple[int, int]]:
    """Count and cents of every customer at the end of the topic of totals."""
    last = {record.key: json.loads(record.value or b"") for record in records}
    return {key: (value["count"], value["total_cents"]) for key, value in last.items()}
