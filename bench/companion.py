"""What the companion costs: an at-least-once application works off a backlog, with and without."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.harness import Act, Case, Measured, Options
from bench.memory import watched
from bench.place import CUSTOMERS, LIMIT_S, Place, place
from examples.order_processor.application import PROGRAM, OrderProcessor, create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.companion import COMPANION_PROPERTIES, build_companion
from spark_resources.java import JavaProgram

_ORDERS: Final = 1_000_000
_PARTITIONS: Final = 4
_WARM_UP: Final = 0.25
"""The share of the backlog that is worked off before the measurement starts."""
_COMMIT_MS: Final = 500


@contextmanager
def companion(options: Options) -> Iterator[Case]:
    """The same application with and without the companion, in turn, on the same backlog."""
    with place() as here:
        create_topics(here.bootstrap_servers, partitions=_PARTITIONS)
        count = options.scaled(_ORDERS, 10_000)
        generator = OrderGenerator(seed=3, customers=CUSTOMERS)
        produce_orders(here.bootstrap_servers, generator, count=count)
        yield Case(
            "The companion in an at-least-once application that works off a backlog",
            [
                Act("without companion", lambda: _worked_off(here, count, with_companion=False)),
                Act(
                    "with companion",
                    lambda: _worked_off(here, count, with_companion=True),
                    against="without companion",
                    at_most={"ratio": 1.05},
                ),
                Act(
                    "without companion, again",
                    lambda: _worked_off(here, count, with_companion=False),
                    against="without companion",
                ),
            ],
            [
                f"The order processor with two threads, {count:,} orders in {_PARTITIONS}"
                f" partitions, `commit.interval.ms` {_COMMIT_MS}, no cache; a new application id"
                " each time. Seconds are those from a quarter of the backlog to its end. CPU and"
                " memory are those of the application alone. The ratio of the third act shows how"
                " far two runs of the same program differ on this machine.",
            ],
        )


def _worked_off(here: Place, count: int, *, with_companion: bool) -> Measured:
    here.made += 1
    application_id = f"companion-{here.made}"
    jars = (build_companion(),) if with_companion else ()
    app = OrderProcessor(
        here.bootstrap_servers,
        state_dir=here.folder / application_id,
        application_id=application_id,
        guarantee="at_least_once",
        commit_interval_ms=_COMMIT_MS,
        threads=2,
        config={
            "statestore.cache.max.bytes": "0",
            **(COMPANION_PROPERTIES if with_companion else {}),
        },
        program=JavaProgram(PROGRAM.source, also=PROGRAM.also, jars=jars),
    )
    with app:
        start = _read(here, application_id, round(count * _WARM_UP))
        with watched(lambda: [app.pid] if app.pid else []) as usage:
            began = time.monotonic()
            end = _read(here, application_id, count)
            seconds = time.monotonic() - began
    figures = {
        "orders_per_s": (end - start) / seconds,
        "cpu_us_per_order": usage.cpu_s * 1e6 / (end - start),
    }
    return Measured(seconds, usage.cpu_s, usage.peak_mb, figures=figures)


def _read(here: Place, application_id: str, count: int) -> int:
    """Wait until the application has committed so many orders; return how many it has."""
    partitions = [TopicPartitionId("orders", number) for number in range(_PARTITIONS)]
    deadline = time.monotonic() + LIMIT_S
    while True:
        offsets = here.cluster.group_offsets(application_id, partitions=partitions)
        read = sum(one.offset for one in offsets.values())
        if read >= count:
            return read
        if time.monotonic() > deadline:
            raise RuntimeError(f"{application_id} has read {read} of {count} orders")
        time.sleep(0.05)
