"""Drills of failures: each shows one scenario on a real application and records what it saw."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from spark_resources.resource import SparkSessionResource
from tests.failures.outcome import Outcome, load, save
from tests.failures.stage import Stage
from tests.restore.example_trial import ExampleTrial
from tests.streams.cluster import connection_to

Record = Callable[..., None]
"""Records what a drill saw: scenario, application, happens, checks, restores."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--record-failures`."""
    parser.addoption(
        "--record-failures",
        action="store_true",
        help="Write what the drills of failures saw to docs/operations/failures.",
    )


@pytest.fixture(autouse=True)
def spark_runs(spark: SparkSessionResource) -> None:
    """The start of the shared Spark session is no part of any drill's time."""
    spark.spark_session.range(1).count()


@pytest.fixture
def outcome(request: pytest.FixtureRequest, spark_runs: None) -> Record:
    """Ends every drill: what was seen must be what is recorded, or is recorded now."""
    began = time.monotonic()

    def record(
        scenario: str,
        application: str,
        *,
        happens: Mapping[str, str],
        checks: Mapping[str, str],
        restores: Mapping[str, str],
    ) -> None:
        seconds = round(time.monotonic() - began, 1)
        test = request.node.nodeid
        seen = Outcome(scenario, application, happens, checks, restores, test, seconds)
        if request.config.getoption("--record-failures", default=False):
            save(seen)
        assert seen.differences(load(scenario)) == []

    return record


@pytest.fixture
def stage_of(kafka_cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Makes an application of its own on the shared broker."""
    with KafkaCluster(connection_to(kafka_cluster.bootstrap_servers)) as cluster:

        def make(trial: ExampleTrial, **options: Any) -> Stage:
            return Stage.of(trial, cluster, tmp_path, **options)

        yield make
