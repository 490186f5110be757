"""One run of the order processor under load with five recovery points, one for each hard moment."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.order_processor.application import Guarantee as Processing
from examples.order_processor.application import OrderProcessor, create_topics
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.work import Spark
from tests.restore.control import read
from tests.restore.trial import Restored, Source, SourceRun, end_of, settings_of
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Feed
from tests.streams.orders import PARTITIONS, OrderTopics, order_processor, orders

RATE: Final = 3_000
IN_FLIGHT: Final = 2_000
"""How many records the point of the paused reader has in flight at least."""

_ABORT_EVERY: Final = 4
_PAUSE_S: Final = 3.0
_LONGEST_PAUSE_S: Final = 5.0
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class OrderRun:
    """The source run with what its tests need beside.

    `rate` is in orders per second. `before` was taken two seconds before point `one instance`,
    `old_state` is the state directory that an instance left just before `after a rebalance`.
    `aborted` counts records of aborted transactions of the application, below point `aborted`.
    """

    source: SourceRun
    topics: OrderTopics
    rate: float
    before: RecoveryPoint
    old_state: Path
    aborted: int


def run_order_processor(folder: Path, spark: Spark) -> OrderRun:
    """Run it on a cluster of its own, take the points, let it finish, back up, stop the cluster."""
    topics = OrderTopics(unique_name("orders"), unique_name("o") + ".")
    with (
        LocalCluster(folder / "source") as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
    ):
        servers = local.bootstrap_servers
        create_topics(servers, topic_prefix=topics.prefix, partitions=PARTITIONS)
        source = Source(settings_of(topics.application, servers, folder), cluster)
        first, second = (
            order_processor(servers, topics, folder / f"state-{number}") for number in range(2)
        )
        feed = Feed(
            servers,
            topics.orders,
            orders(seed=1),
            rate=RATE,
            abort_every=_ABORT_EVERY,
            junk=orders(seed=2),
        )
        with _started(first, second), feed:
            time.sleep(3)
            points, before, aborted = _hard_moments(source, topics, second, folder / "old-state")
            time.sleep(2)
            feed.stop()
            source.drain()
        source.back_up(points["one instance"], spark)
        return OrderRun(
            source=source.ended(points),
            topics=topics,
            rate=feed.count / feed.seconds,
            before=before,
            old_state=folder / "old-state",
            aborted=aborted,
        )


def go_on(
    restored: Restored,
    topics: OrderTopics,
    state_dir: Path,
    *,
    guarantee: Processing = "exactly_once_v2",
) -> None:
    """Start the restored application, replay what the point does not hold, wait for its end.

    `topics` are those of the source run; `state_dir` is empty unless the test wants otherwise.
    """
    prefix = restored.names[topics.orders].removesuffix("orders")
    renamed = OrderTopics(restored.plan.group, prefix)
    servers = restored.target.bootstrap_servers
    with order_processor(servers, renamed, state_dir, guarantee=guarantee):
        assert restored.replay() > 0
        restored.drain()


def _hard_moments(
    source: Source, topics: OrderTopics, second: OrderProcessor, old_state: Path
) -> tuple[Mapping[str, RecoveryPoint], RecoveryPoint, int]:
    points = {"steady": source.take()}
    points["aborted"], aborted = _take_above_aborted(source, topics, second)
    time.sleep(4)
    second.stop()
    shutil.copytree(second.log_file.parent / "state-1", old_state)
    second.start()
    points["after a rebalance"] = source.take()
    time.sleep(2)
    with _paused_in_transaction(source, topics, second):
        time.sleep(_PAUSE_S)
        points["reader paused"] = source.take(fits=lambda point: point.in_flight >= IN_FLIGHT)
    second.stop()
    time.sleep(1)
    before = source.take()
    time.sleep(2)
    points["one instance"] = source.take()
    return points, before, aborted


@contextmanager
def _started(*instances: OrderProcessor) -> Iterator[None]:
    """Instances that run until the end."""
    with ThreadPoolExecutor(len(instances)) as pool, ExitStack() as stack:
        for instance in instances:
            stack.callback(instance.kill)
        list(pool.map(OrderProcessor.start, instances))
        yield


@contextmanager
def _paused(instance: OrderProcessor) -> Iterator[None]:
    """Stop an instance (SIGSTOP) for five seconds at most: the group waits six for it."""
    pid = instance.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    # It may have stopped while it committed: a point then waits for it.
    goes_on = threading.Timer(_LONGEST_PAUSE_S, os.kill, (pid, signal.SIGCONT))
    goes_on.start()
    try:
        yield
    finally:
        goes_on.cancel()
        if instance.running:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def _paused_in_transaction(
    source: Source, topics: OrderTopics, instance: OrderProcessor
) -> Iterator[None]:
    """Stop an instance while one of its transactions is open and has written state."""
    partitions = [TopicPartitionId(topics.changelog, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + _TIMEOUT_S
    runs_s = 0.13
    while time.monotonic() < deadline:
        with _paused(instance):
            stable = source.cluster.last_stable_offsets(partitions)
            time.sleep(0.5)  # the other instance commits five times meanwhile
            later = source.cluster.last_stable_offsets(partitions)
            ends = source.cluster.high_watermarks(partitions)
            if any(stable[p] == later[p] < ends[p] for p in partitions):
                yield
                return
        time.sleep(runs_s)
        runs_s *= 1.3  # on a busy machine it needs longer to begin one
    raise AssertionError("the instance was never in a transaction when it was stopped")


def _take_above_aborted(
    source: Source, topics: OrderTopics, second: OrderProcessor
) -> tuple[RecoveryPoint, int]:
    """Kill an instance in a transaction that has written something, and take a point above it.

    Also how many records of aborted transactions lie below it.

    What looks like a transaction of this instance may be one of the other, which a busy machine has
    held up, or one whose commit was on its way: then once more.
    """
    for _ in range(5):
        with _paused_in_transaction(source, topics, second):
            second.kill()
        second.start()
        point = source.take()
        aborted = _aborted(source.settings.connection.bootstrap_servers, topics, point)
        if aborted > 0:
            return point, aborted
    raise AssertionError("of five kills in a transaction none aborted one that had records")


def _aborted(bootstrap_servers: str, topics: OrderTopics, point: RecoveryPoint) -> int:
    """How many records of aborted transactions lie below a point."""
    seen = [
        sum(
            record.offset < end_of(point, topic, record.partition)
            for topic, records in read(
                bootstrap_servers, topics.written, uncommitted=uncommitted
            ).items()
            for record in records
        )
        for uncommitted in (True, False)
    ]
    return seen[0] - seen[1]
