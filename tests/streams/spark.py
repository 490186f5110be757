"""One engine for the tests of a process and the commands that they run."""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from spark_resources.engine import ENGINES_VARIABLE, engines, stop
from spark_resources.resource import SparkSessionResource
from spark_resources.settings import SparkSettings


def pytest_configure(config: pytest.Config) -> None:
    """Engines of this process alone: tests kill the workers of theirs."""
    os.environ[ENGINES_VARIABLE] = tempfile.mkdtemp(prefix="kstreams-engines-")
    os.environ["KSTREAMS_ASSETS_SPARK_MASTER"] = "local[2]"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop them."""
    for engine in engines():
        stop(engine)
    shutil.rmtree(os.environ[ENGINES_VARIABLE], ignore_errors=True)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSessionResource]:
    """The Spark session of all tests marked `spark`."""
    resource = SparkSessionResource(**SparkSettings.from_environment().model_dump())
    yield resource
    resource.stop()
