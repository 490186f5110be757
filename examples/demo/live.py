"""The live part: orders flow in, the application works, recovery points are taken."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from examples.order_processor.load import LoadResult, produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.backup.from_settings import recorder_of
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.positions import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings

RATE: Final = 2_000.0
POINT_EVERY_S: Final = 5.0
_PROGRESS_EVERY_S: Final = 15.0
_DRAIN_TIMEOUT_S: Final = 60.0


class DemoError(RuntimeError):
    """Something in the demo is not as it must be."""


@dataclass(frozen=True, slots=True)
class LivePhase:
    """What was produced, and the recovery points taken meanwhile."""

    load: LoadResult
    points: int


def run_load(
    settings: ApplicationSettings, generator: OrderGenerator, *, duration_s: float
) -> LivePhase:
    """Produce orders and take a recovery point every five seconds; returns when both are done.

    The last point is taken once the application has processed every order.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=2) as threads:
        load = threads.submit(
            produce_orders,
            settings.connection.bootstrap_servers,
            generator,
            rate=RATE,
            duration_s=duration_s,
        )
        points = threads.submit(_take_points, settings, stop)
        try:
            _show_progress(load, duration_s)
        finally:
            stop.set()
        produced, taken = load.result(), points.result()
    with KafkaCluster(settings.connection) as cluster:
        _await_drained(settings, cluster)
        recorder_of(settings, cluster).take()
    return LivePhase(produced, taken + 1)


def _take_points(settings: ApplicationSettings, stop: threading.Event) -> int:
    taken = 0
    with KafkaCluster(settings.connection) as cluster:
        recorder = recorder_of(settings, cluster)
        while not stop.wait(POINT_EVERY_S):
            recorder.take()
            taken += 1
    return taken


def _show_progress(load: "Future[LoadResult]", duration_s: float) -> None:
    began = time.monotonic()
    shown = 0.0
    while not load.done():
        time.sleep(0.5)
        elapsed = time.monotonic() - began
        if elapsed - shown >= _PROGRESS_EVERY_S:
            shown = elapsed
            print(f"  {elapsed:3.0f} of {duration_s:.0f} s, about {elapsed * RATE:,.0f} orders")


def _await_drained(settings: ApplicationSettings, cluster: KafkaCluster) -> None:
    """Wait until the group's committed offsets have reached the ends of what it reads."""
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    while True:
        committed = cluster.group_offsets(settings.application_id)
        ends = cluster.last_stable_offsets(list(committed))
        if committed and all(_at_end(p, committed[p].offset, ends[p]) for p in committed):
            return
        if time.monotonic() > deadline:
            raise DemoError(f"{settings.application_id} did not catch up within 60 s.")
        time.sleep(0.2)


def _at_end(partition: TopicPartitionId, committed: int, end: int) -> bool:
    """A commit marker behind the last record may keep the two apart by one, never more."""
    return end - committed <= (1 if partition.topic.endswith("-repartition") else 0)
