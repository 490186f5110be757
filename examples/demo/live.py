"""The live part: orders flow in, a follower backs them up, windows close."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from examples.demo.place import DEFS
from examples.demo.shop import Shop
from kstreams_assets.backup.follow import status_of, trouble_of
from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings

RATE: Final = 2_000.0
_WINDOW_S: Final = 60.0
_LEAST_S: Final = 40.0
"""The first window that is backed up holds at least so many seconds of orders."""
_BACKED_UP_S: Final = 60.0
_PROGRESS_EVERY_S: Final = 15.0
_DRAIN_TIMEOUT_S: Final = 120.0


class DemoError(RuntimeError):
    """Something in the demo is not as it must be."""


def start_engine(log: Path) -> None:
    """`kstreams-assets engine start`, before the load: rules and restores find a warm Spark.

    Raises:
        DemoError: It did not start.
    """
    if _command(log, "engine", "start").wait() != 0:
        raise DemoError(f"Spark did not start: {log.read_text().strip()[-500:]}")


def _command(log: Path, *words: str) -> "subprocess.Popen[bytes]":
    with log.open("w") as output:
        program = [sys.executable, "-m", "kstreams_assets.cli.main"]
        return subprocess.Popen([*program, *words], stdout=output, stderr=output)


@contextmanager
def followed(log: Path) -> Iterator[None]:
    """`kstreams-assets follow` in a process of its own; it dies with the cluster."""
    process = _command(log, "follow", "--app", str(DEFS))
    try:
        yield
    finally:
        process.kill()
        process.wait()


def await_windows(settings: ApplicationSettings, shop: Shop) -> list[Window]:
    """The windows that the follower has backed up, once one has most of a minute of orders.

    Raises:
        DemoError: It has not backed them up in time.
    """
    began, shown = time.time(), 0.0
    boundary = began - began % _WINDOW_S + _WINDOW_S
    closes = boundary if boundary - began >= _LEAST_S else boundary + _WINDOW_S
    calendar = WindowCalendar(settings.windows)
    while True:
        newest = calendar.newest_closed()
        if newest is not None and newest.end_ms >= closes * 1000:
            statuses = window_statuses(settings)
            if not any(status.is_due for status in statuses):
                return [status.window for status in statuses]
        if time.time() > closes + _BACKED_UP_S:
            raise DemoError(f"Windows are not backed up: {trouble_of(settings) or 'no reason'}")
        time.sleep(0.2)
        if time.time() - shown >= _PROGRESS_EVERY_S:
            shown = time.time()
            print(
                f"  {shown - began:3.0f} s, {len(shop.places):,} orders{_age(settings)}", flush=True
            )


def _age(settings: ApplicationSettings) -> str:
    status = status_of(settings.warehouse, settings.application_id)
    if status is None or status.covered_at_ms is None:
        return ""
    return f"; everything up to {time.time() - status.covered_at_ms / 1000:.1f} s ago is safe"


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
