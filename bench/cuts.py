"""How long an exact recovery point of a live application takes, by partitions and rate."""

import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.machine import write_result
from examples.order_processor.application import TOPICS, OrderProcessor, create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.recovery.recorder import Recorder

_CASES = ((3, 500), (3, 5_000), (3, 10_000), (12, 5_000), (50, 5_000))
"""Partitions of each topic, and orders per second."""
_WARM_UP_S = 12.0
_POINTS = 20
_EVERY_S = 1.0
_WAIT_MS = 250


def main() -> None:
    """Measure and write bench/results/cuts.md."""
    rows = []
    with TemporaryDirectory(prefix="bench-cuts-") as folder:
        for number, (partitions, rate) in enumerate(_CASES):
            rows.append(_case(Path(folder) / str(number), partitions, rate))
            print(rows[-1], flush=True)
    write_result(
        "cuts",
        title="Exact recovery points of a live application",
        command="python -m bench cuts",
        columns=[
            "partitions written",
            "orders/s",
            "points",
            "by transactions",
            "median ms",
            "of it not waiting",
            "slowest ms",
            "more than one try",
        ],
        rows=rows,
        notes=[
            "The order processor with two instances of two threads each, exactly_once_v2,"
            " committing every 100 ms, on one broker; all on the same two cores as the recorder."
            " Partitions written are those of changelog, repartition and output topics. Times are"
            " of the whole point with its records in flight and its changelog tails,"
            f" {_WAIT_MS} ms of deliberate wait included, without the two commits that store it.",
        ],
    )


def _case(folder: Path, partitions: int, rate: int) -> Sequence[object]:
    with LocalCluster(folder / "broker") as cluster, ExitStack() as stack:
        create_topics(cluster.bootstrap_servers, partitions=partitions)
        for instance in range(2):
            processor = OrderProcessor(
                cluster.bootstrap_servers,
                state_dir=folder / f"state-{instance}",
                commit_interval_ms=100,
                threads=2,
            )
            stack.enter_context(processor)
        stop = threading.Event()
        with ThreadPoolExecutor() as threads:
            load = threads.submit(
                produce_orders,
                cluster.bootstrap_servers,
                OrderGenerator(seed=1, customers=5_000),
                rate=rate,
                duration_s=600,
                stop=stop,
            )
            try:
                points = _take(cluster, folder)
            finally:
                stop.set()
            load.result()
    times = [point.took_ms for point in points]
    median = statistics.median(times)
    return [
        4 * partitions,
        rate,
        len(points),
        sum(point.method.value == "transactions" for point in points),
        round(median),
        round(median) - _WAIT_MS,
        max(times),
        sum(point.attempts > 1 for point in points),
    ]


def _take(cluster: LocalCluster, folder: Path) -> list[RecoveryPoint]:
    connection = KafkaConnection(bootstrap_servers=cluster.bootstrap_servers)
    points = []
    with KafkaCluster(connection) as control:
        recorder = Recorder(_application(), control, Warehouse(folder / "warehouse"))
        until = time.monotonic() + _WARM_UP_S
        while time.monotonic() < until:
            recorder.take()
            time.sleep(_EVERY_S)
        for _ in range(_POINTS):
            points.append(recorder.take())
            time.sleep(_EVERY_S)
    return points


def _application() -> StreamsApplication:
    orders, totals, rejected = TOPICS
    roles = {
        orders: TopicRole.INPUT,
        totals: TopicRole.OUTPUT,
        rejected: TopicRole.OUTPUT,
        "orders-orders-by-customer-repartition": TopicRole.REPARTITION,
        "orders-order-totals-changelog": TopicRole.CHANGELOG,
    }
    topics = tuple(AppTopic(name, TopicRoles({role})) for name, role in sorted(roles.items()))
    return StreamsApplication("orders", topics)


if __name__ == "__main__":
    main()
