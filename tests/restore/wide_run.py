"""One run of WideApp with a recovery point half-way, on a cluster that is gone afterwards."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.work import Spark
from tests.restore.trial import Source, SourceRun, settings_of
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Feed, Record
from tests.streams.wide_app import WideApp, WideTopics

_PARTITIONS: Final = 10
_RATE: Final = 1_500
_HALF_S: Final = 4.0
SENSORS: Final = 5
_STEP_MS: Final = 250
_HOUR_MS: Final = 3_600_000
_CLOSED_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class WideRun:
    """The source run with its names; its only point is `half`."""

    source: SourceRun
    topics: WideTopics


def run_wide_app(folder: Path, spark: Spark) -> WideRun:
    """Run the application, take point `half`, let it finish, back up, and stop its cluster."""
    topics = WideTopics(unique_name("wide"), unique_name("w") + ".")
    with (
        LocalCluster(folder / "source") as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
    ):
        settings = settings_of(topics.application, local.bootstrap_servers, folder)
        topics.create(cluster, partitions=_PARTITIONS)
        source = Source(settings, cluster)
        with WideApp(local.bootstrap_servers, topics, state_dir=folder / "state"):
            with Feed(local.bootstrap_servers, topics.readings, readings(), rate=_RATE) as feed:
                time.sleep(_HALF_S)
                await_closed_windows(source, topics, partitions=_PARTITIONS)
                half = source.take()
                time.sleep(_HALF_S)
                feed.stop()
            source.drain()
        source.back_up(half, spark)
        return WideRun(source.ended({"half": half}), topics)


def await_closed_windows(source: Source, topics: WideTopics, *, partitions: int) -> None:
    """A busy machine needs longer until there is something that lost metadata would repeat."""
    closed = [TopicPartitionId(topics.closed, number) for number in range(partitions)]
    deadline = time.monotonic() + _CLOSED_S
    while not all(source.cluster.last_stable_offsets(closed).values()):
        assert time.monotonic() < deadline, "no window was closed in time"
        time.sleep(0.1)


def readings(*, places: int = _PARTITIONS, traced: bool = False) -> Callable[[int], Record]:
    """Readings by index; event time, which never goes back within a partition, began an hour ago.

    It passes 37 times as quickly as the clock (at 150 readings a second for each place), so that
    windows close all the time. With `traced`, a header names each.
    """
    began_ms = an_hour_ago()

    def reading(index: int) -> Record:
        chance = random.Random(index)
        step, place = divmod(index, places)
        timestamp_ms = began_ms + step * _STEP_MS + chance.randrange(_STEP_MS)
        value = f"{place}/sensor-{chance.randrange(SENSORS)},{chance.randrange(100)}"
        headers = (("trace", b"%d" % index),) if traced else ()
        return Record(place, -1, timestamp_ms, b"reading-%d" % index, value.encode(), headers)

    return reading


def an_hour_ago() -> int:
    """When event time began, in epoch milliseconds."""
    return time.time_ns() // 1_000_000 - _HOUR_MS
