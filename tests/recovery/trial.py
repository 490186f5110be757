"""Recovery points of an application under load, taken for real and judged by the oracle."""

import random
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import Guarantee, Method, RecoveryPoint
from kstreams_assets.model.saved_records import SavedRecord
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.table import Table
from kstreams_assets.settings import RecoveryPointSettings
from tests.recovery.history import read_history
from tests.recovery.oracle import Cut, History, Violation, lost_only, violations
from tests.recovery.oracle_records import Record
from tests.store.place import warehouse_at
from tests.streams.cluster import connection_to, unique_name
from tests.streams.oracle_app import OracleApp, OracleTopics, create_topics
from tests.streams.oracle_load import OracleLoad

QUICK_SESSIONS = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1500"}
"""So that the tasks of a killed instance move within seconds."""
NO_PURGE = {"repartition.purge.interval.ms": "3600000"}
"""So that the whole repartition topic can be compared afterwards."""


def application_of(topics: OracleTopics, *, ticks: bool) -> StreamsApplication:
    """The OracleApp as this project sees it, with or without its ticks."""
    roles = {
        topics.orders: TopicRole.INPUT,
        topics.repartition: TopicRole.REPARTITION,
        topics.changelog: TopicRole.CHANGELOG,
        topics.totals: TopicRole.OUTPUT,
    }
    if ticks:
        roles |= {
            topics.quiet: TopicRole.INPUT,
            topics.ticks_changelog: TopicRole.CHANGELOG,
            topics.ticks: TopicRole.OUTPUT,
        }
    found = tuple(AppTopic(name, TopicRoles({role})) for name, role in sorted(roles.items()))
    return StreamsApplication(topics.application_id, found)


@dataclass(slots=True)
class Trial:
    """One OracleApp with a warehouse of its own, whose points are taken while it runs."""

    bootstrap_servers: str
    folder: Path
    topics: OracleTopics
    settings: RecoveryPointSettings = field(default_factory=RecoveryPointSettings)
    between: Callable[[str], None] = lambda _step: None
    connection: KafkaConnection | None = None
    ticks: bool = False
    _rows: dict[TopicPartitionId, list[Record]] | None = field(init=False, default=None)

    @property
    def warehouse(self) -> Warehouse:
        """Where the points go."""
        return warehouse_at(self.folder / "warehouse")

    def create_topics(self, **options: object) -> None:
        """Create the topics that the application does not create itself."""
        create_topics(self.bootstrap_servers, self.topics, **options)  # pyright: ignore[reportArgumentType]

    def load(self, *, rate: float, **options: object) -> OracleLoad:
        """A load of orders."""
        return OracleLoad(
            self.bootstrap_servers,
            self.topics.orders,
            rate=rate,
            **options,  # pyright: ignore[reportArgumentType]
        )

    def history(self, *, repartition_purged: bool = False, **options: bool) -> History:
        """What the topics hold now; saved records are read anew as well."""
        self._rows = None
        return read_history(
            self.bootstrap_servers, self.topics, repartition_purged=repartition_purged, **options
        )

    def settle(self) -> None:
        """Wait until no transaction is open: what lies behind one of a killed instance is not read.

        Kafka aborts it after `transaction.timeout.ms`.
        """
        deadline = time.monotonic() + 60
        with KafkaCluster(KafkaConnection(bootstrap_servers=self.bootstrap_servers)) as cluster:
            topics = self.topics
            written = (topics.repartition, topics.changelog, topics.totals)
            counts = cluster.topics()
            partitions = [
                TopicPartitionId(name, number)
                for name in (*written, topics.ticks_changelog, topics.ticks)
                for number in range(counts.get(name, 0))
            ]
            while cluster.last_stable_offsets(partitions) != cluster.high_watermarks(partitions):
                assert time.monotonic() < deadline, "a transaction stays open"
                time.sleep(0.2)

    def app(self, name: str, **options: object) -> OracleApp:
        """An instance with a state directory of its own."""
        return OracleApp(
            self.bootstrap_servers,
            self.topics,
            state_dir=self.folder / name,
            **options,  # pyright: ignore[reportArgumentType]
        )

    @contextmanager
    def recorder(self) -> Iterator[Recorder]:
        """A recorder on a connection that it keeps."""
        connection = self.connection or connection_to(self.bootstrap_servers)
        with KafkaCluster(connection) as cluster:
            application = application_of(self.topics, ticks=self.ticks)
            yield Recorder(application, cluster, self.warehouse, self.settings, self.between)

    def take(self, count: int, *, every_s: float = 0.0) -> None:
        """Take points, the next one `every_s` after the one before has begun."""
        with self.recorder() as recorder:
            for _ in range(count):
                began = time.monotonic()
                recorder.take()
                time.sleep(max(0.0, every_s - (time.monotonic() - began)))

    def points(self) -> list[RecoveryPoint]:
        """The points as they were stored, oldest first."""
        table = Repository(self.warehouse, self.topics.application_id).points
        return table.newest(100_000)[::-1]

    def cut(self, point: RecoveryPoint, *, stored_changelog: bool = False) -> Cut:
        """A stored point as the oracle wants it, with the records that were saved."""
        saved = self._of_point(point)
        return Cut(
            committed={
                TopicPartitionId(o.topic, o.partition): o.offset for o in point.group_offsets
            },
            ends={cut.id: cut.end for cut in point.partitions},
            excluded={cut.id: cut.excluded for cut in point.partitions},
            in_flight={p: r for p, r in saved.items() if p.topic == self.topics.repartition},
            changelog={p: r for p, r in saved.items() if p.topic in self._changelogs}
            if stored_changelog
            else None,
        )

    @property
    def _changelogs(self) -> set[str]:
        return {self.topics.changelog, self.topics.ticks_changelog}

    def _of_point(self, point: RecoveryPoint) -> Mapping[TopicPartitionId, Sequence[Record]]:
        """What was saved for a point; as `SavedRecordsTable.of_point`, quicker for many points."""
        found: dict[TopicPartitionId, Sequence[Record]] = {}
        for cut in point.partitions:
            if cut.saved_from is not None:
                records = self._stored.get(cut.id, [])
                first = bisect_left(records, cut.saved_from, key=itemgetter(0))
                last = bisect_left(records, cut.end, key=itemgetter(0))
                found[cut.id] = [r for r in records[first:last] if cut.holds(r[0])]
        return found

    @property
    def _stored(self) -> Mapping[TopicPartitionId, list[Record]]:
        """All saved records, each once; read when the first point is looked at."""
        if self._rows is None:
            table = Table(
                self.warehouse.control("recovery_point_records"),
                SavedRecord,
                "recovery_point_id",
                self.topics.application_id,
            )
            rows = table.read()
            names = ("topic", "partition", "offset", "key", "value")
            columns = [rows.column(name).to_pylist() for name in names]
            distinct: dict[TopicPartitionId, dict[int, Record]] = {}
            for topic, partition, offset, key, value in zip(*columns, strict=True):
                of_partition = distinct.setdefault(TopicPartitionId(topic, partition), {})
                of_partition[offset] = (offset, key, value)
            self._rows = {p: sorted(records.values()) for p, records in distinct.items()}
        return self._rows


