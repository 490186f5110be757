"""A backed-up source for kill tests, and processes that restore it."""

import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.memory import python_workers
from kstreams_assets.app.model import AppTopic, Store, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.completeness.on_restores import require_complete
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.group_offsets import commit_group_offsets
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.records import restore_records
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import ApplicationSettings
from spark_resources.work import Spark
from tests.restore.trial import settings_of
from tests.streams.cluster import unique_name

PARTITIONS = 4
RECORDS = 400_000
"""Of the input and of the changelog together: some seconds of producing."""


def workers_reading(jvm_pid: int | None, folder: Path) -> list[int]:
    """The Python workers of Spark that read files below a folder.

    Workers of the same engine that run the tasks of other tests are left alone.
    """
    found: list[int] = []
    for pid in python_workers(jvm_pid):
        with suppress(psutil.NoSuchProcess):
            maps = psutil.Process(pid).memory_maps()
            if any(Path(region.path).is_relative_to(folder) for region in maps):
                found.append(pid)
    return found


@dataclass(frozen=True, slots=True)
class KillSource:
    """Topics with records, backed up to a point at which a group had committed offsets.

    Every second record of the changelog has another key; `window` is that of the backup.
    """

    settings: ApplicationSettings
    input: str
    changelog: str
    window: Window

    def request(self, application_id: str) -> RestoreRequest:
        """A restore of everything under other names."""
        return RestoreRequest(application_id=application_id, prefix=f"{application_id}.")


def make_source(bootstrap_servers: str, folder: Path, spark: Spark) -> KillSource:
    """Produce, commit offsets, take a point, back up."""
    application_id = unique_name("killed")
    names = f"{application_id}-orders", f"{application_id}-totals-changelog"
    application = StreamsApplication(
        application_id,
        (
            AppTopic(names[0], TopicRoles({TopicRole.INPUT})),
            AppTopic(names[1], TopicRoles({TopicRole.CHANGELOG}), stores=("totals",)),
        ),
        (Store("totals", names[1]),),
    )
    settings = settings_of(application, bootstrap_servers, folder)
    began_ms = time.time_ns() // 1_000_000
    with KafkaCluster(settings.connection) as cluster:
        cluster.create_topics(TopicSpec(name, PARTITIONS) for name in names)
        _produce(bootstrap_servers, names, group=application_id)
        point = recorder_of(settings, cluster).take()
    window = Window(began_ms, point.taken_at_ms + 1, "w0000")
    BackupJob(settings, spark, "source").run([window])
    return KillSource(settings, *names, window)


def _produce(bootstrap_servers: str, topics: tuple[str, str], *, group: str) -> None:
    """Everything in one transaction, as an exactly-once application: no marker between records."""
    source = random.Random(3)
    values = [source.randbytes(200) for _ in range(1_000)]
    client = {"bootstrap.servers": bootstrap_servers}
    producer = Producer({**client, "linger.ms": 20, "transactional.id": group})
    consumer = Consumer({**client, "group.id": group})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(
                    topics[number % 2],
                    values[number % 1_000],
                    str(number % (RECORDS // 2)).encode(),
                    partition=(number // 2) % PARTITIONS,
                )
                break
            except BufferError:
                producer.poll(0.1)
    offsets = [TopicPartition(topics[0], n, 100 + n, f"at {n}") for n in range(PARTITIONS)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
    producer.commit_transaction(60)
    consumer.close()


@dataclass(slots=True)
class Restoring:
    """One restore of a source, tried again and again; `target` is where it goes."""

    source: KillSource
    request: RestoreRequest
    target: KafkaConnection
    folder: Path

    def process(self) -> "subprocess.Popen[bytes]":
        """A process of its own that plans, restores and commits the offsets."""
        asked = self.folder / "asked.pickle"
        asked.write_bytes(pickle.dumps((self.source.settings, self.request, self.target)))
        with (self.folder / "process.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.restore.killing", str(asked)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log_tail(self) -> str:
        """What the processes said last."""
        return (self.folder / "process.log").read_text(errors="replace")[-3_000:]

    def run(self, spark: Spark) -> StoredRestore:
        """The same in this process."""
        return restore(self.source.settings, self.request, self.target, spark)

    def records_there(self, cluster: KafkaCluster) -> int:
        """How many records the target's topics have so far."""
        present = cluster.metadata().topics
        ids = [
            TopicPartitionId(name, number)
            for name in self.targets
            if name in present
            for number in range(PARTITIONS)
        ]
        return sum(cluster.high_watermarks(ids).values()) if ids else 0

    @property
    def targets(self) -> tuple[str, str]:
        """The names of the restored topics."""
        new, old = self.request.application_id, self.source.settings.application_id
        changelog = self.source.changelog.replace(f"{old}-", f"{new}-", 1)
        return self.request.prefix + self.source.input, changelog

    @property
    def state(self) -> RestoreState | None:
        """How far the restore is."""
        found = [
            one
            for one in Repository(
                self.source.settings.warehouse, self.source.settings.application_id
            ).restores.all()
            if one.group == self.request.application_id
        ]
        return found[0].state if found else None


def restore(
    settings: ApplicationSettings, request: RestoreRequest, target: KafkaConnection, spark: Spark
) -> StoredRestore:
    """Plan, restore, commit."""
    plan = plan_restore(settings, request, target)
    result = restore_records(
        RunContext(settings, target, spark, unique_name("run")), plan, log=lambda _line: None
    )
    return commit_group_offsets(settings, result.restore, target, gate=require_complete)


def await_moment(
    moment: Callable[[], bool], *, ended: Callable[[], bool], timeout_s: float
) -> bool:
    """Wait for a moment; False when what is watched has ended before it came."""
    deadline = time.monotonic() + timeout_s
    while not moment():
        if ended():
            return False
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.01)
    return True


def _main() -> None:
    from spark_resources.session import LazySession

    settings, request, target = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 (our own)
    spark = LazySession()
    try:
        restore(settings, request, target, spark)
    finally:
        spark.stop()


if __name__ == "__main__":
    _main()
