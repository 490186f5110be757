"""Whatever is killed at whatever moment: the next run ends with every record once, verified."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.restore.request import ChangelogSource
from spark_resources.resource import SparkSessionResource
from tests.repository.disk import on_disk
from tests.restore.control import read
from tests.restore.killing import (
    PARTITIONS,
    RECORDS,
    KillSource,
    Restoring,
    await_moment,
    make_source,
    workers_reading,
)
from tests.streams.cluster import unique_name
from tests.streams.feed import Record

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.drill]

_SHARES = (0.01, 0.05, 0.12, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.95)


@pytest.fixture(scope="module")
def source(
    kafka_cluster: LocalCluster,
    spark: SparkSessionResource,
    tmp_path_factory: pytest.TempPathFactory,
) -> KillSource:
    folder = tmp_path_factory.mktemp("kill-source")
    return make_source(kafka_cluster.bootstrap_servers, folder, spark)


@dataclass(slots=True)
class Attempts:
    """Restores of one source, each tried until it is done; a new one begins when one is."""

    source: KillSource
    connection: KafkaConnection
    folder: Path
    current: Restoring = field(init=False)
    killed: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a restore under new names."""
        request = self.source.request(unique_name("k"))
        self.current = Restoring(self.source, request, self.connection, self.folder)

    def moments(self) -> Iterator[float]:
        """Shares of the records at which to kill, until ten kills have struck."""
        for _ in range(3 * len(_SHARES)):
            if self.killed == len(_SHARES):
                return
            yield _SHARES[self.killed]
        pytest.fail(f"only {self.killed} kills struck")

    def note(self, *, struck: bool, target: KafkaCluster) -> None:
        """A kill came in time, or the restore was done before."""
        if struck:
            self.killed += 1
            assert not target.group_offsets(str(self.current.request.application_id))
        else:
            assert_restored(self.current, target)
            self.begin()

    def has(self, target: KafkaCluster, share: float) -> bool:
        """Whether so many of the records are there."""
        return self.current.records_there(target) >= share * RECORDS


@pytest.fixture
def attempts(source: KillSource, tmp_path: Path) -> Attempts:
    """Restores onto the same cluster, under other names."""
    return Attempts(source, source.settings.connection, tmp_path)


@pytest.fixture
def target(source: KillSource) -> Iterator[KafkaCluster]:
    with KafkaCluster(source.settings.connection) as cluster:
        yield cluster


def assert_restored(restoring: Restoring, target: KafkaCluster) -> None:
    """The target's topics hold the source's records, each once; the offsets are committed."""
    source = restoring.source
    wanted = read(source.settings.connection.bootstrap_servers, [source.input, source.changelog])
    found = read(restoring.target.bootstrap_servers, restoring.targets)
    for name, of_target in zip((source.input, source.changelog), restoring.targets, strict=True):
        # neither log has gaps, so even the offsets are the same
        assert sorted(found[of_target], key=_place) == sorted(wanted[name], key=_place)
    offsets = target.group_offsets(str(restoring.request.application_id))
    with KafkaCluster(source.settings.connection) as of_source:
        committed = of_source.group_offsets(source.settings.application_id)
    assert {p.partition: (o.offset, o.metadata) for p, o in offsets.items()} == {
        p.partition: (o.offset, o.metadata) for p, o in committed.items()
    }
    assert len(offsets) == PARTITIONS
    assert restoring.state is RestoreState.COMMITTED


def _place(record: Record) -> tuple[int, int]:
    return record.partition, record.offset


@pytest.mark.sample
@pytest.mark.cluster
@pytest.mark.on_store
def test_run_killed_at_ten_moments(
    attempts: Attempts, target: KafkaCluster, spark: SparkSessionResource
) -> None:
    for share in attempts.moments():
        restoring = attempts.current
        process = restoring.process()
        ended = partial(_has_ended, process)
        try:
            came = await_moment(
                partial(_moment, attempts, target, share), ended=ended, timeout_s=180
            )
            process.kill()
            process.wait(20)
        finally:
            if not _has_ended(process):
                os.killpg(process.pid, signal.SIGKILL)
        struck = came and process.returncode == -signal.SIGKILL
        assert struck or process.returncode == 0, restoring.log_tail()
        attempts.note(struck=struck, target=target)

    attempts.current.run(spark)

    assert_restored(attempts.current, target)


def _moment(attempts: Attempts, target: KafkaCluster, share: float) -> bool:
    """Of the ten, the first is when topics are made, the last two are when all is produced."""
    if attempts.killed == 0:
        return set(attempts.current.targets) <= set(target.metadata().topics)
    if attempts.killed >= len(_SHARES) - 2:
        return attempts.current.state is RestoreState.PRODUCED
    return attempts.has(target, share)


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() is not None


