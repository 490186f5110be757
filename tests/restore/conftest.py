"""Source runs that several modules restore from, each made once, and what is restored by hand.

What they need is imported when they are: most tests of this folder start nothing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kstreams_assets.kafka.connection import KafkaConnection
    from kstreams_assets.local.cluster import LocalCluster
    from spark_resources.resource import SparkSessionResource
    from tests.restore.after_commit import AfterCommit
    from tests.restore.order_run import OrderRun
    from tests.restore.verifying import Workplace
    from tests.restore.wide_run import WideRun


@pytest.fixture(scope="session")
def order_run(
    tmp_path_factory: pytest.TempPathFactory, spark: "SparkSessionResource"
) -> "OrderRun":
    """The order processor's run; its cluster is gone."""
    from tests.restore.order_run import run_order_processor

    return run_order_processor(tmp_path_factory.mktemp("order-run"), spark)


@pytest.fixture(scope="session")
def wide_run(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSessionResource") -> "WideRun":
    """WideApp's run; its cluster is gone."""
    from tests.restore.wide_run import run_wide_app

    return run_wide_app(tmp_path_factory.mktemp("wide-run"), spark)


@pytest.fixture(scope="session")
def second_cluster(kafka_cluster: "LocalCluster") -> "KafkaConnection":
    """Where restores go: the cluster of the session, which never saw the source runs."""
    from tests.streams.cluster import connection_to

    return connection_to(kafka_cluster.bootstrap_servers)


@pytest.fixture(scope="module")
def workplace(
    kafka_cluster: "LocalCluster",
    spark: "SparkSessionResource",
    tmp_path_factory: pytest.TempPathFactory,
) -> "Iterator[Workplace]":
    """The shared broker as target of restores."""
    from tests.restore.verifying import workplace_on

    with workplace_on(kafka_cluster, spark, tmp_path_factory.mktemp("backup")) as found:
        yield found


@pytest.fixture
def bench(kafka_cluster: "LocalCluster", tmp_path: Path) -> "Iterator[AfterCommit]":
    """An application on the shared broker that was restored a moment ago."""
    from tests.restore.after_commit import after_commit

    with after_commit(kafka_cluster.bootstrap_servers, tmp_path / "warehouse") as bench:
        yield bench
