"""The live part: orders flow in, recovery points are taken, windows close."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from examples.demo.shop import Shop
from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.spans import Window

RATE: Final = 2_000.0
POINT_EVERY_S: Final = 5.0
_WINDOW_S: Final = 60.0
_LEAST_S: Final = 40.0
"""The first window that is backed up holds at least so many seconds of orders."""
_PROGRESS_EVERY_S: Final = 15.0
_DRAIN_TIMEOUT_S: Final = 120.0


class DemoError(RuntimeError):
    """Something in the demo is not as it must be."""


@contextmanager
def points_taken(settings: ApplicationSettings) -> Iterator[list[str]]:
    """Takes a recovery point every five seconds while the block runs; their ids."""
    stop = threading.Event()
    taken: list[str] = []

    def take() -> None:
        with KafkaCluster(settings.connection) as cluster:
            recorder = recorder_of(settings, cluster)
            while not stop.wait(POINT_EVERY_S):
                try:
                    taken.append(recorder.take().id)
                except KStreamsAssetsError as error:  # the cluster is lost while one is taken
                    if not stop.is_set():
                        print(f"  no recovery point: {error}", flush=True)

    thread = threading.Thread(target=take, name="recovery points", daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        stop.set()
        thread.join(_DRAIN_TIMEOUT_S)


def await_windows(settings: ApplicationSettings, shop: Shop) -> list[Window]:
    """The windows that are due once one with most of a minute of orders has closed."""
    began, shown = time.time(), 0.0
    boundary = began - began % _WINDOW_S + _WINDOW_S
    closes = boundary if boundary - began >= _LEAST_S else boundary + _WINDOW_S
    calendar = WindowCalendar(settings.windows)
    while (newest := calendar.newest_closed()) is None or newest.end_ms < closes * 1000:
        time.sleep(0.2)
        if time.time() - shown >= _PROGRESS_EVERY_S:
            shown = time.time()
            print(f"  {shown - began:3.0f} s, {len(shop.places):,} orders", flush=True)
    return [status.window for status in window_statuses(settings)]


def await_drained(settings: ApplicationSettings, cluster: KafkaCluster) -> None:
    """Wait until the group's committed offsets have reached the ends of what it reads."""
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    while True:
        committed = cluster.group_offsets(settings.application_id)
        ends = cluster.last_stable_offsets(list(committed))
        if committed and all(_at_end(p, committed[p].offset, ends[p]) for p in committed):
            return
        if time.monotonic() > deadline:
            raise DemoError(f"{settings.application_id} did not catch up within 120 s.")
        time.sleep(0.2)


def _at_end(partition: TopicPartitionId, committed: int, end: int) -> bool:
    """A commit marker behind the last record may keep the two apart by one, never more."""
    return end - committed <= (1 if partition.topic.endswith("-repartition") else 0)