def new_trial(bootstrap_servers: str, folder: Path, **options: object) -> Trial:
    """A trial with names that no other test uses."""
    topics = OracleTopics(unique_name("oracle"), unique_name("o") + ".")
    return Trial(bootstrap_servers, folder, topics, **options)  # pyright: ignore[reportArgumentType]


def wrong_points(
    trial: Trial,
    history: History,
    points: Iterable[RecoveryPoint],
    *,
    stored_changelog: bool = False,
) -> dict[str, list[Violation]]:
    """Points labelled exact that are not, with what contradicts them."""
    found = {
        point.id: violations(history, trial.cut(point, stored_changelog=stored_changelog))
        for point in points
        if point.guarantee is Guarantee.EXACT
    }
    return {one: wrong for one, wrong in found.items() if wrong}


def losing_points(
    trial: Trial, history: History, points: Iterable[RecoveryPoint]
) -> dict[str, list[Violation]]:
    """Points whose restore would lose something, whatever their label."""
    found = {point.id: lost_only(history, trial.cut(point)) for point in points}
    return {one: wrong for one, wrong in found.items() if wrong}


def methods(points: Iterable[RecoveryPoint]) -> Counter[Method]:
    """How many points each method gave."""
    return Counter(point.method for point in points)


def reasons(points: Iterable[RecoveryPoint]) -> list[str]:
    """Why points are not exact."""
    return [point.reason for point in points if point.guarantee is not Guarantee.EXACT]


def took_ms(points: Sequence[RecoveryPoint]) -> float:
    """The median time that a point took."""
    times = sorted(point.took_ms for point in points)
    return times[len(times) // 2]


@contextmanager
def disturbance(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs something beside the test until its end; its failure is the test's."""
    over, failures = threading.Event(), []

    def run() -> None:
        try:
            act(over)
        except BaseException as error:  # noqa: BLE001 (handed on below)
            failures.append(error)

    thread = threading.Thread(target=run, name="disturbance")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(120)
    if failures:
        raise failures[0]


def random_delays(most_s: float, seed: int = 1) -> Callable[[str], None]:
    """Pauses of a random length between the steps of a method."""
    source = random.Random(seed)
    return lambda _step: time.sleep(source.uniform(0, most_s))


@contextmanager
def running(apps: Iterable[OracleApp]) -> Iterator[list[OracleApp]]:
    """Instances that are started together and stopped at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(app) for app in apps]