def test_spark_task_killed_at_ten_moments(
    attempts: Attempts, target: KafkaCluster, spark: SparkSessionResource
) -> None:
    _ = spark.spark_session
    records = on_disk(attempts.source.settings.warehouse.root)
    for share in attempts.moments():
        failures: list[KStreamsAssetsError | RuntimeError] = []
        thread = threading.Thread(target=_try, args=(attempts.current, spark, failures))
        thread.start()
        came = await_moment(
            partial(attempts.has, target, share),
            ended=lambda thread=thread: not thread.is_alive(),
            timeout_s=120,
        )
        if came and (workers := workers_reading(spark.jvm_pid(), records)):
            with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
                os.kill(max(workers, key=_cpu_ticks), signal.SIGKILL)
        thread.join(180)
        assert not thread.is_alive()
        attempts.note(struck=bool(failures), target=target)

    attempts.current.run(spark)

    assert_restored(attempts.current, target)


def test_target_broker_killed_at_ten_moments(
    source: KillSource, spark: SparkSessionResource, tmp_path: Path
) -> None:
    with LocalCluster(tmp_path / "target") as cluster:
        connection = KafkaConnection(
            bootstrap_servers=cluster.bootstrap_servers, request_timeout_seconds=30
        )
        attempts = Attempts(source, connection, tmp_path)
        with KafkaCluster(connection) as target:
            for share in attempts.moments():
                failures: list[KStreamsAssetsError | RuntimeError] = []
                thread = threading.Thread(target=_try, args=(attempts.current, spark, failures))
                thread.start()
                came = await_moment(
                    partial(attempts.has, target, share),
                    ended=lambda thread=thread: not thread.is_alive(),
                    timeout_s=120,
                )
                cluster.kill_node(0)
                time.sleep(0.3)
                cluster.start_node(0)
                thread.join(240)
                assert not thread.is_alive()
                attempts.killed += came
                if not failures:  # it waited for the broker, and is done
                    assert_restored(attempts.current, target)
                    attempts.begin()

            attempts.current.run(spark)

            assert_restored(attempts.current, target)


@pytest.mark.cluster
@pytest.mark.on_store
def test_a_restore_from_a_ktable_snapshot_is_killed_and_goes_on(
    source: KillSource, target: KafkaCluster, spark: SparkSessionResource, tmp_path: Path
) -> None:
    make_snapshots(source.settings, [source.window], spark=spark, run_id="snapshots")
    changelog = read(source.settings.connection.bootstrap_servers, [source.changelog])
    wanted = _newest(changelog[source.changelog])
    assert len(wanted) == RECORDS // 4
    restoring = next(
        (
            tried
            for tried in (_from_snapshot(source, tmp_path) for _ in range(5))
            if 0 < _killed_in_changelog(tried, target) < len(wanted)
        ),
        None,
    )
    assert restoring is not None, "no kill came in time"

    restoring.run(spark)

    found = read(restoring.target.bootstrap_servers, [restoring.targets[1]])
    assert _by_partition(found[restoring.targets[1]]) == _by_partition(wanted)
    assert restoring.state is RestoreState.COMMITTED


def _from_snapshot(source: KillSource, folder: Path) -> Restoring:
    request = source.request(unique_name("s"))
    request = request.model_copy(update={"changelog_source": ChangelogSource.SNAPSHOT})
    return Restoring(source, request, source.settings.connection, folder)


def _killed_in_changelog(restoring: Restoring, target: KafkaCluster) -> int:
    """Kill a restore once it writes its changelog; how many records of that are there."""
    of_input = RECORDS // 2  # it is written first, for it is larger
    process = restoring.process()
    try:
        await_moment(
            lambda: restoring.records_there(target) > of_input + RECORDS // 20,
            ended=partial(_has_ended, process),
            timeout_s=180,
        )
    finally:
        if not _has_ended(process):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
    return restoring.records_there(target) - of_input


def _newest(records: Iterable[Record]) -> list[Record]:
    """Of each key the last record, in order of partitions and offsets."""
    last = {record.key: record for record in sorted(records, key=_place)}
    return sorted(last.values(), key=_place)


def _by_partition(records: Iterable[Record]) -> dict[int, list[object]]:
    """The sequences of records, without their places."""
    found: dict[int, list[object]] = {}
    for r in sorted(records, key=_place):
        found.setdefault(r.partition, []).append((r.key, r.value, r.timestamp_ms, r.headers))
    return found


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return int(fields[11]) + int(fields[12])


def _try(
    restoring: Restoring,
    spark: SparkSessionResource,
    failures: list[KStreamsAssetsError | RuntimeError],
) -> None:
    try:
        restoring.run(spark)
    except (KStreamsAssetsError, RuntimeError) as error:
        failures.append(error)
