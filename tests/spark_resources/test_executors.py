"""What executors of a cluster get, and how the work is cut for their cores. No Spark."""

import heapq
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import CarriedConnection, KafkaConnection
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.data_files import NewFolder, SpanEdges
from spark_resources.executors import cluster_settings, read_secret, write_package_archive
from spark_resources.settings import SparkSettings
from spark_resources.span_tasks import span_tasks
from spark_resources.work import ReadRange

MASTER = "spark://127.0.0.1:7077"


def test_a_standalone_cluster_is_not_asked_without_its_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="CLUSTER_SECRET_FILE"):
        read_secret(SparkSettings(master=MASTER))
    declined = {"spark.authenticate": False}
    assert read_secret(SparkSettings(master=MASTER, spark_config=declined)) is None
    assert read_secret(SparkSettings()) is None
    assert read_secret(SparkSettings(master="yarn")) is None
    file = tmp_path / "secret"
    named = SparkSettings(master=MASTER, cluster_secret_file=str(file))
    with pytest.raises(ConfigurationError, match="No such file"):
        read_secret(named)
    file.write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty"):
        read_secret(named)
    file.write_text("between us\n")
    assert read_secret(named) == "between us"


def test_settings_of_a_cluster_do_not_hold_its_secret(tmp_path: Path) -> None:
    """They become arguments of the JVM, which everybody on the host can read."""
    file = tmp_path / "secret"
    file.write_text("between us")
    settings = SparkSettings(master=MASTER, cluster_secret_file=str(file))
    told = cluster_settings(settings, tmp_path / "packages.zip")
    assert "between us" not in str(told)
    assert told["spark.authenticate"] == told["spark.network.crypto.enabled"] == "true"
    assert told["spark.driver.host"] == "127.0.0.1"
    assert told["spark.executorEnv.PYTHONPATH"] == "packages.zip"


def test_the_host_of_the_master_has_to_be_known(tmp_path: Path) -> None:
    nowhere = {"spark.authenticate": False}
    settings = SparkSettings(master="spark://nowhere.invalid:7077", spark_config=nowhere)
    with pytest.raises(ConfigurationError, match=r"nowhere\.invalid:7077 is unknown"):
        cluster_settings(settings, tmp_path / "packages.zip")


def test_tasks_can_be_imported_from_the_archive_alone(tmp_path: Path) -> None:
    archive = tmp_path / "packages.zip"
    write_package_archive(archive)
    code = (
        "import spark_resources.daemon, spark_resources.data_files, kstreams_assets.restore.produce"
        " as produce; print(spark_resources.daemon.__file__, produce.__file__)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.split()
    assert [path.startswith(f"{archive}/") for path in told] == [True, True]


def _seconds(sizes: list[int], cores: int) -> float:
    """A simulation: tasks start in their order, each on the core that is free first."""
    tasks = span_tasks(
        [ReadRange(TopicPartitionId("t", n), 0, size) for n, size in enumerate(sizes)],
        {("t", n): SpanEdges(("w",), (0,), (size,)) for n, size in enumerate(sizes)},
        folder=NewFolder(Path("nowhere"), "none", 0),
        connection=CarriedConnection.of(KafkaConnection(bootstrap_servers="kafka:9092")),
        idle_timeout_s=1,
    )
    free_at = [0.0] * cores
    for task in tasks:
        took_s = sum(one.end - one.start for one in task.stretches) / 300_000
        heapq.heappush(free_at, heapq.heappop(free_at) + took_s)
    return max(free_at)


def test_cores_shorten_a_backup_as_long_as_there_are_partitions() -> None:
    """Two cores of this machine cannot show it: how the work is cut, at 300,000 records/s a core.

    Partitions of very different sizes, small ones in between that share tasks.
    """
    chance = random.Random(5)
    sizes = [chance.randrange(1_000_000, 3_000_000) for _ in range(64)]
    sizes += [chance.randrange(100, 3_000) for _ in range(300)]
    alone = _seconds(sizes, 1)
    for cores in (2, 4, 8, 16):
        assert _seconds(sizes, cores) <= 1.15 * alone / cores
    # Of each partition one stream in order: the largest one is the limit.
    assert _seconds(sizes, 512) == pytest.approx(max(sizes) / 300_000)
