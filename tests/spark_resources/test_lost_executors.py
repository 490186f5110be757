"""An executor is killed, or hangs, in the middle of a backup, a restore, a snapshot: no difference.

Spark runs its tasks again on the other one; the run does not fail, and its result is that of an
undisturbed one, byte for byte. Only with --on-cluster.
"""

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import psutil
import pyarrow as pa
import pytest

from kstreams_assets.backup.run import BackupJob
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.repository.delta_log import delta_table
from kstreams_assets.repository.records import file_actions
from kstreams_assets.settings import ApplicationSettings, ExecutorSettings
from spark_resources.resource import SparkSessionResource
from spark_resources.work import Spark
from tests.repository.disk import on_disk
from tests.restore.control import read
from tests.restore.killing import RECORDS, KillSource, Restoring, make_source
from tests.streams.cluster import unique_name
from tests.streams.spark_cluster import StandaloneCluster, python_workers_of
from tests.streams.workbench import NoSpark

pytestmark = [
    *(pytest.mark.kafka, pytest.mark.spark, pytest.mark.drill, pytest.mark.cluster),
    pytest.mark.timeout(3_600),
]

KILLS = 10
_MOST_ATTEMPTS = 3 * KILLS
_LIMIT_S = 600.0


@pytest.fixture(scope="module")
def source(
    kafka_cluster: LocalCluster,
    spark: SparkSessionResource,
    tmp_path_factory: pytest.TempPathFactory,
) -> KillSource:
    return make_source(
        kafka_cluster.bootstrap_servers, tmp_path_factory.mktemp("kill-source"), spark
    )


