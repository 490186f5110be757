"""Source runs that several modules restore from: each is made once.

What they need is imported when they are: most tests of this folder start nothing.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kstreams_assets.kafka.connection import KafkaConnection
    from kstreams_assets.local.cluster import LocalCluster
    from spark_resources.resource import SparkSessionResource
    from tests.restore.order_run import OrderRun
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
    from tests.restore.trial import connection_to

    return connection_to(kafka_cluster.bootstrap_servers)
