"""The engine on a standalone cluster: what executors get, what they lose, what is asked of them."""

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pydantic import SecretStr

from kstreams_assets.kafka.connection import (
    CarriedConnection,
    KafkaConnection,
    PasswordSasl,
    Secret,
    SecurityProtocol,
)
from spark_resources.engine import ENGINES_VARIABLE, engines
from spark_resources.jars import verify_jars
from spark_resources.partition_tasks import run_partition_tasks
from spark_resources.resource import SparkSessionResource
from spark_resources.session import LazySession, cores_of
from spark_resources.settings import SparkSettings
from tests.backup.reading import consume, stored
from tests.backup.writing import write
from tests.repository.disk import on_disk
from tests.streams.spark_cluster import WORKERS, StandaloneCluster, free_port, python_workers_of
from tests.streams.workbench import Workbench

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

PASSWORD = "only-for-tasks-3f81"


def test_tasks_run_on_all_executors_with_the_code_of_the_client(
    spark_cluster: StandaloneCluster, spark: SparkSessionResource
) -> None:
    def task(_: int) -> tuple[int, str, str, int]:
        """The executor, what it runs, where our code comes from, the mask of files."""
        import spark_resources.span_tasks as code

        time.sleep(1.0)  # else one executor does it all
        executor = psutil.Process(os.getppid()).parent()
        assert executor is not None
        command, mask = " ".join(executor.cmdline()), os.umask(0o077)
        return executor.pid, command, str(code.__file__), mask

    done = run_partition_tasks(spark.spark_session, range(8), task)
    assert {pid for pid, *_ in done} == set(spark_cluster.executors())
    assert len({pid for pid, *_ in done}) == WORKERS
    for _, command, code, mask in done:
        assert "CoarseGrainedExecutorBackend" in command
        # A zip in the executor's own folder, whatever is installed there.
        assert Path(code).is_relative_to(spark_cluster.folder)
        assert ".zip/spark_resources/" in code
        assert mask == 0o077


def test_executors_read_tables_of_delta(
    spark_cluster: StandaloneCluster, spark: SparkSessionResource, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "t", pa.table({"n": pa.array(range(100), pa.int64())}))
    rows = spark.spark_session.read.format("delta").load(str(tmp_path / "t"))
    assert rows.groupBy().sum("n").collect()[0][0] == 4950


def test_secrets_reach_tasks_and_nothing_else(
    spark_cluster: StandaloneCluster, spark: SparkSessionResource
) -> None:
    carried = CarriedConnection.of(
        KafkaConnection(
            bootstrap_servers="kafka-1:9092",
            security_protocol=SecurityProtocol.SASL_PLAINTEXT,
            sasl=PasswordSasl(
                mechanism="PLAIN", username="u", password=Secret.of(SecretStr(PASSWORD))
            ),
        )
    )

    def opened(connection: CarriedConnection) -> bool:
        [(_, secret)] = connection.opened().secrets()
        return secret.resolve("sasl.password")[::-1] == "18f3-sksat-rof-ylno"

    assert run_partition_tasks(spark.spark_session, [carried] * 4, opened) == [True] * 4

    (engine,) = engines()
    jvms = [engine.jvm_pid, *spark_cluster.executors()]
    processes = [
        psutil.Process(pid)
        for jvm in jvms
        for pid in (jvm, *(child.pid for child in psutil.Process(jvm).children(recursive=True)))
    ]
    secrets = {PASSWORD, spark_cluster.secret, engine.token}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended just now
            command = " ".join(process.cmdline())
            assert not [secret for secret in secrets if secret in command]
    of_executors = [psutil.Process(pid).environ() for pid in spark_cluster.executors()]
    assert len(of_executors) == WORKERS
    for environment in of_executors:
        text = str(environment)
        assert not [secret for secret in (PASSWORD, engine.token) if secret in text]
        # Of the engine's own they have what they need to talk to it.
        assert not [name for name in environment if name.startswith("KSTREAMS_ASSETS")]
        assert ENGINES_VARIABLE not in environment
    folder = Path(os.environ[ENGINES_VARIABLE])
    logs = spark_cluster.logs() + "".join(file.read_text() for file in folder.glob("*.log"))
    assert "CoarseGrainedExecutorBackend" in logs
    assert not [secret for secret in secrets if secret in logs]


def test_the_engine_listens_on_this_host_alone(
    spark_cluster: StandaloneCluster, spark: SparkSessionResource
) -> None:
    (engine,) = engines()
    for pid in (engine.jvm_pid, *spark_cluster.executors()):
        listening = [c for c in psutil.Process(pid).net_connections("inet") if c.status == "LISTEN"]
        assert {c.laddr.ip.removeprefix("::ffff:") for c in listening} <= {"127.0.0.1"}


def test_a_lost_executor_changes_nothing_in_the_results(
    spark_cluster: StandaloneCluster, spark: SparkSessionResource, tmp_path: Path
) -> None:
    def task(item: int) -> str:
        (tmp_path / f"{item}-{os.getpid()}").touch()
        executor = psutil.Process(os.getppid()).parent()
        if item == 1 and len(list(tmp_path.glob("1-*"))) == 1 and executor is not None:
            os.kill(executor.pid, signal.SIGKILL)
            time.sleep(60)
        return f"done {item}"

    results = run_partition_tasks(spark.spark_session, range(4), task)
    assert results == [f"done {item}" for item in range(4)]
    assert len(list(tmp_path.glob("1-*"))) == 2


def test_cores_are_counted_and_shuffles_use_them(
    spark_cluster: StandaloneCluster, spark: SparkSessionResource
) -> None:
    unasked = LazySession(SparkSettings())
    try:
        session = unasked.spark_session
        assert cores_of(session) == WORKERS
        assert int(str(session.conf.get("spark.sql.shuffle.partitions"))) == max(4, WORKERS)
    finally:
        unasked.stop()


@pytest.mark.kafka
def test_a_connect_server_of_somebody_else_gets_the_packages(
    spark_cluster: StandaloneCluster, workbench: Workbench
) -> None:
    """A server without our packages, on whose workers another copy of them is installed."""

    def task(_: int) -> str:
        import spark_resources.span_tasks as loaded

        return str(loaded.__file__)

    port = free_port()
    jars = sorted(verify_jars("spark", hashes=False).glob("*.jar"))
    remote = SparkSessionResource(remote=f"sc://127.0.0.1:{port}")
    with StandaloneCluster(on_disk(workbench.warehouse.root).parent / "spark") as other:
        other.connect_server(port, *jars)
        try:
            done = run_partition_tasks(remote.spark_session, range(2), task)
            assert all(Path(code).is_relative_to(other.folder) for code in done), done
            workbench.spark = remote
            topic = workbench.topic("orders", partitions=3)
            for partition in range(3):
                write(workbench, topic, 300, partition=partition)
            workbench.close_window()
            workbench.back_up()
        finally:
            remote.stop()
        assert python_workers_of(other.executors()[0])
    assert stored(workbench, topic) == consume(workbench.bootstrap_servers, topic, 3)