class Run:
    """Something that runs in a thread of its own, and must not fail."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def lives(self) -> bool:
        return self._thread.is_alive()

    def await_end(self) -> None:
        self._thread.join(_LIMIT_S)
        assert not self.lives
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 (it is raised by await_end)
            self._failure = error


def _kill_one(cluster: StandaloneCluster, run: Run, *, moment: Callable[[], bool]) -> bool:
    """Kill an executor that works, at a moment of a run; whether it came in time."""
    deadline = time.monotonic() + _LIMIT_S
    while not moment():
        if not run.lives:
            return False
        assert time.monotonic() < deadline
        time.sleep(0.01)
    busiest = max(cluster.executors(), key=_cpu_of, default=None)
    if busiest is None or not run.lives:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(busiest, signal.SIGKILL)
    return True


def _cpu_of(executor: int) -> float:
    """What it and its Python workers have used in a moment."""
    before = _used(executor)
    time.sleep(0.05)
    return _used(executor) - before


def _used(executor: int) -> float:
    total = 0.0
    for pid in (executor, *python_workers_of(executor)):
        with contextlib.suppress(psutil.Error):
            total += sum(psutil.Process(pid).cpu_times()[:2])
    return total


def _moments(duration_s: float) -> Iterator[float]:
    """Seconds from the begin of a run, spread over its length."""
    for number in range(_MOST_ATTEMPTS):
        yield duration_s * (0.05 + 0.9 * (number % KILLS) / KILLS)


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _warehouse_at(source: KillSource, folder: Path) -> ApplicationSettings:
    """A new warehouse, which has the points of the source and nothing that was backed up."""
    there = source.settings.warehouse
    new = Warehouse(folder / "warehouse")
    for points in ("recovery_points", "recovery_point_records"):
        if there.control(points).exists():
            shutil.copytree(on_disk(there.control(points)), on_disk(new.control(points)))
    return replace(source.settings, warehouse=new)


def _back_up(settings: ApplicationSettings, source: KillSource, spark: Spark) -> None:
    BackupJob(settings, spark, unique_name("backup")).run([source.window])


def _records(settings: ApplicationSettings) -> pa.Table:
    """All that a backup holds, in order; and each of its files is one that it refers to."""
    path = settings.warehouse.records(settings.application_id)
    known = {path / unquote(row["path"]) for row in file_actions(path).to_pylist()}
    assert set(path.glob("*/*.parquet")) == known
    found = delta_table(path).to_pyarrow_dataset().to_table()
    return found.sort_by([(name, "ascending") for name in ("topic", "partition", "offset")])


def test_a_backup(
    source: KillSource,
    spark: SparkSessionResource,
    spark_cluster: StandaloneCluster,
    tmp_path: Path,
) -> None:
    reference = _warehouse_at(source, tmp_path / "reference")
    alone = ExecutorSettings(from_offsets=10 * RECORDS)
    _back_up(replace(reference, spark=alone), source, NoSpark())
    wanted = _records(reference)
    assert wanted.num_rows == RECORDS
    duration_s = _timed(lambda: _back_up(_warehouse_at(source, tmp_path / "timed"), source, spark))
    killed = 0
    for number, moment_s in enumerate(_moments(duration_s)):
        if killed == KILLS:
            break
        spark_cluster.await_executors(spark.spark_session)
        settings = _warehouse_at(source, tmp_path / str(number))
        at = time.monotonic() + moment_s
        run = Run(lambda settings=settings: _back_up(settings, source, spark))
        struck = _kill_one(spark_cluster, run, moment=lambda at=at: time.monotonic() >= at)
        run.await_end()
        killed += struck
        assert _records(settings).equals(wanted)
    assert killed == KILLS


def _assert_restored(restoring: Restoring, target: KafkaCluster) -> None:
    source = restoring.source
    wanted = read(source.settings.connection.bootstrap_servers, [source.input, source.changelog])
    found = read(restoring.target.bootstrap_servers, restoring.targets)
    for name, of_target in zip((source.input, source.changelog), restoring.targets, strict=True):
        ours, its = (
            sorted(rows, key=lambda record: (record.partition, record.offset))
            for rows in (wanted[name], found[of_target])
        )
        assert its == ours
    assert target.group_offsets(str(restoring.request.application_id))
    assert restoring.state is RestoreState.COMMITTED


def _restoring(source: KillSource, folder: Path) -> Restoring:
    return Restoring(source, source.request(unique_name("x")), source.settings.connection, folder)


def test_a_restore(
    source: KillSource,
    spark: SparkSessionResource,
    spark_cluster: StandaloneCluster,
    tmp_path: Path,
) -> None:
    killed = 0
    with KafkaCluster(source.settings.connection) as target:
        for _ in range(_MOST_ATTEMPTS):
            if killed == KILLS:
                break
            spark_cluster.await_executors(spark.spark_session)
            restoring = _restoring(source, tmp_path)
            share = (killed + 0.2) / KILLS
            run = Run(lambda restoring=restoring: restoring.run(spark))
            killed += _kill_one(
                spark_cluster,
                run,
                moment=lambda restoring=restoring, share=share: (
                    restoring.records_there(target) >= share * RECORDS
                ),
            )
            run.await_end()
            _assert_restored(restoring, target)
    assert killed == KILLS


def test_a_restore_whose_executor_hangs_and_goes_on_afterwards(
    source: KillSource,
    spark: SparkSessionResource,
    spark_cluster: StandaloneCluster,
    tmp_path: Path,
) -> None:
    """As a machine that is suspended: its task is in the middle of writing when it wakes up."""
    spark_cluster.await_executors(spark.spark_session)
    restoring = _restoring(source, tmp_path)
    with KafkaCluster(source.settings.connection) as target:
        run = Run(lambda: restoring.run(spark))
        while restoring.records_there(target) < 0.1 * RECORDS:
            assert run.lives
            time.sleep(0.01)
        executor = max(spark_cluster.executors(), key=_cpu_of)
        hanging = [executor, *python_workers_of(executor)]
        _signal_all(hanging, signal.SIGSTOP)
        try:
            run.await_end()  # once Spark has given it up
            ends = restoring.records_there(target)
        finally:
            # Python first: its executor must not tell it that it is not wanted any more.
            _signal_all(hanging[1:], signal.SIGCONT)
        time.sleep(5)
        assert restoring.records_there(target) == ends
        _signal_all(hanging, signal.SIGCONT)
        _assert_restored(restoring, target)


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _rows(source: KillSource) -> pa.Table:
    path = source.settings.warehouse.ktable(source.settings.application_id, "totals")
    found = delta_table(path).to_pyarrow_dataset().to_table()
    return found.sort_by([("partition", "ascending"), ("offset", "ascending")])


def test_a_snapshot(
    source: KillSource, spark: SparkSessionResource, spark_cluster: StandaloneCluster
) -> None:
    def make() -> None:
        make_snapshots(
            source.settings, [source.window], spark=spark, run_id=unique_name("snapshot")
        )

    make()
    wanted = _rows(source)
    assert wanted.num_rows == RECORDS // 4
    duration_s = _timed(make)
    killed = 0
    for moment_s in _moments(duration_s):
        if killed == KILLS:
            break
        spark_cluster.await_executors(spark.spark_session)
        at = time.monotonic() + moment_s
        run = Run(make)
        killed += _kill_one(spark_cluster, run, moment=lambda at=at: time.monotonic() >= at)
        run.await_end()
        assert _rows(source).equals(wanted)
    assert killed == KILLS
