"""Windows of a few records, tables and rules: what starting, waiting and planning cost."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench.harness import Act, Case, Measured, Opened, Options
from bench.place import CUSTOMERS, Place, flushed, order_processor, place, send
from examples.demo.live import await_drained
from examples.demo.place import DEFS
from examples.order_processor.application import create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.recovery.recorder import recorder_of

_TOPICS: Final = tuple(f"topic-{number}" for number in range(5))
_PARTITIONS: Final = 4
_OF_WINDOW: Final = 6_000
_WINDOWS: Final = 10
_VALUE: Final = b"v" * 200
_WARMED_UP: Final = 10
"""How often each command runs before it is measured: a JVM compiles what it has run often."""


@contextmanager
def small(options: Options) -> Iterator[Case]:
    """Windows of 20 spans, one or ten of them, with and without an engine."""
    with place() as here:
        here.cluster.create_topics([TopicSpec(t, _PARTITIONS, 1) for t in _TOPICS])
        file = here.file({"inputs": list(_TOPICS)})
        points: list[RecoveryPoint] = []
        for number in range(1 + _WINDOWS):
            if number:
                _produce(here, options.scaled(_OF_WINDOW, 100))
            points.append(here.point(file, number))

        def backup(windows: int, *, warm: bool) -> Measured:
            here.engine_runs() if warm else here.no_engine()
            root = here.warehouse(points)
            keys = [here.window(number) for number in range(1, 1 + windows)]
            words = ["--app", str(file), "--warehouse", str(root)]
            measured = here.command("backup", *words, *(f"--window={key}" for key in keys))
            here.stored(root, keys, windows * options.scaled(_OF_WINDOW, 100))
            shutil.rmtree(root)
            return measured

        yield Case(
            "Windows of 6,000 records in 20 spans: the whole process",
            [
                Act(
                    "20 spans, warm engine",
                    partial(backup, 1, warm=True),
                    at_most={"seconds": 3.5},
                ),
                Act(
                    "200 spans, warm engine",
                    partial(backup, _WINDOWS, warm=True),
                    at_most={"seconds": 8.0},
                ),
                Act(
                    "20 spans, no engine runs",
                    partial(backup, 1, warm=False),
                    at_most={"seconds": 12.0},
                ),
            ],
            [
                f"{len(_TOPICS)} topics with {_PARTITIONS} partitions each, {_OF_WINDOW:,} records"
                " of 200 bytes per window; 200 spans are ten windows in one run. So few records are"
                " read in the process itself, so that no engine is started where none runs.",
            ],
        )


def _produce(here: Place, records: int) -> None:
    producer = Producer({"bootstrap.servers": here.bootstrap_servers, "linger.ms": 5})
    for number in range(records):
        topic, partition = _TOPICS[number % len(_TOPICS)], number % _PARTITIONS
        send(producer, topic, _VALUE, b"key-%d" % number, partition=partition)
    flushed(producer)


def _orders(count: int, at_most: Mapping[str, float]) -> Opened:
    def opened(options: Options) -> AbstractContextManager[Case]:
        return _open_orders(options.scaled(count, 1_000), at_most)

    return opened


ORDERS: Final = _orders(6_000, {"seconds": 4.0})
MANY_ORDERS: Final = _orders(120_000, {})


@contextmanager
def _open_orders(count: int, at_most: Mapping[str, float]) -> Iterator[Case]:
    """Tables and rules of the order processor over one window."""
    with place() as here:
        here.engine_runs()
        backed_up, window, variables = _orders_backed_up(here, count)

        def command(*words: str) -> Callable[[], Measured]:
            def run() -> Measured:
                root = here.copy(backed_up)
                told = ["--app", str(DEFS), "--warehouse", str(root), "--window", window]
                measured = here.command(*words, *told, **variables)
                shutil.rmtree(root)
                return measured

            return run

        make, check = command("ktables", "make"), command("completeness", "check")
        first = (make().seconds, check().seconds)
        for _ in range(_WARMED_UP - 1):
            make()
            check()
        yield Case(
            f"Tables and rules of the order processor over {count:,} orders: the whole process",
            [
                Act("ktables make", make, at_most=at_most),
                Act("completeness check", check, at_most=at_most),
            ],
            [
                f"One window of {count:,} orders of {CUSTOMERS:,} customers; one store, six rules."
                f" The engine is warm: each command has run {_WARMED_UP} times before. Just after"
                f" its start they took {first[0]:.1f} and {first[1]:.1f} s.",
            ],
        )


def _orders_backed_up(here: Place, count: int) -> tuple[Path, str, dict[str, str]]:
    """A warehouse with one window of orders that the application has processed.

    Returns its folder, the window, and the variables that the example's YAML reads.
    """
    servers, root = here.bootstrap_servers, here.folder / "orders"
    create_topics(servers, partitions=_PARTITIONS)
    settings = load_settings(DEFS, bootstrap_servers=servers, warehouse=str(root))
    with order_processor(here):
        generator = OrderGenerator(seed=5, customers=CUSTOMERS)
        produce_orders(servers, generator, count=count)
        await_drained(settings, here.cluster)
    point = recorder_of(settings, here.cluster).take()
    minute = datetime.fromtimestamp(point.taken_at_ms // 60_000 * 60, tz=UTC)
    time.sleep(max(0.0, minute.timestamp() + 61 - time.time()))
    variables = {
        "KSTREAMS_BOOTSTRAP_SERVERS": servers,
        "KSTREAMS_WINDOWS_START": f"{minute:%Y-%m-%d}",
    }
    window = f"{minute:%Y-%m-%d-%H:%M}"
    told = ["--app", str(DEFS), "--warehouse", str(root), "--window", window]
    here.command("backup", *told, **variables)
    return root, window, variables
