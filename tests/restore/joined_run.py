"""WideApp with its joins, twice with standby replicas: a point under load, and what goes on."""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.point import Guarantee, RecoveryPoint
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.work import Spark
from tests.restore.trial import Restored, Source, SourceRun, settings_of
from tests.restore.wide_run import SENSORS, an_hour_ago, await_closed_windows, readings
from tests.streams.cluster import unique_name
from tests.streams.feed import Feed, Record, produce
from tests.streams.wide_app import WideApp, WideTopics

PLACES: Final = 4

BROKER: Final = {
    # The brokers of streams groups decide how quickly instances find each other.
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.session.timeout.ms": "6000",
}

_RATE: Final = 600
_BEFORE_S: Final = 3.0
_AFTER_S: Final = 2.0
_TIMEOUT_S: Final = 60.0
_VERSIONS: Final = 100
"""How many versions of each calibration are there before the first reading."""
_VERSION_MS: Final = 30_000
_DELETED_EVERY: Final = 7
_CLASSIC: Final = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
"""Of a streams group, the broker sets these."""


@dataclass(frozen=True, slots=True)
class Case:
    """How the application is configured."""

    guarantee: Guarantee
    protocol: Literal["classic", "streams"]
    store_format: Literal["DEFAULT", "HEADERS"]

    @property
    def is_exact(self) -> bool:
        """Whether the application processes exactly once."""
        return self.guarantee is Guarantee.EXACT

    @property
    def config(self) -> dict[str, str]:
        """Streams properties."""
        return {
            "processing.guarantee": "exactly_once_v2" if self.is_exact else "at_least_once",
            "group.protocol": self.protocol,
            "dsl.store.format": self.store_format,
            "num.standby.replicas": "1",
            "topology.optimization": "all",
            **(_CLASSIC if self.protocol == "classic" else {}),
        }

    @contextmanager
    def instances(
        self, bootstrap_servers: str, topics: WideTopics, folder: Path
    ) -> Iterator[tuple[WideApp, WideApp]]:
        """Two running instances; each has active tasks, and standby tasks."""
        first, second = (
            WideApp(
                bootstrap_servers,
                topics,
                state_dir=folder / f"instance-{number}",
                # Where it is not exact, what lies between two commits is done twice.
                commit_interval_ms=100 if self.is_exact else 2_000,
                # A task that changes its thread is closed and opened again; Kafka Streams 4.3 and
                # 4.4 find no older version then (`LogicalKeyValueSegments.openExisting`).
                threads=1,
                config=self.config,
                heap_mb=160,
            )
            for number in range(2)
        )
        with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
            for instance in (first, second):
                stack.callback(instance.kill)
            list(pool.map(WideApp.start, (first, second)))
            _await_tasks(first, second)
            yield first, second
            list(pool.map(WideApp.stop, (first, second)))


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """A source run with its names; its only point is `live`.

    `column_families` are those of the state that the instances left, by store.
    """

    case: Case
    source: SourceRun
    topics: WideTopics
    column_families: dict[str, set[str]]

    @property
    def point(self) -> RecoveryPoint:
        """Taken under load."""
        return self.source.points["live"]

    def go_on(self, restored: Restored, folder: Path) -> None:
        """Start two restored instances, replay what the point does not hold, wait for the end."""
        prefix = restored.names[self.topics.readings].removesuffix("readings")
        renamed = WideTopics(restored.plan.group, prefix, joins=True)
        with self.case.instances(restored.target.bootstrap_servers, renamed, folder):
            assert restored.replay() > 0
            restored.drain()


def run_joined_app(
    case: Case, connection: KafkaConnection, folder: Path, spark: Spark
) -> JoinedRun:
    """Run it to its end, with a point under load on the way; back up that point."""
    topics = WideTopics(unique_name("joined"), unique_name("j") + ".", joins=True)
    servers = connection.bootstrap_servers
    began_ms = an_hour_ago()
    with KafkaCluster(connection) as cluster:
        topics.create(cluster, partitions=PLACES)
        calibrations, places, units = topics.tables
        known = _VERSIONS * PLACES * SENSORS
        produce(servers, calibrations, map(calibration(began_ms), range(known)))
        produce(servers, units, (_of_place(place, b"unit-%d" % place) for place in range(PLACES)))
        produce(servers, places, map(_place, range(PLACES)))
        with case.instances(servers, topics, folder):
            source = Source(settings_of(topics.discovered(cluster), servers, folder), cluster)
            source.drain()
            made = readings(places=PLACES, traced=True)
            later = calibration(began_ms, first=known)
            with (
                Feed(servers, topics.readings, made, rate=_RATE),
                Feed(servers, calibrations, later, rate=20),
                Feed(servers, places, _place, rate=20),
            ):
                time.sleep(_BEFORE_S)
                await_closed_windows(source, topics, partitions=PLACES)
                _await_alerts(source, topics)
                live = source.take(guarantee=case.guarantee)
                time.sleep(_AFTER_S)
            source.drain()
        source.back_up(live, spark)
        families = {
            store: _column_families(folder, store) for store in ("sums", "per-window", "traces")
        }
        return JoinedRun(case, source.ended({"live": live}), topics, families)


def calibration(began_ms: int, *, first: int = 0) -> Callable[[int], Record]:
    """Versions of every sensor's calibration, one after the other; some end without a next.

    Those of index `_VERSIONS * PLACES * SENSORS` and later begin after every reading of a run.
    """

    def record(index: int) -> Record:
        version, sensor = divmod(first + index, PLACES * SENSORS)
        place, number = divmod(sensor, SENSORS)
        # Each pair of versions comes in the wrong order.
        at_ms = began_ms + (version ^ 1) * _VERSION_MS + random.Random(sensor).randrange(1_000)
        value = None if version % _DELETED_EVERY == 3 else b"c%d" % version
        return Record(place, -1, at_ms, b"%d/sensor-%d" % (place, number), value)

    return record


def _place(index: int) -> Record:
    version, place = divmod(index, PLACES)
    return _of_place(place, b"place-%d v%d" % (place, version))


def _of_place(place: int, value: bytes) -> Record:
    return Record(place, -1, time.time_ns() // 1_000_000, b"%d" % place, value)


def _await_alerts(source: Source, topics: WideTopics) -> None:
    """What comes out of the last sub-topology."""
    alerts = [TopicPartitionId(topics.changelog("alerts"), number) for number in range(PLACES)]
    deadline = time.monotonic() + _TIMEOUT_S
    while not all(source.cluster.last_stable_offsets(alerts).values()):
        assert time.monotonic() < deadline, "nothing was joined by foreign key in time"
        time.sleep(0.1)


def _await_tasks(*instances: WideApp) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not all(all(instance.tasks) for instance in instances):
        said = [instance.tasks for instance in instances]
        assert time.monotonic() < deadline, f"active and standby tasks: {said}"
        time.sleep(0.1)


def _column_families(folder: Path, store: str) -> set[str]:
    """The names of RocksDB's column families in a store's files, as its options tell them."""
    return {
        line.split('"')[1]
        for file in folder.glob(f"instance-*/**/{store}/**/OPTIONS-*")
        for line in file.read_text("utf-8").splitlines()
        if line.startswith("[CFOptions ")
    }
