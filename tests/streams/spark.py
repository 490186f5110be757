"""One engine for all processes of a run of tests, and the commands that they start."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_resources.engine import ENGINES_VARIABLE, engines, stop
from spark_resources.resource import SparkSessionResource
from spark_resources.settings import SparkSettings
from tests.store.seaweed import in_store
from tests.streams.spark_cluster import StandaloneCluster

_on_cluster: list[StandaloneCluster] = []
_on_store = ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests run on a cluster."""
    parser.addoption(
        "--on-cluster",
        action="store_true",
        help="Run Spark on a standalone cluster, a master and two workers (`-m cluster`).",
    )
    parser.addoption(
        "--on-store",
        action="store_true",
        help="Keep warehouses in an object store, a server of this machine (`-m on_store`).",
    )


def pytest_configure(config: pytest.Config) -> None:
    """An engine of this run alone, which its worker processes find by the environment."""
    if hasattr(config, "workerinput"):
        return
    os.environ[ENGINES_VARIABLE] = tempfile.mkdtemp(prefix="kstreams-engines-")
    os.environ["KSTREAMS_ASSETS_SPARK_MASTER"] = "local[2]"
    if config.getoption("--on-cluster"):
        cluster = StandaloneCluster(Path(tempfile.mkdtemp(prefix="kstreams-spark-")))
        _on_cluster.append(cluster)
        os.environ |= cluster.environment
    if config.getoption("--on-store"):
        _on_store.enter_context(in_store())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop it; a worker process leaves it to the others."""
    if hasattr(config, "workerinput"):
        return
    for engine in engines():
        stop(engine)
    shutil.rmtree(os.environ[ENGINES_VARIABLE], ignore_errors=True)
    for cluster in _on_cluster:
        cluster.close()
        shutil.rmtree(cluster.folder, ignore_errors=True)
    _on_store.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSessionResource]:
    """The Spark session of all tests marked `spark`."""
    resource = SparkSessionResource(**SparkSettings.from_environment().model_dump())
    yield resource
    resource.stop()


@pytest.fixture(scope="session")
def spark_cluster(spark: SparkSessionResource) -> StandaloneCluster:
    """The cluster on which `spark` runs; without one a test of clusters is left out."""
    if not _on_cluster:
        pytest.skip("only with --on-cluster")
    _ = spark.spark_session
    return _on_cluster[0]
