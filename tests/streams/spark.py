"""One Spark session for a whole test session: a JVM takes 6 s and more to start."""

from collections.abc import Iterator

import pytest

from spark_resources.resource import SparkSessionResource


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSessionResource]:
    """The Spark session of all tests marked `spark`."""
    resource = SparkSessionResource(master="local[2]")
    yield resource
    resource.stop()
