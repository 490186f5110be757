"""Restores whose target changes between their plan and their lock, with the program itself."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.model.tables import Lock
from kstreams_assets.repository.repository import Repository
from spark_resources.resource import SparkSessionResource
from tests.cli.application import document, write
from tests.kafka.transacting import await_assignment
from tests.restore.after_commit import now_ms
from tests.restore.after_commit import write as write_records
from tests.restore.control import read
from tests.restore.planned_application import PlannedApplication, planned_application
from tests.streams.cluster import connection_to, unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_APART_S = 0.5
_TIMEOUT_S = 900.0
_PLANNED = "No blockers."


@pytest.fixture(scope="module")
def app(
    kafka_cluster: LocalCluster,
    spark: SparkSessionResource,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PlannedApplication]:
    """An application with two points that can be restored; it is restored beside itself."""
    connection = connection_to(kafka_cluster.bootstrap_servers)
    with planned_application(connection, spark, tmp_path_factory.mktemp("warehouse")) as made:
        yield made


@dataclass(slots=True)
class Program:
    """`restore run` of one point to one name, in a process of its own."""

    process: "subprocess.Popen[bytes]"
    out: Path
    err: Path

    def await_plan(self) -> None:
        """Until the plan is there, in which nothing stands against it."""
        deadline = time.monotonic() + _TIMEOUT_S
        while _PLANNED not in self.out.read_text():
            assert self.process.poll() is None, self.out.read_text() + self.err.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def ended(self) -> int:
        """The exit code, once it has ended."""
        return self.process.wait(_TIMEOUT_S)

    @property
    def told(self) -> str:
        """What it said on standard error."""
        return self.err.read_text()


@dataclass(slots=True)
class Bench:
    """Restores of the application under one new name."""

    app: PlannedApplication
    folder: Path
    name: str
    stack: ExitStack

    def start(self, point: int) -> Program:
        """Begin to restore a point."""
        file = write(self.folder / "app.yaml", self._document())
        label = unique_name("run")
        out, err = self.folder / f"{label}.out", self.folder / f"{label}.err"
        command = [sys.executable, "-m", "kstreams_assets.cli.main", "restore", "run"]
        options = ["--app", str(file), "--point", self.app.points[point].id]
        options += ["--target-application-id", self.name, "--prefix", f"{self.name}."]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, *options, "--accept", "at_least_once", "--accept-replaced-timestamps"],
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
            )
        self.stack.callback(process.kill)
        return Program(process, out, err)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody gets the restore's lock during the block."""
        repo = Repository(self.app.bench.warehouse, self.app.bench.application_id)
        of = (self.app.bench.cluster.cluster_id(), self.name)
        with repo.writing(Lock.RESTORE, of=of, purpose="test", wait_s=1):
            yield

    def restores(self) -> list[StoredRestore]:
        """Those that have left anything."""
        table = Repository(self.app.bench.warehouse, self.app.bench.application_id).restores
        return [r for r in table.all() if r.group == self.name]

    def assert_restored(self, point: int) -> None:
        """The target holds the records of the point, each once, and its offsets."""
        (restore,) = self.restores()
        chosen = self.app.points[point]
        assert (restore.state, restore.point_id) == (RestoreState.COMMITTED, chosen.id)
        servers = self.app.target.bootstrap_servers
        for topic in restore.topics:
            (cut, *_) = [c for c in chosen.partitions if c.topic == topic.source]
            committed = [
                o.offset
                for o in chosen.group_offsets
                if (o.topic, o.partition) == (cut.topic, cut.partition)
            ]
            in_flight = "repartition" in topic.roles
            first = committed[0] if in_flight else cut.log_start
            wanted = [
                record.value
                for record in read(servers, [topic.source])[topic.source]
                if record.partition == cut.partition and first <= record.offset < cut.end
            ]
            found = read(servers, [topic.target])[topic.target]
            assert [r.value for r in found if r.partition == cut.partition] == wanted
        offsets = self.app.bench.cluster.group_offsets(self.name)
        assert sorted(o.offset for o in offsets.values()) == sorted(
            o.offset for o in restore.to_commit
        )

    def _document(self) -> dict[str, object]:
        bench = self.app.bench
        return document(
            bench.application_id,
            connection={"bootstrap_servers": bench.bootstrap_servers},
            warehouse=str(bench.warehouse.root),
            windows={"every": "day", "start": "2026-11-01"},
            topics={
                name: {"roles": sorted(role.value for role in roles)}
                for name, roles in bench.roles.items()
            },
            restore={
                "target": {"bootstrap_servers": self.app.target.bootstrap_servers},
                "lock_wait_seconds": _TIMEOUT_S,
            },
        )


@pytest.fixture
def bench(app: PlannedApplication, tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(app, tmp_path, unique_name("twice"), stack)


def test_two_points_half_a_second_apart(bench: Bench) -> None:
    """Each was planned onto an empty target: one of them is restored, the other refused."""
    with bench.locked():
        programs = [bench.start(0)]
        time.sleep(_APART_S)
        programs.append(bench.start(1))
        for program in programs:
            program.await_plan()
    codes = [program.ended() for program in programs]

    assert sorted(codes) == [0, 2], [program.told for program in programs]
    lost, won = codes.index(2), codes.index(0)
    assert "is refused. No record was written" in programs[lost].told
    assert bench.restores()[0].restore_id in programs[lost].told
    bench.assert_restored(won)

    again = bench.start(lost)
    assert again.ended() != 0
    bench.assert_restored(won)


def test_the_same_command_twice(bench: Bench) -> None:
    """The second finds what the first has written, counts it, and writes nothing twice."""
    with bench.locked():
        programs = [bench.start(1)]
        time.sleep(_APART_S)
        programs.append(bench.start(1))
        for program in programs:
            program.await_plan()
    codes = [program.ended() for program in programs]

    assert codes == [0, 0], [program.told for program in programs]
    bench.assert_restored(1)


def test_a_producer_between_plan_and_lock(bench: Bench) -> None:
    with bench.locked():
        program = bench.start(0)
        program.await_plan()
        topic = f"{bench.name}-sums-changelog"
        bench.app.bench.cluster.create_topics([TopicSpec(topic, 2, 1)])
        write_records(bench.app.bench.cluster, topic, [now_ms()])

    assert program.ended() == 2
    assert f"topic {topic}: It is not empty on the target" in program.told
    assert bench.restores() == []


def test_an_application_started_too_early(bench: Bench) -> None:
    """Its group has a member, though it has neither made nor written anything."""
    consumer = Consumer(
        {
            "bootstrap.servers": bench.app.target.bootstrap_servers,
            "group.id": bench.name,
            "session.timeout.ms": 6_000,
        }
    )
    with bench.locked():
        program = bench.start(0)
        program.await_plan()
        consumer.subscribe([bench.app.names["orders"]])
        await_assignment(consumer)
    try:
        while program.process.poll() is None:
            consumer.poll(0.2)
    finally:
        consumer.close()

    assert program.ended() == 2
    assert f"group {bench.name}: It is in use on the target" in program.told
    assert bench.restores() == []
